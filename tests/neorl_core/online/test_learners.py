"""Every learner in a simulator: the same bits after a resume, one program, and settings that differ between members."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.online import LEARNERS
from neorl_core.online.learner import Setting, observe, without_rows
from neorl_core.plants import PLANTS
from neorl_core.safety.shield import default_shield
from neorl_core.training.loop import RunState, schedule, train
from neorl_core.training.population import Algorithm, Member, init_population, make_train_chunk
from neorl_core.types import Plant
from tests.neorl_core.online.test_analytic_gradient import LINEAR, SHIFTED

FEW: dict[str, dict[str, Any]] = {
    "analytic_gradient": {"episodes": 4, "warm_up_updates": 2},
    "ppo": {"copies": 4, "steps": 8, "epochs": 2, "parts": 2, "hidden": (8,), "warm_up_updates": 2},
}
PUMPS = PLANTS["pumping_station"]
CASES = [
    *(pytest.param(name, plant, id=f"{name} {plant.spec.name}") for name in FEW for plant in (LINEAR, SHIFTED)),
    pytest.param("ppo", PUMPS, id="ppo pumping_station"),
]
"""Plants whose action, set points or choices a policy moves."""


def bound(name: str, plant: Plant) -> tuple[Algorithm, Any]:
    """Return a learner for a plant, and its settings."""
    config = LEARNERS[name].unbound.Config(**FEW[name])
    setting = Setting(plant, default_shield(plant.spec), observe(plant, jax.random.key(9)), config)
    return LEARNERS[name].bind(setting), config


def test_every_learner_is_tested() -> None:
    assert {*FEW} == {*LEARNERS}


@pytest.mark.parametrize(("name", "plant"), CASES)
def test_a_resumed_run_gives_the_same_bits(name: str, plant: Plant) -> None:
    learner, config = bound(name, plant)
    plan = schedule(6, 2, 1, config.warm_up_updates)

    def run(**how: Any) -> RunState:
        fresh = init_population(learner, plant.spec, config, [Member(0, 0, {})])
        return train(learner, fresh, without_rows(plant.spec), plan, 1, **how)

    stored: list[RunState] = []
    whole = run(report=lambda state, updates: stored.append(jax.tree.map(np.asarray, state)))
    assert [state.done for state in stored] == [0, 2, 4, 6]
    for begun in stored[1:3]:
        again = run(resume=lambda fresh, begun=begun: begun)
        for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("name", "plant"), CASES)
def test_chunks_share_one_program_and_members_differ(name: str, plant: Plant) -> None:
    learner, config = bound(name, plant)
    fresh = init_population(learner, plant.spec, config, [Member(i, i, {"margin": 2.0}) for i in range(2)])
    advance: Any = make_train_chunk(learner, 1, 1, 1)
    state = fresh
    for _ in range(3):
        state, metrics = advance(state, without_rows(plant.spec).at(0))
    assert advance._cache_size() == 1
    assert not np.array_equal(*metrics["score"])
    for leaf, same in zip(jax.tree.leaves(state.learner.shield), jax.tree.leaves(fresh.learner.shield), strict=True):
        np.testing.assert_array_equal(leaf, same)


def test_a_learner_without_a_plant_says_so() -> None:
    for name in LEARNERS:
        with pytest.raises(TypeError, match="this learner needs a plant"):
            LEARNERS[name].unbound.act(jnp.zeros(1), jnp.zeros(1))
