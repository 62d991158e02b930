"""A learned ensemble of dynamics, reward and termination, for plants without a simulator.

Each member predicts a normal distribution of the next observation from observation and action, and reward and
termination from observation, action and next observation. This is the ensemble of Chua et al. 2018 (PETS, arXiv
1805.12114), trained as in Janner et al. 2019 (MBPO, arXiv 1906.08253), with three differences:

- The mean has a linear term, so linear plants are learned exactly and quickly.
- Errors beyond three standard deviations count linearly (Huber 1964, Robust estimation of a location parameter), so
  that set-point changes by an operator do not bias the dynamics.
- The reward has its own network with learned directions on several scales in its first layer, because rewards of
  tracking tasks change most very close to the set point.

All values are in the units of `training.prepare`. With a stacked observation the members read all of it and predict
only the plain part; `stack_outcome` shifts the earlier values.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from neorl_core.history import stack_next
from neorl_core.networks import Ensemble, Params, mlp_apply
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.types import History, Transition

WIDENING = 0.25
"""Share of the range of the data by which a rollout may exceed it."""
HELD_OUT = 0.1
"""Share of the transitions that no member is trained on."""
FORGET = 0.01
"""Weight of the newest batch in the running mean of the held-out loss."""
DIRECTIONS = 16
"""Learned directions of the reward network's first layer."""
SCALES = (1.0, 0.1, 0.01)
"""Scales of the signed logarithm of each direction, in normalised units."""
LOG_DEVIATION = (-5.0, 0.25)
"""Initial bounds of the log standard deviation (PETS: log variances of -10 and 0.5)."""
ROBUST = 3.0
"""Standard deviations up to which an error counts quadratically."""
BOUND_WEIGHT = 0.01
"""Weight of the penalty on the distance of the learned bounds, as in PETS."""


class Model(NamedTuple):
    """The ensemble and its training state."""

    members: Ensemble
    """Weights of M members."""
    optimiser: Optimiser
    error: Float[Array, " M"]
    """Running mean of each member's held-out loss."""
    low: Float[Array, " O"]
    high: Float[Array, " O"]
    """Lowest and highest training value of each observation; low exceeds high before training."""
    history: History | None = None
    """Earlier values in the stacked observation, after the O predicted values."""


class Reach(NamedTuple):
    """Bounds of rollouts, and the history of their observations."""

    low: Float[Array, " O"]
    high: Float[Array, " O"]
    history: History | None = None


class Outcome(NamedTuple):
    """One member's prediction of one step."""

    next_observation: Float[Array, "*n O"]
    log_deviation: Float[Array, "*n O"]
    reward: Float[Array, "*n"]
    ending: Float[Array, "*n"]
    """Probability that the step terminates the episode."""


def init(
    key: PRNGKeyArray,
    observations: int,
    actions: int,
    hidden: tuple[int, ...],
    members: int,
    recipe: Recipe,
    history: History | None = None,
) -> Model:
    """Return a fresh ensemble.

    Args:
        key: PRNG key of the weights.
        observations: size S of a stacked observation.
        actions: size A of an action.
        hidden: widths of the hidden layers of dynamics and reward networks.
        members: number of members M.
        recipe: optimiser recipe.
        history: earlier values in the observation, which need no prediction.
    """
    plain = observations if history is None else len(history.observation)
    each = jax.vmap(lambda k: _member(k, observations, actions, plain, hidden))(jax.random.split(key, members))
    weights = _apart(each, members)
    limit = jnp.full(plain, 1e9, jnp.result_type(float))
    return Model(weights, optimisers.init(recipe, weights), jnp.zeros(members), limit, -limit, history)


def _apart(stacked: Params, count: int) -> Ensemble:
    return tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count))


