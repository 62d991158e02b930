"""The search against an optimum in closed form, and against rollouts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.control.lqr import LinearParams, saturated_linear
from neorl_core.control.search import Effort, Space, objective, play, search
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, Timestep
from neorl_core.types import Space as Signals

SPEC = PlantSpec(
    name="bowl",
    observation=Signals(("x",), ("1",), (-9.0,), (9.0,)),
    action=Signals(("u", "v"), ("1", "1"), (-9.0, -9.0), (9.0, 9.0)),
    constraints=(Constraint("u", "1", -2.0, 2.0),),
    dt=1.0,
    time_unit="s",
    horizon=1,
    score_range=(-100.0, 0.0),
)


def _step(key: jax.Array, state: jax.Array, action: jax.Array, params: tuple[()]) -> tuple[jax.Array, Timestep]:
    """−(u − 3)² − 10 (v − 0.01)², with noise that is the same for all candidates; u is limited at 2."""
    u, v = action
    reward = -((u - 3.0) ** 2) - 10.0 * (100.0 * v - 1.0) ** 2 + 5.0 * jax.random.normal(key)
    end = jnp.asarray(True)
    return state, Timestep(state, reward, (2.0 - u)[None], jnp.asarray(False), end)


BOWL = Plant(
    spec=SPEC,
    params=(),
    domain=(),
    sample_params=lambda key, domain: (),
    reset=lambda key, params: (jnp.zeros(1), jnp.zeros(1)),
    step=_step,
    predict=lambda observation, action, params: (observation, jnp.ones(1)),
    applied=lambda observation: jnp.zeros(2),
    fallback=Controller(lambda params, observation: (), lambda params, state, observation, applied: (state, params)),
    fallback_params=(0.0, 0.0),
)
SPACE = Space(("u", "v"), (-5.0, 1e-4), (5.0, 1.0), lambda z: z)


def test_search_finds_best_within_limit() -> None:
    # Without the limit u = 3; with it u = 2 is the best without violation, and v = 0.01 on a logarithmic scale.
    effort = Effort(starts=200, episodes=4, finalists=8, rounds=20, draws=64, draw_episodes=4, fresh=64)
    best = search(BOWL, BOWL.fallback, SPACE, jax.random.key(0), effort)
    assert not best.violated.any()
    np.testing.assert_allclose(best.numbers, [2.0, 0.01], rtol=0.1)
    assert best.numbers[0] <= 2.0
    # Judged on fresh episodes, without the noise of the rounds.
    noise = best.returns - (-((best.numbers[0] - 3) ** 2) - 10 * (100 * best.numbers[1] - 1) ** 2)
    assert noise.std() == pytest.approx(5.0, rel=0.3)
    # A search around given numbers starts there, and is reproducible.
    again = [search(BOWL, BOWL.fallback, SPACE, jax.random.key(1), effort, around=(1.5, 0.02)) for _ in range(2)]
    np.testing.assert_allclose(again[0].numbers, [2.0, 0.01], rtol=0.1)
    np.testing.assert_array_equal(again[0].numbers, again[1].numbers)


def test_numbers_and_places_are_inverse() -> None:
    space = Space(("linear", "geometric", "negative"), (-5.0, 1e-4, -400.0), (5.0, 1.0, -4.0), lambda z: z)
    np.testing.assert_allclose(space.numbers([[0.0] * 3, [0.5] * 3, [1.0] * 3])[1], [0.0, 1e-2, -40.0])
    np.testing.assert_allclose(space.numbers([0.0] * 3), space.low)
    np.testing.assert_allclose(space.place(space.numbers([0.2, 0.7, 0.9])), [0.2, 0.7, 0.9])


def test_objective_penalises_violations_and_nan() -> None:
    returns, violated = np.full((3, 1000), -50.0), np.zeros((3, 1000), bool)
    violated[1, 0], returns[2, 5] = True, np.nan
    assert objective(BOWL, returns, violated).tolist() == [50.0, 40.0, -np.inf]


def test_search_episodes_equal_rollouts() -> None:
    plant, law = PLANTS["double_mass"], PLANTS["double_mass"].fallback_params
    space = Space(("scale",), (0.0,), (1.0,), lambda z: LinearParams(z * jnp.asarray(law.gain), *law[1:]))
    keys = jax.random.split(jax.random.key(3), 9)
    returns, violated = play(plant, saturated_linear, space, [[0.0], [1.0]], keys)
    theirs = rollouts(plant, saturated_linear, law, keys, plant.domain)
    np.testing.assert_allclose(returns[1], theirs.ret, rtol=1e-5)
    np.testing.assert_array_equal(violated[1], theirs.violated)
    assert returns[0].mean() < returns[1].mean()
