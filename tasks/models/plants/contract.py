"""Check a user's plant when it is loaded: types, shapes, and finite numbers in a few steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.errors import BadInput, NeoRLError
from configs.strict import NAME
from neorl_core.networks import Normaliser, Policy
from neorl_core.panels import make_panels
from neorl_core.plants import PLANTS
from neorl_core.plants.base import LoggedSignals
from neorl_core.safety.composite import Composite
from neorl_core.safety.shield import ShieldParams
from neorl_core.types import Controller, Plant, PlantSpec, SetPoints, Timestep
from tasks.files.canonical import canonical_json
from tasks.files.spec import spec_of_record, spec_record

OUR_TYPES = {kind.__name__ for kind in (Composite, Policy, Normaliser, ShieldParams)}
"""Names of built-in types, which a user's types must not have, because bundles name types."""
SAMPLES = 4
"""Number of initial states, each with one step, to check."""


def read_plant(module: ModuleType, attribute: str, file: str) -> Plant:
    """Return the plant that a module builds, after checking the contract of `docs/how-to/own-simulator.md`.

    Raises:
        BadInput: if the plant violates the contract.
    """
    plant = getattr(module, attribute, None)
    if not isinstance(plant, Plant):
        got = f"a {type(plant).__name__}" if hasattr(module, attribute) else "none"
        raise _wrong(file, f"{attribute} to be a neorl_core.types.Plant", got, "build one under that name")
    _check_spec(plant.spec, f"{file}: {attribute}.spec")
    _check_constants(plant, f"{file}: {attribute}")
    try:
        make_panels(plant.spec, plant.drawn)
    except (ValueError, AttributeError, TypeError) as error:
        raise BadInput(f"in {file}: {attribute}.drawn, {_line(error).rstrip('.')}") from error
    _check_functions(plant, f"{file}: {attribute}")
    if plant.set_points is not None:
        check_set_points(plant, f"{file}: {attribute}.set_points")
    return plant


def logged_signals(module: ModuleType, plant: Plant, file: str) -> LoggedSignals | None:
    """Return `logged_reward` and `logged_margins` of the plant's module; None if it has neither.

    Raises:
        BadInput: if one of the two functions is missing, or a result has the wrong shape.
    """
    reward, margins = (getattr(module, name, None) for name in ("logged_reward", "logged_margins"))
    if reward is None and margins is None:
        return None
    if not callable(reward) or not callable(margins):
        missing = "logged_margins" if callable(reward) else "logged_reward"
        raise _wrong(file, "functions logged_reward and logged_margins, or neither", f"no {missing}", "add it")
    spec, rows = plant.spec, 3
    observed, acting = jnp.zeros((rows, spec.observation.size)), jnp.zeros((rows, spec.action.size))
    _shaped(file, "logged_reward", lambda: reward(observed, acting, observed), (rows,))
    _shaped(file, "logged_margins", lambda: margins(observed), (rows, len(spec.constraints)))
    return LoggedSignals(reward, margins)


def _check_spec(spec: Any, place: str) -> None:
    if not isinstance(spec, PlantSpec):
        raise _wrong(place, "a neorl_core.types.PlantSpec", f"a {type(spec).__name__}", "build one")
    if not isinstance(spec.name, str) or not re.fullmatch(NAME, spec.name, re.ASCII):
        raise _wrong(
            place, "a name of lower-case letters, digits and underscores", repr(spec.name)[:80], "rename the plant"
        )
    if spec.name in PLANTS:
        raise _wrong(place, "a name that no built-in plant has", f"'{spec.name}'", "rename the plant")
    try:
        same = spec_of_record(spec_record(spec)) == spec
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"in {place}, {_line(error)}: correct it") from error
    if not same:
        raise _wrong(place, "tuples of texts and Python numbers", "other types", "follow a built-in plant's spec")
    bounds = [
        *zip(spec.observation.names, spec.observation.low, spec.observation.high, strict=True),
        *zip(spec.action.names, spec.action.low, spec.action.high, strict=True),
        *((limit.name, limit.low, limit.high) for limit in spec.constraints),
    ]
    for name, low, high in bounds:
        if not low < high:
            raise _wrong(place, f"a low below the high of {name}", f"{low:g} and {high:g}", "correct the bounds")
    if not (spec.observation.size and spec.action.size):
        raise _wrong(place, "at least one observation and one action", "0", "name them")
    if not np.isfinite([spec.action.low, spec.action.high]).all():
        raise _wrong(place, "bounded actions", "an infinite bound", "give the actuator's limits")
    worst, best = spec.score_range
    if not (np.isfinite([worst, best]).all() and worst != best):
        raise _wrong(place, "two different returns as score_range", f"{worst:g} and {best:g}", "correct it")


