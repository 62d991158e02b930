"""Plants whose agents communicate over links: the plant does not change, and links fail at the stated rates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.control.behaviour import Behaviour, play
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.plants.linked import linked, linked_signals
from neorl_core.plants.power_grid import LINKS
from neorl_core.types import Plant

GRID = PLANTS["power_grid"]
SIZE = GRID.spec.observation.size
TALKING = linked(GRID, LINKS)


def _days(plant: Plant, count: int, domain: Any) -> Any:
    keys = jax.random.split(jax.random.key(3), count)
    params = jax.tree.map(np.float32, plant.fallback_params)
    return rollouts(plant, plant.fallback, params, keys, domain, trace=True)


def test_links_do_not_change_the_plant() -> None:
    plain, talking = _days(GRID, 4, GRID.domain), _days(TALKING, 4, TALKING.domain._replace(link_loss=0.5))
    np.testing.assert_array_equal(talking.ret, plain.ret)
    np.testing.assert_array_equal(talking.trajectory.observations[..., :SIZE], plain.trajectory.observations)
    flags = np.asarray(talking.trajectory.observations[..., SIZE:])
    assert set(np.unique(flags)) == {0.0, 1.0}
    x, action = talking.trajectory.observations[0, 40], talking.trajectory.actions[0, 40]
    following, margins = TALKING.predict(x, action, TALKING.params)
    own, reserve = GRID.predict(x[:SIZE], action, GRID.params)
    np.testing.assert_array_equal(following, jnp.append(own, x[SIZE:]))
    np.testing.assert_array_equal(margins, reserve)
    np.testing.assert_array_equal(TALKING.applied(x), GRID.applied(x[:SIZE]))


@pytest.mark.parametrize(("loss", "redraw"), [(0.3, 1.0), (0.6, 0.2)])
def test_links_fail_as_a_markov_chain(loss: float, redraw: float) -> None:
    """A two-state Markov chain with stationary share `loss` and correlation `1 - redraw` between steps."""
    params = TALKING.params._replace(link_loss=loss, link_redraw=redraw)
    reset = jax.jit(jax.vmap(TALKING.reset, (0, None)))(jax.random.split(jax.random.key(0), 64), params)[0]
    # The plant's own state is frozen, because drawing links needs no power flow.
    still = linked(GRID._replace(step=lambda key, state, action, params: (state, _STEP)), LINKS)

    def step(state: Any, key: jax.Array) -> Any:
        following, _ = still.step(key, state, jnp.zeros(17), params)
        return following, following.up

    keys = jax.random.split(jax.random.key(1), (64, 200))
    _, later = jax.vmap(lambda state, keys: jax.lax.scan(step, state, keys))(reset, keys)
    up = np.concatenate([np.asarray(reset.up)[:, None], np.asarray(later)], axis=1)
    assert 1 - up.mean() == pytest.approx(loss, abs=0.02)
    assert 1 - up[:, 0].mean() == pytest.approx(loss, abs=4 * (loss * (1 - loss) / 576) ** 0.5)
    assert np.corrcoef(up[:, 1:].ravel(), up[:, :-1].ravel())[0, 1] == pytest.approx(1 - redraw, abs=0.02)
    # Each link separately.
    assert np.abs(np.corrcoef(up.reshape(-1, len(LINKS)).T) - np.eye(len(LINKS))).max() < 0.1


_STEP = GRID.step(jax.random.key(0), GRID.reset(jax.random.key(0), GRID.params)[0], jnp.zeros(17), GRID.params)[1]


def test_loss_per_link_and_per_day() -> None:
    single = np.eye(len(LINKS), dtype=np.float32)[4]
    flags = np.asarray(_days(TALKING, 2, TALKING.domain._replace(link_loss=single)).trajectory.observations[..., SIZE:])
    np.testing.assert_array_equal(flags, np.broadcast_to(1 - single, flags.shape))
    fixed = TALKING.domain._replace(link_loss=0.5, link_redraw=0.0)
    flags = np.asarray(_days(TALKING, 8, fixed).trajectory.observations[..., SIZE:])
    np.testing.assert_array_equal(flags, np.broadcast_to(flags[:, :1], flags.shape))
    assert 0.2 < flags.mean() < 0.8


def test_agent_observes_flags_of_its_links() -> None:
    names = TALKING.spec.observation.names
    for agent, before in zip(TALKING.agents, GRID.agents, strict=True):
        assert agent.observation[: len(before.observation)] == before.observation
        told = [names[k] for k in agent.observation[len(before.observation) :]]
        assert told == [f"link_{a}_{b}" for a, b in LINKS if agent.name in (a, b)]
    # Agents stay connected when any single link is lost.
    for lost in LINKS:
        reached = {"dispatcher"}
        for _ in GRID.agents:
            reached |= {x for link in LINKS if link != lost and reached & set(link) for x in link}
        assert reached == {agent.name for agent in GRID.agents}


def test_linked_logs_use_plant_formulas() -> None:
    logged = linked_signals(LOGGED["power_grid"], SIZE)
    keys = jax.random.split(jax.random.key(2), 2)
    noisy = Behaviour(*(jnp.full(2, x, jnp.float32) for x in (0.0, 0.0, 0.1)))
    day = play(TALKING, TALKING.fallback, TALKING.fallback_params, noisy, keys, trace=True).trajectory
    assert day is not None
    own = LOGGED["power_grid"]
    seen, after = day.observations[..., :SIZE], day.next_observations[..., :SIZE]
    np.testing.assert_array_equal(
        logged.reward(day.observations, day.actions, day.next_observations), own.reward(seen, day.actions, after)
    )
    np.testing.assert_array_equal(logged.margins(day.next_observations), own.margins(after))


def test_episode_resumes_from_observation() -> None:
    state, observation = TALKING.reset(jax.random.key(1), TALKING.params)
    assert TALKING.resume is not None
    again, params = TALKING.resume(jax.random.key(2), state, observation.at[-1].set(0.0), TALKING.params)
    np.testing.assert_array_equal(again.up, observation[SIZE:].at[-1].set(0.0))
    assert jax.tree.structure(params) == jax.tree.structure(TALKING.params)


def test_plant_without_agents_is_rejected() -> None:
    with pytest.raises(ValueError, match="several agents, but double_mass has none"):
        linked(PLANTS["double_mass"], ())
