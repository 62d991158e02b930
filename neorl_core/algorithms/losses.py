"""One equation per function, each for one transition; batches come from `jax.vmap` at the caller."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def td_target(
    r_t: Float[Array, ""], discount: Float[Array, ""], terminated: Float[Array, ""], q_next: Float[Array, " C"]
) -> Float[Array, ""]:
    """Bootstrapped return with the least of the critics.

    `y = r + discount (1 - terminated) min_i Q'_i(s', a')`; a time limit is not a termination and bootstraps.

    Fujimoto, van Hoof & Meger 2018 (arXiv 1802.09477), algorithm 1; with C > 2 critics An et al. 2021
    (arXiv 2110.01548), equation 2 without its entropy term.

    Args:
        r_t: reward of the step.
        discount: discount factor per step.
        terminated: 1 where the step ended the episode, else 0.
        q_next: (C,), each critic's value at the next step.
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

    Args:
        action: (A,), unit action of the policy.
        noise: (A,), standard normal numbers.
        sigma: standard deviation of the smoothing.
        clip: bound of the smoothing noise.
    """
    return jnp.clip(action + jnp.clip(sigma * noise, -clip, clip), -1.0, 1.0)


def behaviour_cloning_loss(action: Float[Array, " A"], logged: Float[Array, " A"]) -> Float[Array, ""]:
    """Squared distance to the logged action, a mean over its dimensions: `|pi(s) - a|^2 / A`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), the second term of equation 3.
    """
    return jnp.mean((action - logged) ** 2)


def robust_cloning_loss(
    action: Float[Array, " A"], logged: Float[Array, " A"], threshold: Float[Array, ""]
) -> Float[Array, ""]:
    """`behaviour_cloning_loss` whose errors count linearly beyond a threshold.

    A mean over the action's dimensions of `u^2` where `|u| <= d`, else of `2 d |u| - d^2`, with `u = pi(s) - a`.

    Twice Huber's function (Huber 1964, doi 10.1214/aoms/1177703732). Of many logged actions the mean of it is least at
    their mean where no error exceeds d, and the smaller d, the nearer to their median.

    Args:
        action: (A,), unit action of the policy.
        logged: (A,), unit action that was logged.
        threshold: d, above 0.
    """
    error = jnp.abs(action - logged)
    return jnp.mean(jnp.where(error <= threshold, error**2, threshold * (2.0 * error - threshold)))


def cross_entropy_loss(logits: Float[Array, " C"], chosen: Float[Array, " C"]) -> Float[Array, ""]:
    """Negative log likelihood of the logged choice: `-log pi(a | s)`, `pi = softmax(logits)`.

    Bishop 2006, Pattern Recognition and Machine Learning, equation 4.108: behaviour cloning of a discrete action.

    Args:
        logits: (C,), one for each choice.
        chosen: (C,), one-hot, the logged choice.
    """
    return -jnp.sum(chosen * jax.nn.log_softmax(logits))


def q_weight(alpha: Float[Array, ""], q: Float[Array, " B"]) -> Float[Array, ""]:
    """Weight of Q against behaviour cloning over a batch: `lambda = alpha / mean |Q(s, pi(s))|`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), equation 5, with the policy's actions as in their code, where the equation
    has the logged ones. Not differentiated through.

    Here Q is of rewards that `preparation.scaling` has centred and divided by their deviation, where no episode
    terminates. A constant on every reward moves no policy but moves `mean |Q|`, by the constant over 1 - discount: in
    the paper, whose rewards are as they come, two tasks that differ by such a constant get different weights. Centred
    they get the same one, `mean |Q|` is how much values differ, and one alpha means the same on plants of any unit. It
    is not the paper's alpha, which is larger for the same weight the farther rewards are from zero.
    """
    return alpha / jnp.maximum(jnp.mean(jnp.abs(q)), 1e-12)


def td3_bc_actor_loss(
    q: Float[Array, ""], weight: Float[Array, ""], action: Float[Array, " A"], logged: Float[Array, " A"]
) -> Float[Array, ""]:
    """`-lambda Q(s, pi(s)) + |pi(s) - a|^2 / A`.

    Fujimoto & Gu 2021 (arXiv 2106.06860), equation 3 with the sign of a loss.

    Args:
        q: value of the policy's action.
        weight: weight of the value, lambda.
        action: (A,), unit action of the policy.
        logged: (A,), unit action that was logged.
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
    """Bootstrapped return with the least of the critics and the entropy of the policy.

    `y = r + discount (1 - terminated) (min_i Q'_i(s', a') - beta log pi(a' | s'))`, `a'` drawn from the policy.

    An et al. 2021 (arXiv 2110.01548), equation 2; with two critics Haarnoja et al. 2018 (arXiv 1812.05905).

    Args:
        r_t: reward of the step.
        discount: discount factor per step.
        terminated: 1 where the step ended the episode, else 0.
        q_next: (C,), each critic's value at the next step.
        log_prob_next: log density of the action at the next step.
        temperature: weight of the entropy, beta.
    """
    return td_target(r_t, discount, terminated, q_next - jnp.broadcast_to(temperature * log_prob_next, q_next.shape))


