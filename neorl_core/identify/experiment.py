"""Step tests: find a change of one action that would identify a constant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from neorl_core.control.mpc import Predict
from neorl_core.identify.estimate import IDENTIFIED, Posterior
from neorl_core.identify.unknowns import Unknown, constants, with_constants
from neorl_core.plants.base import clip_to
from neorl_core.types import Params, Plant

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Step sizes tried in both directions, as shares of an action's range."""


class StepTest(NamedTuple):
    """A step test: one action changes once, then all actions stay constant."""

    unknown: str
    action: str
    unit: str
    change: float
    """Size of the step, in the action's unit."""
    steps: int
    """Duration in control steps."""
    deviation: float
    """Expected posterior deviation after the test, as a share of the prior's."""
    margin: float
    """Smallest predicted margin during the test."""
    enough: bool
    """Whether the test would identify the constant."""

    def __str__(self) -> str:
        result = "would identify" if self.enough else "is the most informative, but would not identify,"
        return (
            f"moving {self.action} by {self.change:+.3g} {self.unit} and holding it for {self.steps} steps {result} "
            f"{self.unknown} (posterior {self.deviation:.2f} of the prior, least margin {self.margin:.3g})"
        )


def step_test(
    plant: Plant,
    unknowns: Sequence[Unknown],
    posterior: Posterior,
    unknown: int,
    observation: Float[Array, " O"],
    longest: int = 60,
) -> StepTest | None:
    """Find the step test with the smallest size times duration that would identify a constant.

    The posterior covariance after the test is (C^-1 + sum_t G_t' G_t)^-1. C is the present covariance. G_t are the
    slopes of the forecast t steps ahead, divided by the standard deviation of the errors at the end of a segment. Step
    tests with a predicted violation are left out. If no step test suffices, return the most informative one.

    Args:
        plant: the plant, at rest.
        unknown: index of the constant to identify.
        observation: (O,), the full state at the start of the test.
        longest: maximum duration in control steps.

    Returns:
        The step test, or None if a violation is predicted for every step test.
    """
    space = plant.spec.action
    reach = np.asarray(space.high) - np.asarray(space.low)
    moves = np.asarray([share * sign for share in SHARES for sign in (1.0, -1.0)])
    changes = np.concatenate([moves[:, None] * row for row in np.diag(reach)])
    start = jnp.asarray(observation)
    held = clip_to(space, plant.applied(start) + jnp.asarray(changes, start.dtype))
    deviations, margins = jax.tree.map(
        np.asarray,
        expected_deviations(plant.predict, plant.params, tuple(unknowns), posterior, start, held, longest),
    )
    after = np.where(np.minimum.accumulate(margins, axis=1) >= 0, deviations[..., unknown], np.inf)
    if not np.isfinite(after).any():
        return None
    size = np.abs(changes / reach).sum(axis=1)[:, None] * np.arange(1, longest + 1)
    enough = after <= IDENTIFIED
    best = np.argmin(np.where(enough, size, np.inf)) if enough.any() else np.argmin(after)
    row, last = np.unravel_index(best, after.shape)
    which = int(row) // len(moves)
    return StepTest(
        unknown=str(unknowns[unknown]),
        action=space.names[which],
        unit=space.units[which],
        change=float(held[row, which] - plant.applied(start)[which]),
        steps=int(last) + 1,
        deviation=float(after[row, last]),
        margin=float(margins[row, : last + 1].min()),
        enough=bool(enough.any()),
    )


@partial(jax.jit, static_argnames=("predict", "unknowns", "steps"))
def expected_deviations(
    predict: Predict,
    params: Params,
    unknowns: tuple[Unknown, ...],
    posterior: Posterior,
    observation: Float[Array, " O"],
    actions: Float[Array, "N A"],
    steps: int,
) -> tuple[Float[Array, "N T P"], Float[Array, "N T"]]:
    """Return posterior deviations, as shares of the prior's, and smallest margins after 1 to T steps of N actions."""
    noise = posterior.noise
    turn = noise.whitening / (noise.deviation[-1][:, None] * jnp.sqrt(noise.inflation)[None, :])

    def run(x: Float[Array, " P"], action: Float[Array, " A"]) -> tuple[Float[Array, "T O"], Float[Array, " T"]]:
        now = with_constants(params, unknowns, constants(posterior.prior, unknowns, x))

        def step(state: Float[Array, " O"], _: None) -> tuple[Float[Array, " O"], tuple[Array, Array]]:
            following, margins = predict(state, action, now)
            return following, (following, jnp.min(margins))

        forecasts, margins = jax.lax.scan(step, observation, length=steps)[1]
        return forecasts, margins

    def test(action: Float[Array, " A"]) -> tuple[Float[Array, "T P"], Float[Array, " T"]]:
        slopes, margins = jax.jacfwd(lambda x: run(x, action), has_aux=True)(posterior.mean)
        turned = jnp.einsum("top,oi->tip", slopes, turn)
        gained = jnp.cumsum(jnp.einsum("tip,tiq->tpq", turned, turned), axis=0)
        after = jnp.linalg.inv(jnp.linalg.inv(posterior.covariance) + gained)
        return jnp.sqrt(jnp.diagonal(after, axis1=-2, axis2=-1)), margins

    return jax.vmap(test)(actions)
