"""Train on data larger than memory: a window of rows is in memory, and parts of the window are replaced in training.

The rows of the training episodes form a ring: the first row follows the last. Each epoch cuts the ring at a random row
into blocks of consecutive rows, and shuffles the blocks. Blocks are numbered through all epochs: 0, 1, 2, ... After c
advances, the window has the `slots` blocks from number c * `turn` on. The window depends only on c and the seed, so a
resumed training repeats bit for bit. Batches are drawn from the window while a thread reads the next blocks.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.training.loop import TrainingRows
from neorl_core.training.preparation import Moments, Scaling, merge_moments, moments, next_actions, scale_rows
from neorl_core.types import PlantSpec, Transition
from tasks.data.store.episodes import KEYS, transitions_of
from tasks.data.store.histories import NO_HISTORY, RowHistory
from tasks.data.store.reader import StoredDataset
from tasks.data.store.schema import Rows

BLOCKS = 64
"""Minimum number of blocks in a window; few blocks would give similar rows, because a block's rows are neighbours."""
MOST_ROWS = 4096
IN_WINDOW = 0.5
"""Share of the memory for the window; the rest is for a copy during an advance, and for blocks that are being read."""
DRAWS = 8
"""Average number of times that a row is drawn while it is in the window; more in small windows."""


class Shape(NamedTuple):
    """Size of a window: `slots` blocks of `block` rows."""

    block: int
    slots: int
    turn: int
    """Number of blocks that are replaced at each advance of the window."""


def row_bytes(spec: PlantSpec) -> int:
    """Return the size of one scaled transition in bytes; observations include any history."""
    return 4 * (2 * spec.observation.size + 2 * spec.acting + 3)


