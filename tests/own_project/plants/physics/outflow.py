"""Torricelli's law: what leaves a tank through a hole in its floor."""

import jax.numpy as jnp

GRAVITY = 9.81


def velocity(level):
    """sqrt(2 g h) in m/s, for a level in m."""
    return jnp.sqrt(2 * GRAVITY * jnp.maximum(level, 1e-6))