def sac_actor_loss(
    q: Float[Array, " C"], log_prob: Float[Array, ""], temperature: Float[Array, ""]
) -> Float[Array, ""]:
    """`beta log pi(a | s) - min_i Q_i(s, a)`, `a` drawn from the policy by reparametrisation.

    An et al. 2021 (arXiv 2110.01548), equation 2 with the sign of a loss.

    Args:
        q: (C,), each critic's value of the drawn action.
        log_prob: log density of the action.
        temperature: weight of the entropy, beta.
    """
    return temperature * log_prob - jnp.min(q)


def temperature_loss(
    log_temperature: Float[Array, ""], log_prob: Float[Array, ""], target_entropy: Float[Array, ""]
) -> Float[Array, ""]:
    """`-beta (log pi(a | s) + H)`: the temperature rises while the policy's entropy is below H.

    Haarnoja et al. 2018 (arXiv 1812.05905), equation 18.

    Args:
        log_temperature: logarithm of the temperature.
        log_prob: log density of the action.
        target_entropy: entropy H that the policy is held at.
    """
    return -jnp.exp(log_temperature) * (log_prob + target_entropy)


def diversity_loss(gradients: Float[Array, "C A"]) -> Float[Array, ""]:
    """How alike the critics' slopes along the action are: `sum_{i != j} <g_i, g_j> / (C - 1)`, g of unit length.

    With unit vectors the sum over pairs is `|sum_i g_i|^2 - sum_i |g_i|^2`. A critic that is flat counts as zero.

    An et al. 2021 (arXiv 2110.01548), equation 4.
    """
    squared = jnp.sum(gradients**2, axis=1, keepdims=True)
    unit = gradients * jnp.broadcast_to(jax.lax.rsqrt(jnp.maximum(squared, 1e-12)), gradients.shape)
    pairs = jnp.sum(jnp.sum(unit, axis=0) ** 2) - jnp.sum(unit**2)
    return pairs / max(gradients.shape[0] - 1, 1)


def conservative_loss(
    q: Float[Array, " K"], log_density: Float[Array, " K"], q_logged: Float[Array, ""]
) -> Float[Array, ""]:
    """How far Q over all actions lies above Q of the LOGGED action: `log int exp Q(s, a) da - Q(s, a_logged)`.

    The integral is estimated by importance sampling: the mean of `exp(Q(s, a_k)) / mu(a_k)` over K actions drawn
    with densities mu.

    Kumar et al. 2020 (arXiv 2006.04779), equation 4, sampled as in its appendix F.

    Args:
        q: (K,), value of each drawn action.
        log_density: (K,), log density with which each action was drawn.
        q_logged: value of the logged action.
    """
    return jax.nn.logsumexp(q - log_density) - math.log(q.shape[0]) - q_logged


def discrete_conservative_loss(q: Float[Array, " C"], chosen: Float[Array, " C"]) -> Float[Array, ""]:
    """How far Q over all choices lies above Q of the logged one: `log sum_a exp Q(s, a) - Q(s, a_logged)`.

    Kumar et al. 2020 (arXiv 2006.04779), equation 4, whose sum over a discrete action is exact.

    Args:
        q: (C,), value of each choice.
        chosen: (C,), one-hot, the logged choice.
    """
    return jax.nn.logsumexp(q) - jnp.sum(chosen * q)


def double_q_target(
    r_t: Float[Array, ""],
    discount: Float[Array, ""],
    terminated: Float[Array, ""],
    q_online: Float[Array, " C"],
    q_target: Float[Array, " C"],
) -> Float[Array, ""]:
    """`y = r + discount (1 - terminated) Q'(s', argmax_a Q(s', a))`: one network chooses, the other one values.

    van Hasselt, Guez & Silver 2015 (arXiv 1509.06461), section 4, the target of double DQN.

    Args:
        r_t: reward of the step.
        discount: discount factor per step.
        terminated: 1 where the step ended the episode, else 0.
        q_online: (C,), values of the choices at the next step by the network that learns.
        q_target: (C,), by the target network.
    """
    return td_target(r_t, discount, terminated, q_target[jnp.argmax(q_online)][None])


def multiplier_loss(
    log_multiplier: Float[Array, ""], conservative: Float[Array, ""], threshold: Float[Array, ""]
) -> Float[Array, ""]:
    """Dual ascent on the weight of the conservative loss: `-exp(w) (conservative - threshold)`.

    Kumar et al. 2020 (arXiv 2006.04779), appendix F (the Lagrange version), with the sign of a loss.

    Args:
        log_multiplier: logarithm of the multiplier, w.
        conservative: conservative loss.
        threshold: conservative loss that is allowed.
    """
    return -jnp.exp(log_multiplier) * (conservative - threshold)


