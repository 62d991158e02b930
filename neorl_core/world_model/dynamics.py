"""A learned ensemble of a plant's dynamics, reward and terminations, for plants that have no simulator.

Each member predicts the normal distribution of the next observation from observation and action, and reward and
termination from the step's outcome: observation, action and next observation. The ensemble of Chua et al. 2018
(PETS, arXiv 1805.12114) as Janner et al. 2019 (MBPO, arXiv 1906.08253) train it, with three differences:

- the mean has a linear term, so that a linear plant is learned exactly and soon;
- beyond three deviations errors count linearly (Huber 1964, Robust estimation of a location parameter): a set point
  that an operator moves is no dynamics, and must not shift the prediction of where it will be;
- the reward is a network of its own, whose first layer looks at learned directions on several scales: rewards of
  tracking tasks change most within a hair's breadth of their set points.

Everything is in the units of `training.prepare`.
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

from neorl_core.networks import Ensemble, Params, mlp_apply
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.types import Transition

WIDENING = 0.25
"""How far beyond the data, in parts of their range, a rollout may go."""
HELD_OUT = 0.1
"""Share of the transitions that no member learns from."""
FORGET = 0.01
"""Weight of the newest batch in the running mean of the held-out loss."""
DIRECTIONS = 16
"""Learned directions of the reward's first layer."""
SCALES = (1.0, 0.1, 0.01)
"""Where each direction's logarithm turns, in units of the normalised numbers."""
LOG_DEVIATION = (-5.0, 0.25)
"""Where the learned bounds of a log deviation start (PETS: half of log variances -10 and 0.5)."""
ROBUST = 3.0
"""Deviations within which an error counts by its square."""
BOUND_WEIGHT = 0.01
"""Pulls the learned bounds together, as in PETS."""


class Model(NamedTuple):
    """The ensemble and what training it remembers."""

    members: Ensemble
    """M members' weights."""
    optimiser: Optimiser
    error: Float[Array, " M"]
    """Running mean of each member's held-out loss."""
    low: Float[Array, " O"]
    high: Float[Array, " O"]
    """Least and most of what training has seen of each observation; low above high while it has seen nothing."""


class Reach(NamedTuple):
    """Between which bounds rollouts stay."""

    low: Float[Array, " O"]
    high: Float[Array, " O"]


class Outcome(NamedTuple):
    """What one member expects of one step."""

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
) -> Model:
    """A fresh ensemble.

    Args:
        key: its randomness.
        observations: O.
        actions: A.
        hidden: widths of the hidden layers, of dynamics and reward alike.
        members: M.
        recipe: recipe of the optimiser.
    """
    stacked = jax.vmap(lambda k: _member(k, observations, actions, hidden))(jax.random.split(key, members))
    weights = _apart(stacked, members)
    nothing = jnp.full(observations, 1e9, jnp.result_type(float))
    return Model(weights, optimisers.init(recipe, weights), jnp.zeros(members), nothing, -nothing)


def _apart(stacked: Params, count: int) -> Ensemble:
    return tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count))


def _networks(key: PRNGKeyArray, *sizes: tuple[int, ...]) -> list[Params]:
    """MLPs of given widths, from inputs to outputs: normal weights of variance 1 / inputs, and biases of zero.

    One draw for all of them: a program with a draw for each layer takes XLA seconds to compile.
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


def _member(key: PRNGKeyArray, observations: int, actions: int, hidden: tuple[int, ...]) -> Params:
    step = observations + actions
    whole = step + observations
    dynamics, projection, last = _networks(
        key,
        (step, *hidden, 2 * observations),
        (whole, DIRECTIONS),
        (DIRECTIONS * (1 + len(SCALES)), *hidden, 2),
    )
    # Terminations are rare, and where there are none a rollout must not fade.
    name = f"Dense_{len(hidden)}"
    last[name] = {**last[name], "bias": last[name]["bias"].at[1].set(-7.0)}
    low, high = LOG_DEVIATION
    precision = jnp.result_type(float)
    return {
        "linear": {"kernel": jnp.zeros((step, observations))},
        "dynamics": dynamics,
        "least": jnp.full(observations, low, precision),
        "most": jnp.full(observations, high, precision),
        "projection": projection,
        "outcome": last,
        "reward_log_deviation": jnp.zeros(()),
    }


def transition(
    member: Params, observation: Float[Array, " O"], action: Float[Array, " A"]
) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
    """Mean of the next observation and log deviations: `s + W (s, a) + f(s, a)`, and g(s, a) within learned bounds.

    Args:
        member: weights of one member.
        observation: (O,), normalised.
        action: (A,), between -1 and 1.
    """
    x = jnp.concatenate([observation, action])
    mean, raw = jnp.split(mlp_apply(member["dynamics"], x), 2)
    below = member["most"] - jax.nn.softplus(member["most"] - raw)
    log_deviation = member["least"] + jax.nn.softplus(below - member["least"])
    return observation + x @ member["linear"]["kernel"] + mean, log_deviation


def reward_and_termination(
    member: Params, observation: Float[Array, " O"], action: Float[Array, " A"], following: Float[Array, " O"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Reward of a step and the logit of its termination: an MLP of `z` and of `sign(z) log(1 + |z| / scale)`.

    z are learned directions of (s, a, s').

    Args:
        member: weights of one member.
        observation: (O,), normalised.
        action: (A,), between -1 and 1.
        following: (O,), normalised next observation.
    """
    z = mlp_apply(member["projection"], jnp.concatenate([observation, action, following]))
    scaled = [jnp.sign(z) * jnp.log1p(jnp.abs(z) / scale) for scale in SCALES]
    reward, logit = mlp_apply(member["outcome"], jnp.concatenate([z, *scaled]))
    return reward, logit


