"""Rows of a historian table as arrays, and the quarantine for rejected rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.data.store.row_checks import ParquetParts

if TYPE_CHECKING:
    import polars as pl

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

SECOND = 10**9
DAY = 86_400 * SECOND
FILE_BITS = 40
"""A row's id is the number of its file, shifted left by this number of bits, plus the row's number in the file."""
UNKNOWN_TIME = np.iinfo(np.int64).min


class RawRows(NamedTuple):
    """n rows of a historian export, as arrays (n,)."""

    codes: npt.NDArray[np.uint16]
    """Index of each row's tag in the mapping."""
    times: npt.NDArray[np.int64]
    """Times in ns since 1970, UTC."""
    values: npt.NDArray[np.float64]
    """Values in the unit of the archive."""
    statuses: npt.NDArray[np.uint32]
    """OPC UA status codes; Bad if the value was rejected."""
    ids: npt.NDArray[np.int64]

    def take(self, where: npt.NDArray[Any] | slice) -> RawRows:
        return RawRows._make(column[where] for column in self)


class Rejects(NamedTuple):
    rows: RawRows
    reasons: npt.NDArray[Any]
    texts: list[str | None] | None


class RawQuarantine(ParquetParts):
    """Quarantine of an export: Parquet files of rejected raw rows, with the reasons.

    Without a folder, the rows are kept in memory for `table`.
    """

    def __init__(self, folder: Path | None = None, part_records: int = 65_536) -> None:
        super().__init__(folder, part_records)
        self.files: Sequence[str] = ()
        self.tags: Sequence[str] = ()

    def begin(self, files: Sequence[str], tags: Sequence[str]) -> None:
        """Set the names of files and tags; raise ValueError if rows of earlier files or tags are not yet written."""
        if self._added and (list(files), list(tags)) != (list(self.files), list(self.tags)):
            raise ValueError(f"the quarantine has {self._waiting} unwritten rows of another export: close it first")
        self.files, self.tags = files, tags

    def add(
        self, rows: RawRows, reasons: Sequence[str] | npt.NDArray[Any], texts: Sequence[str | None] | None = None
    ) -> None:
        """Add rejected rows, with a reason for each row, and with the texts that could not be read."""
        if len(rows.ids):
            given = np.asarray(reasons, dtype=object)
            self._add((rows, given, texts), given)

    def table(self) -> pl.DataFrame:
        import polars as pl

        if not self._added:
            return pl.DataFrame()
        parts, reasons, texts = zip(*self._added, strict=True)
        rows = RawRows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        shown = [text for some, part in zip(texts, parts, strict=True) for text in some or [None] * len(part.ids)]
        known = rows.times != UNKNOWN_TIME
        names = np.asarray([*self.tags, None], dtype=object)
        frame = pl.DataFrame(
            {
                "file": np.asarray(self.files, dtype=object)[rows.ids >> FILE_BITS].tolist(),
                "row": rows.ids & ((1 << FILE_BITS) - 1),
                "tag": names[np.minimum(rows.codes.astype(np.int64), len(self.tags))].tolist(),
                "timestamp": pl.Series(np.where(known, rows.times, 0)).cast(pl.Datetime("ns", "UTC")),
                "value": rows.values,
                "status": rows.statuses,
                "text": pl.Series(shown, dtype=pl.String),
                "reason": np.concatenate(reasons).tolist(),
                "known": known,
            },
            schema_overrides={"file": pl.String, "tag": pl.String, "reason": pl.String},
        ).with_columns(
            timestamp=pl.when("known").then("timestamp"),
            value=pl.when(pl.col("value").is_nan()).then(None).otherwise(pl.col("value")),
        )
        return frame.drop("known")
