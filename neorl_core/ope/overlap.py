"""How far a policy acts from what was logged, in the spread of the logged actions themselves.

Where the logged controller never acts in a way, no row says what comes of it, and rows around it are no help on a plant
that sticks, switches or breaks contact: the smoother a model, the better it takes such actions to be.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.ope import ridge
from neorl_core.ope.logged import Decisions, LoggedSteps, known_rows

LEAST_SPREAD = 0.02
"""Least deviation of logged actions, of which a range is two wide: an actuator's resolution, and rounding."""


@partial(jax.jit)
def departure(key: PRNGKeyArray, logs: LoggedSteps, decisions: Decisions) -> Float[Array, ""]:
    """Distance of a policy's actions from the mean logged action, in deviations of the logged actions, at half of the
    steps no more than this.

    `median_s sqrt((pi(s) - m(s))^T S^-1 (pi(s) - m(s)) / A)`, m a ridge regression of the logged actions on the
    observations and S the second moments of what is left. A controller with normal noise about its mean is worth .7
    for one action and nearly 1 for many, its own noiseless clone 0.

    Args:
        key: randomness of the regression's features.
        logs: (N, ...).
        decisions: the policy's actions, of which those at next observations count.

    Source: Overlap of behaviour and target policy, as in Thomas & Brunskill 2016 (arXiv 1604.00923), section 2.
    """
    mean = ridge.regressed(key, logs.observation, logs.action)
    left = logs.action - mean(logs.observation)
    size = left.shape[1]
    moments = left.T @ left / left.shape[0] + LEAST_SPREAD**2 * jnp.eye(size, dtype=left.dtype)
    onward = known_rows(logs) & (logs.terminated <= 0)
    # Rows that end have no next step; their observations may be no numbers.
    following = jnp.where(onward[:, None], logs.next_observation, 0.0)
    # Where every step ends its episode there are no others than the first ones.
    first = logs.observation[logs.starts]
    counts = jnp.append(onward, jnp.broadcast_to(~jnp.any(onward), first.shape[:1]))
    acts = jnp.concatenate([decisions.next_action, decisions.initial_action])
    away = acts - mean(jnp.concatenate([following, first]))
    square = jnp.sum(away * jax.scipy.linalg.solve(moments, away.T, assume_a="pos").T, axis=1) / size
    found: Float[Array, ""] = jnp.sqrt(jnp.nanmedian(jnp.where(counts, square, jnp.nan)))
    return found