def predict(member: Params, observation: Float[Array, " O"], action: Float[Array, " A"]) -> Outcome:
    """What one member expects of one step; the reward is that of the mean next observation.

    Args:
        member: weights of one member.
        observation: (O,), normalised.
        action: (A,), between -1 and 1.
    """
    mean, log_deviation = transition(member, observation, action)
    reward, logit = reward_and_termination(member, observation, action, mean)
    return Outcome(mean, log_deviation, reward, jax.nn.sigmoid(logit))


def robust_gaussian_loss(error: Float[Array, ""], log_deviation: Float[Array, ""]) -> Float[Array, ""]:
    """Negative log likelihood of an error, up to a constant: `rho(error / sigma) + log sigma`.

    `rho(z) = z^2 / 2` within k = 3 deviations and `k |z| - k^2 / 2` beyond, so that no error pulls harder than one of
    three deviations. For normal errors this is the likelihood of PETS (Chua et al. 2018, arXiv 1805.12114, equation 1)
    in all but three of a thousand.

    Huber 1964 (Annals of Mathematical Statistics 35, 73-101).
    """
    size = jnp.abs(error) * jnp.exp(-log_deviation)
    near = jnp.minimum(size, ROBUST)
    return near * (size - 0.5 * near) + log_deviation


def loss(member: Params, t: Transition) -> Float[Array, ""]:
    """Negative log likelihood of one transition: its next observation, its reward and whether it terminated."""
    mean, log_deviation = transition(member, t.observation, t.action)
    reward, logit = reward_and_termination(member, t.observation, t.action, t.next_observation)
    moved = jnp.sum(jax.vmap(robust_gaussian_loss)(t.next_observation - mean, log_deviation))
    paid = robust_gaussian_loss(t.reward - reward, member["reward_log_deviation"])
    ended = jax.nn.softplus(logit) - t.terminated * logit
    return moved + paid + ended + BOUND_WEIGHT * jnp.sum(member["most"] - member["least"])


def held_out(batch: Transition) -> Bool[Array, " B"]:
    """Which transitions are held out: the same ones in every batch, in every run and for every member.

    The digits of a transition far behind the point decide, which are as good as random and need no numbering of rows.
    """
    x = jnp.concatenate([batch.observation, batch.action], axis=-1)
    phase = x @ jnp.asarray(37.0 + 11.0 * np.sqrt(np.arange(2, x.shape[-1] + 2)), x.dtype)
    return phase - jnp.floor(phase) < HELD_OUT


def update(model: Model, batch: Transition, learning_rate: Float[Array, ""]) -> tuple[Model, dict[str, Array]]:
    """One gradient step of all members on the same batch, less what is held out.

    Args:
        model: the ensemble and its optimiser.
        batch: prepared transitions (B, ...).
        learning_rate: step length.
    """
    apart = held_out(batch).astype(batch.reward.dtype)
    count, rest = jnp.sum(apart), jnp.sum(1.0 - apart)

    def total(members: Ensemble) -> tuple[Float[Array, ""], Float[Array, " M"]]:
        each = jnp.stack([jax.vmap(loss, in_axes=(None, 0))(member, batch) for member in members])
        return jnp.sum(each @ (1.0 - apart)) / jnp.maximum(rest, 1.0), each @ apart / jnp.maximum(count, 1.0)

    (value, error), gradient = jax.value_and_grad(total, has_aux=True)(model.members)
    members, optimiser = optimisers.step(model.members, gradient, model.optimiser, learning_rate)
    known = jnp.where(count > 0, FORGET, 0.0).astype(error.dtype)
    running = model.error + known * (error - model.error)
    seen = jnp.concatenate([batch.observation, batch.next_observation])
    low, high = jnp.minimum(model.low, jnp.min(seen, axis=0)), jnp.maximum(model.high, jnp.max(seen, axis=0))
    return Model(members, optimiser, running, low, high), {
        "model_loss": value / model.error.shape[0],
        "model_error": jnp.mean(error),
    }


def reach(model: Model) -> Reach:
    """The range of the data, widened by `WIDENING` of itself on both sides: beyond it no member knows anything.

    A rollout that ran away there would hide the others' gradients behind its own. Without bounds before training.
    """
    margin = WIDENING * (model.high - model.low)
    seen = model.high >= model.low
    return Reach(jnp.where(seen, model.low - margin, -jnp.inf), jnp.where(seen, model.high + margin, jnp.inf))


def elites(model: Model, count: int) -> Ensemble:
    """The `count` members with the least held-out loss."""
    best = jnp.argsort(model.error)[:count]
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
    """Some gradient steps of an ensemble on its own; chunks of any size make the same result.

    Args:
        model: where training stands.
        key: the same in every chunk.
        data: (N, ...) prepared transitions.
        first: gradient steps made before.
        updates: gradient steps of this chunk.
        learning_rate: what the recipe multiplies.
        batch_size: rows per step.

    Returns:
        The new state and the chunk's mean loss.
    """

    def one(model: Model, number: Int[Array, ""]) -> tuple[Model, Float[Array, ""]]:
        drawn = jax.random.randint(jax.random.fold_in(key, number), (batch_size,), 0, data.reward.shape[0])
        batch: Transition = jax.tree.map(lambda x: x[drawn], data)
        model, metrics = update(model, batch, jnp.asarray(learning_rate, data.reward.dtype))
        return model, metrics["model_loss"]

    model, values = jax.lax.scan(one, model, first + jnp.arange(updates))
    return model, jnp.mean(values)
