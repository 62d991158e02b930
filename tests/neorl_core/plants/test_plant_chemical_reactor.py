"""The reactor's feed concentration and NMPC (truth 1.1); other tests of the reactor are in test_plants.py."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.control.mpc import MPCParams
from neorl_core.plants import chemical_reactor as reactor
from neorl_core.plants.base import rollouts
from tests.conftest import Truth


@pytest.mark.slow
def test_nmpc_cost_on_tracking_task(truth: Truth) -> None:
    # Truth 1.1: horizon 17, no move penalty, no preview: cost 0.0798, IAE 0.236, T in [318.5, 327.9].
    controller = reactor.nmpc
    with jax.enable_x64(True):
        params = MPCParams(reactor.NOMINAL, (295.0,), (302.0,), (0.0,) * 4)
        start, observation = reactor.start(0.8, 330.0, 298.0, jnp.array([0.85, 0.9, 0.87]))

        def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
            state, observation, memory, applied = carry
            memory, action = controller.act(params, memory, observation, applied)
            state, now = reactor.step(jax.random.key(0), state, action, reactor.NOMINAL)
            return (state, now.observation, memory, action), now.observation

        carry = (start, observation, controller.init(params, observation), observation[2:3])
        seen = np.asarray(jax.jit(lambda: jax.lax.scan(step, carry, None, reactor.HORIZON)[1])())
    # The observation has the next set point; the last one stays.
    error = seen[:, 0] - seen[:, 3]
    for quantity, theirs, ours, allowed in (
        ("cost", 0.0798, (error**2).sum() / 0.3**2, 2e-4),
        ("integrated absolute error [mol/L]", 0.236, np.abs(error).sum(), 1e-3),
        ("lowest temperature [K]", 318.5, seen[:, 1].min(), 0.05),
        ("highest temperature [K]", 327.9, seen[:, 1].max(), 0.05),
    ):
        what = f"{quantity} of noise-free NMPC on the tracking task"
        truth(what, theirs, ours, allowed, "pc-gym 0.1.8")


@pytest.mark.slow
def test_nmpc_scores_100() -> None:
    plant = reactor.PLANT
    keys = jax.random.split(jax.random.key(1), 8)
    best = rollouts(plant, plant.reference, plant.reference_params, keys, plant.domain)
    assert not best.violated.any()
    # Over 1,000 episodes the standard deviation of an episode is 0.0052.
    assert best.ret.mean() == pytest.approx(plant.spec.score_range[1], abs=4 * 0.0052 / 8**0.5)


def test_feed_concentration_is_an_autoregression() -> None:
    rich = reactor.NOMINAL._replace(feed_concentration_sd=0.02, feed_sd=0.5, noise_sd=0.1)
    steady = rich._replace(feed_concentration_sd=0.0)
    reset = jax.jit(jax.vmap(reactor.reset, (0, None)))
    keys = jax.random.split(jax.random.key(0), 2000)
    with_it, without = (reset(keys, params)[0] for params in (rich, steady))
    drawn = np.asarray(with_it.feed_concentration_deviation)
    assert drawn.std() == pytest.approx(0.02, rel=0.07)
    assert np.abs(drawn).max() <= 0.06 * 1.00001
    # Without feed concentration deviations, all other draws are as in the certified task.
    for name in ("concentration", "temperature", "coolant", "setpoints", "feed_deviation"):
        np.testing.assert_array_equal(getattr(with_it, name), getattr(without, name))
    assert not np.asarray(without.feed_concentration_deviation).any()

    def step(state: reactor.State, key: jax.Array) -> tuple[reactor.State, jax.Array]:
        state, _ = reactor.step(key, state, jnp.array([299.0]), rich)
        return state, state.feed_concentration_deviation

    one = jax.tree.map(lambda x: x[0], with_it)
    run = jax.jit(lambda: jax.lax.scan(step, one, jax.random.split(jax.random.key(3), 20_000))[1])
    path = np.asarray(run())
    assert np.corrcoef(path[:-1], path[1:])[0, 1] == pytest.approx(np.exp(-26 / 60 / 5), abs=0.015)
    assert path.std() == pytest.approx(0.02, rel=0.1)


def test_richer_feed_raises_concentration() -> None:
    # dCa/dt = Cf − Ca − r: over a short time the concentration gains (Cf deviation) · t to first order.
    state, _ = reactor.start(0.87, 324.0, 300.0, jnp.array([0.87]))
    step = jax.jit(reactor.step)
    found = [
        step(
            jax.random.key(0),
            state._replace(feed_concentration_deviation=jnp.asarray(d)),
            jnp.array([300.0]),
            reactor.NOMINAL,
        )[0].concentration
        for d in (0.0, 0.05)
    ]
    fed = reactor.NOMINAL._replace(feed_concentration=1.05)
    exact = reactor.advance(jnp.array([0.87, 324.0]), jnp.asarray(300.0), jnp.asarray(0.0), fed)[0][0]
    assert float(found[1]) == pytest.approx(float(exact), rel=1e-6)
    # (1 − e^−t)/1 · 0.05 for t = 26/60, minus the additional reaction.
    assert 0.7 * 0.0176 < float(found[1] - found[0]) < 0.0176
