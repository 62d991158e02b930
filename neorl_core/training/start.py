"""Where a training begins: with the weights of another one, in place of those that its seed draws.

The weights of all networks are taken over, targets and temperatures included. Optimisers begin anew, for their memory
is that of other gradients, and so do hyper-parameters and what a learned model remembers of its data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.training.optimisers import Optimiser
from neorl_core.training.population import TrainState

OWN = frozenset({"hyper", "error", "low", "high"})
"""Fields of states that are no weights: hyper-parameters, and a learned model's errors and range of data."""


def weights(learner: Any) -> dict[str, Float[Array, ...]]:
    """The weights of an algorithm's state, by their place in it.

    Args:
        learner: the state; it may have leading axes.

    Example:
        >>> from neorl_core.algorithms import BC
        >>> from neorl_core.plants import PLANTS
        >>> state = BC.init(jax.random.key(0), PLANTS["double_mass"].spec, BC.Config(hidden=(4,)))
        >>> list(weights(state))[:2]
        ['actor/Dense_0/bias', 'actor/Dense_0/kernel']
    """
    leaves = jax.tree_util.tree_flatten_with_path(learner, is_leaf=_is_optimiser)[0]
    return {_place(path): leaf for path, leaf in leaves if not _is_optimiser(leaf) and _is_weight(path, leaf)}


def begun(fresh: TrainState, found: Mapping[str, Float[Array, ...]]) -> TrainState:
    """A fresh population all of whose members begin with the same weights.

    Args:
        fresh: P members, as `init_population` makes them.
        found: as `weights` gives them of one state, without a leading axis.

    Raises:
        ValueError: when they are those of other networks.
    """
    own = weights(fresh.learner)
    ours, theirs = ({name: jnp.shape(x) for name, x in held.items()} for held in (own, found))
    if {name: shape[1:] for name, shape in ours.items()} != theirs:
        odd = sorted(name for name in {*ours, *theirs} if ours.get(name, (0,))[1:] != theirs.get(name))
        raise ValueError(f"expected the weights of this algorithm and these layers, got others at '{odd[0]}'")

    def placed(path: Any, leaf: Any) -> Any:
        start = found.get(_place(path))
        return leaf if start is None else jnp.broadcast_to(jnp.asarray(start, leaf.dtype), leaf.shape)

    return fresh._replace(learner=jax.tree_util.tree_map_with_path(placed, fresh.learner))


def _is_optimiser(value: Any) -> bool:
    return isinstance(value, Optimiser)


def _is_weight(path: Any, leaf: Any) -> bool:
    names = {getattr(key, "name", None) for key in path}
    return not (names & OWN) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _place(path: Any) -> str:
    return "/".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))) for key in path)
