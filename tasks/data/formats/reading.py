"""Read a file or folder of transitions, in a known format, in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from configs.errors import BadInput
from tasks.data.store.schema import Rows, joined

Blocks = Iterator[Rows]


class Source(NamedTuple):
    """A file or folder of transitions in a known format; call `blocks` to read the rows."""

    path: Path
    family: str
    content: str
    """Text for the user: the content by which the format was recognised."""
    rows: int
    observations: int
    actions: int
    keys: tuple[str, ...]
    """Keys of `ROW_KEYS` that the blocks have."""
    notes: tuple[str, ...]
    """Texts for the user about derived and missing contents."""
    blocks: Callable[[], Blocks]
    choices: int | None = None
    """Number of choices of a discrete action, 0 if unknown; None for continuous actions."""


def no_horizon(source: Source, horizon: int | None) -> Source:
    """Return the source; raise BadInput if a horizon is given, because the format marks the ends of episodes."""
    if horizon is not None:
        raise BadInput(f"{source.path.name} marks the ends of episodes itself, got horizon {horizon}: omit --horizon.")
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