def _networks(key: PRNGKeyArray, *sizes: tuple[int, ...]) -> list[Params]:
    """Return MLPs of given widths: normal weights of variance 1 / inputs, zero biases.

    All weights come from one draw, because XLA takes seconds to compile one draw per layer.
    """
    shapes = [pair for widths in sizes for pair in itertools.pairwise(widths)]
    drawn = jax.random.normal(key, (sum(a * b for a, b in shapes),))
    parts = iter(jnp.split(drawn, np.cumsum([a * b for a, b in shapes])[:-1]))
    return [
        {
            f"Dense_{i}": {"kernel": next(parts).reshape(a, b) / math.sqrt(a), "bias": jnp.zeros(b)}
            for i, (a, b) in enumerate(itertools.pairwise(widths))
        }
        for widths in sizes
    ]


def _member(key: PRNGKeyArray, observations: int, actions: int, plain: int, hidden: tuple[int, ...]) -> Params:
    step = observations + actions
    whole = step + plain
    dynamics, projection, last = _networks(
        key,
        (step, *hidden, 2 * plain),
        (whole, DIRECTIONS),
        (DIRECTIONS * (1 + len(SCALES)), *hidden, 2),
    )
    # Terminations are rare: start at a probability near zero, so that rollouts do not fade out.
    name = f"Dense_{len(hidden)}"
    last[name] = {**last[name], "bias": last[name]["bias"].at[1].set(-7.0)}
    low, high = LOG_DEVIATION
    precision = jnp.result_type(float)
    return {
        "linear": {"kernel": jnp.zeros((step, plain))},
        "dynamics": dynamics,
        "least": jnp.full(plain, low, precision),
        "most": jnp.full(plain, high, precision),
        "projection": projection,
        "outcome": last,
        "reward_log_deviation": jnp.zeros(()),
    }


def predicted_size(members: Ensemble) -> int:
    """Return O, the number of predicted observation components."""
    return int(members[0]["least"].shape[-1])


def transition(
    member: Params, observation: Float[Array, " S"], action: Float[Array, " A"]
) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
    """Return mean and log deviation of the next observation: `s + W (s, a) + f(s, a)` and bounded `g(s, a)`.

    Args:
        member: weights of one member.
        observation: (S,) normalised; S = O without a history.
        action: (A,) unit action.
    """
    x = jnp.concatenate([observation, action])
    mean, raw = jnp.split(mlp_apply(member["dynamics"], x), 2)
    below = member["most"] - jax.nn.softplus(member["most"] - raw)
    log_deviation = member["least"] + jax.nn.softplus(below - member["least"])
    return observation[: mean.shape[0]] + x @ member["linear"]["kernel"] + mean, log_deviation