def expectile_loss(error: Float[Array, ""], expectile: Float[Array, ""]) -> Float[Array, ""]:
    """Asymmetric square `|tau - 1(u < 0)| u^2`, least at the tau-expectile; at tau = 1/2 half the square.

    With `u = Q(s, a) - V(s)` Kostrikov, Nair & Levine 2021 (arXiv 2110.06169), equation 5.
    """
    return jnp.where(error < 0.0, 1.0 - expectile, expectile) * error**2


MAX_WEIGHT = 100.0
"""Bound of an exponentiated advantage, as the code of Kostrikov et al. 2021 has it."""


def advantage_weight(advantage: Float[Array, ""], beta: Float[Array, ""]) -> Float[Array, ""]:
    """`min(exp(beta A(s, a)), 100)`; not differentiated through.

    Kostrikov, Nair & Levine 2021 (arXiv 2110.06169), equation 7, clipped as in their code.
    """
    return jnp.exp(jnp.minimum(beta * advantage, math.log(MAX_WEIGHT)))


def weighted_regression_loss(log_prob: Float[Array, ""], weight: Float[Array, ""]) -> Float[Array, ""]:
    """Weighted maximum likelihood of the logged action: `-w log pi(a|s)`.

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
    """`y = r + discount (1 - terminated) (min_i Q'_i(s', a') - beta |a' - b'|^2)`, with b' logged at s'.

    Where no action was logged at s' (infinity) nothing is known to differ from it, so the penalty is left out.

    Tarasov et al. 2023 (arXiv 2305.09836), section 3, the critic's penalty.

    Args:
        r_t: reward of the step.
        discount: discount factor per step.
        terminated: 1 where the step ended the episode, else 0.
        q_next: (C,), each critic's value at the next step.
        penalty: weight of the penalty, beta.
        action: (A,), unit action of the target policy at the next step.
        logged: (A,), unit action logged at the next step, or infinity.
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
    """`-lambda Q(s, pi(s)) + beta |pi(s) - a|^2`, a sum over the action's dimensions.

    Tarasov et al. 2023 (arXiv 2305.09836), section 3, the actor's penalty, with lambda of `q_weight` as in their code.

    Args:
        q: value of the policy's action.
        weight: weight of the value, lambda.
        penalty: weight of the penalty, beta.
        action: (A,), unit action of the policy.
        logged: (A,), unit action that was logged.
    """
    return -weight * q + penalty * jnp.sum((action - logged) ** 2)


def rollout_loss(
    reward: Float[Array, " H"],
    alive: Float[Array, " H"],
    disagreement: Float[Array, " H"],
    discount: Float[Array, ""],
    penalty: Float[Array, ""],
) -> Float[Array, ""]:
    """`-(1 / H) sum_t discount^t alive_t (r_t - penalty u_t)`, alive the probability that the episode goes on.

    Heess et al. 2015 (arXiv 1510.09142), section 3, in a learned model, with the penalised reward of Yu et al. 2020
    (arXiv 2005.13239), section 4.2, whose u is here the ensemble's disagreement.

    Args:
        reward: (H,), reward per step in the model.
        alive: (H,), probability that the episode had not ended before each step.
        disagreement: (H,), disagreement of the ensemble at each step.
        discount: discount factor per step.
        penalty: weight of the penalty.
    """
    weight = discount ** jnp.arange(reward.shape[0], dtype=reward.dtype)
    penalised = jax.vmap(penalised_reward, in_axes=(0, None, 0))(reward, penalty, disagreement)
    return -jnp.mean(weight * alive * penalised)


def penalised_reward(
    reward: Float[Array, ""], penalty: Float[Array, ""], uncertainty: Float[Array, ""]
) -> Float[Array, ""]:
    """Reward of a step in the learned model: `r - lambda u(s, a)`.

    Yu et al. 2020 (arXiv 2005.13239), section 4.2, the uncertainty-penalised reward (MOPO).

    Args:
        reward: reward per step in the model.
        penalty: weight of the penalty.
        uncertainty: uncertainty of the ensemble at the step.
    """
    return reward - penalty * uncertainty


def model_gap(q_modelled: Float[Array, " C"], q_logged: Float[Array, " C"]) -> Float[Array, ""]:
    """Q in the learned model above Q of a logged step, summed over critics: `Q(s_m, a_m) - Q(s, a)`.

    Yu et al. 2021 (arXiv 2102.08363), section 4, the factor of beta, with rho the steps of the ensemble (COMBO): the
    form that its theory is about. Its experiments take, as CQL(H) does, the soft maximum over actions in place of the
    mean over the policy's own, `log sum_a exp Q(s_m, a)`; that adds a choice of rho which the theory leaves open, and
    thirty more critic calls for each row.
    """
    return jnp.sum(q_modelled - q_logged)
