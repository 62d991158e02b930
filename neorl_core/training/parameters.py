"""Read and replace the weights in a learner's state. Sites of a fleet share weights, and fine-tuning starts from them.

Weights are all arrays that gradient steps or Polyak averaging change: actors, critics, value networks, target networks,
temperatures and learned models. Not included are optimiser states, which are large and fit only one learner's
gradients, hyper-parameters, and statistics of the logged rows in learned models.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.training.optimisers import Optimiser
from neorl_core.training.population import TrainState

Parameters = dict[str, Float[Array, "..."]]
"""Weights by their path in the state, such as `actor/Dense_0/kernel`."""

OWN = frozenset({"hyper", "error", "low", "high", "support"})
"""Names of state fields that are not weights: hyper-parameters, and statistics of logged rows."""
TUNING_PASSES = 30
"""Largest number of passes over a site's rows in fine-tuning. More passes over few rows make the policy worse. In `make
fleet-study`, with two episodes per site, 2,133 passes reduced the score from 90 to 37 points; 30 passes kept 90."""


def parameters_of(learner: Any) -> Parameters:
    """Return the weights of an algorithm's state.

    Args:
        learner: state of one member, or of several members with a leading axis.

    Raises:
        ValueError: if the state has no weights.

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
            f"the state {type(learner).__name__} has no weights: put them in a field outside the optimisers, with a "
            f"name other than {', '.join(sorted(OWN))}"
        )
    return weights


def with_parameters(learner: Any, parameters: Parameters) -> Any:
    """Return a state in which the given weights replace the weights of the same names."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(learner)
    return jax.tree.unflatten(structure, [parameters.get(_name(path), leaf) for path, leaf in leaves])


def start_from(fresh: TrainState, parameters: Parameters) -> TrainState:
    """Return a population in which all members start from the same weights.

    Args:
        fresh: P members from `init_population`.
        parameters: weights from `parameters_of`, without a leading axis.

    Raises:
        ValueError: if names or shapes of the weights differ from those of the population.
    """
    own = parameters_of(fresh.learner)
    wanted = {name: jnp.shape(x)[1:] for name, x in own.items()}
    shapes = {name: jnp.shape(x) for name, x in parameters.items()}
    if wanted != shapes:
        name = min(name for name in {*wanted, *shapes} if wanted.get(name) != shapes.get(name))
        raise ValueError(
            f"the weights '{name}' have shape {shapes.get(name, '(absent)')}, but the algorithm needs "
            f"{wanted.get(name, '(absent)')}: use the algorithm and layer sizes with which the weights were trained"
        )
    placed = {name: jnp.broadcast_to(jnp.asarray(parameters[name], x.dtype), x.shape) for name, x in own.items()}
    return fresh._replace(learner=with_parameters(fresh.learner, placed))


def with_optimisers(learner: Any, fresh: Any) -> Any:
    """Return `learner` with the optimisers of `fresh`, a new state of the same algorithm."""
    return jax.tree.map(lambda own, new: new if _is_optimiser(own) else own, learner, fresh, is_leaf=_is_optimiser)


def tuning_updates(updates: int, rows: int, batch_size: int, batches: int = 1) -> int:
    """Return the number of gradient steps for fine-tuning: at most `TUNING_PASSES` passes over a site's rows.

    Returns:
        A number from 1 to `updates`. It is a multiple of `batches` if `updates` is a multiple of `batches`.

    Example:
        >>> tuning_updates(1_000, rows=1_200, batch_size=256, batches=2)
        140
        >>> tuning_updates(1_000, rows=12_000, batch_size=256, batches=2)
        1000
    """
    most = TUNING_PASSES * rows // (batch_size * batches)
    return min(updates, max(most, 1) * batches)


def difference(one: Parameters, other: Parameters) -> Parameters:
    """Return `one - other` for all weights."""
    change: Parameters = jax.tree.map(jnp.subtract, one, other)
    return change


def size(parameters: Parameters) -> int:
    """Return how many numbers all weights together contain."""
    return sum(x.size for x in parameters.values())


def _is_optimiser(x: Any) -> bool:
    return isinstance(x, Optimiser)


def _is_weight(path: Any, leaf: Any) -> bool:
    names = {getattr(step, "name", None) for step in path}
    return not names & OWN and bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
