"""Equations, constants and sources of the plants, as their modules' docstrings and classes have them."""

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
"""Of constants from a domain, whose least and greatest are told."""
OURS = "ours"
"""How the source of what no source was found for begins."""
MOST = 6
"""Numbers of a constant that a table shows."""
VALID = "Valid "
"""How the paragraph about a plant's range of validity begins."""
FORMULA = re.compile(r"[=²√Σ∂]")


class Constant(NamedTuple):
    """A constant of a plant."""

    name: str
    value: str
    """Nominal, a number or a few; empty of what is no number."""
    drawn: tuple[float, float] | None
    """Least and greatest of what the operating domain draws; None where that is the nominal value."""
    about: str
    source: str


def modules(name: str) -> list[ModuleType]:
    """The modules of a plant: its own first, of a package what is in it after that."""
    own = import_module(PLANTS.module(name))
    inside = [each.name for each in pkgutil.iter_modules(getattr(own, "__path__", []))]
    order = sorted(inside, key=lambda each: (each != "plant", each))
    return [own, *(import_module(f"{own.__name__}.{each}") for each in order)]


def sources(name: str) -> dict[str, str]:
    """Source of each constant by name, from the tables in the docstrings of a plant's modules."""
    found = {}
    for module in modules(name):
        rows = [line.strip("| ").split(" | ") for line in (module.__doc__ or "").splitlines() if line.startswith("| ")]
        for constants, *source in rows:
            if constants != "constant":
                found |= {each: " | ".join(source) for each in re.split(r", (?:and )?", constants)}
    return found


def constants(name: str) -> list[Constant]:
    """Every constant of a plant: the fields of its parameters, then what else its tables of sources name."""
    plant, known = PLANTS[name], sources(name)
    drawn, about = dict(_drawn(plant)), _about(plant.params)
    found = []
    for path, value in _leaves(plant.params):
        first, last = path.split(".")[0], path.rsplit(".", maxsplit=1)[-1]
        source = next((known[each] for each in (path, last, first) if each in known), "")
        found.append(Constant(path, _told(value), drawn.get(path), about.get(last, ""), source))
    named = {part for each in found for part in each.name.split(".")}
    others, about = _named(name), _about(plant.domain)
    for each in (each for each in known if each not in named):
        value, said = others.get(each, (getattr(plant.domain, each, None), about.get(each, "")))
        found.append(Constant(each, _told(value), None, said, known[each]))
    return found


def equations(name: str) -> list[str]:
    """The paragraphs of a plant's docstrings, without tables and sources, and the formulas that its functions name."""
    lines: list[str] = []
    for place, module in enumerate(modules(name)):
        formulas = _formulas(module)
        head, *rest = inspect.cleandoc(module.__doc__ or "").split("\n\n")
        if place == 0 or formulas or rest:
            # A package's module `plant` begins as the package does.
            begun = [head] if head not in lines else []
            said = [*begun, *(text for text in rest if not text.startswith(("|", VALID)))]
            lines += [line for text in said for line in ("", text)] + formulas
    return lines


def validity(name: str) -> str:
    """What a plant's module says of its range of validity; empty where it says nothing."""
    for module in modules(name):
        for text in inspect.cleandoc(module.__doc__ or "").split("\n\n"):
            if text.startswith(VALID):
                return " ".join(text.split())
    return ""


def lines_of(name: str) -> list[str]:
    """Equations, constants and range of validity of a plant as a part of its section."""
    lines = [
        *equations(name),
        "",
        "| constant | value | in the domain | what it is | source |",
        "|---|---|---|---|---|",
    ]
    for each in constants(name):
        drawn = "" if each.drawn is None else " to ".join(dict.fromkeys(f"{x:.4g}" for x in each.drawn))
        cells = (each.name, each.value or "–", drawn or "–", each.about.replace("|", "\\|"), each.source)
        lines.append(f"| {' | '.join(cells)} |")
    said = validity(name)
    return [*lines, *(["", said] if said else [])]


def _formulas(module: ModuleType) -> list[str]:
    """A line for each function whose docstring says by a formula what it computes."""
    lines = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            said = (ast.get_docstring(node) or "").split("\n\nArgs:")[0].split("\n\nReturns:")[0]
            if FORMULA.search(said):
                lines.append(f"- `{node.name}`: {' '.join(said.split())}")
    return ["", *lines] if lines else []


def _about(values: Any) -> dict[str, str]:
    """What the docstrings below the fields of a NamedTuple say, in one line; of those nested in it, too."""
    found = {}
    for kind in {type(values)} | {type(x) for x in values if hasattr(x, "_fields")}:
        body = ast.parse(inspect.getsource(kind)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, said in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = _said(said)
    return found


def _leaves(values: Any, under: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of nested NamedTuples by their paths; what is None is none."""
    for field, value in zip(values._fields, values, strict=True):
        if hasattr(value, "_fields"):
            yield from _leaves(value, f"{under}{field}.")
        elif value is not None:
            yield f"{under}{field}", value


def _drawn(plant: Plant) -> Iterator[tuple[str, tuple[float, float]]]:
    """Least and greatest of every number that the domain draws other than it is by itself."""
    sample: Callable[..., Any] = jax.jit(jax.vmap(plant.sample_params, (0, None)))
    drawn = sample(jax.random.split(jax.random.key(0), DRAWS), plant.domain)
    for (path, values), (_, nominal) in zip(_leaves(drawn), _leaves(plant.params), strict=True):
        if np.ndim(nominal) == 0:
            least, most = float(np.min(values)), float(np.max(values))
            if not np.isclose([least, most], float(nominal), rtol=1e-6).all():
                yield path, (least, most)


def _named(name: str) -> dict[str, tuple[Any, str]]:
    """Values of the constants that a plant's modules name in capitals, and what the docstrings below them say."""
    found = {}
    for module in modules(name):
        body = ast.parse(inspect.getsource(module)).body
        for node, following in zip(body, [*body[1:], ast.Pass()], strict=True):
            if isinstance(node, ast.Assign):
                for target in ast.walk(node.targets[0]):
                    if isinstance(target, ast.Name) and target.id.isupper():
                        found[target.id] = getattr(module, target.id), _said(following)
    return found


def _said(node: ast.stmt) -> str:
    """A docstring, in one line."""
    text = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else ""
    return " ".join(text.split()) if isinstance(text, str) else ""


def _told(value: Any) -> str:
    """A number, or a few of them; nothing of what is neither."""
    if value is None or isinstance(value, str) or np.asarray(value).dtype.kind not in "fiu" or np.size(value) > MOST:
        return ""
    return ", ".join(f"{x:.5g}" for x in np.ravel(value))
