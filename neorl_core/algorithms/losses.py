"""One equation per function, each for one transition; batches come from `jax.vmap` at the caller."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def td_target(
    r_t: Float[Array, ""], discount: Float[Array, ""], terminated: Float[Array, ""], q_next: Float[Array, " C"]
) -> Float[Array, ""]:
    """Bootstrapped return with the least of the critics.

    `y = r + discount (1 - terminated) min_i Q'_i(s', a')`; a time limit is not a termination and bootstraps.

    Fujimoto, van Hoof & Meger 2018 (arXiv 1802.09477), algorithm 1; with C > 2 critics An et al. 2021
    (arXiv 2110.01548), equation 2 without its entropy term.
    """
    return r_t + discount * (1.0 - terminated) * jnp.min(q_next)


def td_loss(q: Float[Array, " C"], target: Float[Array, ""]) -> Float[Array, ""]:
    """Squared temporal-difference error, summed over the critics: `sum_i (Q_i(s, a) - y)^2`.

    Fujimoto, van Hoof & Meger 2018 (arXiv 1802.09477), algorithm 1. A sum keeps each critic's gradient
    independent of how many there are.
    """
    return jnp.sum((q - jnp.broadcast_to(target, q.shape)) ** 2)


def smoothed_action(
    action: Float[Array, " A"], noise: Float[Array, " A"], sigma: Float[Array, ""], clip: Float[Array, ""]
) -> Float[Array, " A"]:
    """Target policy smoothing: `clip(pi'(s') + clip(sigma noise, -c, c), -1, 1)`, noise standard normal.

    Fujimoto, van Hoof & Meger 2018 (arXiv 1802.09477), equation 14.
    """
    return jnp.clip(action + jnp.clip(sigma * noise, -clip, clip), -1.0, 1.0)


def behaviour_cloning_loss(action: Float[Array, " A"], logged: Float[Array, " A"]) -> Float[Array, ""]:
    """Squared distance to the logged action, a mean over its dimensions: `|pi(s) - a|^2 / A`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), the second term of equation 3.
    """
    return jnp.mean((action - logged) ** 2)


def q_weight(alpha: Float[Array, ""], q: Float[Array, " B"]) -> Float[Array, ""]:
    """Weight of Q against behaviour cloning over a batch: `lambda = alpha / mean |Q(s, a)|`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), equation 5. Not differentiated through.
    """
    return alpha / jnp.maximum(jnp.mean(jnp.abs(q)), 1e-12)


def td3_bc_actor_loss(
    q: Float[Array, ""], weight: Float[Array, ""], action: Float[Array, " A"], logged: Float[Array, " A"]
) -> Float[Array, ""]:
    """`-lambda Q(s, pi(s)) + |pi(s) - a|^2 / A`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), equation 3 with the sign of a loss.
    """
    return -weight * q + behaviour_cloning_loss(action, logged)
