"""Episodes have the same bits on one core as on several: evidence is checked on other machines than it was made on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PLAYED = """
import configs
import hashlib, jax, numpy
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
plant = PLANTS["water_treatment"]
keys = jax.random.split(jax.random.key(3), 256)
found = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain).ret
print(hashlib.sha256(numpy.asarray(found).tobytes()).hexdigest())
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system tells no process's cores")
def test_episodes_are_the_same_to_the_last_bit_on_one_core_as_on_all() -> None:
    every = os.sched_getaffinity(0)
    if len(every) == 1:
        pytest.skip("this machine lets this process use one core")
    environment = {name: value for name, value in os.environ.items() if name not in ("PJRT_NPROC", "NPROC")}

    def played(cores: set[int], **told: str) -> str:
        code = f"import os\nos.sched_setaffinity(0, {cores})\n{PLAYED}"
        started = [sys.executable, "-c", code]
        return subprocess.run(started, capture_output=True, text=True, check=True, env=environment | told).stdout

    # JAX counts threads by NPROC, too, which build systems set.
    assert played({min(every)}) == played(every) == played(every, NPROC="1")
