"""Convert composites to JSON with named arrays, and back. JSON and arrays from files are not trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput, Refused
from neorl_core.graph.layout import Layout
from neorl_core.types import History, Params, Plant, PlantSpec, Process

if TYPE_CHECKING:
    from neorl_core.safety.composite import Composite

Arrays = dict[str, npt.NDArray[Any]]


class Branch(NamedTuple):
    """A NamedTuple type that a composite may contain."""

    make: Callable[..., Params]
    fields: tuple[str, ...]
    optional: tuple[str, ...]
    """Fields with default None, left out if None."""


def _branch(kind: type) -> Branch:
    defaults = getattr(kind, "_field_defaults", {})
    return Branch(kind, kind._fields, tuple(name for name, value in defaults.items() if value is None))  # type: ignore[attr-defined]


MAX_DEPTH = 32
"""Largest depth of a structure; a shielded policy has five levels."""
MOST_UNITS = 4_096
"""Largest number of recurrent units; checking the shapes of more would take long."""
MOST_ROUNDS = 64
"""Largest number of message-passing rounds; checking the shapes of more would take long."""


def flatten(node: Params, arrays: Arrays, path: str = "") -> Any:
    """Convert a pytree to JSON, and collect its arrays by name.

    Args:
        node: NamedTuples, mappings, tuples, lists, numbers and arrays.
        arrays: dictionary to which the arrays are added, little-endian, by path.

    Raises:
        BadInput: if the tree contains anything else.
    """
    if node is None or isinstance(node, bool | int | float | str):
        return {"constant": node}
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        # Default None fields are left out, so that new fields do not change existing digests.
        optional = _branch(type(node)).optional
        given = {name: getattr(node, name) for name in node._fields}
        named = {name: value for name, value in given.items() if name not in optional or value is not None}
        fields = {name: flatten(value, arrays, f"{path}/{name}") for name, value in named.items()}
        return {"type": type(node).__name__, "fields": fields}
    if isinstance(node, Mapping):
        return {"dict": {key: flatten(node[key], arrays, f"{path}/{key}") for key in sorted(node)}}
    if isinstance(node, tuple | list):
        items = [flatten(item, arrays, f"{path}/{i}") for i, item in enumerate(node)]
        return {"tuple" if isinstance(node, tuple) else "list": items}
    array = np.asarray(node)
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{path} must be a number or an array, got {type(node).__name__}: ship plain arrays only")
    name = path.lstrip("/")
    arrays[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    return {"array": name}


def build_composite(structure: Any, arrays: Mapping[str, npt.NDArray[Any]], plant: Plant | Process) -> Composite:
    """Build a composite from a structure and arrays.

    Args:
        arrays: arrays by name; each is used once.

    Returns:
        The composite, with arrays on JAX's default device.

    Raises:
        Refused: if a type is unknown, an array is missing or unused, or a shape does not fit the plant.
    """
    left = dict(arrays)
    composite: Composite = _build(structure, left, _known_types(plant), MAX_DEPTH)
    if left:
        raise Refused(f"the bundle has the unused array {min(left)[:80]!r}: {CURE}")
    misfit = _misfit(composite, plant)
    if misfit is not None:
        raise Refused(f"the bundle does not fit {plant.spec.name}, got {misfit}: {CURE}")
    return composite


CURE = "take the bundle from the registry again"


def _build(node: Any, arrays: Arrays, types: Mapping[str, Branch], depth: int) -> Any:
    if depth == 0:
        raise Refused(f"the structure at {str(node)[:40]!r} is deeper than {MAX_DEPTH} levels: {CURE}")
    match node:
        case {"constant": (None | bool() | int() | float() | str()) as value, **rest} if not rest:
            return value
        case {"array": str(name), **rest} if not rest and name in arrays:
            import jax.numpy as jnp

            # Each array is used once, so that a small file cannot request many copies.
            return jnp.asarray(arrays.pop(name))
        case {"dict": dict(items), **rest} if not rest:
            return {key: _build(item, arrays, types, depth - 1) for key, item in items.items()}
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_build(item, arrays, types, depth - 1) for item in items)
        case {"list": list(items), **rest} if not rest:
            return [_build(item, arrays, types, depth - 1) for item in items]
        case {"type": str(name), "fields": dict(fields), **rest} if not rest:
            kind = types.get(name)
            if kind is not None and set(kind.fields) - set(kind.optional) <= set(fields) <= set(kind.fields):
                return kind.make(**{key: _build(item, arrays, types, depth - 1) for key, item in fields.items()})
            raise Refused(
                f"the bundle has the unknown type {name[:80]!r} with fields {str(sorted(fields))[:200]}: load it with "
                "the version that wrote it"
            )
    raise Refused(
        f"{repr(node)[:80]} is no part of a composite, or names an array that is missing or used twice: {CURE}"
    )


def of_process(structure: Any) -> bool:
    """Return whether a structure is that of a log-only plant's composite, whose shield has no physics."""
    from neorl_core.safety.support import SupportShield

    match structure:
        case {"fields": {"shield": {"type": str(name)}}}:
            return name == SupportShield.__name__
    return False


