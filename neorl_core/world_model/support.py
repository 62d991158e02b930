"""Differentiable distance of a step from the logged steps: the leverage of ridge regression on random features.

The pessimism of linear Markov decision processes uses the square root of the leverage as penalty (Jin, Yang & Wang
2021, Is pessimism provably efficient for offline RL?, arXiv 2012.15085, equation 3.7). Here only the excess over the
leverage of logged steps counts, so steps within the support are not penalised.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

HINGES = 64
"""Number of random hinges (Rahimi & Recht 2009, Weighted sums of random kitchen sinks)."""
RIDGE = 1e-3
"""Ridge penalty, for features with second moments of about one."""
LOGGED = 0.8
"""Share of the logged steps that count as inside."""


class Support(NamedTuple):
    """Random features and their mean second moments over the logged steps."""

    directions: Float[Array, "I F"]
    offsets: Float[Array, " F"]
    moments: Float[Array, "D D"]
    batches: Float[Array, ""]
    """Number of batches in the mean."""


class Edge(NamedTuple):
    """Random features, metric and radius of the support."""

    directions: Float[Array, "I F"]
    offsets: Float[Array, " F"]
    root: Float[Array, "D D"]
    """Inverse Cholesky factor of the moments; the leverage is `|root phi|^2`."""
    radius: Float[Array, ""]
    """Square root of the leverage that `LOGGED` of the logged steps do not exceed."""


def init(key: PRNGKeyArray, inputs: int) -> Support:
    """Return an empty support for steps of I = `inputs` numbers (observation and action)."""
    direction_key, offset_key = jax.random.split(key)
    directions = jax.random.normal(direction_key, (inputs, HINGES)) / jnp.sqrt(jnp.asarray(inputs, float))
    size = 1 + inputs + HINGES
    return Support(
        directions, jax.random.normal(offset_key, (HINGES,)), jnp.zeros((size, size), directions.dtype), jnp.zeros(())
    )


def features(
    directions: Float[Array, "I F"], offsets: Float[Array, " F"], x: Float[Array, "*n I"]
) -> Float[Array, "*n D"]:
    """Return 1, x and `max(0, x W + b)`."""
    projected = x @ directions
    hinges = jax.nn.relu(projected + jnp.broadcast_to(offsets, projected.shape))
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, hinges], axis=-1)


def accumulate(support: Support, steps: Float[Array, "B I"]) -> Support:
    """Update the mean moments with a batch of logged steps."""
    phi = features(support.directions, support.offsets, steps)
    batches = support.batches + 1.0
    return support._replace(
        moments=support.moments + (phi.T @ phi / phi.shape[0] - support.moments) / batches, batches=batches
    )


def edge(support: Support, logged: Float[Array, "B I"]) -> Edge:
    """Return the edge of the support, with the radius as a quantile over some logged steps (B, I)."""
    size = support.moments.shape[0]
    factor = jnp.linalg.cholesky(support.moments + RIDGE * jnp.eye(size, dtype=support.moments.dtype))
    root = jax.scipy.linalg.solve_triangular(factor, jnp.eye(size, dtype=factor.dtype), lower=True)
    edge = Edge(support.directions, support.offsets, root, jnp.ones((), root.dtype))
    return edge._replace(radius=jnp.quantile(distance(edge, logged), LOGGED))


def distance(edge: Edge, x: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """Return the square root of the leverage, `sqrt(phi^T (Phi^T Phi / N + R)^-1 phi)`."""
    return jnp.sqrt(jnp.sum((features(edge.directions, edge.offsets, x) @ edge.root.T) ** 2, axis=-1) + 1e-12)


def excess(edge: Edge, x: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """Return how far a step lies outside, in radii: `max(0, d(x) / radius - 1)`."""
    return jax.nn.relu(distance(edge, x) / edge.radius - 1.0)
