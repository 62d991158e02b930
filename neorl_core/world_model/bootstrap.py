"""Train each member of an ensemble on a random selection of episodes (bootstrap).

Episodes are drawn, not single rows, because the rows of an episode are correlated.

Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 8; Chua et al. 2018 (PETS, arXiv 1805.12114).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser
from neorl_core.types import Params, Transition
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Model

PARTS = 4
"""Number of progress reports per member."""


@partial(jax.jit, static_argnames=("episodes", "members"))
def resample(key: PRNGKeyArray, episode: Int[Array, " N"], episodes: int, members: int) -> Int[Array, "M N"]:
    """Draw E of the E episodes for each member, with replacement.

    Args:
        episode: (N,) episode index of each row, 0 to E - 1.
        episodes: number of episodes E.
        members: number of members M.

    Returns:
        (M, N) running sums: the entry of a row counts how often this row and all earlier rows were drawn.
    """

    def one(key: PRNGKeyArray) -> Int[Array, " N"]:
        indices = jax.random.randint(key, (episodes,), 0, episodes)
        return jnp.cumsum(jnp.bincount(indices, length=episodes)[episode])

    return jax.vmap(one)(jax.random.split(key, members))


def train(
    model: Model,
    key: PRNGKeyArray,
    data: Transition,
    counts: Int[Array, "M N"],
    updates: int,
    report: Callable[[int, int], None] | None = None,
    learning_rate: float = 1e-2,
    batch_size: int = 256,
) -> Model:
    """Train every member on its own resample.

    Args:
        model: model from `dynamics.init`.
        data: (N, ...) prepared transitions, in the row order of `counts`.
        counts: result of `resample`.
        report: callback for progress: (steps done, steps in total).
        learning_rate: learning rate; the recipe's schedule multiplies it by a factor.
    """
    low, high = dynamics.observed_range(model, data)
    count, chunk = len(model.members), max(updates // PARTS, 1)
    trained: list[Params] = []
    for number, member in enumerate(model.members):
        optimiser = optimisers.init(model.optimiser.recipe, member)
        for first in range(0, updates, chunk):
            if report:
                report((number * updates + first) // count, updates)
            keys = batch_keys(key, first, min(chunk, updates - first), number, count)
            member, optimiser = _steps(member, optimiser, keys, data, counts[number], learning_rate, batch_size)
            jax.block_until_ready(member)  # type: ignore[no-untyped-call]
        trained.append(member)
    if report:
        report(updates, updates)
    return model._replace(members=tuple(trained), low=low, high=high)


@partial(jax.jit, static_argnames=("steps", "members"))
def batch_keys(key: PRNGKeyArray, first: int, steps: int, number: int, members: int) -> Key[Array, " U"]:
    """Return the PRNG keys of `steps` batches of one member. A batch's key depends only on step number and member."""
    return jax.vmap(lambda at: jax.random.split(jax.random.fold_in(key, at), members)[number])(
        first + jnp.arange(steps)
    )


@partial(jax.jit, static_argnames=("batch_size",))
def _steps(
    member: Params,
    optimiser: Optimiser,
    keys: Key[Array, " U"],
    data: Transition,
    counts: Int[Array, " N"],
    learning_rate: float,
    batch_size: int,
) -> tuple[Params, Optimiser]:
    """Take one gradient step with one member for each key."""

    def mean_loss(member: Params, batch: Transition) -> Float[Array, ""]:
        return jnp.mean(jax.vmap(dynamics.loss, in_axes=(None, 0))(member, batch))

    def one(state: tuple[Params, Optimiser], key: PRNGKeyArray) -> tuple[tuple[Params, Optimiser], None]:
        indices = jax.random.randint(key, (batch_size,), 0, counts[-1])
        rows = jnp.searchsorted(counts, indices, side="right")
        gradient = jax.grad(mean_loss)(state[0], jax.tree.map(lambda x: x[rows], data))
        return optimisers.step(state[0], gradient, state[1], jnp.asarray(learning_rate, data.reward.dtype)), None

    end: tuple[Params, Optimiser] = jax.lax.scan(one, (member, optimiser), keys)[0]
    return end