def _known_types(plant: Plant | Process) -> dict[str, Branch]:
    """Return the NamedTuples that a bundle may contain, by name, so that a bundle cannot import modules."""
    from neorl_core.control.fallbacks import Hold, LinearLaw, PIDLoops
    from neorl_core.networks import Normaliser, Policy
    from neorl_core.safety.composite import Composite
    from neorl_core.safety.shield import ShieldParams
    from neorl_core.safety.support import SupportShield

    if isinstance(plant, Process):
        own = (Composite, Policy, Normaliser, History, Layout, SupportShield, PIDLoops, LinearLaw, Hold)
        return {kind.__name__: _branch(kind) for kind in own}

    types: dict[str, Branch] = {
        kind.__name__: _branch(kind) for kind in (Composite, Policy, Normaliser, History, Layout, ShieldParams)
    }
    queue = [plant.params, plant.fallback_params]
    while queue:
        node = queue.pop()
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            types[type(node).__name__] = _branch(type(node))
        if isinstance(node, tuple | list):
            queue.extend(node)
        elif isinstance(node, Mapping):
            queue.extend(node.values())
    return types


def _misfit(composite: Params, plant: Plant | Process) -> str | None:
    """Return the part of a composite that does not fit the plant; None if types and shapes fit."""
    import jax

    from neorl_core.safety.composite import Composite

    if not isinstance(composite, Composite):
        return f"a {type(composite).__name__}"
    for leaf in jax.tree.leaves(composite):
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if array.dtype.kind not in "biuf" or (isinstance(leaf, int) and abs(leaf) >= 2**31):
            return f"the constant {repr(leaf)[:40]}"
    if isinstance(plant, Process):
        fault = _misfit_of_process(composite, plant.spec)
    else:
        fault = _misfit_of_plant(composite, plant)
    if fault is None and composite.history is not None:
        fault = _misfit_of_history(composite.history, plant.spec)
    moves = "a correction" if composite.shift is None else "a shift"
    if fault is None and composite.policy is None and composite.moves_fallback:
        return f"{moves} without a policy"
    if fault is not None or composite.policy is None:
        return fault
    if not composite.moves_fallback:
        return _misfit_of_policy(composite.policy, plant.spec, composite.history)
    if isinstance(plant, Process) or (plant.spec.choices is not None and composite.shift is not None):
        return moves
    return _misfit_of_moves(composite, plant)


def _misfit_of_moves(composite: Composite, plant: Plant) -> str | None:
    """Return the part that does not fit, for a policy that moves the fallback's action or set points."""
    import jax
    import jax.numpy as jnp

    from neorl_core.safety.composite import correction_inputs

    acting = plant.spec.action.size
    moved = acting
    if composite.shift is not None:
        if plant.set_points is None or composite.correction is not None:
            return "a shift"
        moved = len(plant.set_points.reach)
        reach = np.asarray(plant.set_points.reach, np.float32)
        if not _alike(composite.shift, _zeros((moved,))) or not _within(composite.shift, reach):
            return "another shift"
    elif not _alike(composite.correction, _zeros((acting,))) or not _within(composite.correction, np.inf):
        return "another correction"
    observation = jnp.zeros(plant.spec.observation.size)
    memory = jax.eval_shape(plant.fallback.init, plant.fallback_params, observation)
    added = jax.eval_shape(correction_inputs, jnp.zeros(0), memory, jnp.zeros(acting)).shape[0]
    policy: Params = composite.policy
    fault = _misfit_of_policy(policy, plant.spec, composite.history, added, moved)
    # Recurrent and graph networks would ignore the added inputs.
    return "another network" if fault is None and {"gru", "graph"} & set(policy.params) else fault


