"""Writes stages into docs/architecture.md, the picture of a finished graph beside it, metrics into docs/operations.md.

The graph of a retraining, stages and whose results each takes, is read from the flow's source. The picture is a
screenshot of Prefect's page, in headless Chromium and logged in, of the last retraining of the home (`make run` makes
one); without Chromium or a run the picture stays as it is.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from benchmarks.pictures.browser import chromium
from configs.environment import past_proxies
from configs.errors import ServiceMissing
from configs.home import Home
from flows import process, retrain
from flows.services.servers import connect, environment
from tasks.metrics.catalogue import METRICS
from tasks.stages import STAGES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "graph.png"
MARKS = {
    "simulated": ("<!-- stages: begin -->", "<!-- stages: end -->"),
    "process": ("<!-- process stages: begin -->", "<!-- process stages: end -->"),
}
OPERATIONS = ROOT / "docs" / "operations.md"
METRIC_MARKS = ("<!-- metrics: begin -->", "<!-- metrics: end -->")


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
        ('ingest', 'identify')
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


def metrics() -> Iterator[str]:
    """The metrics as the lines of a table in Markdown."""
    yield "| metric | type | labels | meaning |"
    yield "|:--|:--|:--|:--|"
    for name, (kind, labels, about) in METRICS.items():
        yield f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {about} |"


def with_table(text: str) -> str:
    """The page with the tables of stages between their markers."""
    for kind, marks in MARKS.items():
        text = _between(text, marks, table(kind))
    return text


def with_metrics(text: str) -> str:
    """The page about operations with the table of metrics between its markers."""
    return _between(text, METRIC_MARKS, "\n".join(metrics()))


def _between(text: str, marks: tuple[str, str], table: str) -> str:
    begin, end = marks
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"


def last_run(home: Home) -> tuple[str, str, str] | None:
    """(the server's address, the login, the id) of the last retraining that decided; None where nothing answers."""
    try:
        services = connect(home)
    except ServiceMissing:
        return None
    wanted = {"sort": "START_TIME_DESC", "limit": 200, "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    found: list[dict[str, Any]] = services.ask_prefect("flow_runs/filter", wanted)
    # One that changed nothing shows only half of the stages.
    runs = [run for run in found if "unchanged" not in run["tags"]]
    login = environment(services).get("PREFECT_API_AUTH_STRING", "")
    return (services.prefect.url, login, str(runs[0]["id"])) if runs else None


async def screenshot(command: str, url: str, login: str, run: str, out: Path) -> None:
    """Take a picture of a flow run's page."""
    async with chromium(command) as page:
        await page.log_in(url, login)
        await page.open(f"{url}/runs/flow-run/{run}")
        await page.picture(out)


def main() -> None:
    """Write the table, and the picture where there is something to show."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    OPERATIONS.write_text(with_metrics(OPERATIONS.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote the tables of stages into {PAGE.relative_to(ROOT)}")
    command, found = shutil.which("chromium"), last_run(Home.locate())
    if command is None or found is None:
        print("no picture: it needs Chromium ('make services') and a finished retraining ('make run')")
        return
    os.environ.update(past_proxies())
    asyncio.run(screenshot(command, *found, PICTURE))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
