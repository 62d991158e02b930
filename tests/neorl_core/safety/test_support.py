"""The shield of log-only plants: limits for all inputs, and hand-over outside the support of the data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array

from neorl_core.control.fallbacks import Hold
from neorl_core.safety.composite import Composite, composite_controller
from neorl_core.safety.support import SupportShield, choose_references, conformal_quantile, support_score
from neorl_core.types import PlantSpec, Process, Space

SPEC = PlantSpec(
    name="vessel",
    observation=Space(("level", "flow"), ("m", "l/s"), (-np.inf, -np.inf), (np.inf, np.inf)),
    action=Space(("valve", "pump"), ("1", "1"), (0.0, -2.0), (1.0, 2.0)),
    constraints=(),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 100.0),
)


def shield(**changes: Any) -> SupportShield:
    """One logged step, at observation (0, 0) and action (0.5, 0)."""
    found = SupportShield(
        action_low=jnp.asarray([0.0, -2.0]),
        action_high=jnp.asarray([1.0, 2.0]),
        rate_limit=jnp.asarray([0.1, 0.5]),
        rest=jnp.asarray([0.5, 0.0]),
        hold=jnp.asarray(2, jnp.int32),
        observation_low=jnp.asarray([-3.0, -3.0]),
        observation_high=jnp.asarray([3.0, 3.0]),
        centre=jnp.asarray([0.0, 0.0, 0.5, 0.0]),
        scale=jnp.asarray([1.0, 1.0, 1.0, 1.0]),
        references=jnp.zeros((1, 4)),
        radius=jnp.asarray(1.0),
        return_radius=jnp.asarray(0.5),
    )
    return found._replace(**changes)


def composite(policy: Any = None, **changes: Any) -> Composite:
    toward = Hold(jnp.asarray([0.0, 0.0]), jnp.asarray([0.05, 0.05]))
    return Composite(jnp.asarray([0.5, 0.0]) if policy is None else policy, shield(**changes), toward, ())


def constant(policy: Array, observation: Array) -> Array:
    return policy


ACT = composite_controller(Process(SPEC), constant)
STEP = jax.jit(ACT.act)
ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=300)
@given(st.tuples(ANY, ANY), st.tuples(ANY, ANY), st.lists(st.tuples(ANY, ANY), min_size=1, max_size=4))
def test_actions_keep_bounds_and_rates(
    asked: tuple[float, float], applied: tuple[float, float], rows: list[tuple[float, float]]
) -> None:
    whole = composite(jnp.asarray(asked, jnp.float32))
    state = ACT.init(whole, jnp.asarray(rows[0], jnp.float32))
    before = jnp.asarray(applied, jnp.float32)
    low, high, rate = (np.asarray(x) for x in whole.shield[:3])
    for row in rows:
        last = np.asarray(state.action)
        state, action = STEP(whole, state, jnp.asarray(row, jnp.float32), before)
        found, given_ = np.asarray(action), np.asarray(before)
        # Impossible applied actions count as the nearest possible, unknown ones as the last returned action.
        in_force = np.clip(np.where(np.isfinite(given_), given_, last), low, high)
        assert np.all((found >= low) & (found <= high))
        assert np.all(np.abs(found - in_force) <= rate + 1e-6)
        before = action


def test_score_by_hand() -> None:
    # (0.6, 0, 0.9, 0) differs from the logged step by (0.6, 0, 0.4, 0): sqrt((0.36 + 0.16) / 4).
    found = support_score(shield(), jnp.asarray([0.6, 0.0]), jnp.asarray([0.9, 0.0]))
    assert np.isclose(found, np.sqrt(0.52 / 4))


@pytest.mark.parametrize(
    ("observation", "trusted"),
    [((0.0, 0.0), True), ((1.9, 0.0), True), ((2.1, 0.0), False), ((0.0, -3.1), False)],
    ids=["logged", "near", "far", "outside the envelope"],
)
def test_fallback_acts_outside_support(observation: tuple[float, float], trusted: bool) -> None:
    # With constant actions the score is |observation| / 2, and the radius is 1.
    seen, applied = jnp.asarray(observation), jnp.asarray([0.5, 0.0])
    state, action = ACT.act(composite(), ACT.init(composite(), seen), seen, applied)
    assert bool(state.handed_over) is not trusted
    np.testing.assert_allclose(action, [0.5, 0.0] if trusted else [0.45, 0.0], atol=1e-6)


def test_unlogged_action_hands_over() -> None:
    wide = composite(jnp.asarray([1.0, 2.0]), rate_limit=jnp.asarray([9.0, 9.0]), radius=jnp.asarray(0.9))
    state, _ = ACT.act(wide, ACT.init(wide, jnp.zeros(2)), jnp.zeros(2), jnp.asarray([0.5, 0.0]))
    assert bool(state.handed_over)


def test_policy_returns_after_hold_inside_return_radius() -> None:
    applied, whole = jnp.asarray([0.5, 0.0]), composite()
    state = ACT.init(whole, jnp.zeros(2))
    told = []
    for level in (2.5, 1.5, 1.5, 0.5, 0.5):
        state, _ = ACT.act(whole, state, jnp.asarray([level, 0.0]), applied)
        told.append(bool(state.handed_over))
    # 1.5 scores 0.75: inside, but not within the return radius of 0.5.
    assert told == [True, True, True, False, False]


def test_references_cover_rare_rows() -> None:
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.normal(0, 0.1, (2000, 2)), [[5.0, 5.0]]]).astype(np.float32)
    chosen = np.asarray(choose_references(jax.random.key(0), jnp.asarray(points), 8))
    assert 2000 in chosen
    assert len(set(chosen.tolist())) == 8
    # Gonzalez: every point is within the distance at which the next one would have been chosen.
    distances = np.linalg.norm(points[:, None] - points[chosen][None], axis=-1).min(axis=1)
    apart = np.linalg.norm(points[chosen][:, None] - points[chosen][None], axis=-1) + 1e9 * np.eye(8)
    assert distances.max() <= apart.min() + 1e-6


def test_calibrated_radius_covers_further_rows() -> None:
    """Exact: a further exchangeable score is inside with probability `ceil((n + 1) q) / (n + 1)`."""
    rng = np.random.default_rng(2)
    n, share, trials = 39, 0.9, 20_000
    scores = rng.exponential(size=(trials, n + 1))
    radius = np.asarray([conformal_quantile(row[:n], share) for row in scores])
    covered = np.mean(scores[:, n] <= radius)
    assert abs(covered - 36 / 40) < 4 * np.sqrt(0.09 / trials)
    assert conformal_quantile([1.0, 2.0], 0.9) == np.inf