def window_shape(memory: int, spec: PlantSpec, drawn: int) -> Shape:
    """Return the largest window that fits a memory in bytes; `drawn` rows are drawn between two advances.

    Raise BadInput if the memory is too small for a window of `BLOCKS` rows.
    """
    rows = int(IN_WINDOW * memory) // row_bytes(spec)
    if rows < BLOCKS:
        raise BadInput(
            f"train.memory_mb allows {memory:,} bytes, but {2 * BLOCKS} rows of {row_bytes(spec)} bytes must fit: "
            "increase train.memory_mb."
        )
    block = min(rows // BLOCKS, MOST_ROWS)
    slots = rows // block
    return Shape(block, slots, min(max(round(drawn / DRAWS / block), 1), slots // 4))


class Ring:
    def __init__(self, dataset: StoredDataset, episodes: npt.NDArray[np.int64], past: RowHistory = NO_HISTORY) -> None:
        self._dataset, self._episodes, self._past = dataset, episodes, past
        bounds = dataset.episodes
        self._kept = np.zeros(dataset.rows, bool)
        for episode in episodes:
            self._kept[bounds[episode] : bounds[episode + 1]] = True
        self._first, lengths = bounds[:-1][episodes], np.diff(bounds)[episodes]
        self._before = np.concatenate([[0], np.cumsum(lengths)])

    def __len__(self) -> int:
        return int(self._before[-1])

    def moments(self) -> Moments:
        """Return the statistics of all rows, without history, that scaling needs."""
        blocks = self._dataset.episode_blocks(self._episodes, KEYS)
        return reduce(merge_moments, (moments(transitions_of(rows)) for rows in blocks))

    def read(self, start: int, rows: int) -> Transition:
        """Return `rows` consecutive rows of the ring from row `start` on, with history and next actions."""
        start %= len(self)
        # Also read the earlier rows that the first row's history needs.
        first = max(start - self._past.longest, 0)
        numbers = np.arange(first, start + rows + 1) % len(self)
        parts = [self._span(first, min(start + rows + 1, len(self)))]
        if (beyond := start + rows + 1 - len(self)) > 0:
            parts.append(self._span(0, beyond))
        joined = transitions_of({key: np.concatenate([part[key] for part in parts]) for key in KEYS})
        starts = np.isin(numbers, self._before[:-1])
        starts[0] = True
        joined = self._past.rows(joined, np.flatnonzero(starts))
        following: Any = next_actions(joined)
        # One extra row was read for the next action of the last row.
        read: Transition = jax.tree.map(lambda x: x[start - first :][:rows], joined._replace(next_action=following))
        return read

    def _span(self, start: int, stop: int) -> Rows:
        first, last = self._in_dataset(start), self._in_dataset(stop - 1) + 1
        kept = self._kept[first:last]
        return {key: values[kept] for key, values in self._dataset.read(first, last, KEYS).items()}

    def _in_dataset(self, row: int) -> int:
        episode = int(np.searchsorted(self._before, row, side="right")) - 1
        return int(self._first[episode] + row - self._before[episode])


class Stream:
    """Context manager that gives the training loop the scaled rows of a ring, window by window.

    Args:
        shape: size of the window, which must be smaller than the ring.
        every: number of gradient steps between two advances of the window.
    """

    def __init__(self, ring: Ring, how: Scaling, shape: Shape, every: int, seed: int) -> None:
        self._ring, self._how, self._shape, self._every, self._seed = ring, how, shape, every, seed
        if shape.slots * shape.block > len(ring):
            raise BadInput(
                f"a window of {shape.slots * shape.block:,} rows exceeds the {len(ring):,} rows: omit train.memory_mb."
            )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stream")
        self._at: int | None = None
        self._window: Transition | None = None
        self._next: Future[Transition] | None = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._window = None

    def source(self) -> TrainingRows:
        """Return the window's shapes and the function `at`, for the training loop."""
        rows = self._shape.slots * self._shape.block
        one = jax.eval_shape(lambda: self._read(range(1)))
        shape: Any = jax.ShapeDtypeStruct  # a class without types
        return TrainingRows(jax.tree.map(lambda x: shape((rows, *x.shape[1:]), x.dtype), one), self.at)

    def at(self, done: int) -> Transition:
        """Return the window after `done` gradient steps; the previous window becomes invalid, its memory is reused."""
        step, slots, turn = done // self._every, self._shape.slots, self._shape.turn
        if self._window is None or self._next is None or self._at != step - 1:
            if self._at != step or self._window is None:
                first = step * turn
                order = sorted(range(first, first + slots), key=lambda block: block % slots)
                self._window = self._read(order)
        else:
            new = self._next.result()
            places = jnp.asarray([(self._at * turn + slots + i) % slots for i in range(turn)])
            self._window = _replaced(self._window, new, places, slots)
        self._at = step
        first = step * turn + slots
        self._next = self._thread.submit(self._read, range(first, first + turn))
        return self._window

    def _read(self, blocks: Any) -> Transition:
        parts = [self._ring.read(self._start(number), self._shape.block) for number in blocks]
        return scale_rows(self._how, jax.tree.map(lambda *x: np.concatenate(x), *parts))

    def _start(self, number: int) -> int:
        count = len(self._ring) // self._shape.block
        epoch, place = divmod(number, count)
        cut, order = _epoch(self._seed, epoch, len(self._ring), count)
        return cut + int(order[place]) * self._shape.block


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, rows: int, blocks: int) -> tuple[int, npt.NDArray[np.int64]]:
    rng = np.random.default_rng([seed, epoch])
    return int(rng.integers(rows)), rng.permutation(blocks)


@partial(jax.jit, static_argnames="slots", donate_argnums=0)
def _replaced(window: Transition, blocks: Transition, places: jax.Array, slots: int) -> Transition:
    def one(old: jax.Array, new: jax.Array) -> jax.Array:
        parts = old.reshape(slots, -1, *old.shape[1:])
        return parts.at[places].set(new.reshape(places.shape[0], *parts.shape[1:])).reshape(old.shape)

    replaced: Transition = jax.tree.map(one, window, blocks)
    return replaced
