"""Memory for the rows of a shard that is being filled."""

from __future__ import annotations

import numpy as np

from tasks.adapters.shards import ROW_KEYS, Rows


class Buffer:
    """Rows one after the other, in memory that serves again for a later shard, for fresh memory costs time."""

    def __init__(self) -> None:
        self.count = 0
        self._arrays: Rows = {}

    def append(self, rows: Rows) -> None:
        """Copy rows (n, ...) behind those that are there."""
        stop = self.count + len(rows["rewards"])
        for key, values in rows.items():
            held = self._arrays.get(key)
            if held is None or len(held) < stop:
                grown = np.empty((max(stop, 3 * self.count // 2), *values.shape[1:]), ROW_KEYS[key])
                if held is not None:
                    grown[: self.count] = held[: self.count]
                self._arrays[key] = held = grown
            held[self.count : stop] = values
        self.count = stop

    def rows(self) -> Rows:
        """What is there, not copied."""
        return {key: values[: self.count] for key, values in self._arrays.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are there."""
        return sum(values.nbytes for values in self.rows().values())
