"""Loss functions, one equation each, for a single transition; callers batch them with `jax.vmap`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def td_target(
    r_t: Float[Array, ""], discount: Float[Array, ""], terminated: Float[Array, ""], q_next: Float[Array, " C"]
) -> Float[Array, ""]:
    """Return the bootstrapped target with the minimum over critics.

    `y = r + discount (1 - terminated) min_i Q'_i(s', a')`, with target critics Q'_i at the next state s' and action a'.
    A truncated step is not terminated, so its target contains Q'.

    Fujimoto, van Hoof & Meger 2018 (arXiv 1802.09477), algorithm 1; for C > 2 critics An et al. 2021 (arXiv
    2110.01548), equation 2 without the entropy term.

    Args:
        terminated: 1 if the step terminated the episode, else 0.
        q_next: (C,) value of the next step by each critic.
    """
    return r_t + discount * (1.0 - terminated) * jnp.min(q_next)


def td_loss(q: Float[Array, " C"], target: Float[Array, ""]) -> Float[Array, ""]:
    """Return the squared TD error of critics Q_i at a target y, summed over critics: `sum_i (Q_i(s, a) - y)^2`.

    Fujimoto, van Hoof & Meger 2018 (arXiv 1802.09477), algorithm 1.
    """
    return jnp.sum((q - jnp.broadcast_to(target, q.shape)) ** 2)


def smoothed_action(
    action: Float[Array, " A"], noise: Float[Array, " A"], sigma: Float[Array, ""], clip: Float[Array, ""]
) -> Float[Array, " A"]:
    """Return the smoothed target action: `clip(pi'(s') + clip(sigma noise, -c, c), -1, 1)`.

    Fujimoto, van Hoof & Meger 2018 (arXiv 1802.09477), equation 14.

    Args:
        action: (A,) unit action of the policy.
        clip: bound c of the smoothing noise.
    """
    return jnp.clip(action + jnp.clip(sigma * noise, -clip, clip), -1.0, 1.0)


def behaviour_cloning_loss(action: Float[Array, " A"], logged: Float[Array, " A"]) -> Float[Array, ""]:
    """Return the mean squared error between the policy's and the logged unit action: `|pi(s) - a|^2 / A`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), the second term of equation 3.
    """
    return jnp.mean((action - logged) ** 2)


def robust_cloning_loss(
    action: Float[Array, " A"], logged: Float[Array, " A"], threshold: Float[Array, ""]
) -> Float[Array, ""]:
    """Return a behaviour cloning loss that is quadratic up to a threshold and linear above the threshold.

    Mean over the action components of `u^2` if `|u| <= d`, else `2 d |u| - d^2`, with `u = pi(s) - a`. This is twice
    the Huber loss (Huber 1964, doi 10.1214/aoms/1177703732). Large d gives the mean of the logged actions, small d
    their median.

    Args:
        action: (A,) unit action of the policy.
        logged: (A,) logged unit action.
        threshold: d, positive.
    """
    error = jnp.abs(action - logged)
    return jnp.mean(jnp.where(error <= threshold, error**2, threshold * (2.0 * error - threshold)))


def cross_entropy_loss(logits: Float[Array, " C"], chosen: Float[Array, " C"]) -> Float[Array, ""]:
    """Return the negative log likelihood of the logged choice: `-log pi(a | s)`, `pi = softmax(logits)`.

    Bishop 2006, Pattern Recognition and Machine Learning, equation 4.108.

    Args:
        logits: (C,) one per choice.
        chosen: (C,) the logged choice, one-hot.
    """
    return -jnp.sum(chosen * jax.nn.log_softmax(logits))


def q_weight(alpha: Float[Array, ""], q: Float[Array, " B"]) -> Float[Array, ""]:
    """Return lambda, the weight of Q relative to behaviour cloning in a batch: `lambda = alpha / mean |Q(s, pi(s))|`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), equation 5. Q is taken at the policy's actions as in their code; the equation
    has the logged actions. Callers stop the gradient of lambda.
    """
    return alpha / jnp.maximum(jnp.mean(jnp.abs(q)), 1e-12)


def td3_bc_actor_loss(
    q: Float[Array, ""], weight: Float[Array, ""], action: Float[Array, " A"], logged: Float[Array, " A"]
) -> Float[Array, ""]:
    """Return the actor loss of TD3+BC: `-lambda Q(s, pi(s)) + |pi(s) - a|^2 / A`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), equation 3 with the sign of a loss.

    Args:
        weight: lambda, the weight of the value.
        action: (A,) unit action of the policy.
        logged: (A,) logged unit action.
    """
    return -weight * q + behaviour_cloning_loss(action, logged)


def soft_td_target(
    r_t: Float[Array, ""],
    discount: Float[Array, ""],
    terminated: Float[Array, ""],
    q_next: Float[Array, " C"],
    log_prob_next: Float[Array, ""],
    temperature: Float[Array, ""],
) -> Float[Array, ""]:
    """Return the bootstrapped target with the minimum over critics and the policy's entropy.

    `y = r + discount (1 - terminated) (min_i Q'_i(s', a') - beta log pi(a' | s'))`, with `a'` sampled from the policy.

    An et al. 2021 (arXiv 2110.01548), equation 2; for two critics Haarnoja et al. 2018 (arXiv 1812.05905).

    Args:
        terminated: 1 if the step terminated the episode, else 0.
        q_next: (C,) value of the next step by each critic.
        temperature: beta, the weight of the entropy.
    """
    return td_target(r_t, discount, terminated, q_next - jnp.broadcast_to(temperature * log_prob_next, q_next.shape))


def sac_actor_loss(
    q: Float[Array, " C"], log_prob: Float[Array, ""], temperature: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the actor loss of SAC: `beta log pi(a | s) - min_i Q_i(s, a)`, `a` sampled by reparametrisation.

    An et al. 2021 (arXiv 2110.01548), equation 2 with the sign of a loss.

    Args:
        q: (C,) value of the sampled action by each critic.
        temperature: beta, the weight of the entropy.
    """
    return temperature * log_prob - jnp.min(q)


