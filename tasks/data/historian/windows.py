"""Cut time windows out of a historian export, and write each window as a table in the same layout."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

import polars as pl

from configs.dialect import Dialect
from configs.errors import BadInput
from configs.mapping import HistorianMapping
from tasks.data.historian.dialects import PlainTables, source_files
from tasks.data.historian.long_tables import batches
from tasks.data.historian.timestamps import TimestampReader
from tasks.files.canonical import digest_json, file_sha256, make_folder, writing

ROWS = 1_000_000


class Window(NamedTuple):
    """An interval of time, from `begin` up to, but not including, `end`."""

    begin: datetime
    end: datetime

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an ISO 8601 interval, begin/end; raise BadInput if it is invalid or ends before it begins.

        Times without a zone are in UTC; a date means midnight.

        Example:
            >>> str(Window.parse("2026-01-05/2026-01-12"))
            '2026-01-05T00:00Z/2026-01-12T00:00Z'
        """
        try:
            begin, end = (datetime.fromisoformat(part.strip()) for part in text.split("/"))
        except ValueError as error:
            raise BadInput(
                f"'{text[:80]}' is not a window: write begin/end in ISO 8601, such as 2026-01-05/2026-01-12."
            ) from error
        zoned = (time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC) for time in (begin, end))
        window = cls(*zoned)
        if not window.begin < window.end:
            raise BadInput(f"the window '{text}' must end after it begins: correct the two times.")
        return window

    def __str__(self) -> str:
        return "/".join(f"{time:%Y-%m-%dT%H:%M}Z" for time in self)

    def span(self) -> tuple[int, int]:
        """Return begin and end in ns since 1970."""
        begin, end = (int(time.timestamp()) * 10**9 + time.microsecond * 1000 for time in self)
        return begin, end


def cut(
    sources: Sequence[Path], mapping: HistorianMapping, windows: Sequence[Window], folder: Path
) -> list[list[Path]]:
    """Write the rows of each window into separate files that the same mapping can read; windows may overlap.

    A window has only the rows with a time inside; values from before the window are not copied. A file's name is a
    digest of the source's content, the window and the mapping's `clock`. A file that exists is not written again.
    Tables without times, or with a dialect other than the default, raise BadInput.

    Returns:
        For each window, its files with at least one row, in the order of the sources.
    """
    if mapping.dialect != Dialect() or mapping.layout == "transposed" or mapping.clock.start is not None:
        raise BadInput(
            f"windows cannot be cut out of layout {mapping.layout} with a dialect or clock.start, only out of long or "
            "wide tables with a column of times: export each window as a separate file."
        )
    make_folder(folder)
    when = [mapping.clock.model_dump(mode="json"), mapping.columns.timestamp]
    result: list[list[Path]] = [[] for _ in windows]
    tables = PlainTables(mapping)
    for source in sources:
        for file in source_files(source):
            parquet = tables.parquet(file) is not None
            name, ending = file_sha256(file)[:16], "parquet" if parquet else "csv"
            paths = [folder / f"{name}-{digest_json([*window.span(), *when])[:12]}.{ending}" for window in windows]
            missing = [i for i, path in enumerate(paths) if not path.exists()]
            for i, rows in zip(missing, _rows(tables, file, mapping, [windows[i] for i in missing]), strict=True):
                _write(rows, paths[i])
            for own, path in zip(result, paths, strict=True):
                path.touch()  # `neorl prune` judges by age whether a file is in use
                own += [path] if path.stat().st_size else []
    return result


def _rows(
    tables: PlainTables, file: Path, mapping: HistorianMapping, windows: Sequence[Window]
) -> list[pl.DataFrame | None]:
    kept: list[list[pl.DataFrame]] = [[] for _ in windows]
    reader, spans = TimestampReader(mapping.clock), [window.span() for window in windows]
    for batch in batches(tables.scan(file), ROWS) if windows else ():
        tags = None
        if mapping.layout == "long":
            tag = pl.col(mapping.columns.tag).cast(pl.String)
            tags = batch.select(pl.when(tag.is_in(list(mapping.tags))).then(tag)).to_series()
        times, _ = reader.read(batch[mapping.columns.timestamp], file.name, tags)
        for own, (begin, end) in zip(kept, spans, strict=True):
            # An unreadable time has the smallest value, so it is in no window.
            if len(rows := batch.filter(pl.Series((times >= begin) & (times < end)))):
                own.append(rows)
    return [pl.concat(parts) if parts else None for parts in kept]


def _write(rows: pl.DataFrame | None, path: Path) -> None:
    with writing(path) as temporary:
        if rows is None:
            return
        if path.suffix == ".parquet":
            rows.write_parquet(temporary)
        else:
            rows.write_csv(temporary)
