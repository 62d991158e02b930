"""Measure how far a step (observation and action) is from the logged steps, so that learners can penalise the distance.

The distance is the square root of the leverage in a ridge regression on random features. Jin, Yang & Wang 2021 (Is
pessimism provably efficient for offline RL?, arXiv 2012.15085, equation 3.7) use this distance as a penalty. Here only
the part beyond the distance of typical logged steps is a penalty, so steps inside the support have no penalty.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

HINGES = 64
"""Number of random features `max(0, x W + b)` (Rahimi & Recht 2009, Weighted sums of random kitchen sinks)."""
RIDGE = 1e-3
"""Ridge penalty. It is small, because the mean squares of the features are about 1."""
LOGGED = 0.8
"""Share of the logged steps that are inside the support."""


class Support(NamedTuple):
    """Weights of the random features, and the mean of `phi phi^T` over the logged steps; `phi` are the features."""

    directions: Float[Array, "I F"]
    """W in `max(0, x W + b)`."""
    offsets: Float[Array, " F"]
    """b in `max(0, x W + b)`."""
    moments: Float[Array, "D D"]
    """Mean of `phi phi^T`."""
    batches: Float[Array, ""]
    """Number of batches of logged steps in the mean."""


class Edge(NamedTuple):
    """Everything that `distance` and `excess` need: weights of the features, metric, and radius of the support."""

    directions: Float[Array, "I F"]
    offsets: Float[Array, " F"]
    root: Float[Array, "D D"]
    """Inverse Cholesky factor of `moments + RIDGE I`; the leverage of a step is `|root phi|^2`."""
    radius: Float[Array, ""]
    """Distance that a share `LOGGED` of the logged steps does not exceed."""


def init(key: PRNGKeyArray, inputs: int) -> Support:
    """Return a support without logged steps. `inputs` is the size I of a step: observation and action together."""
    direction_key, offset_key = jax.random.split(key)
    directions = jax.random.normal(direction_key, (inputs, HINGES)) / jnp.sqrt(jnp.asarray(inputs, float))
    size = 1 + inputs + HINGES
    return Support(
        directions, jax.random.normal(offset_key, (HINGES,)), jnp.zeros((size, size), directions.dtype), jnp.zeros(())
    )


def features(
    directions: Float[Array, "I F"], offsets: Float[Array, " F"], x: Float[Array, "*n I"]
) -> Float[Array, "*n D"]:
    """Return the features of steps x: 1, x and `max(0, x W + b)`, with W = `directions` and b = `offsets`."""
    projected = x @ directions
    hinges = jax.nn.relu(projected + jnp.broadcast_to(offsets, projected.shape))
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, hinges], axis=-1)


def accumulate(support: Support, steps: Float[Array, "B I"]) -> Support:
    """Return the support with a batch of logged steps (B, I) added to the mean."""
    phi = features(support.directions, support.offsets, steps)
    batches = support.batches + 1.0
    return support._replace(
        moments=support.moments + (phi.T @ phi / phi.shape[0] - support.moments) / batches, batches=batches
    )


def edge(support: Support, logged: Float[Array, "B I"]) -> Edge:
    """Return the edge of the support. The radius is the quantile `LOGGED` of the distances of logged steps (B, I)."""
    size = support.moments.shape[0]
    factor = jnp.linalg.cholesky(support.moments + RIDGE * jnp.eye(size, dtype=support.moments.dtype))
    root = jax.scipy.linalg.solve_triangular(factor, jnp.eye(size, dtype=factor.dtype), lower=True)
    edge = Edge(support.directions, support.offsets, root, jnp.ones((), root.dtype))
    return edge._replace(radius=jnp.quantile(distance(edge, logged), LOGGED))


def distance(edge: Edge, x: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """Return the distance of steps x: `sqrt(phi^T (moments + RIDGE I)^-1 phi)`, with phi the features of x."""
    return jnp.sqrt(jnp.sum((features(edge.directions, edge.offsets, x) @ edge.root.T) ** 2, axis=-1) + 1e-12)


def excess(edge: Edge, x: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """Return how far steps x are outside the support, in radii: `max(0, distance / radius - 1)`; 0 inside."""
    return jax.nn.relu(distance(edge, x) / edge.radius - 1.0)
