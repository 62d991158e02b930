"""Collect the constants of the plants, and their sources from the docstrings of the plants' modules."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from neorl_core.plants import PLANTS
from neorl_core.types import Plant

DRAWS = 1_024
"""Number of draws from the operating domain that determine the range of a constant."""
OURS = "ours"
"""The source of a constant begins with this word if there is no outside source."""
MOST = 6
"""Most numbers that are shown as the value of a constant."""


class Constant(NamedTuple):
    """A constant of a plant."""

    name: str
    value: str
    """Nominal value: one or a few numbers; empty for other types."""
    drawn: tuple[float, float] | None
    """Range in the operating domain; None if it is the nominal value."""
    about: str
    source: str


def modules(name: str) -> list[ModuleType]:
    """Return the modules of a plant: the plant's own first, then those of its package."""
    own = import_module(PLANTS.module(name))
    inside = [each.name for each in pkgutil.iter_modules(getattr(own, "__path__", []))]
    order = sorted(inside, key=lambda each: (each != "plant", each))
    return [own, *(import_module(f"{own.__name__}.{each}") for each in order)]


def sources(name: str) -> dict[str, str]:
    """Return the source of each constant, from the tables in the docstrings of a plant's modules."""
    found = {}
    for module in modules(name):
        rows = [line.strip("| ").split(" | ") for line in (module.__doc__ or "").splitlines() if line.startswith("| ")]
        for constants, *source in rows:
            if constants != "constant":
                found |= {each: " | ".join(source) for each in re.split(r", (?:and )?", constants)}
    return found


def constants(name: str) -> list[Constant]:
    """Return the constants of a plant: fields of its parameters, then other constants in its tables of sources."""
    plant, known = PLANTS[name], sources(name)
    drawn, about = dict(_drawn(plant)), _about(plant.params)
    found = []
    for path, value in _leaves(plant.params):
        first, last = path.split(".")[0], path.rsplit(".", maxsplit=1)[-1]
        source = next((known[each] for each in (path, last, first) if each in known), "")
        found.append(Constant(path, _text(value), drawn.get(path), about.get(last, ""), source))
    named = {part for each in found for part in each.name.split(".")}
    others, about = _named(name), _about(plant.domain)
    for each in (each for each in known if each not in named):
        value, text = others.get(each, (getattr(plant.domain, each, None), about.get(each, "")))
        found.append(Constant(each, _text(value), None, text, known[each]))
    return found


def _about(values: Any) -> dict[str, str]:
    """Return the docstrings of the fields of a NamedTuple and of NamedTuples inside it, each in one line."""
    found = {}
    for kind in {type(values)} | {type(x) for x in values if hasattr(x, "_fields")}:
        body = ast.parse(inspect.getsource(kind)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = _docstring(following)
    return found


def _leaves(values: Any, under: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of nested NamedTuples with their paths, except None."""
    for field, value in zip(values._fields, values, strict=True):
        if hasattr(value, "_fields"):
            yield from _leaves(value, f"{under}{field}.")
        elif value is not None:
            yield f"{under}{field}", value


def _drawn(plant: Plant) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the range of every number that differs from the nominal one in the operating domain."""
    sample: Callable[..., Any] = jax.jit(jax.vmap(plant.sample_params, (0, None)))
    drawn = sample(jax.random.split(jax.random.key(0), DRAWS), plant.domain)
    for (path, values), (_, nominal) in zip(_leaves(drawn), _leaves(plant.params), strict=True):
        if np.ndim(nominal) == 0:
            least, most = float(np.min(values)), float(np.max(values))
            if not np.isclose([least, most], float(nominal), rtol=1e-6).all():
                yield path, (least, most)


def _named(name: str) -> dict[str, tuple[Any, str]]:
    """Return the values and docstrings of constants in capitals in a plant's modules."""
    found = {}
    for module in modules(name):
        body = ast.parse(inspect.getsource(module)).body
        for node, following in zip(body, [*body[1:], ast.Pass()], strict=True):
            if isinstance(node, ast.Assign):
                for target in ast.walk(node.targets[0]):
                    if isinstance(target, ast.Name) and target.id.isupper():
                        found[target.id] = getattr(module, target.id), _docstring(following)
    return found


def _docstring(node: ast.stmt) -> str:
    """Return a docstring in one line."""
    text = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else ""
    return " ".join(text.split()) if isinstance(text, str) else ""


def _text(value: Any) -> str:
    """Return one or a few numbers as text, and an empty string for other types."""
    if value is None or isinstance(value, str) or np.asarray(value).dtype.kind not in "fiu" or np.size(value) > MOST:
        return ""
    return ", ".join(f"{x:.5g}" for x in np.ravel(value))