def reward_and_termination(
    member: Params, observation: Float[Array, " S"], action: Float[Array, " A"], following: Float[Array, " O"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the reward of a step and the logit of its termination.

    An MLP of `z` and `sign(z) log(1 + |z| / scale)`, where z are learned directions of (s, a, s').

    Args:
        member: weights of one member.
        observation: (S,) normalised.
        action: (A,) unit action.
        following: (O,) normalised next observation without its history.
    """
    z = mlp_apply(member["projection"], jnp.concatenate([observation, action, following]))
    scaled = [jnp.sign(z) * jnp.log1p(jnp.abs(z) / scale) for scale in SCALES]
    reward, logit = mlp_apply(member["outcome"], jnp.concatenate([z, *scaled]))
    return reward, logit


def predict(member: Params, observation: Float[Array, " O"], action: Float[Array, " A"]) -> Outcome:
    """Return one member's prediction of one step, with the reward at the mean next observation."""
    mean, log_deviation = transition(member, observation, action)
    reward, logit = reward_and_termination(member, observation, action, mean)
    return Outcome(mean, log_deviation, reward, jax.nn.sigmoid(logit))


def robust_gaussian_loss(error: Float[Array, ""], log_deviation: Float[Array, ""]) -> Float[Array, ""]:
    """Return the robust negative log likelihood of an error, up to a constant: `rho(error / sigma) + log sigma`.

    `rho(z) = z^2 / 2` for |z| <= 3 and `3 |z| - 9 / 2` beyond, so no gradient exceeds that of three deviations. For
    normal errors it equals the likelihood of PETS (Chua et al. 2018, arXiv 1805.12114, equation 1) in 99.7 % of the
    cases.

    Huber 1964 (Annals of Mathematical Statistics 35, 73-101).
    """
    size = jnp.abs(error) * jnp.exp(-log_deviation)
    near = jnp.minimum(size, ROBUST)
    return near * (size - 0.5 * near) + log_deviation


def no_successor(
    observation: Float[Array, "*n S"], following: Float[Array, "*n O"], terminated: Float[Array, "*n"]
) -> Bool[Array, "*n"]:
    """Return whether the successor is unknown: the step terminated and its next observation equals its observation.

    Files without next observations repeat the last observation of an episode.
    """
    return (terminated > 0) & jnp.all(following == observation[..., : following.shape[-1]], axis=-1)


def loss(member: Params, t: Transition) -> Float[Array, ""]:
    """Return the negative log likelihood of one transition: next observation, reward and termination.

    If the next observation is unknown, reward and termination are evaluated at the predicted one.
    """
    mean, log_deviation = transition(member, t.observation, t.action)
    following = t.next_observation[: mean.shape[0]]
    unknown = no_successor(t.observation, following, t.terminated)
    following = jnp.where(unknown, jax.lax.stop_gradient(mean), following)
    reward, logit = reward_and_termination(member, t.observation, t.action, following)
    transition_loss = jnp.sum(jax.vmap(robust_gaussian_loss)(following - mean, log_deviation))
    transition_loss = jnp.where(unknown, 0.0, transition_loss)
    reward_loss = robust_gaussian_loss(t.reward - reward, member["reward_log_deviation"])
    termination_loss = jax.nn.softplus(logit) - t.terminated * logit
    bounds = jnp.sum(member["most"] - member["least"])
    return transition_loss + reward_loss + termination_loss + BOUND_WEIGHT * bounds


def held_out(batch: Transition) -> Bool[Array, " B"]:
    """Return which transitions (B,) are held out, the same ones in every batch and run and for every member.

    The choice is a hash of the low-order digits of the transition, so it needs no row numbers.
    """
    x = jnp.concatenate([batch.observation, batch.action], axis=-1)
    phase = x @ jnp.asarray(37.0 + 11.0 * np.sqrt(np.arange(2, x.shape[-1] + 2)), x.dtype)
    return phase - jnp.floor(phase) < HELD_OUT


def update(
    model: Model, batch: Transition, learning_rate: Float[Array, ""], key: PRNGKeyArray
) -> tuple[Model, dict[str, Array]]:
    """Take one gradient step of every member, each on its own resample of the rows that are not held out.

    With the same rows the members would share their errors and disagree too little (Efron & Tibshirani 1993, An
    Introduction to the Bootstrap, chapter 6).

    Args:
        model: ensemble and optimiser.
        batch: prepared transitions (B, ...).
        learning_rate: learning rate before the schedule.
        key: PRNG key of the resamples.
    """
    excluded = held_out(batch).astype(batch.reward.dtype)
    count, members = jnp.sum(excluded), model.error.shape[0]
    cumulative = jnp.cumsum(1.0 - excluded)
    draws = jax.random.uniform(key, (members, excluded.shape[0]), excluded.dtype) * cumulative[-1]
    rows = jnp.minimum(jnp.searchsorted(cumulative, draws, side="right"), excluded.shape[0] - 1)
    weight = jax.vmap(lambda at: jnp.zeros_like(excluded).at[at].add(1.0) * (1.0 - excluded))(rows)
    weight = weight / jnp.maximum(jnp.sum(weight, axis=1, keepdims=True), 1.0)

    def total(members: Ensemble) -> tuple[Float[Array, ""], Float[Array, " M"]]:
        each = jnp.stack([jax.vmap(loss, in_axes=(None, 0))(member, batch) for member in members])
        return jnp.sum(each * weight), each @ excluded / jnp.maximum(count, 1.0)

    (value, error), gradient = jax.value_and_grad(total, has_aux=True)(model.members)
    weights, optimiser = optimisers.step(model.members, gradient, model.optimiser, learning_rate)
    rate = jnp.where(count > 0, FORGET, 0.0).astype(error.dtype)
    running_error = model.error + rate * (error - model.error)
    low, high = observed_range(model, batch)
    low, high = jnp.minimum(model.low, low), jnp.maximum(model.high, high)
    return Model(weights, optimiser, running_error, low, high, model.history), {
        "model_loss": value / members,
        "model_error": jnp.mean(error),
    }


def observed_range(model: Model, rows: Transition) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
    """Return the lowest and highest value of each observation in rows (N, ...), before or after the step."""
    both = jnp.concatenate([rows.observation, rows.next_observation])[:, : model.low.shape[0]]
    return jnp.min(both, axis=0), jnp.max(both, axis=0)


def reach(model: Model) -> Reach:
    """Return the range of the data, widened by `WIDENING` on both sides; unbounded before training.

    Without bounds, a diverging rollout would dominate the gradients of all others.
    """
    margin = WIDENING * (model.high - model.low)
    trained = model.high >= model.low
    low, high = jnp.where(trained, model.low - margin, -jnp.inf), jnp.where(trained, model.high + margin, jnp.inf)
    return Reach(low, high, model.history)


def clip(reach: Reach, following: Float[Array, " O"]) -> Float[Array, " O"]:
    """Clip a next observation to the reach."""
    return jnp.clip(following, reach.low, reach.high)


def stack_outcome(
    reach: Reach, observation: Float[Array, " S"], action: Float[Array, " A"], following: Float[Array, " O"]
) -> Float[Array, " S"]:
    """Return the stacked next observation (S,) after a unit action that led to a plain one (O,)."""
    return stack_next(reach.history, observation, action, following)


def best_members(model: Model, count: int) -> Int[Array, " E"]:
    """Return the indices of the `count` members with the lowest held-out loss."""
    return jnp.argsort(model.error)[:count]


def elites(model: Model, count: int) -> Ensemble:
    """Return the `leading` members."""
    best = best_members(model, count)
    return _apart(jax.tree.map(lambda *x: jnp.stack(x)[best], *model.members), count)


@partial(jax.jit, static_argnames=("updates", "batch_size"))
def train(
    model: Model,
    key: PRNGKeyArray,
    data: Transition,
    first: Int[Array, ""],
    updates: int,
    learning_rate: float = 1e-2,
    batch_size: int = 256,
) -> tuple[Model, Float[Array, ""]]:
    """Take some gradient steps of a stand-alone ensemble; the result does not depend on the chunk size.

    Args:
        model: current model.
        key: PRNG key, the same in every chunk.
        data: (N, ...) prepared transitions.
        first: number of gradient steps already taken.
        updates: gradient steps of this chunk.
        learning_rate: learning rate before the schedule.
        batch_size: rows per step.

    Returns:
        The new model and the mean loss of the chunk.
    """

    def one(model: Model, number: Int[Array, ""]) -> tuple[Model, Float[Array, ""]]:
        batch_key, member_key = jax.random.split(jax.random.fold_in(key, number))
        rows = jax.random.randint(batch_key, (batch_size,), 0, data.reward.shape[0])
        batch: Transition = jax.tree.map(lambda x: x[rows], data)
        model, metrics = update(model, batch, jnp.asarray(learning_rate, data.reward.dtype), member_key)
        return model, metrics["model_loss"]

    model, values = jax.lax.scan(one, model, first + jnp.arange(updates))
    return model, jnp.mean(values)
