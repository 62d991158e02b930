"""What sites share of a learner's state: the weights of its networks, by name.

Shared are all weights that gradients or Polyak's rule move: actors, critics, values, their targets, temperatures and
the networks of a learned model. Target networks follow the others linearly, so that a mean of targets is the target of
the mean. What stays at a site: optimisers' memory, whose scale is that of the site's own gradients and which would
triple what is sent; hyper-parameters; and what a learned model keeps of its data: errors on held-out rows, the range of
what it has seen, and moments of it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.training.optimisers import Optimiser

Shared = dict[str, Float[Array, "..."]]
"""Weights by their place in the state, such as `actor/params/Dense_0/kernel`: a pytree, and names for a network."""

OWN = frozenset({"hyper", "error", "low", "high", "support"})
"""Fields of states that stay at a site: `Hyperparameters`, and what models and their `Support` keep of rows."""


def shared(learner: Any) -> Shared:
    """The weights that sites share.

    Args:
        learner: an algorithm's state; it may have leading axes.

    Raises:
        ValueError: when there are none.
    """
    leaves = jax.tree_util.tree_flatten_with_path(learner, is_leaf=_is_optimiser)[0]
    found = {_name(path): leaf for path, leaf in leaves if not _is_optimiser(leaf) and _is_weight(path, leaf)}
    if not found:
        raise ValueError(
            f"expected a state with weights outside of its optimisers, got {type(learner).__name__} without any: name "
            "its fields otherwise than " + ", ".join(sorted(OWN)) + "."
        )
    return found


def with_shared(learner: Any, parameters: Shared) -> Any:
    """The state with other weights in the places of the shared ones.

    Args:
        learner: an algorithm's state.
        parameters: weights, named as `shared` names them.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(learner)
    return jax.tree.unflatten(structure, [parameters.get(_name(path), leaf) for path, leaf in leaves])


def difference(one: Shared, other: Shared) -> Shared:
    """`one - other`, weight by weight."""
    found: Shared = jax.tree.map(jnp.subtract, one, other)
    return found


def size(parameters: Shared) -> int:
    """How many numbers the weights are."""
    return sum(x.size for x in parameters.values())


def _is_optimiser(x: Any) -> bool:
    return isinstance(x, Optimiser)


def _is_weight(path: Any, leaf: Any) -> bool:
    names = {getattr(step, "name", None) for step in path}
    return not names & OWN and bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
