"""What a Parquet file's footer says of a column of times, without reading the column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

TO_NS = {"milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}


class Groups(NamedTuple):
    """Row groups of a file, in their order; arrays (R,)."""

    rows: npt.NDArray[np.int64]
    least: npt.NDArray[np.int64]
    """ns since 1970, UTC"""
    greatest: npt.NDArray[np.int64]


def time_groups(path: Path, column: str) -> Groups | None:
    """The least and the greatest time of every row group; None where the footer does not tell, or times are missing."""
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path)
    except (OSError, ValueError):  # pyarrow's own errors are among these; polars will say what is wrong
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
        told = footer.row_group(i).column(place).statistics
        if told is None or not told.has_min_max or not told.has_null_count or told.null_count:
            return None
        found.append((footer.row_group(i).num_rows, told.min_raw, told.max_raw))
    rows, least, greatest = np.array(found, np.int64).T
    scale = TO_NS[kind["timeUnit"]]
    if max(np.abs(least).max(), np.abs(greatest).max()) > 9 * 10**18 // scale:
        return None
    return Groups(rows, least * scale, greatest * scale)
