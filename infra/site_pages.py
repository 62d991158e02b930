"""Pages of the documentation's site that are made of the code: commands, YAML files, and the core's interface.

A hook of MkDocs; `make docs` uses it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
import types
import typing
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MODULES = {
    "core": (
        "The core",
        [
            "types",
            "fit",
            "networks",
            "recurrent",
            "history",
            "graph.layout",
            "graph.policy",
            "graph.graphs",
            "graph.agents",
            "graph.messages",
            "graph.members",
            "plants.linked",
            "plants.base",
            "training.loop",
            "training.optimisers",
            "world_model",
        ],
    ),
    "algorithms": ("Algorithms", ["algorithms"]),
    "ope": ("Off-policy evaluation", ["ope.agreement", "ope.fqe", "ope.model", "ope.metrics"]),
    "federated": (
        "Federation",
        [
            "federated.federate",
            "federated.rounds",
            "federated.methods",
            "federated.fedora",
            "federated.aggregate",
            "federated.gossip",
            "federated.secure",
            "federated.privacy",
            "federated.accountant",
        ],
    ),
    "safety": ("Safety", ["safety.bounds", "safety.certify", "safety.composite", "safety.drift"]),
}
"""Pages of the core's modules."""
FILES = (
    ("A run", "configs.run", "RunFile", "`configs/PLANT.yaml`, which `neorl retrain` takes."),
    ("A federation", "configs.federation", "Federation", "What `neorl federate run` takes ([how](../federation.md))."),
    ("A federation's site", "configs.federation", "Site", "What `neorl federate join` takes."),
    (
        "A fleet",
        "configs.fleet",
        "Fleet",
        "`fleet.yaml`, which `neorl fleet retrain` takes; a site has a run's keys.",
    ),
    (
        "A historian's mapping",
        "configs.mapping",
        "HistorianMapping",
        "What an export's tags mean: `data.mapping` of a run.",
    ),
    ("A file's declaration", "configs.process", "FileSpec", "What `neorl ingest --spec` takes."),
)
"""YAML files, by the model that reads them."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    pages = {"reference/commands.md": commands(), "reference/yaml.md": yaml_files()}
    for name, (title, modules) in MODULES.items():
        pages[f"reference/{name}.md"] = interface(title, modules)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def commands() -> str:
    """All commands with their options and examples, by Typer's own means."""
    import typer
    from typer.cli import get_docs_for_click

    from flows.cli.main import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="neorl")
    text = get_docs_for_click(obj=command, ctx=context, name="neorl", title="Commands")
    # The list at the top cuts what each command says; the contents at the side name them all.
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+", "", text)
    # What a help text begins with a word and a colon is a line of its own there.
    return re.sub(r"^Example: (.*)$", r"Example:\n\n```console\n\1\n```", text, flags=re.MULTILINE)


def interface(title: str, modules: list[str]) -> str:
    """A page that MkDocs fills with the docstrings of modules; a package stands for all modules in it."""
    lines = [f"# {title}", ""]
    for name in modules:
        module = importlib.import_module(f"neorl_core.{name}")
        inside = sorted(p.stem for p in Path(str(module.__file__)).parent.glob("*.py")) if _is_package(module) else [""]
        for part in inside:
            if part != "__init__":
                lines += [f"::: neorl_core.{name}{'.' if part else ''}{part}", ""]
    return "\n".join(lines)


def yaml_files() -> str:
    """Every key of every file: its type, its default and what it means, from the models that read them."""
    lines = ["# YAML files", "", "A key that is left out has its default; an unknown key is refused.", ""]
    for title, module, name, about in FILES:
        lines += [f"## {title}", "", about, ""]
        seen: dict[type, None] = {getattr(importlib.import_module(module), name): None}
        for model in _all(seen):
            lines += _table(model)
    return "\n".join(lines)


def _all(models: dict[type, None]) -> list[type]:
    """Models, and those that their keys have, in the order in which a reader comes to them."""
    queue = list(models)
    for model in queue:
        for field in model.model_fields.values():  # type: ignore[attr-defined]
            if field.repr:  # the others are found out by opening a run, and are no keys
                queue += [found for found in _models_in(field.annotation) if found not in queue]
    return queue


def _models_in(annotation: object) -> list[type]:
    if inspect.isclass(annotation) and hasattr(annotation, "model_fields"):
        return [annotation]
    return [found for part in typing.get_args(annotation) for found in _models_in(part)]


def _table(model: type) -> list[str]:
    lines = [f"### {model.__name__}", "", inspect.cleandoc(model.__doc__ or ""), ""]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    said = _field_docstrings(model)
    for name, field in model.model_fields.items():  # type: ignore[attr-defined]
        if field.repr is False:
            continue
        default = "required" if field.is_required() else f"`{_short(field.get_default(call_default_factory=True))}`"
        kind = _kind(field.annotation)
        lines.append(f"| `{field.alias or name}` | {kind} | {default} | {said.get(name, '')} |")
    return [*lines, ""]


def _field_docstrings(model: type) -> dict[str, str]:
    """The text below each field, of the class and of those that it extends."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if not each.__module__.startswith("configs"):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = " ".join(str(below.value.value).split()).replace("|", "\\|")
    return found


def _kind(annotation: object) -> str:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " or ".join(_kind(part) for part in typing.get_args(annotation) if part is not type(None))
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(parts[0])
    if origin is typing.Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (list, tuple):
        return f"list of {_kind(parts[0])}"
    if origin is dict:
        return f"{_kind(parts[0])} to {_kind(parts[1])}"
    if inspect.isclass(annotation) and hasattr(annotation, "model_fields"):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}.get(
        getattr(annotation, "__name__", str(annotation)), getattr(annotation, "__name__", "value")
    )


def _short(value: object) -> str:
    text = "as below" if hasattr(value, "model_fields") else str(value)
    return text if len(text) < 40 else "as below"


def _is_package(module: types.ModuleType) -> bool:
    return hasattr(module, "__path__")