def _misfit_of_plant(composite: Composite, plant: Plant) -> str | None:
    import jax

    from neorl_core.safety.shield import ShieldParams

    observed, acting, limits = plant.spec.observation.size, plant.spec.action.size, len(plant.spec.constraints)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(ShieldParams._fields, (acting,))
    shapes.pop("dwell")
    shapes |= {"dwell": ()} if plant.spec.choices else {}
    shapes |= {"observation_low": (observed,), "observation_high": (observed,), "return_buffer": (limits,), "hold": ()}
    # The shield chooses its look-ahead; the plant determines all other lengths.
    margins = getattr(composite.shield, "margin_buffer", None)
    look_ahead = len(margins) if isinstance(margins, jax.Array) and margins.ndim == 2 else 1
    shapes["margin_buffer"] = (max(look_ahead, 1), limits)
    if not _alike(composite.shield, ShieldParams(**{name: _zeros(shape) for name, shape in shapes.items()})):
        return "another shield"
    if not _alike(composite.fallback, plant.fallback_params):
        return "another fallback"
    if not _alike(composite.model, plant.params):
        return "another model"
    return None


def _misfit_of_process(composite: Composite, spec: PlantSpec) -> str | None:
    from neorl_core.control.fallbacks import Hold, LinearLaw, PIDLoops
    from neorl_core.networks import Policy
    from neorl_core.safety.support import SupportShield

    observed, acting = spec.observation.size, spec.action.size
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(SupportShield._fields, (acting,))
    shapes |= dict.fromkeys(("observation_low", "observation_high"), (observed,))
    shapes |= dict.fromkeys(("centre", "scale"), (observed + acting,))
    shapes |= dict.fromkeys(("hold", "radius", "return_radius"), ())
    # The shield chooses the number of logged steps.
    points: Params = getattr(composite.shield, "references", None)
    count = points.shape[0] if np.ndim(points) == 2 else 1
    shapes["references"] = (max(count, 1), observed + acting)
    if not _alike(composite.shield, SupportShield(**{name: _zeros(shape) for name, shape in shapes.items()})):
        return "another shield"
    loops = PIDLoops(*(_zeros((acting,)) for _ in PIDLoops._fields))
    law = LinearLaw(_zeros((observed, acting)), *(_zeros((acting,)) for _ in range(3)))
    known = (loops, law, Hold(_zeros((acting,)), _zeros((acting,))))
    cloned = isinstance(composite.fallback, Policy) and _misfit_of_policy(composite.fallback, spec) is None
    if not cloned and not any(_alike(composite.fallback, one) for one in known):
        return "another fallback"
    if isinstance(composite.fallback, PIDLoops):
        loop = composite.fallback
        for found, count in ((loop.measured, observed), (loop.set_point, observed + acting)):
            index = np.asarray(found)
            if index.dtype.kind != "i" or not np.all((index >= 0) & (index < count)):
                return "a loop on an unknown signal"
    return None if composite.model == () else "a model"


def _misfit_of_history(history: Params, spec: PlantSpec) -> str | None:
    from neorl_core.history import MOST, longest_lag, stacked_size

    sizes = spec.observation.size, spec.action.size
    if not isinstance(history, History):
        return "another history"
    for counts, size in zip(history, sizes, strict=True):
        if not isinstance(counts, tuple) or len(counts) != size:
            return "a history of different signals"
        if not all(type(count) is int and 0 <= count < spec.horizon for count in counts):
            return "a history with invalid step counts"
    if not longest_lag(history) >= 1 or stacked_size(history) > MOST:
        return "a history of zero or too many steps"
    return None


