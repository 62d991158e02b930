"""The rows of a shard that is being filled."""

from __future__ import annotations

import numpy as np

from tasks.adapters.store.schema import Rows

FEW = 4096
"""Fewer rows than these are joined with their neighbours, for every array has its price."""


class Buffer:
    """Rows one after the other, kept and not copied, for copies would want fresh memory, which costs time."""

    def __init__(self) -> None:
        self.count = self.nbytes = 0
        self._parts: list[Rows] = []
        self._small: list[Rows] = []
        self._small_count = 0

    def append(self, rows: Rows) -> None:
        """Put rows (n, ...) behind those that are there; they are not to be written to any more.

        Raises:
            ValueError: when arrays differ in their number of rows, or in shape from those that are there.
        """
        count = len(rows["rewards"])
        before = next(iter(self._parts or self._small), rows)
        for key, values in rows.items():
            if values.shape != (count, *before[key].shape[1:]):
                raise ValueError(f"expected {key} of shape {(count, *before[key].shape[1:])}, got {values.shape}")
        if count >= FEW:
            self._join()
            self._parts.append(rows)
        elif count:
            self._small.append(rows)
            self._small_count += count
            if self._small_count >= FEW:
                self._join()
        self.count += count
        self.nbytes += sum(values.nbytes for values in rows.values())

    def _join(self) -> None:
        """Make one part of the small ones."""
        if self._small:
            self._parts.append({key: np.concatenate([part[key] for part in self._small]) for key in self._small[0]})
            self._small, self._small_count = [], 0

    def parts(self) -> list[Rows]:
        """All rows, in blocks one after the other."""
        self._join()
        return self._parts
