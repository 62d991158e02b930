"""Windows of time cut out of a historian's export, each a table of its own in the same form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

import polars as pl

from configs.dialect import Dialect
from configs.errors import BadInput
from configs.mapping import HistorianMapping
from tasks.data.historian.folders import source_files
from tasks.data.historian.plain_tables import PlainTables
from tasks.data.historian.raw_times import TimestampReader
from tasks.data.historian.tables import batches
from tasks.files.canonical import digest_json, file_sha256, make_folder, writing

ROWS = 1_000_000
"""Rows that are read at a time."""


class Window(NamedTuple):
    """A stretch of time, from its begin to before its end."""

    begin: datetime
    end: datetime

    @classmethod
    def parse(cls, text: str) -> Self:
        """A window as ISO 8601 writes intervals; UTC where a time names no zone, midnight where a day has no time.

        Raises:
            BadInput: when it is none, or ends before it begins.

        Example:
            >>> str(Window.parse("2026-01-05/2026-01-12"))
            '2026-01-05T00:00Z/2026-01-12T00:00Z'
        """
        try:
            begin, end = (datetime.fromisoformat(part.strip()) for part in text.split("/"))
        except ValueError as error:
            raise BadInput(
                f"expected a window such as 2026-01-05/2026-01-12, got '{text[:80]}': write begin/end in ISO 8601."
            ) from error
        zoned = (time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC) for time in (begin, end))
        found = cls(*zoned)
        if not found.begin < found.end:
            raise BadInput(f"expected a window that ends after it begins, got '{text}': turn it round.")
        return found

    def __str__(self) -> str:
        return "/".join(f"{time:%Y-%m-%dT%H:%M}Z" for time in self)

    def span(self) -> tuple[int, int]:
        """ns since 1970 of begin and end."""
        begin, end = (int(time.timestamp()) * 10**9 + time.microsecond * 1000 for time in self)
        return begin, end


def cut(
    sources: Sequence[Path], mapping: HistorianMapping, windows: Sequence[Window], folder: Path
) -> list[list[Path]]:
    """Write the rows of each window into files of its own, which the same mapping reads.

    What was archived by exception before a window begins is not in it: its signals begin with their first row there.

    Args:
        sources: tables, or folders of them.
        mapping: which column holds the times, and how they are written.
        windows: each may overlap others.
        folder: where; a file is named by its source's content, its window and the clock, and written once.

    Returns:
        For each window the files that hold rows of it, in the order of the sources.

    Raises:
        BadInput: when the tables have no times of their own, or are in a dialect that cannot be written again.
    """
    if mapping.dialect != Dialect() or mapping.layout == "transposed" or mapping.clock.start is not None:
        raise BadInput(
            "expected plain tables with times of their own to cut windows out of, got a mapping with dialect, "
            "transposed rows or clock.start: export each window as a file, and retrain on each."
        )
    make_folder(folder)
    when = [mapping.clock.model_dump(mode="json"), mapping.columns.timestamp]
    found: list[list[Path]] = [[] for _ in windows]
    tables = PlainTables(mapping)
    for source in sources:
        for file in source_files(source):
            parquet = tables.parquet(file) is not None
            name, ending = file_sha256(file)[:16], "parquet" if parquet else "csv"
            paths = [folder / f"{name}-{digest_json([*window.span(), *when])[:12]}.{ending}" for window in windows]
            missing = [i for i, path in enumerate(paths) if not path.exists()]
            for i, rows in zip(missing, _rows(tables, file, mapping, [windows[i] for i in missing]), strict=True):
                _write(rows, paths[i])
            for own, path in zip(found, paths, strict=True):
                path.touch()  # by its age `neorl prune` tells whether it is in use
                own += [path] if path.stat().st_size else []
    return found


def _rows(
    tables: PlainTables, file: Path, mapping: HistorianMapping, windows: Sequence[Window]
) -> list[pl.DataFrame | None]:
    """The rows of each window; None where it has none. The file is read once for all of them."""
    kept: list[list[pl.DataFrame]] = [[] for _ in windows]
    reader, spans = TimestampReader(mapping.clock), [window.span() for window in windows]
    for batch in batches(tables.scan(file), ROWS) if windows else ():
        tags = None
        if mapping.layout == "long":
            tag = pl.col(mapping.columns.tag).cast(pl.String)
            tags = batch.select(pl.when(tag.is_in(list(mapping.tags))).then(tag)).to_series()
        times, _ = reader.read(batch[mapping.columns.timestamp], file.name, tags)
        for own, (begin, end) in zip(kept, spans, strict=True):
            # A time that cannot be read is the least of all, and in no window.
            if len(rows := batch.filter(pl.Series((times >= begin) & (times < end)))):
                own.append(rows)
    return [pl.concat(parts) if parts else None for parts in kept]


def _write(rows: pl.DataFrame | None, path: Path) -> None:
    """A table under its name, whole or not at all; an empty file where there are no rows."""
    with writing(path) as temporary:
        if rows is None:
            return
        if path.suffix == ".parquet":
            rows.write_parquet(temporary)
        else:
            rows.write_csv(temporary)
