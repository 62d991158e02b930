"""Named weights of a learner's state, which sites share and which fine-tuning starts from.

Included are all weights moved by gradients or Polyak averaging: actors, critics, values, their targets, temperatures
and learned models. Targets follow their networks linearly, so the mean of targets is the target of the mean. Excluded
are optimiser states (three times the size, and scaled to the learner's own gradients), hyper-parameters, and statistics
of the rows in learned models (held-out errors, ranges, moments).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.training.optimisers import Optimiser
from neorl_core.training.population import TrainState

Parameters = dict[str, Float[Array, "..."]]
"""Path in the state, such as `actor/Dense_0/kernel`, -> weights."""

OWN = frozenset({"hyper", "error", "low", "high", "support"})
"""State fields that are not weights: `Hyperparameters`, and row statistics of learned models and `Support`."""
TUNING_PASSES = 30
"""Largest number of passes over its own rows in fine-tuning; more passes over few rows forget the shared weights. On
the twenty reactors of `make fleet-study` with two episodes each, 2,133 passes kept 37 of the 90 points of the shared
policy, and 30 passes kept all. With twenty episodes 30 passes were best, too."""


def parameters_of(learner: Any) -> Parameters:
    """Return the weights of an algorithm's state.

    Args:
        learner: state, with or without leading axes.

    Raises:
        ValueError: if there are none.

    Example:
        >>> from neorl_core.algorithms import BC
        >>> from neorl_core.plants import PLANTS
        >>> state = BC.init(jax.random.key(0), PLANTS["double_mass"].spec, BC.Config(hidden=(4,)))
        >>> list(parameters_of(state))[:2]
        ['actor/Dense_0/bias', 'actor/Dense_0/kernel']
    """
    leaves = jax.tree_util.tree_flatten_with_path(learner, is_leaf=_is_optimiser)[0]
    weights = {_name(path): leaf for path, leaf in leaves if not _is_optimiser(leaf) and _is_weight(path, leaf)}
    if not weights:
        raise ValueError(
            f"a learner's state needs weights outside its optimisers, got {type(learner).__name__} without any: use "
            f"other field names than {', '.join(sorted(OWN))}"
        )
    return weights


def with_parameters(learner: Any, parameters: Parameters) -> Any:
    """Replace weights of a state by name."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(learner)
    return jax.tree.unflatten(structure, [parameters.get(_name(path), leaf) for path, leaf in leaves])


def start_from(fresh: TrainState, parameters: Parameters) -> TrainState:
    """Set all members of a fresh population to the same weights.

    Args:
        fresh: P members from `init_population`.
        parameters: weights from `parameters_of`, without a leading axis.

    Raises:
        ValueError: if names or shapes differ.
    """
    own = parameters_of(fresh.learner)
    wanted = {name: jnp.shape(x)[1:] for name, x in own.items()}
    shapes = {name: jnp.shape(x) for name, x in parameters.items()}
    if wanted != shapes:
        name = min(name for name in {*wanted, *shapes} if wanted.get(name) != shapes.get(name))
        raise ValueError(
            f"the weights must fit algorithm and layers: '{name}' must have shape {wanted.get(name, 'no weights')}, "
            f"got {shapes.get(name, 'no weights')}"
        )
    placed = {name: jnp.broadcast_to(jnp.asarray(parameters[name], x.dtype), x.shape) for name, x in own.items()}
    return fresh._replace(learner=with_parameters(fresh.learner, placed))


def with_optimisers(learner: Any, fresh: Any) -> Any:
    """Replace the optimisers of a state by fresh ones of the same algorithm and layers, which restarts schedules."""
    return jax.tree.map(lambda own, new: new if _is_optimiser(own) else own, learner, fresh, is_leaf=_is_optimiser)


def tuning_updates(updates: int, rows: int, batch_size: int, batches: int = 1) -> int:
    """Return the gradient steps of fine-tuning: at most `TUNING_PASSES` passes over the own rows.

    Args:
        updates: requested gradient steps.
        rows: number of own transitions.
        batch_size: transitions per gradient step.
        batches: the algorithm's `batches_per_update`.

    Returns:
        At least one, and a multiple of `batches` if `updates` is.

    Example:
        >>> tuning_updates(1_000, rows=1_200, batch_size=256, batches=2)
        140
        >>> tuning_updates(1_000, rows=12_000, batch_size=256, batches=2)
        1000
    """
    most = TUNING_PASSES * rows // (batch_size * batches)
    return min(updates, max(most, 1) * batches)


def difference(one: Parameters, other: Parameters) -> Parameters:
    """Return `one - other`, weight by weight."""
    change: Parameters = jax.tree.map(jnp.subtract, one, other)
    return change


def size(parameters: Parameters) -> int:
    """Return the number of scalars in the weights."""
    return sum(x.size for x in parameters.values())


def _is_optimiser(x: Any) -> bool:
    return isinstance(x, Optimiser)


def _is_weight(path: Any, leaf: Any) -> bool:
    names = {getattr(step, "name", None) for step in path}
    return not names & OWN and bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
