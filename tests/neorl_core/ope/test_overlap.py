"""How far a policy acts from what was logged, where the logged controller is known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from neorl_core.ope.fqe import Decisions, LoggedSteps
from neorl_core.ope.overlap import departure

KEY = jax.random.key(0)
MIXED = np.array([[0.3, 0.0], [0.24, 0.1]])
"""Of the noise, whose two parts go together: their deviations are .3 and .26."""


def logged(seed: int = 0) -> tuple[LoggedSteps, npt.NDArray[np.float64]]:
    """Steps of a controller that is a hinge of its observation plus noise, and its mean at the next observations."""
    rng = np.random.default_rng(seed)
    now, after = rng.normal(size=(2, 6_000, 3))

    def mean(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.stack([0.3 * np.maximum(x[:, 0], 0.0), -0.2 * x[:, 1]], axis=1)

    action = mean(now) + rng.normal(size=(6_000, 2)) @ MIXED.T
    zero = jnp.zeros(6_000)
    starts = jnp.arange(0, 6_000, 100)
    rows = (jnp.asarray(x, jnp.float32) for x in (now, action))
    following = jnp.asarray(after, jnp.float32)
    steps = LoggedSteps(*rows, zero, zero, following, zero, jnp.arange(6_000) // 100, starts)
    return steps, mean(after)


def decided(action: npt.NDArray[np.float64]) -> Decisions:
    return Decisions(jnp.asarray(action, jnp.float32), jnp.zeros((60, 2)))


def test_the_controller_itself_departs_as_normal_noise_does_and_its_clone_not_at_all() -> None:
    steps, mean = logged()
    noise = np.random.default_rng(1).normal(size=mean.shape) @ MIXED.T
    # The squared length of two independent standard normals is chi-squared; LEAST_SPREAD takes a little off.
    assert float(departure(KEY, steps, decided(mean + noise))) == pytest.approx(np.sqrt(chi2.median(2) / 2), rel=0.05)
    assert float(departure(KEY, steps, decided(mean))) < 0.1


def test_a_departure_counts_in_the_directions_in_which_logged_actions_spread() -> None:
    steps, mean = logged()
    spread = MIXED @ MIXED.T
    for away in (np.array([0.3, 0.24]), np.array([0.3, -0.24])):
        expected = np.sqrt(away @ np.linalg.solve(spread, away) / 2)
        # Against the grain of the noise the same two moves are five times as far as along it.
        assert float(departure(KEY, steps, decided(mean + away))) == pytest.approx(expected, rel=0.08)


def test_a_controller_that_never_varies_supports_nothing_else() -> None:
    steps, mean = logged()
    still = steps._replace(action=jnp.zeros_like(steps.action))
    assert float(departure(KEY, still, decided(0.0 * mean))) < 0.1
    # Worked by hand: .1 away in both, beside a least spread of .02.
    assert float(departure(KEY, still, decided(0.0 * mean + 0.1))) == pytest.approx(5.0, rel=0.01)


def test_rows_without_a_next_observation_do_not_count() -> None:
    steps, mean = logged()
    ends = jnp.arange(6_000) % 100 == 99
    cut = steps._replace(
        terminated=ends.astype(jnp.float32),
        next_observation=jnp.where(ends[:, None], jnp.nan, steps.next_observation),
    )
    found = departure(KEY, cut, decided(np.where(np.asarray(ends)[:, None], np.nan, mean + 0.3)))
    assert float(found) == pytest.approx(float(departure(KEY, steps, decided(mean + 0.3))), rel=0.05)


def test_where_every_step_ends_its_episode_the_first_ones_are_all_there_is() -> None:
    steps, _ = logged()
    single = steps._replace(
        terminated=jnp.ones(6_000),
        episode=jnp.arange(6_000),
        starts=jnp.arange(6_000),
        next_observation=jnp.nan * steps.observation,
    )
    now = np.asarray(steps.observation, np.float64)
    mean = np.stack([0.3 * np.maximum(now[:, 0], 0.0), -0.2 * now[:, 1]], axis=1)
    for away in (0.0, 0.3):
        acts = Decisions(jnp.full((6_000, 2), jnp.nan), jnp.asarray(mean + away, jnp.float32))
        expected = away * np.sqrt(np.ones(2) @ np.linalg.solve(MIXED @ MIXED.T, np.ones(2)) / 2)
        assert float(departure(KEY, single, acts)) == pytest.approx(expected, rel=0.08, abs=0.1)
