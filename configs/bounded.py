"""Reads YAML that may come from anywhere: bounded in length, depth and number of values, and plain values only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from configs.errors import BadInput, nearest

MAX_BYTES = 2**18
"""Length of a YAML file; the mapping of a thousand tags has a quarter of it."""
MAX_NODES = 50_000
"""Keys and values of a file."""
MAX_LEVELS = 20
MAX_SCALAR = 4096
"""Characters of one value; a formula has at most a thousand."""
MAX_DIGITS = 40


def read_yaml(path: Path, *, aliases: bool = False) -> Any:
    """Plain Python values of a YAML file; see `parse_yaml`.

    Args:
        path: the file.
        aliases: also read aliases, as in Prefect's own files; each counts as the values that it stands for.

    Raises:
        BadInput: one sentence that names file and line; also when the file cannot be read.
    """
    return document(read_text(path), path, aliases=aliases)[0]


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
    return document(text, Path(path))[0]


class _BoundedComposer(Composer):
    """Makes nodes of YAML's events, and refuses what would make a small file large or a parser slow.

    It counts while it reads, so that nothing is built of a text that is refused later.
    """

    unread: str | None = "an alias (*), which is not read here: write the value out"
    """Why aliases are refused; None where they are read."""

    levels = 0
    nodes = 0

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.sizes: dict[str, int] = {}
        """Values below each anchor that is complete."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """The next node, one level deeper than its parent."""
        event = self.parser.peek_event()
        self.levels += 1
        self.nodes += 1
        before, found = self.nodes, None
        if isinstance(event, AliasEvent):
            self.nodes += self.sizes.get(event.anchor, 0)
            if event.anchor not in self.sizes:
                found = self.unread or "an alias (*) of what does not come before it: write the value out"
            elif self.nodes > MAX_NODES:
                found = f"more than {MAX_NODES} values, those that aliases stand for counted in: divide the file"
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
        if self.unread is None and not isinstance(event, AliasEvent) and event.anchor is not None:
            self.sizes[event.anchor] = self.nodes - before + 1
        if isinstance(node, ScalarNode) and str(node.tag).endswith(":int") and len(node.value) > MAX_DIGITS:
            raise MarkedYAMLError(
                problem=f"a number of more than {MAX_DIGITS} digits: shorten it", problem_mark=node.start_mark
            )
        return node


class _AliasComposer(_BoundedComposer):
    """Reads aliases of what is complete before them, so that none holds itself."""

    unread = None


def document(text: str, path: Path, *, aliases: bool = False) -> tuple[Any, Node | None]:
    """The values of a text and the nodes that they were made of, which know their lines."""
    if len(text) > MAX_BYTES:
        raise BadInput(f"expected at most {MAX_BYTES} characters of YAML in {path}, got more: divide the file.")
    if directive := re.search(r"^%.*", text, re.MULTILINE):
        raise BadInput(
            f"expected YAML without directives in {path}, got '{directive[0][:40]}': delete lines that begin with %."
        )
    # The pure loader builds plain Python values only, and refuses duplicate keys.
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
        verb = "got" if cure == "" else "but"
        raise BadInput(f"expected YAML in {path}{line}, {verb} {problem}{cure}.") from error
    except (YAMLError, ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"expected YAML in {path}, got {_first_line(error)}: correct the file.") from error


def read_text(path: Path) -> str:
    """The text of a file, if it is a plain one of bounded length.

    Raises:
        BadInput: one sentence that names the file.
    """
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


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
