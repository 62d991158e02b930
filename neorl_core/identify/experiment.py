"""Which step of which action would identify a constant that the logs leave open."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from neorl_core.identify.estimate import IDENTIFIED, Posterior
from neorl_core.identify.forecast import Predict
from neorl_core.identify.unknowns import Unknown, constants, with_constants
from neorl_core.plants.base import clip_to
from neorl_core.types import Params, Plant

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Steps that are tried, both ways, as shares of an action's range."""


class StepTest(NamedTuple):
    """One action, moved once and then held."""

    unknown: str
    action: str
    unit: str
    change: float
    """By how much the action is moved, in its unit."""
    steps: int
    """For how many control steps."""
    deviation: float
    """Posterior deviation that is expected after it, as a share of the prior's."""
    margin: float
    """Least margin that is predicted on the way."""
    enough: bool
    """Whether the constant would then be identified."""

    def __str__(self) -> str:
        what = "would identify" if self.enough else "tells most of, but would not identify,"
        return (
            f"moving {self.action} by {self.change:+.3g} {self.unit} and holding it for {self.steps} steps {what} "
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
    """The least step (size times duration) that would identify a constant, by the forecast's sensitivities.

    (C^-1 + sum_t G_t' G_t)^-1, with C the posterior's covariance and G_t the slopes of the forecast t steps ahead in
    units of the errors that the logs have at the end of a segment, correlation and inflation included. Steps along
    which a margin is predicted below zero are left out; where none is enough, the one that tells most.

    Args:
        plant: the plant, which is at rest.
        unknowns: what was estimated.
        posterior: of one plant.
        unknown: which one is to be identified.
        observation: (O,), where the test begins; its state in full.
        longest: control steps of a test at most.

    Returns:
        The test, or None where every step is predicted to cross a limit.
    """
    space = plant.spec.action
    reach = np.asarray(space.high) - np.asarray(space.low)
    moves = np.asarray([share * sign for share in SHARES for sign in (1.0, -1.0)])
    changes = np.concatenate([moves[:, None] * row for row in np.diag(reach)])
    start = jnp.asarray(observation)
    held = clip_to(space, plant.applied(start) + jnp.asarray(changes, start.dtype))
    deviations, margins = jax.tree.map(
        np.asarray,
        expected(plant.predict, plant.params, tuple(unknowns), posterior, start, held, longest),
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
def expected(
    predict: Predict,
    params: Params,
    unknowns: tuple[Unknown, ...],
    posterior: Posterior,
    observation: Float[Array, " O"],
    actions: Float[Array, "N A"],
    steps: int,
) -> tuple[Float[Array, "N T P"], Float[Array, "N T"]]:
    """Posterior deviations after 1, 2, ... steps of each test, as shares of the prior's, and least margins.

    Args:
        predict: the plant's model of one step.
        params: its nominal constants.
        unknowns: what was estimated.
        posterior: of one plant.
        observation: (O,), where each test begins.
        actions: (N, A), held in each test.
        steps: T.
    """
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
