"""An ensemble whose members learn from bootstrapped episodes: each believes in a plant of its own resample.

Rows of an episode resemble each other, so episodes are drawn, not rows: a resample of rows would make members that
agree with each other where the logs say little.

Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 8; Chua et al. 2018 (PETS, arXiv 1805.12114).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.networks import Ensemble
from neorl_core.training import optimisers
from neorl_core.types import Transition
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Model


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


def update(model: Model, batches: tuple[Transition, ...], learning_rate: Float[Array, ""]) -> tuple[Model, Array]:
    """One gradient step of every member on a batch of its own.

    Args:
        model: the ensemble and its optimiser.
        batches: M prepared batches (B, ...).
        learning_rate: step length.

    Returns:
        The new state and the members' mean loss.
    """

    def total(members: Ensemble) -> Float[Array, ""]:
        each = [
            jnp.mean(jax.vmap(dynamics.loss, in_axes=(None, 0))(member, batch))
            for member, batch in zip(members, batches, strict=True)
        ]
        return jnp.sum(jnp.stack(each))

    value, gradient = jax.value_and_grad(total)(model.members)
    members, optimiser = optimisers.step(model.members, gradient, model.optimiser, learning_rate)
    return model._replace(members=members, optimiser=optimiser), value / len(batches)


@partial(jax.jit, static_argnames=("updates", "batch_size"))
def train(
    model: Model,
    key: PRNGKeyArray,
    data: Transition,
    counts: Int[Array, "M N"],
    first: Int[Array, ""],
    updates: int,
    learning_rate: float = 1e-2,
    batch_size: int = 256,
) -> tuple[Model, Float[Array, ""]]:
    """Some gradient steps of all members, each on its own resample; chunks of any size make the same result.

    Args:
        model: where training stands.
        key: the same in every chunk.
        data: (N, ...) prepared transitions, in the order of `counts`.
        counts: what `resample` made.
        first: gradient steps made before.
        updates: gradient steps of this chunk.
        learning_rate: what the recipe multiplies.
        batch_size: rows per step and member.

    Returns:
        The new state and the chunk's mean loss.
    """

    def batch(key: PRNGKeyArray, running: Int[Array, " N"]) -> Transition:
        drawn = jax.random.randint(key, (batch_size,), 0, running[-1])
        rows = jnp.searchsorted(running, drawn, side="right")
        found: Transition = jax.tree.map(lambda x: x[rows], data)
        return found

    def one(model: Model, number: Int[Array, ""]) -> tuple[Model, Float[Array, ""]]:
        keys = jax.random.split(jax.random.fold_in(key, number), counts.shape[0])
        batches = tuple(batch(keys[m], counts[m]) for m in range(counts.shape[0]))
        return update(model, batches, jnp.asarray(learning_rate, data.reward.dtype))

    low, high = dynamics.seen(model, data)
    model = model._replace(low=low, high=high)
    model, values = jax.lax.scan(one, model, first + jnp.arange(updates))
    return model, jnp.mean(values)
