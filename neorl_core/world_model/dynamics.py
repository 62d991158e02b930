"""A learned ensemble of a plant's dynamics, reward and terminations, for plants that have no simulator.

Each member predicts the normal distribution of the next observation from observation and action, and reward and
termination from the step's outcome: observation, action and next observation. The ensemble of Chua et al. 2018
(PETS, arXiv 1805.12114) as Janner et al. 2019 (MBPO, arXiv 1906.08253) train it, with three differences:

- the mean has a linear term, so that a linear plant is learned exactly and soon;
- beyond three deviations errors count linearly (Huber 1964, Robust estimation of a location parameter): a set point
  that an operator moves is no dynamics, and must not shift the prediction of where it will be;
- the reward is a network of its own, whose first layer looks at learned directions on several scales: rewards of
  tracking tasks change most within a hair's breadth of their set points.

Everything is in the units of `training.prepare`. Of a stacked observation the members read all and predict the plain
part alone: `onward` moves the earlier values up by a place, for nothing is uncertain about them.
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

from neorl_core.history import History, followed
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
    history: History | None = None
    """Which earlier values stand behind the O that are predicted."""


class Reach(NamedTuple):
    """How rollouts go on: between which bounds, and with which earlier values."""

    low: Float[Array, " O"]
    high: Float[Array, " O"]
    history: History | None = None


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
    history: History | None = None,
) -> Model:
    """A fresh ensemble.

    Args:
        key: its randomness.
        observations: numbers of an observation, with those of its history.
        actions: A.
        hidden: widths of the hidden layers, of dynamics and reward alike.
        members: M.
        recipe: recipe of the optimiser.
        history: which of the observation's numbers are earlier values, that need no prediction.
    """
    plain = observations if history is None else len(history.observation)
    each = jax.vmap(lambda k: _member(k, observations, actions, plain, hidden))(jax.random.split(key, members))
    weights = _apart(each, members)
    nothing = jnp.full(plain, 1e9, jnp.result_type(float))
    return Model(weights, optimisers.init(recipe, weights), jnp.zeros(members), nothing, -nothing, history)


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


def _member(key: PRNGKeyArray, observations: int, actions: int, plain: int, hidden: tuple[int, ...]) -> Params:
    step = observations + actions
    whole = step + plain
    dynamics, projection, last = _networks(
        key,
        (step, *hidden, 2 * plain),
        (whole, DIRECTIONS),
        (DIRECTIONS * (1 + len(SCALES)), *hidden, 2),
    )
    # Terminations are rare, and where there are none a rollout must not fade.
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


def predicted(members: Ensemble) -> int:
    """O, the numbers of an observation that the members predict."""
    return int(members[0]["least"].shape[-1])


def transition(
    member: Params, observation: Float[Array, " S"], action: Float[Array, " A"]
) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
    """Mean of the next observation and log deviations: `s + W (s, a) + f(s, a)`, and g(s, a) within learned bounds.

    Args:
        member: weights of one member.
        observation: (S,), normalised; without a history S is O.
        action: (A,), between -1 and 1.
    """
    x = jnp.concatenate([observation, action])
    mean, raw = jnp.split(mlp_apply(member["dynamics"], x), 2)
    below = member["most"] - jax.nn.softplus(member["most"] - raw)
    log_deviation = member["least"] + jax.nn.softplus(below - member["least"])
    return observation[: mean.shape[0]] + x @ member["linear"]["kernel"] + mean, log_deviation


def reward_and_termination(
    member: Params, observation: Float[Array, " S"], action: Float[Array, " A"], following: Float[Array, " O"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Reward of a step and the logit of its termination: an MLP of `z` and of `sign(z) log(1 + |z| / scale)`.

    z are learned directions of (s, a, s').

    Args:
        member: weights of one member.
        observation: (S,), normalised.
        action: (A,), between -1 and 1.
        following: (O,), normalised next observation, without its history.
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


def unseen(
    observation: Float[Array, "*n S"], following: Float[Array, "*n O"], terminated: Float[Array, "*n"]
) -> Bool[Array, "*n"]:
    """Whether nothing is known of where a step led: it terminated, and the next observation is the one before.

    Files that have no next observations say nothing of the last one, for no value is learned of it; the row's own
    stands in for it.
    """
    return (terminated > 0) & jnp.all(following == observation[..., : following.shape[-1]], axis=-1)


def loss(member: Params, t: Transition) -> Float[Array, ""]:
    """Negative log likelihood of one transition: its next observation, its reward and whether it terminated.

    Where the next observation is `unseen` there is none to learn, and reward and end are those of the expected one.
    """
    mean, log_deviation = transition(member, t.observation, t.action)
    following = t.next_observation[: mean.shape[0]]
    nowhere = unseen(t.observation, following, t.terminated)
    following = jnp.where(nowhere, jax.lax.stop_gradient(mean), following)
    reward, logit = reward_and_termination(member, t.observation, t.action, following)
    moved = jnp.sum(jax.vmap(robust_gaussian_loss)(following - mean, log_deviation))
    moved = jnp.where(nowhere, 0.0, moved)
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


def update(
    model: Model, batch: Transition, learning_rate: Float[Array, ""], key: PRNGKeyArray
) -> tuple[Model, dict[str, Array]]:
    """One gradient step of every member on rows of its own, drawn with replacement from what is not held out.

    On the same rows members would err together, and their disagreement would say too little (Efron & Tibshirani 1993,
    An Introduction to the Bootstrap, chapter 6).

    Args:
        model: the ensemble and its optimiser.
        batch: prepared transitions (B, ...).
        learning_rate: step length.
        key: randomness of the draws.
    """
    apart = held_out(batch).astype(batch.reward.dtype)
    count, members = jnp.sum(apart), model.error.shape[0]
    running = jnp.cumsum(1.0 - apart)
    drawn = jax.random.uniform(key, (members, apart.shape[0]), apart.dtype) * running[-1]
    rows = jnp.minimum(jnp.searchsorted(running, drawn, side="right"), apart.shape[0] - 1)
    own = jax.vmap(lambda at: jnp.zeros_like(apart).at[at].add(1.0) * (1.0 - apart))(rows)
    own = own / jnp.maximum(jnp.sum(own, axis=1, keepdims=True), 1.0)

    def total(members: Ensemble) -> tuple[Float[Array, ""], Float[Array, " M"]]:
        each = jnp.stack([jax.vmap(loss, in_axes=(None, 0))(member, batch) for member in members])
        return jnp.sum(each * own), each @ apart / jnp.maximum(count, 1.0)

    (value, error), gradient = jax.value_and_grad(total, has_aux=True)(model.members)
    weights, optimiser = optimisers.step(model.members, gradient, model.optimiser, learning_rate)
    known = jnp.where(count > 0, FORGET, 0.0).astype(error.dtype)
    running_error = model.error + known * (error - model.error)
    low, high = seen(model, batch)
    low, high = jnp.minimum(model.low, low), jnp.maximum(model.high, high)
    return Model(weights, optimiser, running_error, low, high, model.history), {
        "model_loss": value / members,
        "model_error": jnp.mean(error),
    }


def seen(model: Model, rows: Transition) -> tuple[Float[Array, " O"], Float[Array, " O"]]:
    """Least and most of each observation in some rows (N, ...), before or after the step."""
    both = jnp.concatenate([rows.observation, rows.next_observation])[:, : model.low.shape[0]]
    return jnp.min(both, axis=0), jnp.max(both, axis=0)


def reach(model: Model) -> Reach:
    """The range of the data, widened by `WIDENING` of itself on both sides: beyond it no member knows anything.

    A rollout that ran away there would hide the others' gradients behind its own. Without bounds before training.
    """
    margin = WIDENING * (model.high - model.low)
    known = model.high >= model.low
    low, high = jnp.where(known, model.low - margin, -jnp.inf), jnp.where(known, model.high + margin, jnp.inf)
    return Reach(low, high, model.history)


def within(reach: Reach, following: Float[Array, " O"]) -> Float[Array, " O"]:
    """The next observation, clipped where it would leave the reach."""
    return jnp.clip(following, reach.low, reach.high)


def onward(
    reach: Reach, observation: Float[Array, " S"], action: Float[Array, " A"], following: Float[Array, " O"]
) -> Float[Array, " S"]:
    """The next observation with the earlier values that then stand behind it.

    Args:
        reach: which earlier values.
        observation: (S,), normalised.
        action: (A,), between -1 and 1, in the same scale as in the history.
        following: (O,), normalised next observation.
    """
    return followed(reach.history, observation, action, following)


def leading(model: Model, count: int) -> Int[Array, " E"]:
    """Numbers of the `count` members with the least held-out loss."""
    return jnp.argsort(model.error)[:count]


def elites(model: Model, count: int) -> Ensemble:
    """The `leading` members."""
    best = leading(model, count)
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
        of_batch, of_members = jax.random.split(jax.random.fold_in(key, number))
        drawn = jax.random.randint(of_batch, (batch_size,), 0, data.reward.shape[0])
        batch: Transition = jax.tree.map(lambda x: x[drawn], data)
        model, metrics = update(model, batch, jnp.asarray(learning_rate, data.reward.dtype), of_members)
        return model, metrics["model_loss"]

    model, values = jax.lax.scan(one, model, first + jnp.arange(updates))
    return model, jnp.mean(values)
