"""Checkpoints: bit-exact after a kill, whole or absent, and never another run's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from neorl_core.algorithms import TD3_BC
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import TrainState, init_population, make_train_chunk, members
from neorl_core.types import PlantSpec, Space, Transition
from tasks.models.bundles.checkpoints import Checkpoints, state_digest

IDENTITY = json.dumps({"config": {"hidden": [8], "critics": 2}, "dataset": "d0"})
SPEC = PlantSpec(
    name="toy",
    observation=Space(("x", "y"), ("m", "m"), (-9.0, -9.0), (9.0, 9.0)),
    action=Space(("u",), ("N",), (-1.0,), (1.0,)),
    constraints=(),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 1.0),
)


def fresh() -> TrainState:
    # After 20 gradients, a third of the next step has been accumulated.
    recipe = Recipe(clip=1.0, schedule="cosine", steps=99, accumulate=3)
    config = TD3_BC.Config(hidden=(8,), critic_recipe=recipe)
    return init_population(TD3_BC, SPEC, config, members([0, 1], {"alpha": [1.0, 2.0]}))


def data() -> Transition:
    rng = np.random.default_rng(0)
    x, u, r, x2 = (rng.normal(size=s).astype(np.float32) for s in ((64, 2), (64, 1), 64, (64, 2)))
    zeros = jnp.zeros(64)
    return Transition(jnp.asarray(x), jnp.tanh(u), jnp.asarray(r), zeros, jnp.asarray(x2), zeros)


def test_digest_sees_every_bit_and_is_reproducible() -> None:
    state = fresh()
    assert state_digest(state) == state_digest(fresh())
    kernel = np.asarray(state.learner.actor["Dense_0"]["kernel"]).copy()
    kernel[-1, -1, -1] = np.nextafter(kernel[-1, -1, -1], np.float32(9))
    altered = jax.tree.map(lambda x: x, state)
    altered.learner.actor["Dense_0"]["kernel"] = kernel
    assert state_digest(altered) != state_digest(state)


@pytest.mark.slow
def test_resuming_gives_the_bits_of_an_undisturbed_run(tmp_path: Path) -> None:
    step = make_train_chunk(TD3_BC, 20, 10, 16)
    undisturbed, _ = step(step(fresh(), data())[0], data())
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(20, step(fresh(), data())[0])
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        assert checkpoints.latest() == 20
        state = checkpoints.restore(fresh())
    resumed, _ = step(state, data())
    assert state_digest(resumed) == state_digest(undisturbed)
    assert jax.tree.structure(resumed) == jax.tree.structure(undisturbed)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, IDENTITY, keep=2) as checkpoints:
        for step in (2, 4, 6):
            checkpoints.save(step, {"x": jnp.float32(step)})
        assert checkpoints.latest() == 6
        assert checkpoints.restore({"x": jnp.float32(0)}, 4)["x"] == 4.0
        with pytest.raises(BadInput, match="step 2"):
            checkpoints.restore({"x": jnp.float32(0)}, 2)


def test_the_best_by_its_estimate_outlives_the_newest(tmp_path: Path) -> None:
    scores = {2: 0.5, 4: 3.0, 6: float("nan"), 8: None, 10: 2.0, 12: None}
    with Checkpoints(tmp_path, IDENTITY, keep=2) as checkpoints:
        assert checkpoints.best() is None
        for step, score in scores.items():
            checkpoints.save(step, {"x": jnp.float32(step)}, score)
    with Checkpoints(tmp_path, IDENTITY, keep=2) as checkpoints:
        assert (checkpoints.best(), checkpoints.latest()) == (4, 12)
        assert sorted(int(path.name) for path in (tmp_path / "steps").iterdir()) == [4, 10, 12]
        assert checkpoints.restore({"x": jnp.float32(0)}, 4)["x"] == 4.0


def test_another_run_is_refused_with_the_difference_named(tmp_path: Path) -> None:
    Checkpoints(tmp_path, IDENTITY).close()
    other = json.dumps({"config": {"hidden": [8], "critics": 4}, "dataset": "d0", "code": "c1"})
    with pytest.raises(Refused, match=r"code 'c1' \(checkpoint: 'absent'\), config.critics 4 \(checkpoint: 2\)"):
        Checkpoints(tmp_path, other)


def test_another_structure_and_altered_bytes_are_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        checkpoints.save(1, {"x": jnp.arange(256.0)})
        with pytest.raises(Refused, match="structure"):
            checkpoints.restore({"y": jnp.arange(256.0)})
        with pytest.raises(Refused, match="structure"):
            checkpoints.restore({"x": jnp.arange(255.0)})
        metadata = next((tmp_path / "steps" / "1").rglob("extra/metadata"))
        metadata.write_bytes(metadata.read_bytes().replace(b'"digest": "', b'"digest": "0'))
        with pytest.raises(Refused, match="altered"):
            checkpoints.restore({"x": jnp.arange(256.0)})


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        checkpoints.save(1, {"x": jnp.arange(256.0)})
        checkpoints.wait()
        for file in (tmp_path / "steps" / "1" / "state" / "d").iterdir():
            file.write_bytes(file.read_bytes()[:-40])
        for file in (tmp_path / "steps" / "1" / "state" / "ocdbt.process_0" / "d").iterdir():
            file.write_bytes(file.read_bytes()[:-40])
        with pytest.raises(Refused, match="delete"):
            checkpoints.restore({"x": jnp.arange(256.0)})


def test_a_failure_without_a_text_is_named_by_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError

    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        checkpoints.save(1, {"x": jnp.float32(1)})
        # It stands for Orbax, whose failures have all kinds of texts.
        monkeypatch.setattr(checkpoints._manager, "restore", fail)
        with pytest.raises(Refused, match="got 'KeyError': delete"):
            checkpoints.restore({"x": jnp.float32(0)})


def test_typed_keys_are_a_programming_error(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, IDENTITY) as checkpoints, pytest.raises(TypeError, match="typed key"):
        checkpoints.save(1, {"key": jax.random.key(0)})


WRITER = """
    import os, sys, resource, signal
    from pathlib import Path
    import jax.numpy as jnp, numpy as np
    from configs.errors import BadInput
    from tasks.models.bundles.checkpoints import Checkpoints
    mode, folder = sys.argv[1], Path(sys.argv[2])
    checkpoints = Checkpoints(folder, '{"run": 1}', keep=3)
    big = np.random.default_rng(0).normal(size=1_000_000)
    if mode == "full":
        checkpoints.save(1, {"x": big})
        checkpoints.wait()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
        try:
            checkpoints.save(2, {"x": big + 1})
            checkpoints.wait()
        except BadInput as error:
            print(error)
    else:
        for step in range(1, 10_000):
            checkpoints.save(step, {"x": big + step})
            print(step, flush=True)
"""


def start_writer(mode: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), mode, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4])


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_save_leaves_the_last_whole_one(tmp_path: Path) -> None:
    with start_writer("endless", tmp_path) as writer:
        assert writer.stdout is not None
        for _ in range(2):
            last = int(writer.stdout.readline())
        # The second save has begun, so that the first is on disk, wherever the kill lands.
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        last = max([last, *map(int, writer.stdout.read().split())])
    (tmp_path / "steps" / f"{last + 5}.orbax-checkpoint-tmp-7" / "state").mkdir(parents=True)
    with Checkpoints(tmp_path, '{"run": 1}', keep=3) as checkpoints:
        found = checkpoints.latest()
        assert found in (last - 1, last, last + 1)
        state = checkpoints.restore({"x": np.zeros(1_000_000)})
    np.testing.assert_array_equal(state["x"], np.random.default_rng(0).normal(size=1_000_000) + found)


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    with start_writer("full", tmp_path) as writer:
        output, _ = writer.communicate(timeout=120)
    assert "disk or quota is full" in output
    with Checkpoints(tmp_path, '{"run": 1}') as checkpoints:
        assert checkpoints.latest() == 1
