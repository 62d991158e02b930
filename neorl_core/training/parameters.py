"""What networks of a learner's state have learned, by name: what sites share, and what another training begins with.

These are all weights that gradients or Polyak's rule move: actors, critics, values, their targets, temperatures and
the networks of a learned model. Target networks follow the others linearly, so that a mean of targets is the target of
the mean. What stays where it is: optimisers' memory, whose scale is that of the learner's own gradients and which would
triple what is sent; hyper-parameters; and what a learned model keeps of its data: errors on held-out rows, the range of
what it has seen, and moments of it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.training.optimisers import Optimiser
from neorl_core.training.population import TrainState

Parameters = dict[str, Float[Array, "..."]]
"""Weights by their place in the state, such as `actor/Dense_0/kernel`: a pytree, and names for a network."""

OWN = frozenset({"hyper", "error", "low", "high", "support"})
"""Fields of states that are no weights: `Hyperparameters`, and what models and their `Support` keep of rows."""
TUNING_PASSES = 30
"""Passes over its own rows, at most, of a training that goes on from weights that more rows have made. Of few rows more
passes forget those weights: on the twenty reactors of `make fleet-study` with two episodes each, 1,000 steps (2,133
passes) made 37 of the shared policy's 90, and 30 passes kept it; with twenty episodes 30 made the most, too."""


def parameters_of(learner: Any) -> Parameters:
    """The weights of an algorithm's state.

    Args:
        learner: the state; it may have leading axes.

    Raises:
        ValueError: when there are none.

    Example:
        >>> from neorl_core.algorithms import BC
        >>> from neorl_core.plants import PLANTS
        >>> state = BC.init(jax.random.key(0), PLANTS["double_mass"].spec, BC.Config(hidden=(4,)))
        >>> list(parameters_of(state))[:2]
        ['actor/Dense_0/bias', 'actor/Dense_0/kernel']
    """
    leaves = jax.tree_util.tree_flatten_with_path(learner, is_leaf=_is_optimiser)[0]
    found = {_name(path): leaf for path, leaf in leaves if not _is_optimiser(leaf) and _is_weight(path, leaf)}
    if not found:
        raise ValueError(
            f"expected a state with weights outside of its optimisers, got {type(learner).__name__} without any: name "
            "its fields otherwise than " + ", ".join(sorted(OWN)) + "."
        )
    return found


def with_parameters(learner: Any, parameters: Parameters) -> Any:
    """The state with other weights in the places that they are named by.

    Args:
        learner: an algorithm's state.
        parameters: weights, named as `parameters_of` names them.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(learner)
    return jax.tree.unflatten(structure, [parameters.get(_name(path), leaf) for path, leaf in leaves])


def begun(fresh: TrainState, parameters: Parameters) -> TrainState:
    """A fresh population all of whose members begin with the same weights, in place of those that their seeds draw.

    Args:
        fresh: P members, as `init_population` makes them.
        parameters: as `parameters_of` gives them of one state, without a leading axis.

    Raises:
        ValueError: when they are those of other networks.
    """
    own = parameters_of(fresh.learner)
    ours, theirs = ({name: jnp.shape(x) for name, x in held.items()} for held in (own, parameters))
    if {name: shape[1:] for name, shape in ours.items()} != theirs:
        odd = sorted(name for name in {*ours, *theirs} if ours.get(name, (0,))[1:] != theirs.get(name))
        raise ValueError(f"expected the weights of this algorithm and these layers, got others at '{odd[0]}'")
    placed = {name: jnp.broadcast_to(jnp.asarray(parameters[name], x.dtype), x.shape) for name, x in own.items()}
    return fresh._replace(learner=with_parameters(fresh.learner, placed))


def with_optimisers(learner: Any, fresh: Any) -> Any:
    """The state with the optimisers of a fresh one: their recipes, and nothing remembered.

    All else stays, so that it goes on from what it has learned, of its data too; a schedule begins anew, for it is of
    one training's length.

    Args:
        learner: an algorithm's state.
        fresh: another of the same algorithm and layers.
    """
    return jax.tree.map(lambda own, new: new if _is_optimiser(own) else own, learner, fresh, is_leaf=_is_optimiser)


def tuning_updates(updates: int, rows: int, batch_size: int, batches: int = 1) -> int:
    """Gradient steps of a training that goes on from weights of more rows: at most `TUNING_PASSES` over its own.

    Args:
        updates: gradient steps asked for.
        rows: transitions of its own.
        batch_size: transitions per gradient step.
        batches: the algorithm's `batches_per_update`.

    Returns:
        A multiple of `batches`, where what was asked for is one, and at least one.

    Example:
        >>> tuning_updates(1_000, rows=1_200, batch_size=256, batches=2)
        140
        >>> tuning_updates(1_000, rows=12_000, batch_size=256, batches=2)
        1000
    """
    most = TUNING_PASSES * rows // (batch_size * batches)
    return min(updates, max(most, 1) * batches)


def difference(one: Parameters, other: Parameters) -> Parameters:
    """`one - other`, weight by weight."""
    found: Parameters = jax.tree.map(jnp.subtract, one, other)
    return found


def size(parameters: Parameters) -> int:
    """How many numbers the weights are."""
    return sum(x.size for x in parameters.values())


def _is_optimiser(x: Any) -> bool:
    return isinstance(x, Optimiser)


def _is_weight(path: Any, leaf: Any) -> bool:
    names = {getattr(step, "name", None) for step in path}
    return not names & OWN and bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