def temperature_loss(
    log_temperature: Float[Array, ""], log_prob: Float[Array, ""], target_entropy: Float[Array, ""]
) -> Float[Array, ""]:
    """Return `-beta (log pi(a | s) + H)`; minimising raises the temperature while the policy's entropy is below H.

    Haarnoja et al. 2018 (arXiv 1812.05905), equation 18.

    Args:
        log_temperature: logarithm of beta.
        target_entropy: H.
    """
    return -jnp.exp(log_temperature) * (log_prob + target_entropy)


def diversity_loss(gradients: Float[Array, "C A"]) -> Float[Array, ""]:
    """Return the similarity of the action gradients g_i of C critics: `sum_{i != j} <g_i, g_j> / (C - 1)`.

    First, gradients (C, A) other than zero are scaled to unit length. An et al. 2021 (arXiv 2110.01548), equation 4.
    """
    squared = jnp.sum(gradients**2, axis=1, keepdims=True)
    unit = gradients * jnp.broadcast_to(jax.lax.rsqrt(jnp.maximum(squared, 1e-12)), gradients.shape)
    pairs = jnp.sum(jnp.sum(unit, axis=0) ** 2) - jnp.sum(unit**2)
    return pairs / max(gradients.shape[0] - 1, 1)


def conservative_loss(
    q: Float[Array, " K"], log_density: Float[Array, " K"], q_logged: Float[Array, ""]
) -> Float[Array, ""]:
    """Return how far Q over all actions exceeds Q of the logged action: `log int exp Q(s, a) da - Q(s, a_logged)`.

    The integral is estimated by importance sampling: the mean of `exp(Q(s, a_k)) / mu(a_k)` over K actions sampled with
    densities mu.

    Kumar et al. 2020 (arXiv 2006.04779), equation 4, sampled as in appendix F.

    Args:
        q: (K,) value of each sampled action.
        log_density: (K,) log density that each action was sampled with.
    """
    return jax.nn.logsumexp(q - log_density) - math.log(q.shape[0]) - q_logged


def discrete_conservative_loss(q: Float[Array, " C"], chosen: Float[Array, " C"]) -> Float[Array, ""]:
    """Return how far Q over all choices exceeds Q of the logged choice: `log sum_a exp Q(s, a) - Q(s, a_logged)`.

    Kumar et al. 2020 (arXiv 2006.04779), equation 4; for discrete actions the sum is exact.

    Args:
        q: (C,) value of each choice.
        chosen: (C,) the logged choice, one-hot.
    """
    return jax.nn.logsumexp(q) - jnp.sum(chosen * q)


def double_q_target(
    r_t: Float[Array, ""],
    discount: Float[Array, ""],
    terminated: Float[Array, ""],
    q_online: Float[Array, " C"],
    q_target: Float[Array, " C"],
) -> Float[Array, ""]:
    """Return the double DQN target: `y = r + discount (1 - terminated) Q'(s', argmax_a Q(s', a))`.

    van Hasselt, Guez & Silver 2015 (arXiv 1509.06461), section 4.

    Args:
        terminated: 1 if the step terminated the episode, else 0.
        q_online: (C,) values of the choices at the next step by the trained network.
        q_target: (C,) values of the choices at the next step by the target network.
    """
    return td_target(r_t, discount, terminated, q_target[jnp.argmax(q_online)][None])


