"""A shield without physics: action bounds, rate limits, and hand-over where the logs have nothing to say.

Without a simulator nothing can be predicted, so the shield asks what can be answered from logs alone: was anything
like this observation, with anything like this action, ever logged?
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
"""Logged steps that a score looks through: more are a better picture of the data, and a slower action."""


class SupportShield(NamedTuple):
    """Everything that limits a policy without a simulator, as arrays, so that a digest covers it."""

    action_low: Float[Array, " A"]
    action_high: Float[Array, " A"]
    rate_limit: Float[Array, " A"]
    """Largest change of the applied action in one step, in the action's units."""
    rest: Float[Array, " A"]
    """The action that is taken for applied where nothing tells what is."""
    hold: Int[Array, ""]
    """Least number of steps for which the fallback keeps control."""
    observation_low: Float[Array, " O"]
    """The envelope in which the policy is trusted."""
    observation_high: Float[Array, " O"]
    centre: Float[Array, " D"]
    scale: Float[Array, " D"]
    """Mean and deviation by which observations and actions, D = O + A, are compared."""
    references: Float[Array, "P D"]
    """Logged steps, scaled."""
    radius: Float[Array, ""]
    """Largest score inside the data's support."""
    return_radius: Float[Array, ""]
    """Largest score at which the policy gets control back."""

    @property
    def dwell(self) -> None:
        """A process's actions are continuous."""
        return None


def support_score(
    shield: SupportShield, observation: Float[Array, " O"], action: Float[Array, " A"]
) -> Float[Array, ""]:
    """Distance to the nearest logged step, `min_p |z - z_p| / sqrt(D)`, z the scaled observation and action.

    Args:
        shield: the logged steps and their scale.
        observation: (O,), physical units.
        action: (A,), physical units.
    """
    z = (jnp.concatenate([observation, action]) - shield.centre) / shield.scale
    squares = jnp.sum((shield.references - z) ** 2, axis=-1)
    return jnp.sqrt(jnp.min(squares) / z.shape[0])


def inside_support(
    shield: SupportShield, observation: Float[Array, " O"], action: Float[Array, " A"], radius: Float[Array, ""]
) -> Bool[Array, ""]:
    """Whether an observation lies in the envelope, and with its action near logged steps; false for NaN."""
    enclosed = jnp.all((observation >= shield.observation_low) & (observation <= shield.observation_high))
    return enclosed & (support_score(shield, observation, action) <= radius)


@partial(jax.jit, static_argnames="count")
def choose_references(key: PRNGKeyArray, points: Float[Array, "N D"], count: int) -> Int[Array, " P"]:
    """Rows that cover the data: after a random one, always that farthest from those chosen.

    A random sample would leave out what was rare, and hand over there although it was logged.

    Gonzalez 1985, Clustering to minimize the maximum intercluster distance (Theoretical Computer Science 38).

    Args:
        key: draws the first row.
        points: (N, D), scaled.
        count: rows P to choose.
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
    """The score that a further exchangeable one exceeds with probability at most `1 - share`.

    The `ceil((n + 1) share)`-th smallest of n scores; infinite where n is too small for the share.

    Vovk, Gammerman and Shafer 2005, Algorithmic Learning in a Random World.

    Args:
        scores: (n,) of held-out rows.
        share: of further rows that shall lie within.
    """
    found = np.sort(np.asarray(scores, np.float64).ravel())
    rank = math.ceil((found.size + 1) * share)
    return float(found[rank - 1]) if 1 <= rank <= found.size else math.inf
