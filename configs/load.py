"""Reads YAML into strict models; an error names the file, the line, the key and the nearest valid key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from configs.errors import BadInput
from configs.run import RunConfig

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[str | int, ...]

MAX_BYTES = 2**18
"""Length of a YAML file; the mapping of a thousand tags has a quarter of it."""
MAX_NODES = 50_000
"""Keys and values of a file."""
MAX_LEVELS = 20
MAX_SCALAR = 4096
"""Characters of one value; a formula has at most a thousand."""
MAX_DIGITS = 40


def load_run(path: Path | str) -> RunConfig:
    """Read a run's YAML; its mapping file is taken relative to the run's file.

    Raises:
        BadInput: when the file is missing, is not YAML, or does not fit the model.
    """
    path = Path(path)
    run = load_yaml(path, RunConfig)
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
    value, root = _document(_read(path), path)
    if not isinstance(value, dict):
        got = "an empty file" if value is None else f"a {_kind(value)}"
        raise BadInput(f"expected keys and values in {path}, got {got}: start from a file in configs/.")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise BadInput(_sentence(path, model, error, _lines(root))) from error


def parse_yaml(text: str, path: Path | str) -> Any:
    """Plain Python values of a YAML text that may come from anywhere.

    Strings, numbers, booleans, null, lists and mappings are read; aliases, tags, directives and keys that are lists or
    mappings are refused, and so is what is longer, deeper or larger than any configuration.

    Args:
        text: the YAML.
        path: where it comes from, for messages.

    Raises:
        BadInput: one sentence that names file and line.

    Example:
        >>> parse_yaml("keys: [1, two]", "trust.yaml")
        {'keys': [1, 'two']}
    """
    return _document(text, Path(path))[0]


class _BoundedComposer(Composer):
    """Makes nodes of YAML's events, and refuses what would make a small file large or a parser slow.

    It counts while it reads, so that nothing is built of a text that is refused later.
    """

    levels = 0
    nodes = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """The next node, one level deeper than its parent."""
        event = self.parser.peek_event()
        self.levels += 1
        self.nodes += 1
        found = None
        if isinstance(event, AliasEvent):
            found = "an alias (*), which is not read here: write the value out"
        elif event.ctag is not None:
            found = "a tag (!), which is not read here: write a plain value"
        elif self.levels > MAX_LEVELS:
            found = f"lists or mappings nested more than {MAX_LEVELS} deep: write it flatter"
        elif self.nodes > MAX_NODES:
            found = f"more than {MAX_NODES} values: divide the file"
        elif isinstance(event, ScalarEvent) and len(event.value) > MAX_SCALAR:
            found = f"a value of more than {MAX_SCALAR} characters: shorten it"
        elif isinstance(parent, MappingNode) and index is None and not isinstance(event, ScalarEvent):
            found = "a key that is a list or a mapping: write a name"
        if found is not None:
            raise MarkedYAMLError(problem=found, problem_mark=event.start_mark)
        node: Node | None = super().compose_node(parent, index)
        self.levels -= 1
        if isinstance(node, ScalarNode) and str(node.tag).endswith(":int") and len(node.value) > MAX_DIGITS:
            raise MarkedYAMLError(
                problem=f"a number of more than {MAX_DIGITS} digits: shorten it", problem_mark=node.start_mark
            )
        return node


def _document(text: str, path: Path) -> tuple[Any, Node | None]:
    """The values of a text and the nodes that they were made of, which know their lines."""
    if len(text) > MAX_BYTES:
        raise BadInput(f"expected at most {MAX_BYTES} characters of YAML in {path}, got more: divide the file.")
    if directive := re.search(r"^%.*", text, re.MULTILINE):
        raise BadInput(
            f"expected YAML without directives in {path}, got '{directive[0][:40]}': delete lines that begin with %."
        )
    # The pure loader builds plain Python values only, and refuses duplicate keys.
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _BoundedComposer
    try:
        root: Node | None = yaml.compose(text)
        return (None if root is None else yaml.constructor.construct_document(root)), root
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(error.problem or error.context or "a syntax error").split()).removeprefix("but ")[:300]
        cure = "" if ": " in problem else ": correct that line"
        verb = "got" if cure == "" else "but"
        raise BadInput(f"expected YAML in {path}{line}, {verb} {problem}{cure}.") from error
    except (YAMLError, ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"expected YAML in {path}, got {_first_line(error)}: correct the file.") from error


def nearest(name: str, choices: Iterable[str]) -> str:
    """The cure for a wrong name: the nearest valid one, else all of them.

    Example:
        >>> nearest("chemical_recator", ["chemical_reactor", "double_mass"])
        "did you mean 'chemical_reactor'?"
    """
    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"choose from {', '.join(known)}." if known else "none is known here."


def _read(path: Path) -> str:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadInput(f"expected a YAML file at {path}, got a device or pipe: name a plain file.")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise BadInput(f"expected at most {MAX_BYTES} bytes of YAML in {path}, got more: divide the file.")
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        siblings = [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        cure = nearest(path.name, siblings) if siblings else "check the path."
        raise BadInput(f"expected a YAML file at {path}, got none: {cure}") from error
    except IsADirectoryError as error:
        raise BadInput(f"expected a YAML file at {path}, got a folder: name a file in it.") from error
    except PermissionError as error:
        raise BadInput(f"expected to read {path}, got no permission: change the file's mode or owner.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"expected UTF-8 text in {path}, got bytes that are not: save it as UTF-8.") from error


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


def _sentence(path: Path, model: type[BaseModel], error: ValidationError, lines: dict[Location, int]) -> str:
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


def _known(location: tuple[int | str, ...], lines: dict[Location, int]) -> Location:
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
    return [field.alias or name for name, field in owner.model_fields.items()] if owner else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `Model`, `Model | None`, `list[Model]` or `dict[str, Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_of(part))), None)


def _kind(value: Any) -> str:
    names = {dict: "mapping", list: "list", str: "string", int: "whole number", float: "number", bool: "boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
