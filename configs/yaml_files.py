"""Read untrusted YAML files into strict models. Errors name the file, the line and the nearest valid key.

Only plain values are accepted. Files with too many bytes, values or levels are rejected during parsing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from configs.errors import BadInput, nearest

if TYPE_CHECKING:
    # Reading prefect.yaml, as `neorl up` does, needs no pydantic, which is slow to import.
    from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound="BaseModel")
Location = tuple[str | int, ...]

MAX_BYTES = 2**18
"""Largest size of a YAML file, four times the size of a mapping with a thousand tags."""
MAX_NODES = 50_000
"""Largest number of keys and values in a file."""
MAX_LEVELS = 20
MAX_SCALAR = 4096
"""Largest number of characters in one value. A formula has at most a thousand."""
MAX_DIGITS = 40


def load_yaml(path: Path | str, model: type[Model]) -> Model:
    """Read a YAML file into a strict model.

    Args:
        model: a frozen pydantic model with `extra="forbid"`.

    Raises:
        BadInput: if the file does not fit the model; the message names file, line and key.
    """
    path = Path(path)
    found: Model = _validated(read_text(path), path, model)
    return found


# A command loads the same file several times, and a mapping of a hundred tags takes 0.1 s to parse.
@lru_cache(maxsize=16)
def _validated(text: str, path: Path, model: type[Model]) -> Model:
    from pydantic import ValidationError

    value, root = document(text, path)
    if not isinstance(value, dict):
        got = "an empty file" if value is None else f"a {_kind(value)}"
        raise BadInput(f"{path} must contain keys and values, got {got}: copy a file in configs/ and change it")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise BadInput(validation_message(path, model, error, _lines(root))) from error


def read_yaml(path: Path, *, aliases: bool = False) -> Any:
    """Read a YAML file as plain Python values; see `document`.

    Args:
        aliases: accept YAML aliases (`*name`), which Prefect's files use.

    Raises:
        BadInput: if the text is not accepted; the message names file and line.
    """
    return document(read_text(path), path, aliases=aliases)[0]


def document(text: str, path: Path, *, aliases: bool = False) -> tuple[Any, Node | None]:
    """Parse an untrusted YAML text into strings, numbers, booleans, null, lists and mappings.

    Aliases, tags, directives, and keys that are lists or mappings are rejected. So are texts that exceed the limits of
    this module.

    Args:
        text: the YAML.
        path: the text's file, for messages.
        aliases: accept aliases.

    Returns:
        The values, and the root node, from which `_lines` reads the line numbers.

    Raises:
        BadInput: if the text is not accepted; the message names file and line.

    Example:
        >>> document("keys: [1, two]", Path("trust.yaml"))[0]
        {'keys': [1, 'two']}
    """
    if len(text) > MAX_BYTES:
        raise BadInput(f"{path} has {len(text):,} characters, the limit is {MAX_BYTES:,}: divide the file")
    if directive := re.search(r"^%.*", text, re.MULTILINE):
        raise BadInput(f"{path} has the YAML directive '{directive[0][:40]}': delete lines that begin with %")
    # The pure loader builds plain Python values only, and rejects duplicate keys.
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _AliasComposer if aliases else _BoundedComposer
    try:
        root: Node | None = yaml.compose(text)
        return (None if root is None else yaml.constructor.construct_document(root)), root
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(error.problem or error.context or "a syntax error").split()).removeprefix("but ")[:300]
        cure = "" if ": " in problem else ": correct that line"
        raise BadInput(f"{path}{line} is not valid YAML, got {problem}{cure}") from error
    except (YAMLError, ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"{path} is not valid YAML, got {str(error).splitlines()[0]}: correct the file") from error


def read_text(path: Path) -> str:
    """Read a plain UTF-8 file of at most `MAX_BYTES` bytes.

    Raises:
        BadInput: if the file is missing, unreadable, too large or not UTF-8.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadInput(f"{path} must be a YAML file, got a device or pipe: name a plain file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise BadInput(f"{path} has more than {MAX_BYTES:,} bytes, the limit: divide the file")
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        siblings = [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        cure = nearest(path.name, siblings) if siblings else "check the path"
        raise BadInput(f"there is no YAML file {path}: {cure}") from error
    except IsADirectoryError as error:
        raise BadInput(f"{path} must be a YAML file, got a folder: name a file in it") from error
    except PermissionError as error:
        raise BadInput(f"this account may not read {path}: change the file's mode or owner") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 at byte {error.start}: save the file as UTF-8") from error


class _BoundedComposer(Composer):
    """Compose nodes from YAML events, and reject texts with too many values or levels.

    Nodes are counted during parsing, so that a rejected text uses little memory.
    """

    alias_error: str | None = "an alias (*), which is not allowed: write the value itself"
    """Message that rejects aliases; None to accept aliases."""

    levels = 0
    nodes = 0

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.sizes: dict[str, int] = {}
        """Number of values below each anchor that was completely read."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose the next node, one level below its parent."""
        event = self.parser.peek_event()
        self.levels += 1
        self.nodes += 1
        before, fault = self.nodes, None
        if isinstance(event, AliasEvent):
            self.nodes += self.sizes.get(event.anchor, 0)
            if event.anchor not in self.sizes:
                fault = self.alias_error or f"the alias *{event.anchor} before its anchor: write the value itself"
            elif self.nodes > MAX_NODES:
                fault = f"more than {MAX_NODES} values, with the values of aliases: divide the file"
        elif event.ctag is not None:
            fault = "a tag (!), which is not allowed: write a plain value"
        elif self.levels > MAX_LEVELS:
            fault = f"lists or mappings nested more than {MAX_LEVELS} levels deep: use fewer levels"
        elif self.nodes > MAX_NODES:
            fault = f"more than {MAX_NODES} values: divide the file"
        elif isinstance(event, ScalarEvent) and len(event.value) > MAX_SCALAR:
            fault = f"a value of {len(event.value)} characters, the limit is {MAX_SCALAR}: shorten it"
        elif isinstance(parent, MappingNode) and index is None and not isinstance(event, ScalarEvent):
            fault = "a key that is a list or a mapping: use a name as key"
        if fault is not None:
            raise MarkedYAMLError(problem=fault, problem_mark=event.start_mark)
        node: Node | None = super().compose_node(parent, index)
        self.levels -= 1
        if self.alias_error is None and not isinstance(event, AliasEvent) and event.anchor is not None:
            self.sizes[event.anchor] = self.nodes - before + 1
        if isinstance(node, ScalarNode) and str(node.tag).endswith(":int") and len(node.value) > MAX_DIGITS:
            raise MarkedYAMLError(
                problem=f"a number of {len(node.value)} digits, the limit is {MAX_DIGITS}: shorten it",
                problem_mark=node.start_mark,
            )
        return node


class _AliasComposer(_BoundedComposer):
    """Accept an alias only after the whole value of its anchor, so that no value contains itself."""

    alias_error = None


def _lines(root: Node | None) -> dict[Location, int]:
    """Return the line number, from 1, of every key and list item."""
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


def validation_message(
    path: Path, model: type[BaseModel], error: ValidationError, lines: Mapping[Location, int]
) -> str:
    """Describe the first fault of a file's values in one sentence.

    Args:
        model: the model that the values do not fit.
        lines: line number of every key and list item; empty if the values come from several places in a file.
    """
    details = error.errors(include_url=False)
    # A misspelt key often causes two faults, an unknown key and a missing key. The message shows the unknown key.
    first = min(details, key=lambda d: d["type"] != "extra_forbidden")
    more = len({_known(d["loc"], lines) for d in details} - {_known(first["loc"], lines)})
    others = f" (and {more} more)" if more else ""
    location = _known(first["loc"], lines)
    where = f"{path}, line {lines[location]}" if location in lines else str(path)
    parent = ".".join(map(str, location[:-1]))
    under = f" under '{parent}'" if parent else ""
    if first["type"] == "extra_forbidden":
        cure = nearest(str(location[-1]), _keys(model, location[:-1]))
        return f"unknown key '{str(location[-1])[:80]}'{under} in {where}: {cure}{others}"
    if first["type"] == "missing":
        return f"the key '{'.'.join(map(str, first['loc']))}' is missing in {where}: add it{others}"
    key = ".".join(map(str, location))
    wanted = _requirement(first)
    if first["type"] == "value_error":
        return f"'{key}' in {where}: {wanted}{others}" if key else f"{where}: {wanted}{others}"
    got = first["input"]
    shown = f"a {_kind(got)}" if isinstance(got, dict | list | None) else f"{repr(got)[:80]} (a {_kind(got)})"
    return f"'{key}' in {where} must be {wanted}, got {shown}: correct the value{others}"


def _known(location: tuple[int | str, ...], lines: Mapping[Location, int]) -> Location:
    """Return a location without its last parts that are not in the file: pydantic appends names of union members."""
    for end in range(len(location), 0, -1):
        if location[:end] in lines:
            return location[:end]
    return ()


def _requirement(detail: Any) -> str:
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
    """Return the valid keys of the model at a location."""
    annotation: Any = model
    for step in location:
        owner = _model_of(annotation)
        if owner is not None and step in owner.model_fields:
            annotation = owner.model_fields[str(step)].annotation
    owner = _model_of(annotation)
    return [field.alias or name for name, field in owner.model_fields.items()] if owner else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as `Model`, `Model | None`, `list[Model]` or `dict[str, Model]`."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_of(part))), None)


def _kind(value: Any) -> str:
    names = {dict: "mapping", list: "list", str: "string", int: "whole number", float: "number", bool: "boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
