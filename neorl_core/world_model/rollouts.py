"""Rollouts of policies in a learned model: differentiable rollouts without noise, and short rollouts with noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.networks import Ensemble
from neorl_core.types import Transition
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Reach


class ModelSteps(NamedTuple):
    """Steps of rollouts. Every array has the leading axes (members, starts, H), for H steps."""

    observation: Float[Array, "*n O"]
    action: Float[Array, "*n A"]
    reward: Float[Array, "*n"]
    next_observation: Float[Array, "*n O"]
    terminated: Float[Array, "*n"]
    """Probability that the step terminates the episode."""
    alive: Float[Array, "*n"]
    """Probability that no earlier step terminated the episode."""
    disagreement: Float[Array, "*n"]
    """Disagreement of the members: `disagreement(next observations) + disagreement(rewards)`."""


def disagreement(means: Float[Array, "M O"]) -> Float[Array, ""]:
    """Return how much M members disagree: the square root of their variance, averaged over the O predicted signals.

    Lu et al. 2022 (arXiv 2110.04135) compare this measure of uncertainty with others.
    """
    return jnp.sqrt(jnp.mean(jnp.var(means, axis=0)) + 1e-12)


def _precise(members: Ensemble, starts: Float[Array, "*n S"]) -> Float[Array, "*n S"]:
    """Return the starts in the precision of the members' weights."""
    return starts.astype(jnp.result_type(starts, *jax.tree.leaves(members)))


def expected_rollouts(
    members: Ensemble,
    reach: Reach,
    policy: Callable[[Float[Array, " S"]], Float[Array, " A"]],
    starts: Float[Array, "M B S"],
    horizon: int,
) -> ModelSteps:
    """Simulate a policy in every member, without noise. JAX can differentiate the result.

    Args:
        members: weights of M members.
        reach: range to which predicted observations are clipped.
        policy: function (normalised observation) -> action in [-1, 1].
        starts: (M, B, S) B initial observations for each member, normalised.
        horizon: number of steps H.

    Returns:
        Steps with arrays (M, B, H, ...).
    """

    def one(number: Int[Array, ""], start: Float[Array, " S"]) -> ModelSteps:
        def step(
            carry: tuple[Float[Array, " S"], Float[Array, ""]], _: None
        ) -> tuple[tuple[Float[Array, " S"], Float[Array, ""]], ModelSteps]:
            observation, alive = carry
            action = policy(observation)
            means = jnp.stack([dynamics.transition(member, observation, action)[0] for member in members])
            expected = dynamics.clip(reach, means[number])
            outcomes = [dynamics.reward_and_termination(m, observation, action, expected) for m in members]
            rewards, logits = (jnp.stack(each) for each in zip(*outcomes, strict=True))
            ending = jax.nn.sigmoid(logits[number])
            following = dynamics.stack_outcome(reach, observation, action, expected)
            spread = disagreement(means) + disagreement(rewards[:, None])
            record = ModelSteps(observation, action, rewards[number], following, ending, alive, spread)
            return (following, alive * (1.0 - ending)), record

        return jax.lax.scan(step, (start, jnp.ones((), start.dtype)), length=horizon)[1]

    steps: ModelSteps = jax.vmap(jax.vmap(one, in_axes=(None, 0)))(jnp.arange(len(members)), _precise(members, starts))
    return steps


def uncertainty(log_deviations: Float[Array, "M D"]) -> Float[Array, ""]:
    """Return the largest uncertainty that a member predicts: the maximum over members of the norm of its deviations.

    Args:
        log_deviations: (M, D) logarithms of the standard deviations of next observation and reward.

    Yu et al. 2020 (arXiv 2005.13239), section 4.3.
    """
    return jnp.max(jnp.linalg.norm(jnp.exp(log_deviations), axis=-1))


def branched_rollouts(
    members: Ensemble,
    leading: Int[Array, " E"],
    reach: Reach,
    policy: Callable[[Float[Array, " S"], Float[Array, " A"]], Float[Array, " A"]],
    actions: int,
    starts: Float[Array, "B S"],
    key: PRNGKeyArray,
    horizon: int,
) -> tuple[Transition, Float[Array, "B H"]]:
    """Simulate short rollouts with noise in the policy and in the model. Each step uses a random member of `leading`.

    A step terminates if the predicted probability of termination exceeds 1/2. Then the rollout restarts at its initial
    observation.

    Args:
        members: weights of M members. All members are used for `uncertainty`.
        leading: (E,) indices of the members that predict the steps.
        reach: range to which predicted observations are clipped.
        policy: function (normalised observation, standard normal noise) -> action in [-1, 1].
        starts: (B, S) initial observations, normalised.
        horizon: number of steps H.

    Returns:
        Transitions (B, H, ...) with zero costs, and the `uncertainty` (B, H) of each transition.

    Reference: Janner et al. 2019 (arXiv 1906.08253), algorithm 2.
    """
    starts = _precise(members, starts)
    rows, observations = starts.shape[0], dynamics.predicted_size(members)
    member_key, noise_key = jax.random.split(key)
    reward_deviations = jnp.stack([member["reward_log_deviation"] for member in members])[:, None]
    numbers = leading[jax.random.randint(member_key, (rows, horizon), 0, len(leading))]
    noises = jax.random.normal(noise_key, (rows, horizon, actions + observations), starts.dtype)

    def one(
        start: Float[Array, " S"], numbers: Int[Array, " H"], noises: Float[Array, "H N"]
    ) -> tuple[Transition, Float[Array, " H"]]:
        def step(
            observation: Float[Array, " S"], draw: tuple[Int[Array, ""], Float[Array, " N"]]
        ) -> tuple[Float[Array, " S"], tuple[Transition, Float[Array, ""]]]:
            number, noise = draw
            action = policy(observation, noise[:actions])
            expected = [dynamics.transition(member, observation, action) for member in members]
            means, log_deviations = (jnp.stack(parts) for parts in zip(*expected, strict=True))
            plain = dynamics.clip(reach, means[number] + jnp.exp(log_deviations[number]) * noise[actions:])
            outcomes = jnp.stack(
                [jnp.stack(dynamics.reward_and_termination(member, observation, action, plain)) for member in members]
            )
            following = dynamics.stack_outcome(reach, observation, action, plain)
            reward, logit = outcomes[number]
            ended = logit > 0.0
            done = ended.astype(start.dtype)
            transition = Transition(observation, action, reward, jnp.zeros_like(reward), following, done)
            deviations = jnp.concatenate([log_deviations, reward_deviations], axis=-1)
            return jnp.where(ended, start, following), (transition, uncertainty(deviations))

        return jax.lax.scan(step, start, (numbers, noises))[1]

    return jax.vmap(one)(starts, numbers, noises)