def multiplier_loss(
    log_multiplier: Float[Array, ""], conservative: Float[Array, ""], threshold: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the loss of the conservative loss's Lagrange multiplier: `-exp(w) (conservative - threshold)`.

    Kumar et al. 2020 (arXiv 2006.04779), appendix F (Lagrange version), with the sign of a loss.

    Args:
        log_multiplier: w, the logarithm of the multiplier.
        threshold: target value of the conservative loss.
    """
    return -jnp.exp(log_multiplier) * (conservative - threshold)


def expectile_loss(error: Float[Array, ""], expectile: Float[Array, ""]) -> Float[Array, ""]:
    """Return `tau u^2` for an error `u >= 0`, else `(1 - tau) u^2`; the mean of this loss is smallest at the
    tau-expectile.

    Kostrikov, Nair & Levine 2021 (arXiv 2110.06169), equation 5, with `u = Q(s, a) - V(s)`.
    """
    return jnp.where(error < 0.0, 1.0 - expectile, expectile) * error**2


MAX_WEIGHT = 100.0
"""Upper bound of `advantage_weight`, from the code of Kostrikov et al. 2021."""


def advantage_weight(advantage: Float[Array, ""], beta: Float[Array, ""]) -> Float[Array, ""]:
    """Return the weight of a logged action with advantage A: `min(exp(beta A(s, a)), 100)`.

    Kostrikov, Nair & Levine 2021 (arXiv 2110.06169), equation 7, clipped as in their code.
    """
    return jnp.exp(jnp.minimum(beta * advantage, math.log(MAX_WEIGHT)))


def weighted_regression_loss(log_prob: Float[Array, ""], weight: Float[Array, ""]) -> Float[Array, ""]:
    """Return the weighted negative log likelihood of the logged action: `-w log pi(a | s)`.

    Kostrikov, Nair & Levine 2021 (arXiv 2110.06169), equation 7 with the sign of a loss.
    """
    return -weight * log_prob


def penalised_td_target(
    r_t: Float[Array, ""],
    discount: Float[Array, ""],
    terminated: Float[Array, ""],
    q_next: Float[Array, " C"],
    penalty: Float[Array, ""],
    action: Float[Array, " A"],
    logged: Float[Array, " A"],
) -> Float[Array, ""]:
    """Return the TD target of ReBRAC: `y = r + discount (1 - terminated) (min_i Q'_i(s', a') - beta |a' - b'|^2)`.

    At the next state s', a' is the policy's action and b' the logged action. Without a logged action, beta is 0.

    Tarasov et al. 2023 (arXiv 2305.09836), section 3, the critic penalty.

    Args:
        terminated: 1 if the step terminated the episode, else 0.
        q_next: (C,) value of the next step by each critic.
        penalty: beta, the weight of the penalty.
        action: (A,) unit action of the target policy at the next step.
        logged: (A,) unit action logged at the next step, or infinity.
    """
    distance = jnp.sum(jnp.where(jnp.isinf(logged), 0.0, action - logged) ** 2)
    return td_target(r_t, discount, terminated, q_next - jnp.broadcast_to(penalty * distance, q_next.shape))


def rebrac_actor_loss(
    q: Float[Array, ""],
    weight: Float[Array, ""],
    penalty: Float[Array, ""],
    action: Float[Array, " A"],
    logged: Float[Array, " A"],
) -> Float[Array, ""]:
    """Return the actor loss of ReBRAC: `-lambda Q(s, pi(s)) + beta |pi(s) - a|^2`.

    Tarasov et al. 2023 (arXiv 2305.09836), section 3, the actor penalty, with lambda from `q_weight` as in their code.

    Args:
        weight: lambda, the weight of the value.
        penalty: beta, the weight of the penalty.
        action: (A,) unit action of the policy.
        logged: (A,) logged unit action.
    """
    return -weight * q + penalty * jnp.sum((action - logged) ** 2)


def rollout_loss(
    reward: Float[Array, " H"],
    alive: Float[Array, " H"],
    disagreement: Float[Array, " H"],
    discount: Float[Array, ""],
    penalty: Float[Array, ""],
) -> Float[Array, ""]:
    """Return the negative penalised return per step: `-(1 / H) sum_t discount^t alive_t (r_t - penalty u_t)`.

    Heess et al. 2015 (arXiv 1510.09142), section 3, in a learned model, with the penalised reward of Yu et al. 2020
    (arXiv 2005.13239), section 4.2; u_t is the ensemble disagreement.

    Args:
        alive: (H,) probability that the episode has not ended before each step.
    """
    weight = discount ** jnp.arange(reward.shape[0], dtype=reward.dtype)
    penalised = jax.vmap(penalised_reward, in_axes=(0, None, 0))(reward, penalty, disagreement)
    return -jnp.mean(weight * alive * penalised)


def penalised_reward(
    reward: Float[Array, ""], penalty: Float[Array, ""], uncertainty: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the uncertainty-penalised reward of a step in the learned model: `r - lambda u(s, a)`.

    Yu et al. 2020 (arXiv 2005.13239), section 4.2 (MOPO).
    """
    return reward - penalty * uncertainty


def model_gap(q_modelled: Float[Array, " C"], q_logged: Float[Array, " C"]) -> Float[Array, ""]:
    """Return how far Q of a model step exceeds Q of a logged step: `sum_i Q_i(s_m, a_m) - Q_i(s, a)` over critics.

    Yu et al. 2021 (arXiv 2102.08363), section 4: the term with factor beta (COMBO). Instead of Q(s_m, a_m), the paper's
    experiments use `log sum_a exp Q(s_m, a)`.
    """
    return jnp.sum(q_modelled - q_logged)
