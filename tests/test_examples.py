"""Examples of the documentation fit the code: YAML loads into the models, imports resolve."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from configs.federation import Federation, Site
from configs.fleet import Fleet
from configs.load import load_yaml
from configs.mapping import HistorianMapping
from configs.run import RunFile
from flows.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md"]
    + [path for path in (ROOT / "docs").rglob("*.md") if "studies" not in path.relative_to(ROOT).parts]
)

EXAMPLES: list[tuple[str, int, type[BaseModel], str]] = [
    ("README.md", 0, RunFile, ""),
    ("docs/how-to/log-only-plant.md", 0, RunFile, ""),
    ("docs/how-to/identify-a-simulator.md", 0, RunFile, ""),
    ("docs/how-to/own-algorithm.md", 0, RunFile, "plant: double_mass\n"),
    ("docs/how-to/graph-plants.md", 0, RunFile, "plant: power_grid\n"),
    ("docs/how-to/discrete-actions.md", 0, RunFile, "plant: pumping_station\n"),
    ("docs/explanation/training.md", 0, RunFile, "plant: double_mass\n"),
    ("docs/explanation/training.md", 1, RunFile, "plant: industrial_benchmark\n"),
    ("docs/how-to/fleet.md", 0, Fleet, ""),
    ("docs/how-to/federation.md", 0, Federation, ""),
    ("docs/how-to/federation.md", 1, Site, ""),
    ("docs/how-to/historian-logs.md", 0, HistorianMapping, ""),
]
"""Page, number of the YAML block, model that reads it, and text before it."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("page", "number", "model", "before"), EXAMPLES)
def test_yaml_example_loads(page: str, number: int, model: type[BaseModel], before: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(before + blocks(ROOT / page, "yaml")[number].replace("…", ""))
    load_yaml(path, model)


def test_imports_of_python_examples_resolve() -> None:
    examples = [block for page in PAGES for block in blocks(page, "python")]
    assert len(examples) > 10
    for node in (node for block in examples for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")


def test_commands_of_examples_exist() -> None:
    lines = [
        line
        for page in PAGES
        for block in blocks(page, "(?:sh|bash)")
        for line in re.findall(r"(?:^|; |&& |\$\()neorl ([^;|#&)\n]*)", block, re.MULTILINE)
    ]
    assert len(lines) > 100
    for line in lines:
        command: Any = typer.main.get_command(app)
        words = line.split()
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [word for word in words if word.startswith("--") and word not in options | {"--help", "--version"}]
        assert not unknown, f"neorl {line}"
        assert command.name != "neorl" or not words or words[0].startswith("--"), f"neorl {line}"
