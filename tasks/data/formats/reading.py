"""A recognised source, and blocks of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from configs.errors import BadInput
from tasks.data.store.schema import Rows, joined

Blocks = Iterator[Rows]


class Source(NamedTuple):
    """A recognised file; call `blocks` to read the rows."""

    path: Path
    family: str
    content: str
    """Description of the content that identifies the format."""
    rows: int
    observations: int
    actions: int
    keys: tuple[str, ...]
    """Keys of `ROW_KEYS` in the blocks."""
    notes: tuple[str, ...]
    """Derived and missing contents, as text."""
    blocks: Callable[[], Blocks]
    choices: int | None = None
    """Number of choices of a discrete action, 0 if unknown; None for continuous actions."""


def no_horizon(source: Source, horizon: int | None) -> Source:
    """Refuse a horizon for a format that marks the ends of episodes."""
    if horizon is not None:
        raise BadInput(f"{source.family} marks the ends of episodes, so a horizon does not apply: leave it out.")
    return source


def in_blocks(episodes: Iterable[Rows], rows: int) -> Blocks:
    """Join whole episodes to blocks of at least `rows` rows; the last block may be shorter."""
    parts, count = list[Rows](), 0
    for episode in episodes:
        parts.append(episode)
        count += len(episode["rewards"])
        if count >= rows:
            yield joined(parts)
            parts, count = [], 0
    if parts:
        yield joined(parts)