def _check_constants(plant: Plant, place: str) -> None:
    for name in ("params", "domain"):
        value = getattr(plant, name)
        if not (isinstance(value, tuple) and hasattr(value, "_asdict")):
            raise _wrong(
                f"{place}.{name}", "a NamedTuple of numbers", f"a {type(value).__name__}", "name each constant"
            )
        try:
            canonical_json(value._asdict())
        except (TypeError, ValueError) as error:
            raise _wrong(
                f"{place}.{name}", "Python's finite numbers", _line(error), "leave arrays to sample_params"
            ) from error
    if plant.idle is not None and np.shape(plant.idle) != (plant.spec.action.size,):
        raise _wrong(f"{place}.idle", f"{plant.spec.action.size} actions", f"{plant.idle}", "name one for each")
    for controller in ("fallback", "reference"):
        found = getattr(plant, controller)
        if not isinstance(found, Controller) and (found is not None or controller == "fallback"):
            raise _wrong(
                f"{place}.{controller}", "a neorl_core.types.Controller", f"a {type(found).__name__}", "build one"
            )
    for name in ("fallback_params", "found_params", "reference_params"):
        try:
            hash(getattr(plant, name))
        except TypeError as error:
            raise _wrong(
                f"{place}.{name}", "numbers in tuples and NamedTuples", _line(error), "write arrays as nested tuples"
            ) from error
    clash = OUR_TYPES & set(_type_names([plant.params, plant.fallback_params]))
    if clash:
        raise _wrong(place, "types whose names are not NeoRL's", f"'{min(clash)}'", "rename the type")


def _type_names(node: Any) -> list[str]:
    own = [type(node).__name__] if isinstance(node, tuple) and hasattr(node, "_fields") else []
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, tuple | list) else ()
    return own + [name for child in children for name in _type_names(child)]


def _check_functions(plant: Plant, place: str) -> None:
    spec, key = plant.spec, jax.random.key(0)
    observed, acting, limits = (spec.observation.size,), (spec.action.size,), (len(spec.constraints),)
    middle = (np.asarray(spec.action.low) + np.asarray(spec.action.high)) / 2
    action = jnp.asarray(middle if spec.choices is None else np.round(middle), jnp.float32)
    params = _traced(place, "sample_params", lambda: plant.sample_params(key, plant.domain))
    state, _ = _pair(place, "reset", lambda p: plant.reset(key, p), params)
    _shaped(place, "reset", lambda p: plant.reset(key, p)[1], observed, params)
    following, timestep = _pair(place, "step", lambda s, p: plant.step(key, s, action, p), state, params)
    if not isinstance(timestep, Timestep):
        raise _wrong(f"{place}.step", "a state and a Timestep", f"a {type(timestep).__name__}", "return both")
    if _shapes(following) != _shapes(state):
        raise _wrong(f"{place}.step", "the state types and shapes of reset", "different ones", "return the same")
    for field, shape in zip(Timestep._fields, (observed, (), limits, (), ()), strict=True):
        got = getattr(timestep, field).shape
        if got != shape:
            raise _wrong(f"{place}.step", f"{field} of shape {shape} by the spec", str(got), "correct step or spec")
    example = jnp.zeros(observed)
    _pair(place, "predict", lambda o: plant.predict(o, action, plant.params), example)
    _shaped(place, "predict", lambda o: plant.predict(o, action, plant.params)[0], observed, example)
    _shaped(place, "predict (margins)", lambda o: plant.predict(o, action, plant.params)[1], limits, example)
    _shaped(place, "applied", plant.applied, acting, example)
    if plant.resume is not None:
        resume = plant.resume
        resumed, constants = _pair(place, "resume", lambda s, o, p: resume(key, s, o, p), state, example, params)
        if _shapes(resumed) != _shapes(state) or _shapes(constants)[0] != _shapes(params)[0]:
            raise _wrong(
                f"{place}.resume",
                "the state types and shapes of reset, and the constants of sample_params",
                "different ones",
                "return the same",
            )

    def answer(o: jax.Array) -> jax.Array:
        memory = plant.fallback.init(plant.fallback_params, o)
        return plant.fallback.act(plant.fallback_params, memory, o, plant.applied(o))[1]

    _shaped(place, "fallback", answer, acting, example)

    @jax.jit
    @jax.vmap
    def played(key: jax.Array) -> tuple[Any, ...]:
        constants = plant.sample_params(key, plant.domain)
        start, seen = plant.reset(key, constants)
        step = plant.step(key, start, answer(seen), constants)[1]
        return seen, answer(seen), step, plant.predict(seen, action, plant.params)

    try:
        samples = played(jax.random.split(key, SAMPLES))
    except jax.errors.JaxRuntimeError as error:
        raise _wrong(
            f"{place}.step", "JAX's own operations", f"{type(error).__name__} '{_line(error)[:200]}'", "correct it"
        ) from error
    names = ("reset", "fallback", "step", "predict")
    for name, numbers in zip(names, samples, strict=True):
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(numbers)):
            raise _wrong(f"{place}.{name}", "finite numbers", "NaN or infinity", "check units and initial states")


