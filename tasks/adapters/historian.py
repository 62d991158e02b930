"""Historian exports: a long table (tag, timestamp, value, status) in Parquet or CSV, read tag by tag."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from tasks.adapters.expectations import check_historian_table
from tasks.adapters.resample import BAD, GOOD, UNCERTAIN, Samples

WORDS = {"good": GOOD, "uncertain": UNCERTAIN, "bad": BAD}
"""Statuses in words; 'Uncertain_SubNormal' and the like count by how they begin."""

ISO_DATE = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:"


@dataclass(frozen=True)
class Export:
    """A long table on disk, Parquet or CSV, read tag by tag."""

    path: Path
    mapping: HistorianMapping
    _table: pl.LazyFrame
    _codes: dict[str, int]

    @classmethod
    def open(cls, path: Path, mapping: HistorianMapping) -> Export:
        """Look at a table's columns, tags and statuses.

        Raises:
            BadInput: when the file is missing, damaged or empty, or has other columns, tags or statuses.
        """
        if not path.is_file():
            raise BadInput(f"expected a historian export at {path}, got none: check the path.")
        columns = mapping.columns
        text = dict.fromkeys((columns.tag, columns.timestamp, columns.status), pl.String()) | {
            columns.value: pl.Float64()
        }
        with _reading(path):
            if path.suffix == ".csv":
                names = pl.scan_csv(path).collect_schema().names()
                table = pl.scan_csv(path, schema_overrides={name: text[name] for name in names if name in text})
            else:
                table = pl.scan_parquet(path)
                names = table.collect_schema().names()
            for name in text:
                if name not in names:
                    raise BadInput(
                        f"expected a column '{name}' in {path.name}, got {', '.join(names)}: "
                        "name the column in the mapping's 'columns'."
                    )
            tags = table.select(pl.col(columns.tag).unique()).collect()[columns.tag].drop_nulls().to_list()
            statuses = table.select(pl.col(columns.status).cast(pl.String).unique()).collect()[columns.status].to_list()
            if table.collect_schema()[columns.timestamp] == pl.String:
                when = pl.col(columns.timestamp)
                odd = table.filter(~when.str.contains(ISO_DATE)).select(when).head(1).collect()[columns.timestamp]
                if len(odd):
                    raise BadInput(
                        f"expected timestamps such as 2026-01-31T23:59:59.5Z in {path.name}, got '{odd[0]}', which "
                        "can be read in more than one way: export ISO 8601."
                    )
        _check_tags(path, mapping, tags)
        return cls(path, mapping, table, {str(s): _status_code(path, s) for s in statuses if s is not None})

    def period(self) -> tuple[np.datetime64, np.datetime64]:
        """The first and the last timestamp of the tags that are mapped, UTC, ns."""
        columns = self.mapping.columns
        with _reading(self.path):
            when = self._time()
            mapped = self._table.filter(pl.col(columns.tag).is_in(list(self.mapping.tags)))
            first, last = mapped.select(when.min().alias("first"), when.max().alias("last")).collect().row(0)
        if first is None:
            raise BadInput(f"expected timestamps in {self.path.name}, got none: export it again.")
        return np.datetime64(first, "ns"), np.datetime64(last, "ns")

    def _time(self) -> pl.Expr:
        column = pl.col(self.mapping.columns.timestamp)
        if self._table.collect_schema()[self.mapping.columns.timestamp] == pl.String:
            column = column.str.to_datetime(time_unit="ns", time_zone="UTC")
        return column.dt.epoch("ns")

    def samples(self, tag: str, scale: float, offset: float) -> Samples:
        """One tag's history in the plant's units.

        Raises:
            BadInput: when its timestamps are missing, go backwards or occur twice, or the table breaks its schema.
        """
        columns = self.mapping.columns
        with _reading(self.path):
            status = pl.col(columns.status).cast(pl.String)
            codes = status.replace_strict(self._codes, default=int(BAD), return_dtype=pl.UInt32)
            frame = (
                self._table.filter(pl.col(columns.tag) == tag)
                .select(
                    pl.col(columns.tag).cast(pl.String).alias("tag"),
                    pl.from_epoch(self._time(), "ns").dt.replace_time_zone("UTC").alias("timestamp"),
                    pl.col(columns.value).cast(pl.Float64).alias("value"),
                    codes.alias("status"),
                )
                .collect()
            )
        if frame["timestamp"].null_count():
            raise BadInput(
                f"expected a timestamp with every value of tag {tag} in {self.path.name}, got a value without: "
                "export it again, or leave such rows out."
            )
        check_historian_table(frame)
        times = frame["timestamp"].dt.epoch("ns").to_numpy().astype(np.int64)
        steps = np.diff(times)
        if (steps < 0).any():
            at = int(np.argmax(steps < 0))
            raise BadInput(
                f"expected the timestamps of tag {tag} in {self.path.name} to increase, got {_utc(times[at + 1])} "
                f"after {_utc(times[at])}: sort the export by time, or find out why the clock went backwards."
            )
        if (steps == 0).any():
            raise BadInput(
                f"expected one value of tag {tag} per timestamp in {self.path.name}, got two at "
                f"{_utc(times[int(np.argmax(steps == 0))])}: export without duplicates."
            )
        values = frame["value"].fill_null(float("nan")).to_numpy().astype(np.float64)
        return Samples(times, scale * values + offset, frame["status"].to_numpy().astype(np.uint32))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what polars says about a damaged table into one sentence."""
    try:
        yield
    except PolarsError as error:
        said = " ".join(str(error).split())[:300]
        raise BadInput(
            f"expected a Parquet or CSV table with a tag, a time, a number and a status per row in {path.name}, "
            f"got '{said}': export it again."
        ) from error


def _check_tags(path: Path, mapping: HistorianMapping, tags: list[str]) -> None:
    if not tags:
        raise BadInput(f"expected values in {path.name}, got an empty table: export a longer period.")
    for tag in mapping.tags:
        if tag not in tags:
            near = difflib.get_close_matches(tag, tags, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(sorted(tags)[:10])}."
            raise BadInput(f"expected tag '{tag}' of the mapping in {path.name}, got no value of it: {hint}")
    if unknown := sorted(set(tags) - set(mapping.tags) - set(mapping.ignore)):
        raise BadInput(
            f"expected only tags that the mapping names in {path.name}, got '{unknown[0]}': "
            "give it a role under 'tags' or list it under 'ignore'."
        )


def _status_code(path: Path, text: str) -> int:
    word = text.strip().lower()
    for beginning, code in WORDS.items():
        if word.startswith(beginning):
            return int(code)
    try:
        code = int(word, 0)
    except ValueError:
        code = -1
    if not 0 <= code < 2**32:
        raise BadInput(
            f"expected a status Good, Uncertain, Bad or an OPC UA code in {path.name}, got '{text}': "
            "translate the historian's own statuses."
        )
    return code


def _utc(ns: int) -> str:
    return f"{np.datetime64(int(ns), 'ns')}Z"