def _misfit_of_policy(
    policy: Params, spec: PlantSpec, history: History | None = None, added: int = 0, moved: int | None = None
) -> str | None:
    """Return the part of a policy that does not fit.

    Args:
        added: number of inputs beside the observation.
        moved: number of outputs of a policy that moves the fallback; None for a policy that gives whole actions.
    """
    from neorl_core.history import stacked_size
    from neorl_core.networks import Normaliser, Policy

    observed = added + (spec.observation.size if history is None else stacked_size(history))
    acting = spec.action.size if moved is None else moved
    normaliser = Normaliser(*(_zeros((size,)) for size in (observed, observed, acting, acting)))
    if spec.choices is not None:
        normaliser = normaliser._replace(choices=_zeros((spec.acting,)))
    if not isinstance(policy, Policy) or not _alike(policy.normaliser, normaliser):
        return "another policy"
    outputs = spec.acting if moved is None or spec.choices is not None else moved
    return None if is_network(policy.params, observed, outputs, history, spec.layout) else "another network"


def is_network(
    params: Params, inputs: int, outputs: int, history: History | None = None, layout: Layout | None = None
) -> bool:
    """Return whether weights form a known network: dense layers from `inputs` to `outputs` numbers, a recurrent unit
    for this history followed by dense layers, or a graph network over this layout."""
    import jax

    if not isinstance(params, dict) or not params:
        return False
    if "graph" in params:
        return len(params) == 1 and history is None and layout is not None and _is_graph(params["graph"], layout)
    if "gru" in params:
        units = _units(params["gru"], history)
        if history is None or units is None:
            return False
        inputs, params = len(history.observation) + units, {k: v for k, v in params.items() if k != "gru"}
    for i in range(len(params)):
        match params.get(f"Dense_{i}"):
            case {"kernel": jax.Array(shape=kernel), "bias": jax.Array(shape=(width,)), **rest} if not rest:
                if kernel != (inputs, width):
                    return False
                inputs = width
            case _:
                return False
    return inputs == outputs


def _units(params: Params, history: History | None) -> int | None:
    import jax

    from neorl_core.recurrent import Recurrence, gru_init

    match params:
        case {"history": History() as own, "state": {"bias": jax.Array(shape=(units,))}}:
            # A file's history may contain anything: compare only plain numbers.
            plain = all(isinstance(part, tuple) and all(type(count) is int for count in part) for part in own)
            if plain and own == history and 0 < units <= MOST_UNITS:
                like = jax.eval_shape(lambda key: gru_init(key, Recurrence(own, units)), jax.random.key(0))
                return units if _alike(params, like) else None
    return None


def _is_graph(params: Params, layout: Layout) -> bool:
    import jax

    from neorl_core.graph.communication import AgentNetwork
    from neorl_core.graph.policy import GraphNetwork, graph_actor_init

    body: type[GraphNetwork | AgentNetwork]
    match params:
        case {
            "layout": Layout() as own,
            "actor": {"body": {"nodes": {"bias": jax.Array(shape=(width,))}, **rest}},
        }:
            body, each = GraphNetwork, "round_"
        case {
            "layout": Layout(kinds=(_, *_)) as own,
            "agents": {"sees_0": {"bias": jax.Array(shape=(_, width))}, **rest},
        }:
            body, each = AgentNetwork, "says_"
        case _:
            return False
    rounds = sum(isinstance(name, str) and name.startswith(each) for name in rest)
    if not (_numbers_alone(own) and own == layout and 0 < width <= MOST_UNITS and 0 < rounds <= MOST_ROUNDS):
        return False
    like = jax.eval_shape(lambda key: graph_actor_init(key, body(layout, rounds, width)), jax.random.key(0))
    return _alike(params, like["graph"])


def _numbers_alone(node: object) -> bool:
    if isinstance(node, tuple):
        return all(_numbers_alone(part) for part in node)
    return type(node) in (int, float)


def _alike(found: Params, like: Params) -> bool:
    import jax

    structures: list[object] = [jax.tree.structure(found), jax.tree.structure(like)]
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=False)
    return structures[0] == structures[1] and all(np.shape(one) == np.shape(other) for one, other in pairs)


def _within(found: Params, most: npt.ArrayLike) -> bool:
    """Return whether all numbers are finite, not negative and at most `most`."""
    numbers = np.asarray(found)
    return bool(np.all(np.isfinite(numbers) & (numbers >= 0) & (numbers <= most)))


def _zeros(shape: tuple[int, ...]) -> Any:
    """Return a zero array of a possibly large shape in four bytes."""
    return np.broadcast_to(np.float32(0), shape)
