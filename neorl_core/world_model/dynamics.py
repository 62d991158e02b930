"""The learned model: an ensemble of networks that predicts next observation, reward and termination.

From observation and action, each member predicts a normal distribution of the next observation. From these three, the
member predicts the reward and the probability of termination. The ensemble is that of Chua et al. 2018 (PETS, arXiv
1805.12114), trained as in Janner et al. 2019 (MBPO, arXiv 1906.08253), with three differences:

- The predicted mean has a linear term, so that members learn linear plants exactly and quickly.
- The loss grows only linearly for errors beyond three standard deviations (Huber 1964, Robust estimation of a location
  parameter). So large jumps, such as an operator's change of the set point, do not distort the dynamics.
- The reward has a separate network. Its first layer has logarithmic features, because rewards of tracking tasks change
  most close to the set point.

All values are in the units of `training.preparation`. A stacked observation is the current (plain) observation followed
by earlier values. Members read all of it, and predict only the plain observation; `stack_outcome` adds earlier values.
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
"""Rollouts may leave the range of the data by this share of the range, on each side."""
HELD_OUT = 0.1
"""Share of the transitions on which members are tested and not trained."""
FORGET = 0.01
"""Weight of the newest batch in the running mean of the held-out loss."""
DIRECTIONS = 16
"""Number of learned directions (projections z) in the first layer of the reward network."""
SCALES = (1.0, 0.1, 0.01)
"""Scales of the logarithmic features in the reward network, in normalised units."""
LOG_DEVIATION = (-5.0, 0.25)
"""Initial lower and upper bound of the logarithm of the standard deviation, equal to those of PETS."""
ROBUST = 3.0
"""Up to this number of standard deviations, the loss is quadratic in the error; beyond it is linear."""
BOUND_WEIGHT = 0.01
"""Weight of the penalty on the difference between the learned upper and lower bound, as in PETS."""


class Model(NamedTuple):
    """The ensemble, its optimiser, and statistics of the training data."""

    members: Ensemble
    """Weights of M members."""
    optimiser: Optimiser
    error: Float[Array, " M"]
    """Running mean of each member's held-out loss."""
    low: Float[Array, " O"]
    high: Float[Array, " O"]
    """Lowest and highest training value of each of the O plain signals. Before training, low is above high."""
    history: History | None = None
    """Which earlier values follow the O plain signals in a stacked observation; None: no earlier values."""


class Reach(NamedTuple):
    """Range to which predicted observations are clipped, and the history in stacked observations."""

    low: Float[Array, " O"]
    high: Float[Array, " O"]
    history: History | None = None


class Outcome(NamedTuple):
    """Prediction of one member for one step."""

    next_observation: Float[Array, "*n O"]
    """Mean of the predicted distribution."""
    log_deviation: Float[Array, "*n O"]
    """Logarithm of its standard deviation."""
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
    """Return an untrained ensemble.

    Args:
        observations: size S of a stacked observation.
        hidden: widths of the hidden layers, for the dynamics network and for the reward network.
        history: which earlier values a stacked observation contains; None: no earlier values.
    """
    plain = observations if history is None else len(history.observation)
    each = jax.vmap(lambda k: _member(k, observations, actions, plain, hidden))(jax.random.split(key, members))
    weights = _apart(each, members)
    limit = jnp.full(plain, 1e9, jnp.result_type(float))
    return Model(weights, optimisers.init(recipe, weights), jnp.zeros(members), limit, -limit, history)


def _apart(stacked: Params, count: int) -> Ensemble:
    return tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count))


def _networks(key: PRNGKeyArray, *sizes: tuple[int, ...]) -> list[Params]:
    """Return one MLP for each tuple of layer widths. Weights are normal with variance 1 / inputs. Biases are zero."""
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
    # Terminations are rare. The initial probability is near zero, so that rollouts do not end too early.
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
    """Return O, the number of signals that the members predict."""
    return int(members[0]["least"].shape[-1])


def transition(
    member: Params, observation: Float[Array, " S"], action: Float[Array, " A"]
) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
    """Return mean and log standard deviation (O,) of the next observation, as one member predicts them.

    The mean is `s + W (s, a) + f(s, a)`, and the log standard deviation is `g(s, a)`, limited to the learned bounds.
    Here s is the observation, a the action, W the matrix of the linear term, and f, g are outputs of the network.

    Args:
        observation: (S,) stacked observation, normalised; S = O without history.
    """
    x = jnp.concatenate([observation, action])
    mean, raw = jnp.split(mlp_apply(member["dynamics"], x), 2)
    below = member["most"] - jax.nn.softplus(member["most"] - raw)
    log_deviation = member["least"] + jax.nn.softplus(below - member["least"])
    return observation[: mean.shape[0]] + x @ member["linear"]["kernel"] + mean, log_deviation


