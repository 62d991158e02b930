"""Tables of rows as a historian's reader wants them: in pieces, long, and in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from configs.mapping import HistorianMapping
from tasks.adapters.historian.raw_rows import RawRows, Rejects

BUCKET_ROWS = 4_000_000
"""Rows that are sorted at a time."""


def batches(table: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    """A table's rows in order, at most so many at a time: polars' batches are about as large as one asks."""
    for batch in table.collect_batches(chunk_size=rows, maintain_order=True):
        yield from batch.iter_slices(rows)


class EpisodeNumbers:
    """Numbers the episodes of a table with a row per step: 0, 1, … where its column changes, and no value elsewhere.

    An empty cell goes on with the episode before.

    Args:
        column: its name, which may hold numbers or texts; None where there is none.
    """

    def __init__(self, column: str | None) -> None:
        self.column = column
        self._last: str | None = None
        self._next = 0

    def number(self, batch: pl.DataFrame) -> pl.DataFrame:
        """The same rows with numbers in that column."""
        if self.column is None:
            return batch
        names = batch[self.column].cast(pl.String).str.strip_chars()
        given = names.set(names == "", None).to_frame("now")
        known = given.select(pl.col("now").forward_fill().fill_null(pl.lit(self._last, pl.String)))["now"]
        changed = known.ne_missing(known.shift(1, fill_value=self._last)) & known.is_not_null()
        counted = changed.cast(pl.Int64).cum_sum() - 1 + self._next
        self._next += int(changed.sum())
        self._last = known[-1] if len(known) else self._last
        return batch.with_columns(pl.when(changed).then(counted).cast(pl.Float64).alias(self.column))


def long_rows(batch: pl.DataFrame, mapping: HistorianMapping) -> pl.DataFrame:
    """A wide batch as long rows, row after row; an empty cell is no row, for nothing was archived."""
    columns = mapping.columns
    tags = [name for name in mapping.tags if name in batch.columns]
    texts = any(batch[tag].dtype == pl.String for tag in tags)
    kind: Any = pl.String if texts else pl.Float64
    numbered = batch.with_row_index("row").with_columns(pl.col(tag).cast(kind) for tag in tags)
    names = pl.Enum([*mapping.tags, *mapping.ignore])
    long = numbered.unpivot(tags, index=["row", columns.timestamp], variable_name="tag", value_name="value")
    if columns.status_suffix is not None:
        kept = [f"{tag}{columns.status_suffix}" for tag in tags]
        none = [pl.lit(None, pl.String).alias(name) for name in kept if name not in batch.columns]
        statuses = numbered.with_columns(none).with_columns(pl.col(name).cast(pl.String) for name in kept)
        long = long.with_columns(statuses.unpivot(kept, value_name="status")["status"])
        # A tag without a status column is Good, one with an empty cell has no status.
        lacking = [name.removesuffix(columns.status_suffix) for name in kept if name not in batch.columns]
        long = long.with_columns(
            status=pl.when(pl.col("tag").is_in(lacking)).then(pl.lit("Good")).otherwise(pl.col("status"))
        )
    empty = pl.col("value").is_null()
    if texts:
        empty |= pl.col("value").str.strip_chars() == ""
    return (
        long.filter(~empty)
        .sort("row", maintain_order=True)
        .with_columns(
            code=pl.col("tag").cast(names).to_physical().cast(pl.UInt16),
            nameless=pl.lit(False),
            timestamp=pl.col(columns.timestamp),
        )
    )


def sorted_rows(
    chunks: Iterator[tuple[RawRows, list[Rejects]]], period: tuple[int, int], rows: int, folder: Path
) -> Iterator[tuple[RawRows, list[Rejects]]]:
    """Rows in order of time, by way of one file per stretch of time; equal times keep the order they came in."""
    begin, end = period
    buckets = max(-(-rows // BUCKET_ROWS), 1)
    width = (end - begin) // buckets + 1
    kind = np.dtype(list(zip(RawRows._fields, ("<u2", "<i8", "<f8", "<u4", "<i8"), strict=True)))
    for chunk, rejects in chunks:
        which = np.clip((chunk.times - begin) // width, 0, buckets - 1)
        record = np.empty(len(chunk.ids), kind)
        for name, column in zip(RawRows._fields, chunk, strict=True):
            record[name] = column
        for bucket in np.unique(which):
            with (folder / str(bucket)).open("ab") as file:
                file.write(record[which == bucket].tobytes())
        if rejects:
            yield chunk.take(slice(0, 0)), rejects
    for bucket in range(buckets):
        if (folder / str(bucket)).exists():
            record = np.fromfile(folder / str(bucket), kind)
            (folder / str(bucket)).unlink()
            order = np.argsort(record["times"], kind="stable")
            yield RawRows(*(np.ascontiguousarray(record[name][order]) for name in RawRows._fields)), []
