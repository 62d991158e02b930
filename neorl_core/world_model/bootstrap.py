"""An ensemble whose members learn from bootstrapped episodes: each believes in a plant of its own resample.

Rows of an episode resemble each other, so episodes are drawn, not rows: a resample of rows would make members that
agree with each other where the logs say little.

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
"""Parts that the steps of a member are cut into, so that progress can be told."""


@partial(jax.jit, static_argnames=("episodes", "members"))
def resample(key: PRNGKeyArray, episode: Int[Array, " N"], episodes: int, members: int) -> Int[Array, "M N"]:
    """How often each member has drawn the rows up to each row, when it drew as many episodes as there are.

    Args:
        key: randomness of the draws.
        episode: (N,) which episode a row belongs to, 0 to E - 1.
        episodes: E.
        members: M.

    Returns:
        (M, N) running sums of the rows' counts: a row drawn uniformly below the last of a member's is one of its own.
    """

    def one(key: PRNGKeyArray) -> Int[Array, " N"]:
        drawn = jax.random.randint(key, (episodes,), 0, episodes)
        return jnp.cumsum(jnp.bincount(drawn, length=episodes)[episode])

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
    """Gradient steps of every member on its own resample, one member after the other: one small program serves all.

    Args:
        model: fresh, with the recipe of its optimiser.
        key: randomness of the batches.
        data: (N, ...) prepared transitions, in the order of `counts`.
        counts: what `resample` made.
        updates: gradient steps of each member.
        report: told before each part, and at the end, how many steps of how many are made.
        learning_rate: what the recipe multiplies.
        batch_size: rows per step and member.
    """
    low, high = dynamics.seen(model, data)
    count, chunk = len(model.members), max(updates // PARTS, 1)
    trained: list[Params] = []
    for number, member in enumerate(model.members):
        optimiser = optimisers.init(model.optimiser.recipe, member)
        for first in range(0, updates, chunk):
            if report:
                report((number * updates + first) // count, updates)
            drawn = batch_keys(key, first, min(chunk, updates - first), number, count)
            member, optimiser = _steps(member, optimiser, drawn, data, counts[number], learning_rate, batch_size)
            jax.block_until_ready(member)  # type: ignore[no-untyped-call]
        trained.append(member)
    if report:
        report(updates, updates)
    return model._replace(members=tuple(trained), low=low, high=high)


@partial(jax.jit, static_argnames=("steps", "members"))
def batch_keys(key: PRNGKeyArray, first: int, steps: int, number: int, members: int) -> Key[Array, " U"]:
    """The key of each of some batches of one of the members, which no cut of the steps into parts changes."""
    return jax.vmap(lambda at: jax.random.split(jax.random.fold_in(key, at), members)[number])(
        first + jnp.arange(steps)
    )


@partial(jax.jit, static_argnames=("batch_size",))
def _steps(
    member: Params,
    optimiser: Optimiser,
    keys: Key[Array, " U"],
    data: Transition,
    running: Int[Array, " N"],
    learning_rate: float,
    batch_size: int,
) -> tuple[Params, Optimiser]:
    """Gradient steps of one member, one for each key."""

    def mean_loss(member: Params, batch: Transition) -> Float[Array, ""]:
        return jnp.mean(jax.vmap(dynamics.loss, in_axes=(None, 0))(member, batch))

    def one(state: tuple[Params, Optimiser], key: PRNGKeyArray) -> tuple[tuple[Params, Optimiser], None]:
        drawn = jax.random.randint(key, (batch_size,), 0, running[-1])
        rows = jnp.searchsorted(running, drawn, side="right")
        gradient = jax.grad(mean_loss)(state[0], jax.tree.map(lambda x: x[rows], data))
        return optimisers.step(state[0], gradient, state[1], jnp.asarray(learning_rate, data.reward.dtype)), None

    end: tuple[Params, Optimiser] = jax.lax.scan(one, (member, optimiser), keys)[0]
    return end