def reward_and_termination(
    member: Params, observation: Float[Array, " S"], action: Float[Array, " A"], following: Float[Array, " O"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the reward of a step, and the logit of the probability that the step terminates the episode.

    The network's inputs are z and `sign(z) log(1 + |z| / scale)` for all `SCALES`. Here z are `DIRECTIONS` learned
    linear combinations of observation, action and next observation.

    Args:
        observation: (S,) stacked observation, normalised.
        following: (O,) next observation, normalised, without history.
    """
    z = mlp_apply(member["projection"], jnp.concatenate([observation, action, following]))
    scaled = [jnp.sign(z) * jnp.log1p(jnp.abs(z) / scale) for scale in SCALES]
    reward, logit = mlp_apply(member["outcome"], jnp.concatenate([z, *scaled]))
    return reward, logit


def predict(member: Params, observation: Float[Array, " O"], action: Float[Array, " A"]) -> Outcome:
    """Return the prediction of one member for one step. The reward is that of the mean next observation."""
    mean, log_deviation = transition(member, observation, action)
    reward, logit = reward_and_termination(member, observation, action, mean)
    return Outcome(mean, log_deviation, reward, jax.nn.sigmoid(logit))


def robust_gaussian_loss(error: Float[Array, ""], log_deviation: Float[Array, ""]) -> Float[Array, ""]:
    """Return the loss of a prediction error: `rho(error / sigma) + log sigma`, with sigma the predicted deviation.

    `rho(z) = z^2 / 2` if |z| <= 3, and `3 |z| - 9 / 2` otherwise, so that large errors have bounded gradients. For
    |z| <= 3 the loss is the negative log likelihood of PETS (Chua et al. 2018, arXiv 1805.12114, equation 1).

    Huber 1964 (Annals of Mathematical Statistics 35, 73-101).
    """
    size = jnp.abs(error) * jnp.exp(-log_deviation)
    near = jnp.minimum(size, ROBUST)
    return near * (size - 0.5 * near) + log_deviation


def no_successor(
    observation: Float[Array, "*n S"], following: Float[Array, "*n O"], terminated: Float[Array, "*n"]
) -> Bool[Array, "*n"]:
    """Return whether the log lacks the next observation of a step that terminates.

    Log files without next observations repeat the last observation of an episode.
    """
    return (terminated > 0) & jnp.all(following == observation[..., : following.shape[-1]], axis=-1)


def loss(member: Params, t: Transition) -> Float[Array, ""]:
    """Return the loss of one transition: the sum of the losses of next observation, reward and termination.

    If the log lacks the next observation, the predicted mean is used for reward and termination.
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
    """Return for each transition (B,) whether it is held out from the training of all members.

    The choice is a hash of observation and action, so a transition has the same result in every batch and run.
    """
    x = jnp.concatenate([batch.observation, batch.action], axis=-1)
    phase = x @ jnp.asarray(37.0 + 11.0 * np.sqrt(np.arange(2, x.shape[-1] + 2)), x.dtype)
    return phase - jnp.floor(phase) < HELD_OUT


def update(
    model: Model, batch: Transition, learning_rate: Float[Array, ""], key: PRNGKeyArray
) -> tuple[Model, dict[str, Array]]:
    """Take one gradient step with every member. Return the new model and metrics.

    Each member uses its own random selection of the rows that are not held out. With equal rows, members would make
    equal errors and agree too much (Efron & Tibshirani 1993, An Introduction to the Bootstrap, chapter 6).

    Args:
        batch: prepared transitions (B, ...).
        learning_rate: learning rate; the recipe's schedule multiplies it by a factor.
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
    """Return the lowest and highest value of each signal in rows (N, ...), over observations and next observations."""
    both = jnp.concatenate([rows.observation, rows.next_observation])[:, : model.low.shape[0]]
    return jnp.min(both, axis=0), jnp.max(both, axis=0)


def reach(model: Model) -> Reach:
    """Return the range of the training data, widened by `WIDENING` on both sides; infinite before training."""
    margin = WIDENING * (model.high - model.low)
    trained = model.high >= model.low
    low, high = jnp.where(trained, model.low - margin, -jnp.inf), jnp.where(trained, model.high + margin, jnp.inf)
    return Reach(low, high, model.history)


def clip(reach: Reach, following: Float[Array, " O"]) -> Float[Array, " O"]:
    """Return a next observation, clipped to the reach."""
    return jnp.clip(following, reach.low, reach.high)


def stack_outcome(
    reach: Reach, observation: Float[Array, " S"], action: Float[Array, " A"], following: Float[Array, " O"]
) -> Float[Array, " S"]:
    """Return the next stacked observation (S,): `following`, then the earlier values, with this step's values added."""
    return stack_next(reach.history, observation, action, following)


def best_members(model: Model, count: int) -> Int[Array, " E"]:
    """Return the indices of the `count` members with the lowest held-out loss."""
    return jnp.argsort(model.error)[:count]


def elites(model: Model, count: int) -> Ensemble:
    """Return the weights of the `count` members with the lowest held-out loss."""
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
    """Take `updates` gradient steps with all members.

    Args:
        model: model from `init` or from the previous chunk.
        key: PRNG key, the same in every chunk.
        data: (N, ...) prepared transitions.
        first: number of gradient steps in earlier chunks.
        learning_rate: learning rate; the recipe's schedule multiplies it by a factor.

    Returns:
        The new model, and the mean loss of this chunk.
    """

    def one(model: Model, number: Int[Array, ""]) -> tuple[Model, Float[Array, ""]]:
        batch_key, member_key = jax.random.split(jax.random.fold_in(key, number))
        rows = jax.random.randint(batch_key, (batch_size,), 0, data.reward.shape[0])
        batch: Transition = jax.tree.map(lambda x: x[rows], data)
        model, metrics = update(model, batch, jnp.asarray(learning_rate, data.reward.dtype), member_key)
        return model, metrics["model_loss"]

    model, values = jax.lax.scan(one, model, first + jnp.arange(updates))
    return model, jnp.mean(values)
