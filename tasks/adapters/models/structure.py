"""A composite as JSON beside named arrays, and back without trust in either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput, Refused
from neorl_core.types import Params, Plant

if TYPE_CHECKING:
    from neorl_core.safety.composite import Composite

Arrays = dict[str, npt.NDArray[Any]]


class Branch(NamedTuple):
    """A NamedTuple that a structure may name."""

    make: Callable[..., Params]
    fields: tuple[str, ...]


MAX_DEPTH = 32
"""Levels of a structure: a policy behind its shield has five."""


def flatten(node: Params, arrays: Arrays, path: str = "") -> Any:
    """Describe a pytree as JSON.

    Args:
        node: NamedTuples, mappings, tuples, lists, numbers and arrays.
        arrays: receives the arrays, little-endian, under their paths.
        path: of this node.

    Returns:
        The structure as JSON, which names the arrays.

    Raises:
        BadInput: when it holds anything else.
    """
    if node is None or isinstance(node, bool | int | float | str):
        return {"constant": node}
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        fields = {name: flatten(getattr(node, name), arrays, f"{path}/{name}") for name in node._fields}
        return {"type": type(node).__name__, "fields": fields}
    if isinstance(node, Mapping):
        return {"dict": {key: flatten(node[key], arrays, f"{path}/{key}") for key in sorted(node)}}
    if isinstance(node, tuple | list):
        items = [flatten(item, arrays, f"{path}/{i}") for i, item in enumerate(node)]
        return {"tuple" if isinstance(node, tuple) else "list": items}
    array = np.asarray(node)
    if array.dtype.kind not in "biuf":
        raise BadInput(f"expected a number or an array at {path}, got {type(node).__name__}: ship plain arrays only.")
    name = path.lstrip("/")
    arrays[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    return {"array": name}


def build_composite(structure: Any, arrays: Mapping[str, npt.NDArray[Any]], plant: Plant) -> Composite:
    """The composite that a structure and its arrays describe.

    Args:
        structure: JSON, which may come from anywhere.
        arrays: by name; each is used once.
        plant: whose composite it should be.

    Returns:
        The composite, its arrays on JAX's default device.

    Raises:
        Refused: when a type is unknown, an array is missing or left over, or a shape is not what the plant needs.
    """
    left = dict(arrays)
    composite: Composite = _build(structure, left, _known_types(plant), MAX_DEPTH)
    if left:
        raise Refused(f"expected every array of the bundle to be used, got {min(left)[:80]!r} besides: {_CURE}.")
    misfit = _misfit(composite, plant)
    if misfit is not None:
        raise Refused(f"expected a composite of {plant.spec.name}, got {misfit}: {_CURE}.")
    return composite


_CURE = "take the bundle from the registry again"


def _build(node: Any, arrays: Arrays, types: Mapping[str, Branch], depth: int) -> Any:
    if depth == 0:
        raise Refused(f"expected a structure of at most {MAX_DEPTH} levels, got more: {_CURE}.")
    match node:
        case {"constant": (None | bool() | int() | float() | str()) as value, **rest} if not rest:
            return value
        case {"array": str(name), **rest} if not rest and name in arrays:
            import jax.numpy as jnp

            # Taken out, so that a small file cannot ask for very many copies of one array.
            return jnp.asarray(arrays.pop(name))
        case {"dict": dict(items), **rest} if not rest:
            return {key: _build(item, arrays, types, depth - 1) for key, item in items.items()}
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_build(item, arrays, types, depth - 1) for item in items)
        case {"list": list(items), **rest} if not rest:
            return [_build(item, arrays, types, depth - 1) for item in items]
        case {"type": str(name), "fields": dict(fields), **rest} if not rest:
            if name in types and set(types[name].fields) == set(fields):
                return types[name].make(**{key: _build(item, arrays, types, depth - 1) for key, item in fields.items()})
            raise Refused(
                f"expected a bundle of a structure this version of neorl_core knows, got the type {name[:80]!r} with "
                f"fields {str(sorted(fields))[:200]}: load it with the version it was made with."
            )
    raise Refused(f"expected a part of a composite, or an array not yet used, got {repr(node)[:80]}: {_CURE}.")


def _known_types(plant: Plant) -> dict[str, Branch]:
    """The NamedTuples a bundle may hold, by name: a file never says which module to import."""
    from neorl_core.networks import Normaliser, Policy
    from neorl_core.safety.composite import Composite
    from neorl_core.safety.shield import ShieldParams

    types: dict[str, Branch] = {
        kind.__name__: Branch(kind, kind._fields) for kind in (Composite, Policy, Normaliser, ShieldParams)
    }
    queue = [plant.params, plant.fallback_params]
    while queue:
        node = queue.pop()
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            types[type(node).__name__] = Branch(type(node), node._fields)
        if isinstance(node, tuple | list):
            queue.extend(node)
        elif isinstance(node, Mapping):
            queue.extend(node.values())
    return types


def _misfit(composite: Params, plant: Plant) -> str | None:
    """What of a composite cannot be the plant's; None where types and shapes are what its controller computes with."""
    import jax

    from neorl_core.networks import Normaliser, Policy
    from neorl_core.safety.composite import Composite
    from neorl_core.safety.shield import ShieldParams

    if not isinstance(composite, Composite):
        return f"a {type(composite).__name__}"
    for leaf in jax.tree.leaves(composite):
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if array.dtype.kind not in "biuf" or (isinstance(leaf, int) and abs(leaf) >= 2**31):
            return f"the constant {repr(leaf)[:40]}"
    observed, acting, limits = plant.spec.observation.size, plant.spec.action.size, len(plant.spec.constraints)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(ShieldParams._fields, (acting,))
    shapes |= {"observation_low": (observed,), "observation_high": (observed,), "return_buffer": (limits,), "hold": ()}
    # The shield's look-ahead is its own to choose; all other lengths are the plant's.
    margins = getattr(composite.shield, "margin_buffer", None)
    look_ahead = len(margins) if isinstance(margins, jax.Array) and margins.ndim == 2 else 1
    shapes["margin_buffer"] = (max(look_ahead, 1), limits)
    if not _alike(composite.shield, ShieldParams(**{name: _zeros(shape) for name, shape in shapes.items()})):
        return "another shield"
    if not _alike(composite.fallback, plant.fallback_params):
        return "another fallback"
    if not _alike(composite.model, plant.params):
        return "another model"
    if composite.policy is None:
        return None
    normaliser = Normaliser(*(_zeros((size,)) for size in (observed, observed, acting, acting)))
    if not isinstance(composite.policy, Policy) or not _alike(composite.policy.normaliser, normaliser):
        return "another policy"
    return None if is_network(composite.policy.params, observed, acting) else "another network"


def is_network(params: Params, inputs: int, outputs: int) -> bool:
    """Whether weights are dense layers, one after the other, from `inputs` numbers to `outputs`."""
    import jax

    if not isinstance(params, dict) or not params:
        return False
    for i in range(len(params)):
        match params.get(f"Dense_{i}"):
            case {"kernel": jax.Array(shape=kernel), "bias": jax.Array(shape=(width,)), **rest} if not rest:
                if kernel != (inputs, width):
                    return False
                inputs = width
            case _:
                return False
    return inputs == outputs


def _alike(found: Params, like: Params) -> bool:
    """Whether two trees have the same structure and shapes."""
    import jax

    structures: list[object] = [jax.tree.structure(found), jax.tree.structure(like)]
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=False)
    return structures[0] == structures[1] and all(np.shape(one) == np.shape(other) for one, other in pairs)


def _zeros(shape: tuple[int, ...]) -> Any:
    """An array of a shape that may be large, in four bytes."""
    return np.broadcast_to(np.float32(0), shape)