def check_set_points(plant: Plant, place: str) -> None:
    """Check set points: their names, units and reach, and the parameters and actions of the shifted controller.

    Args:
        place: name of the set points in messages.

    Raises:
        BadInput: if a part is wrong, or the parameters without a shift differ from `fallback_params`.
    """
    points = plant.set_points
    if not isinstance(points, SetPoints):
        raise _wrong(place, "a neorl_core.types.SetPoints", f"a {type(points).__name__}", "build one")
    if plant.spec.choices is not None:
        raise _wrong(place, "continuous actions", f"{len(plant.spec.choices)} choices", "remove set_points")
    parts = points[:3]
    if not all(isinstance(part, tuple) and len(part) == len(points.names) >= 1 for part in parts):
        raise _wrong(place, "tuples of names, units and reach of one length", str(parts)[:200], "correct them")
    if not all(isinstance(text, str) and text for text in (*points.names, *points.units)):
        raise _wrong(place, "names and units as texts", str(parts[:2])[:200], "correct them")
    if len(set(points.names)) < len(points.names):
        raise _wrong(place, "different names", str(points.names)[:200], "rename one")
    largest = float(np.finfo(np.float32).max)
    if not all(type(reach) in (int, float) and 0 < reach <= largest for reach in points.reach):
        raise _wrong(
            place, "finite reach above 0", str(points.reach)[:200], "give the largest shifts as Python numbers"
        )
    params = jax.tree.map(jnp.asarray, plant.fallback_params)
    zero = jnp.zeros(len(points.reach))
    alike = _traced(place, "shifted", points.shifted, params, zero)
    if _shapes(alike)[0] != _shapes(params)[0]:
        raise _wrong(f"{place}.shifted", "the types of fallback_params", str(alike)[:200], "use _replace")
    found = points.shifted(params, zero)
    if not all(np.array_equal(one, other) for one, other in zip(*map(jax.tree.leaves, (found, params)), strict=True)):
        raise _wrong(f"{place}.shifted", "the given parameters at shift 0", "other numbers", "add the shift to them")

    def answer(key: jax.Array, share: jax.Array) -> Any:
        observation = plant.reset(key, plant.sample_params(key, plant.domain))[1]
        memory = plant.fallback.init(params, observation)
        shifted = points.shifted(params, share * jnp.asarray(points.reach))
        return plant.fallback.act(shifted, memory, observation, plant.applied(observation))

    _traced(place, "shifted", answer, jax.random.key(0), zero)
    keys = jax.random.split(jax.random.key(0), SAMPLES)
    for sign in (-1.0, 1.0):
        numbers = jax.jit(jax.vmap(answer, (0, None)))(keys, zero + sign)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(numbers)):
            raise _wrong(f"{place}.reach", "finite actions at the largest shifts", "NaN or infinity", "reduce it")


def _shaped(place: str, name: str, function: Callable[..., Any], shape: tuple[int, ...], *given: Any) -> None:
    got = getattr(_traced(place, name, function, *given), "shape", None)
    if got != shape:
        raise _wrong(
            f"{place}.{name}", f"an array of shape {shape}", str(got or "a different type"), "correct the return value"
        )


def _pair(place: str, name: str, function: Callable[..., Any], *given: Any) -> tuple[Any, Any]:
    got = _traced(place, name, function, *given)
    if not isinstance(got, tuple) or len(got) != 2:
        raise _wrong(f"{place}.{name}", "a pair", f"a {type(got).__name__}", "return two values")
    return got


def _traced(place: str, name: str, function: Callable[..., Any], *given: Any) -> Any:
    try:
        return jax.eval_shape(function, *given)
    except NeoRLError:
        raise
    except Exception as error:
        raise _wrong(
            f"{place}.{name}", "a pure function of JAX arrays", f"{type(error).__name__} '{_line(error)}'", "correct it"
        ) from error


def _shapes(tree: Any) -> tuple[Any, list[Any]]:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def _wrong(place: str, expected: str, got: str, cure: str) -> BadInput:
    return BadInput(f"{place} needs {expected}, got {got}: {cure}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
