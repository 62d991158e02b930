"""Several devices and processes give the numbers of one, with the work divided."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from neorl_core.algorithms import TD3_BC
from neorl_core.fit import FitResult, fit
from neorl_core.training.population import init_population, make_train_chunk, members
from neorl_core.training.precision import mixed_precision
from neorl_core.training.preparation import prepare
from neorl_core.training.sharding import mesh_of
from tests.neorl_core.training.test_fit import SPEC, logged
from tests.servers import free_port

SETTINGS: dict[str, Any] = {"updates": 8, "overrides": {"hidden": [8]}, "batch_size": 16, "chunk": 4}
TOLERANCE = 1e-5
"""Tolerance for another order of summation over 8 updates, with weights of order one."""

PREAMBLE = """
import json, sys
import jax
import numpy as np
from tests.neorl_core.training.test_fit import SPEC, logged
from tests.neorl_core.training.test_sharding import SETTINGS, TOLERANCE, numbers
from neorl_core.fit import fit
from neorl_core.training.sharding import mesh_of, replicate, shard_batches, shard_members
"""

FOUR = """
from neorl_core.algorithms import BC
from neorl_core.training.population import init_population, make_train_chunk, members
from neorl_core.training.preparation import prepare

assert jax.device_count() == 4
one = fit(logged(), SPEC, "bc", seeds=[0, 1], **SETTINGS)
mesh = mesh_of(2, 16)
assert mesh.devices.shape == (2, 2)
four = fit(logged(), SPEC, "bc", seeds=[0, 1], mesh=mesh, **SETTINGS)
np.testing.assert_allclose(numbers(four), numbers(one), rtol=TOLERANCE, atol=TOLERANCE)
fresh = shard_members(mesh, init_population(BC, SPEC, BC.Config(hidden=(8,)), members([0, 1], {})))
data = replicate(mesh, prepare(logged(), SPEC)[1])
program = make_train_chunk(shard_batches(BC, mesh), 4, 1, 16).lower(fresh, data).compile().as_text()
# Each device has half of the batch of one member; gradients are summed over the devices of a member.
assert "all-reduce" in program
assert "f32[1,8,2]" in program or "f32[8,2]" in program
assert "16,2]" not in program, "a whole batch on one device"
print(json.dumps("divided"))
"""

TWO = """
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
devices = jax.devices()
assert jax.process_count() == 2 and len(devices) == 4
# Each member uses both processes, so members are gathered and gradients summed across processes.
mesh = mesh_of(2, 16, devices[::2] + devices[1::2])
print(json.dumps(numbers(fit(logged(), SPEC, "bc", seeds=[0, 1], mesh=mesh, **SETTINGS)).tolist()))
"""


def numbers(found: FitResult) -> np.ndarray:
    """All weights and points of the curves."""
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves((found.policies, found.curves))])


def start(script: str, devices: int, *words: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", PREAMBLE + script, *words]
    where = Path(__file__).parents[3]
    return subprocess.Popen(
        command, cwd=where, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def answer(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_four_devices_equal_one() -> None:
    assert answer(start(FOUR, 4)) == "divided"


@pytest.mark.slow
def test_two_processes_equal_one() -> None:
    address = f"127.0.0.1:{free_port()}"
    processes = [start(TWO, 2, address, str(i)) for i in range(2)]
    first, second = map(answer, processes)
    assert first == second
    alone = fit(logged(), SPEC, "bc", seeds=[0, 1], **SETTINGS)
    np.testing.assert_allclose(first, numbers(alone), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.slow
def test_mixed_precision_uses_bf16_products() -> None:
    """Check the request to XLA; CPUs compute such products in float32."""
    algorithm, (_, data) = TD3_BC, prepare(logged(), SPEC)
    fresh = init_population(algorithm, SPEC, algorithm.Config(hidden=(8,)), members([0], {}))
    lowered = {a: make_train_chunk(a, 2, 2, 4).lower(fresh, data) for a in (algorithm, mixed_precision(algorithm))}  # type: ignore[attr-defined]
    plain, reduced = (
        [line for line in text.as_text().splitlines() if "dot_general" in line] for text in lowered.values()
    )
    asked = "lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32"
    assert len(plain) == len(reduced) > 10
    assert not any("precision_type" in line for line in plain)
    assert all(asked in line and line.count("xf32>") == 3 for line in reduced)
    assert mixed_precision(algorithm) is mixed_precision(algorithm), "every call would compile again"


def test_indivisible_batches_are_rejected() -> None:
    devices = jax.devices() * 4
    assert mesh_of(8, 15, devices).devices.shape == (4, 1)
    assert mesh_of(6, 16, devices).devices.shape == (2, 2)
    with pytest.raises(ValueError, match=r"3 member\(s\) and batches of 15 cannot be divided evenly among 4"):
        mesh_of(3, 15, devices)
