"""The graph of a retraining as its source says it: stages, and whose results each takes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from flows import process, retrain
from tasks.stages import STAGES


class Node(NamedTuple):
    """A stage of a flow."""

    stage: str
    """Name of its Prefect task."""
    takes: tuple[str, ...]
    """Stages whose results it takes, in the order of its arguments."""
    gives: str
    """The type of its result."""
    cached: bool
    about: str
    """What it does, in a sentence."""


KINDS: dict[str, tuple[ModuleType, str]] = {
    "simulated": (retrain, "retrain"),
    "process": (process, "retrain_process"),
}
"""Kinds of plants, and the module and function that a retraining of one is."""


def nodes(kind: str = "simulated") -> tuple[Node, ...]:
    """The stages of a retraining in their order.

    Args:
        kind: of the plant, a key of KINDS.

    Example:
        >>> next(node.takes for node in nodes() if node.stage == "train")
        ('ingest',)
    """
    module, name = KINDS[kind]
    tree = ast.parse(inspect.getsource(module))
    flow = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    found: list[Node] = []
    made: dict[str, tuple[str, ...]] = {}
    for statement in _statements(flow.body):
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.expr):
            continue
        origins = _origins(value, module, made, found)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            made[statement.targets[0].id] = origins
    return tuple(found)


def table(kind: str = "simulated") -> str:
    """The stages of a retraining as a Markdown table."""
    lines = ["| stage | takes | gives | repeated | what it does |", "|:--|:--|:--|:--|:--|"]
    for node in nodes(kind):
        repeated = "found again by content" if node.cached else "every time"
        lines.append(f"| {node.stage} | {', '.join(node.takes) or '–'} | {node.gives} | {repeated} | {node.about} |")
    return "\n".join(lines)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in order, those inside `with` and `if` too."""
    for statement in body:
        yield statement
        yield from _statements(getattr(statement, "body", []))


def _origins(
    value: ast.expr, module: ModuleType, made: dict[str, tuple[str, ...]], found: list[Node]
) -> tuple[str, ...]:
    """The stages that an expression's value comes from; calls of stages in it are added to what was found."""
    if isinstance(value, ast.Name):
        return made.get(value.id, ())
    if not isinstance(value, ast.Call):
        return ()
    arguments = [*value.args, *(keyword.value for keyword in value.keywords)]
    takes = tuple(dict.fromkeys(name for item in arguments for name in _origins(item, module, made, found)))
    function = getattr(module, value.func.id, None) if isinstance(value.func, ast.Name) else None
    key = f"{function.__module__}.{function.__name__}" if inspect.isfunction(function) else ""
    if function is None or key not in STAGES:
        # A model that is made of results hands all of them on; anything else makes no result of a stage.
        return takes if inspect.isclass(function) else ()
    stage = STAGES[key]
    about = (inspect.getdoc(function) or "").splitlines()[0]
    found.append(Node(stage.name, takes, str(inspect.signature(function).return_annotation), stage.cached, about))
    return (stage.name,)
