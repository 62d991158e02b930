"""A shield for log-only plants: action bounds, rate limits, and hand-over outside the support of the logs.

Without a simulator, the shield cannot predict, so it checks whether the logs contain a similar step.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

REFERENCES = 512
"""Number of logged steps to compare with."""


class SupportShield(NamedTuple):
    """Limits of a policy without a simulator, as arrays, so that a digest covers them."""

    action_low: Float[Array, " A"]
    action_high: Float[Array, " A"]
    rate_limit: Float[Array, " A"]
    """Largest change of the applied action in one step, in the action's units."""
    rest: Float[Array, " A"]
    """Action that is assumed to be in force if the applied action is unknown."""
    hold: Int[Array, ""]
    """Smallest number of steps of a hand-over."""
    observation_low: Float[Array, " O"]
    """Lower ends of the envelope, the range of observations in which the policy is trusted."""
    observation_high: Float[Array, " O"]
    centre: Float[Array, " D"]
    scale: Float[Array, " D"]
    """Mean and standard deviation that scale observations and actions, D = O + A."""
    references: Float[Array, "P D"]
    """Scaled logged steps."""
    radius: Float[Array, ""]
    """Largest score inside the support."""
    return_radius: Float[Array, ""]
    """Largest score at which the policy regains control."""

    @property
    def dwell(self) -> None:
        """None, because actions of log-only plants are continuous."""
        return None


def support_score(
    shield: SupportShield, observation: Float[Array, " O"], action: Float[Array, " A"]
) -> Float[Array, ""]:
    """Return the distance of a step to the nearest logged step."""
    return distance(shield.references, (jnp.concatenate([observation, action]) - shield.centre) / shield.scale)


def distance(references: Float[Array, "P D"], z: Float[Array, " D"]) -> Float[Array, ""]:
    """Return the distance of a scaled step to the nearest reference z_p: `min_p |z - z_p| / sqrt(D)`."""
    squares = jnp.sum((references - z) ** 2, axis=-1)
    return jnp.sqrt(jnp.min(squares) / z.shape[0])


def inside_support(
    shield: SupportShield, observation: Float[Array, " O"], action: Float[Array, " A"], radius: Float[Array, ""]
) -> Bool[Array, ""]:
    """Return whether observation and action are inside the envelope and near logged steps; false for NaN."""
    enclosed = jnp.all((observation >= shield.observation_low) & (observation <= shield.observation_high))
    return enclosed & (support_score(shield, observation, action) <= radius)


@partial(jax.jit, static_argnames="count")
def choose_references(key: PRNGKeyArray, points: Float[Array, "N D"], count: int) -> Int[Array, " P"]:
    """Choose rows that cover the data: first a random row, then always the row farthest from all chosen rows.

    A random sample would omit rare states, and the shield would hand over in these states (Gonzalez 1985, Clustering to
    minimize the maximum intercluster distance, Theoretical Computer Science 38).

    Args:
        points: (N, D), scaled.
        count: number P of rows.
    """
    first = jax.random.randint(key, (), 0, points.shape[0])

    def step(
        carry: tuple[Float[Array, " N"], Int[Array, ""]], _: None
    ) -> tuple[tuple[Float[Array, " N"], Int[Array, ""]], Int[Array, ""]]:
        nearest, last = carry
        nearest = jnp.minimum(nearest, jnp.sum((points - points[last]) ** 2, axis=-1))
        return (nearest, jnp.argmax(nearest)), last

    start = (jnp.full(points.shape[0], jnp.inf, points.dtype), first)
    return jax.lax.scan(step, start, None, length=count)[1]


def conformal_quantile(scores: npt.ArrayLike, share: float) -> float:
    """Return a threshold that a new, exchangeable score exceeds with probability at most `1 - share`.

    The threshold is the `ceil((n + 1) share)`-th smallest of n scores; infinite if n is too small (Vovk, Gammerman and
    Shafer 2005, Algorithmic Learning in a Random World).

    Args:
        scores: (n,), scores of held-out rows.
        share: share of new rows that shall be inside.
    """
    ordered = np.sort(np.asarray(scores, np.float64).ravel())
    rank = math.ceil((ordered.size + 1) * share)
    return float(ordered[rank - 1]) if 1 <= rank <= ordered.size else math.inf
