"""Read tables in batches, and convert them to long rows (one value each), in order of time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from configs.mapping import Columns, HistorianMapping
from tasks.data.historian.dialects import CODED
from tasks.data.historian.raw_rows import RawRows, Rejects

BUCKET_ROWS = 4_000_000
TO_NS = {"milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}


def batches(table: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    for batch in table.collect_batches(chunk_size=rows, maintain_order=True):
        yield from batch.iter_slices(rows)


class EpisodeNumbers:
    """Replaces the episode names in a column of a wide table by numbers; equal names get equal numbers.

    An empty cell continues the episode before. A row without a name and without values of the `tags` gets no number.
    The numbers are hashes of the names, so that they do not depend on batches.
    """

    def __init__(self, column: str | None, tags: Iterable[str]) -> None:
        self.column = column
        self._others = [tag for tag in tags if tag != column]
        self._last: str | None = None

    def number(self, batch: pl.DataFrame) -> pl.DataFrame:
        if self.column is None:
            return batch
        name = pl.col(self.column).cast(pl.String).str.strip_chars()
        valued = pl.any_horizontal(~_is_empty(tag, batch.schema[tag]) for tag in self._others if tag in batch.columns)
        rows = batch.select(given=pl.when(name != "").then(name), valued=valued)
        known = rows.select(pl.col("given").forward_fill().fill_null(pl.lit(self._last, pl.String)))["given"]
        self._last = known[-1] if len(known) else self._last
        counted = known.is_not_null() & (rows["given"].is_not_null() | rows["valued"])
        # Keep as many bits as a double can store exactly.
        numbers = (known.hash() // 2**11).cast(pl.Float64)
        return batch.with_columns(numbers.set(~counted, None).alias(self.column))


def _is_empty(name: str, kind: pl.DataType) -> pl.Expr:
    nothing = pl.col(name).is_null()
    return nothing | (pl.col(name).str.strip_chars() == "") if kind == pl.String else nothing


def long_rows(batch: pl.DataFrame, mapping: HistorianMapping) -> pl.DataFrame:
    """Convert a batch of a wide table to long rows; an empty cell without a status gives no row."""
    columns = mapping.columns
    tags = [name for name in mapping.tags if name in batch.columns]
    texts = any(batch[tag].dtype == pl.String for tag in tags)
    kind: Any = pl.String if texts else pl.Float64
    numbered = batch.with_row_index("row").with_columns(pl.col(tag).cast(kind) for tag in tags)
    names = pl.Enum([*mapping.tags, *mapping.ignore])
    long = numbered.unpivot(tags, index=["row", columns.timestamp], variable_name="tag", value_name="value")
    empty = _is_empty("value", long.schema["value"])
    if columns.status_suffix is not None:
        kept = [f"{tag}{columns.status_suffix}" for tag in tags]
        # A tag without a status column is Good, and so is the episode. An empty status cell means a missing status.
        lacking = [tag for tag, name in zip(tags, kept, strict=True) if name not in batch.columns]
        lacking += [mapping.episode] if mapping.episode is not None else []
        none = [pl.lit(None, pl.String).alias(name) for name in kept if name not in batch.columns]
        statuses = numbered.with_columns(none).with_columns(pl.col(name).cast(pl.String) for name in kept)
        long = long.with_columns(statuses.unpivot(kept, value_name="status")["status"])
        unmarked = pl.col("tag").is_in(lacking)
        empty &= unmarked | _is_empty("status", long.schema["status"])
        long = long.with_columns(status=pl.when(unmarked).then(pl.lit("Good")).otherwise(pl.col("status")))
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
    """Sort rows by time with temporary files, one per interval of time; rows with equal times keep their order."""
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


class Groups(NamedTuple):
    """Numbers of rows, and least and greatest times, of the R row groups of a Parquet file, as arrays (R,)."""

    rows: npt.NDArray[np.int64]
    least: npt.NDArray[np.int64]
    """In ns since 1970, UTC."""
    greatest: npt.NDArray[np.int64]


def time_groups(path: Path, column: str) -> Groups | None:
    """Return the least and greatest time of each row group from a Parquet file's footer; None if one is missing."""
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path)
    except (OSError, ValueError):  # includes pyarrow's own errors; polars reports the problem later
        return None
    names = [footer.schema.column(i).path for i in range(footer.num_columns)]
    if column not in names or not footer.num_row_groups:
        return None
    place = names.index(column)
    kind = json.loads(footer.schema.column(place).logical_type.to_json())
    if kind.get("Type") != "Timestamp" or not kind.get("isAdjustedToUTC") or kind.get("timeUnit") not in TO_NS:
        return None
    found = []
    for i in range(footer.num_row_groups):
        held = footer.row_group(i).column(place).statistics
        if held is None or not held.has_min_max or not held.has_null_count or held.null_count:
            return None
        found.append((footer.row_group(i).num_rows, held.min_raw, held.max_raw))
    rows, least, greatest = np.array(found, np.int64).T
    scale = TO_NS[kind["timeUnit"]]
    if max(np.abs(least).max(), np.abs(greatest).max()) > 9 * 10**18 // scale:
        return None
    return Groups(rows, least * scale, greatest * scale)


def coded_batches(path: Path, columns: Columns, tags: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of a long Parquet table in order, in tables of at most `rows` rows.

    The tables have the columns code (index in `tags`, null for an unknown tag), nameless, timestamp, value and, if it
    exists, status. Tags are read with Arrow, because Arrow can read the numbers by which Parquet stores repeated texts.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, read_dictionary=[columns.tag])
    names = {columns.timestamp: "timestamp", columns.value: "value"}
    if columns.status is not None:
        names[columns.status] = "status"
    number = {tag: code for code, tag in enumerate(tags)}
    for batch in file.iter_batches(rows, columns=[columns.tag, *names]):
        tag = batch.column(columns.tag)
        if not pa.types.is_dictionary(tag.type):
            tag = tag.cast(pa.string()).dictionary_encode()
        # The last code stands for unknown tags.
        known = np.array([*(number.get(str(text), len(tags)) for text in tag.dictionary.to_pylist()), len(tags)])
        index = tag.indices.fill_null(len(known) - 1).to_numpy() if tag.null_count else tag.indices.to_numpy()
        codes = known.astype(np.uint16).take(index)
        frame = pl.from_arrow(pa.Table.from_batches([batch.select(list(names))]))
        assert isinstance(frame, pl.DataFrame)
        frame = frame.with_columns(CODED.cast(pl.String))
        code = pl.Series("code", codes)
        if len(codes) and int(codes.max()) == len(tags):
            code = code.set(code == len(tags), None)
        nameless = pl.lit(False)
        if tag.null_count:
            nameless = pl.lit(pl.Series(tag.is_null().to_numpy(zero_copy_only=False)))
        yield frame.rename(names).with_columns(code, nameless.alias("nameless"))
