"""Reads YAML into strict models; an error names the file, the line, the key and the nearest valid key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from configs.bounded import document, read_text
from configs.errors import BadInput, nearest
from configs.run import RunConfig
from configs.strict import MARK

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[str | int, ...]


def load_run(path: Path | str) -> RunConfig:
    """Read a run's YAML, or a site's of a fleet's (`fleet.yaml#east`); a mapping file is taken relative to the file.

    Raises:
        BadInput: when the file is missing, is not YAML, or does not fit the model.
    """
    path = Path(path)
    file, mark, site = str(path).rpartition(MARK)
    if mark and not path.exists():
        # A fleet's file is read by what reads a run's.
        from configs.fleet.reading import site_run

        return site_run(Path(file), site)
    run = load_yaml(path, RunConfig)
    for key in ("source", "site", "shared"):
        if getattr(run, key) is not None:
            raise BadInput(f"expected 'plant' alone to name the plant in {path}, got '{key}': leave it out.")
    return with_mapping(run, path)


def with_mapping(run: RunConfig, path: Path) -> RunConfig:
    """A run whose mapping's file is found from the file that names it.

    Raises:
        BadInput: when there is none.
    """
    if run.data.mapping is None:
        return run
    mapping = (path.parent / run.data.mapping).resolve()
    if not mapping.is_file():
        raise BadInput(
            f"expected the mapping file named in {path} to exist, got no file at {mapping}: "
            "name it relative to the run's file."
        )
    return run.model_copy(update={"data": run.data.model_copy(update={"mapping": mapping})})


def load_yaml(path: Path | str, model: type[Model]) -> Model:
    """Read a YAML file into a strict model.

    Args:
        path: the file.
        model: a pydantic model, best with `extra="forbid"`.

    Returns:
        The validated model.

    Raises:
        BadInput: one sentence that names file, line and key.
    """
    path = Path(path)
    found: Model = _validated(read_text(path), path, model)
    return found


@lru_cache(maxsize=16)
def _validated(text: str, path: Path, model: type[Model]) -> Model:
    """A frozen model; a command asks for the same file several times, and parsing one of a hundred tags takes 0.1 s."""
    value, root = document(text, path)
    if not isinstance(value, dict):
        got = "an empty file" if value is None else f"a {_kind(value)}"
        raise BadInput(f"expected keys and values in {path}, got {got}: start from a file in configs/.")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise BadInput(sentence(path, model, error, _lines(root))) from error


def _lines(root: Node | None) -> dict[Location, int]:
    """Line (from 1) of every key and item."""
    found: dict[Location, int] = {}

    def visit(node: Node, location: Location) -> None:
        if isinstance(node, MappingNode):
            for key, child in node.value:
                found[(*location, key.value)] = key.start_mark.line + 1
                visit(child, (*location, key.value))
        elif isinstance(node, SequenceNode):
            for index, child in enumerate(node.value):
                found[(*location, index)] = child.start_mark.line + 1
                visit(child, (*location, index))

    if root is not None:
        visit(root, ())
    return found


def sentence(path: Path, model: type[BaseModel], error: ValidationError, lines: Mapping[Location, int]) -> str:
    """What is wrong with a file's values, in one sentence.

    Args:
        path: the file.
        model: what it was to be.
        error: what was found.
        lines: of every key and item; none where the values stand in no file as they are.
    """
    details = error.errors(include_url=False)
    # A misspelt key often leaves its right spelling missing as well: the misspelling is the one to show.
    first = min(details, key=lambda d: d["type"] != "extra_forbidden")
    more = len({_known(d["loc"], lines) for d in details} - {_known(first["loc"], lines)})
    others = f" ({more} more after this one)" if more else ""
    location = _known(first["loc"], lines)
    where = f"{path}, line {lines[location]}" if location in lines else str(path)
    parent = ".".join(map(str, location[:-1]))
    under = f" under '{parent}'" if parent else ""
    if first["type"] == "extra_forbidden":
        cure = nearest(str(location[-1]), _keys(model, location[:-1]))
        return f"expected a known key{under} in {where}, got '{str(location[-1])[:80]}': {cure}{others}"
    if first["type"] == "missing":
        return f"expected the key '{'.'.join(map(str, first['loc']))}' in {where}, got none: add it.{others}"
    key = ".".join(map(str, location))
    wanted = _wanted(first)
    if first["type"] == "value_error":
        return f"'{key}' in {where}: {wanted}.{others}" if key else f"{where}: {wanted}.{others}"
    got = first["input"]
    shown = f"a {_kind(got)}" if isinstance(got, dict | list | None) else f"{repr(got)[:80]} (a {_kind(got)})"
    return f"expected {wanted} for '{key}' in {where}, got {shown}: correct the value.{others}"


def _known(location: tuple[int | str, ...], lines: Mapping[Location, int]) -> Location:
    """The longest part of a location that is in the file: pydantic appends names of union members."""
    for end in range(len(location), 0, -1):
        if location[:end] in lines:
            return location[:end]
    return ()


def _wanted(detail: Any) -> str:
    message = str(detail["msg"])
    for prefix, instead in (
        ("Input should be a valid dictionary or instance of", "keys and values of"),
        ("Input should be ", ""),
        ("Keys should be ", "keys that are "),
        ("Value error, ", ""),
        ("String should ", "a string that should "),
        ("List should ", "a list that should "),
    ):
        if message.startswith(prefix):
            return instead + message.removeprefix(prefix)
    return message[:1].lower() + message[1:]


def _keys(model: type[BaseModel], location: Location) -> list[str]:
    """Valid keys of the model that sits at a location."""
    annotation: Any = model
    for step in location:
        owner = _model_of(annotation)
        if owner is not None and step in owner.model_fields:
            annotation = owner.model_fields[str(step)].annotation
    owner = _model_of(annotation)
    # What a file does not say for itself is not shown either.
    return [field.alias or name for name, field in owner.model_fields.items() if field.repr] if owner else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `Model`, `Model | None`, `list[Model]` or `dict[str, Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_of(part))), None)


def _kind(value: Any) -> str:
    names = {dict: "mapping", list: "list", str: "string", int: "whole number", float: "number", bool: "boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
