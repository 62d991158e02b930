"""Read Parquet through Arrow for features that polars lacks: stored dictionaries of columns, and the footer.

A file stores a tag as a number, which is faster to compare than text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.mapping import Columns

if TYPE_CHECKING:
    import polars as pl

TO_NS = {"milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}


class Groups(NamedTuple):
    """Row groups of a file, in order; arrays (R,)."""

    rows: npt.NDArray[np.int64]
    least: npt.NDArray[np.int64]
    """ns since 1970, UTC"""
    greatest: npt.NDArray[np.int64]


def time_groups(path: Path, column: str) -> Groups | None:
    """Return the least and greatest time of each row group; None if the footer has none, or times are missing."""
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
    """Yield a long table's rows in order, at most `rows` at a time.

    The frames have code (the number in `tags`, null for an unknown tag), nameless, timestamp, value and, if the table
    has it, status.
    """
    import polars as pl
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
        # One extra code for unknown tags.
        known = np.array([*(number.get(str(text), len(tags)) for text in tag.dictionary.to_pylist()), len(tags)])
        index = tag.indices.fill_null(len(known) - 1).to_numpy() if tag.null_count else tag.indices.to_numpy()
        codes = known.astype(np.uint16).take(index)
        frame = pl.from_arrow(pa.Table.from_batches([batch.select(list(names))]))
        assert isinstance(frame, pl.DataFrame)
        coded = [name for name, kind in frame.schema.items() if isinstance(kind, (pl.Categorical, pl.Enum))]
        if coded:
            frame = frame.with_columns(pl.col(coded).cast(pl.String))
        code = pl.Series("code", codes)
        if len(codes) and int(codes.max()) == len(tags):
            code = code.set(code == len(tags), None)
        nameless = pl.lit(False)
        if tag.null_count:
            nameless = pl.lit(pl.Series(tag.is_null().to_numpy(zero_copy_only=False)))
        yield frame.rename(names).with_columns(code, nameless.alias("nameless"))
