"""How far a step is from the logged ones, differentiably: the leverage of ridge regression on random features.

The pessimism of linear Markov decision processes (Jin, Yang & Wang 2021, Is pessimism provably efficient for offline
RL?, arXiv 2012.15085, equation 3.7), whose penalty is the square root of this leverage. Here it counts only beyond what
logged steps have themselves, so that within the logs' support nothing is paid.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

HINGES = 64
"""Random hinges (Rahimi & Recht 2009, Weighted sums of random kitchen sinks)."""
RIDGE = 1e-3
"""Penalty of the regression, beside second moments of about one."""
LOGGED = 0.8
"""Share of the logged steps that count as inside."""


class Support(NamedTuple):
    """Random features, and their mean second moments over the logged steps."""

    directions: Float[Array, "I F"]
    offsets: Float[Array, " F"]
    moments: Float[Array, "D D"]
    batches: Float[Array, ""]
    """Batches that the moments are the mean of."""


class Edge(NamedTuple):
    """What a step is measured by."""

    directions: Float[Array, "I F"]
    offsets: Float[Array, " F"]
    root: Float[Array, "D D"]
    """Inverse of a Cholesky factor of the moments: the leverage is a square length behind it."""
    radius: Float[Array, ""]
    """Square root of the leverage that `LOGGED` of the logged steps do not exceed."""


def init(key: PRNGKeyArray, inputs: int) -> Support:
    """Features of steps of so many numbers; nothing is logged yet.

    Args:
        key: randomness of the features.
        inputs: I, numbers of an observation and an action.
    """
    of_directions, of_offsets = jax.random.split(key)
    directions = jax.random.normal(of_directions, (inputs, HINGES)) / jnp.sqrt(jnp.asarray(inputs, float))
    size = 1 + inputs + HINGES
    return Support(
        directions, jax.random.normal(of_offsets, (HINGES,)), jnp.zeros((size, size), directions.dtype), jnp.zeros(())
    )


def features(
    directions: Float[Array, "I F"], offsets: Float[Array, " F"], x: Float[Array, "*n I"]
) -> Float[Array, "*n D"]:
    """1, x, and `max(0, x W + b)`."""
    projected = x @ directions
    hinges = jax.nn.relu(projected + jnp.broadcast_to(offsets, projected.shape))
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, hinges], axis=-1)


def seen(support: Support, steps: Float[Array, "B I"]) -> Support:
    """With another batch of logged steps in the mean."""
    phi = features(support.directions, support.offsets, steps)
    batches = support.batches + 1.0
    return support._replace(
        moments=support.moments + (phi.T @ phi / phi.shape[0] - support.moments) / batches, batches=batches
    )


def edge(support: Support, logged: Float[Array, "B I"]) -> Edge:
    """The edge of the support.

    Args:
        support: of all batches.
        logged: some logged steps, whose quantile the radius is.
    """
    size = support.moments.shape[0]
    factor = jnp.linalg.cholesky(support.moments + RIDGE * jnp.eye(size, dtype=support.moments.dtype))
    root = jax.scipy.linalg.solve_triangular(factor, jnp.eye(size, dtype=factor.dtype), lower=True)
    found = Edge(support.directions, support.offsets, root, jnp.ones((), root.dtype))
    return found._replace(radius=jnp.quantile(distance(found, logged), LOGGED))


def distance(edge: Edge, x: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """Square root of the leverage, `sqrt(phi^T (Phi^T Phi / N + R)^-1 phi)`."""
    return jnp.sqrt(jnp.sum((features(edge.directions, edge.offsets, x) @ edge.root.T) ** 2, axis=-1) + 1e-12)


def excess(edge: Edge, x: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """How far outside a step lies, in radii: `max(0, d(x) / radius - 1)`."""
    return jax.nn.relu(distance(edge, x) / edge.radius - 1.0)
