"""Find the tables of an export, and convert tables in different dialects to tables that polars can read in parts.

polars handles delimiters, skipped lines, decimal commas and missing times. Other tables are first converted to a
temporary file, line by line: workbooks, and tables with another encoding, blanks as delimiters, or a row per tag.
"""

from __future__ import annotations

import csv
import gzip
import shutil
import tempfile
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import polars as pl
import polars.selectors as cs
from polars.exceptions import PanicException, PolarsError
from pyarrow.lib import ArrowException

from configs.dialect import WHITESPACE, Dialect
from configs.errors import BadInput
from configs.mapping import Columns, HistorianMapping
from tasks.data.historian.raw_rows import SECOND
from tasks.data.historian.workbooks import sheet_to_csv
from tasks.files.canonical import digest_json, file_sha256

PARQUET = b"PAR1"
GZIP = b"\x1f\x8b"
WORKBOOKS = (".xlsx", ".xlsm")
LONGEST_HEAD = 2**22
"""Longest accepted line of a table with a row per time, in bytes."""
USUAL_LINE = 2**16
"""Length in bytes that few lines exceed."""
LOOKED_AT_EVERY = 2**25
"""Distance in bytes between the places where the length of a line is checked."""
LONGEST_LINE = 2**26
"""Longest accepted line of any table, in characters."""
MAX_RATIO = 400
"""Largest accepted ratio of unpacked to packed size of a gzip file; regular tables stay below 150."""
FREE_BYTES = 2**26
"""Unpacked size in bytes that is accepted at any ratio."""
KEPT_BYTES = 2**28
"""Disk space in bytes to leave free."""
SUFFIXES = (".parquet", ".csv")
OTHER_SUFFIXES = (".tsv", ".dat", ".xlsx")
"""Endings of file names that mark tables only in a folder without Parquet and CSV files."""
NUMBER_WITH_COMMA = r"^\s*[+-]?[\d.]*,?[\d.]*([eE][+-]?\d+)?\s*$"


def source_files(path: Path) -> list[Path]:
    """Return the files of an export that are tables by their names; raise BadInput if there are none."""
    if path.is_dir():
        files, _ = _tables_and_others(path)
        if not files:
            raise BadInput(f"folder {path} has no Parquet or CSV files: check the path and the names of the files.")
        return files
    if not path.is_file():
        raise BadInput(f"{path} does not exist: give the path of a historian export.")
    return [path]


def skipped_files(path: Path) -> list[Path]:
    """Return the files of a folder that are skipped, because their names do not mark tables."""
    return _tables_and_others(path)[1] if path.is_dir() else []


def links_not_followed(path: Path) -> list[Path]:
    """Return the links in a folder that lead to other folders or to missing files; these links are not followed."""
    if not path.is_dir():
        return []
    return sorted(p for p in path.rglob("*") if p.is_symlink() and not p.is_file() and not p.name.startswith("."))


def _tables_and_others(folder: Path) -> tuple[list[Path], list[Path]]:
    inside = sorted(p for p in folder.rglob("*") if p.is_file())
    seen = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    endings = {p: Path(p.name.lower().removesuffix(".gz")).suffix for p in seen}
    wanted = SUFFIXES if any(ending in SUFFIXES for ending in endings.values()) else OTHER_SUFFIXES
    return [p for p in seen if endings[p] in wanted], [p for p in seen if endings[p] not in wanted]


def table_digests(files: Sequence[Path]) -> dict[Path, str]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(files, pool.map(file_sha256, files), strict=True))


def digest_of_tables(path: Path, digests: Mapping[Path, str]) -> str:
    """Return the digest of an export: the SHA-256 of the file; for a folder, a digest of all tables without names."""
    return digest_json(sorted(digests.values())) if path.is_dir() else digests[path]


def is_parquet(file: Path) -> bool:
    """Return whether a table is a Parquet file, by its name or its first bytes."""
    return file.suffix == ".parquet" or _begins(file, PARQUET)


def _begins(file: Path, mark: bytes) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(mark)) == mark


def as_read(mapping: HistorianMapping) -> HistorianMapping:
    """Return the mapping for the tables that `PlainTables` returns: a table with a row per tag becomes a long table."""
    if mapping.layout != "transposed":
        return mapping
    return mapping.model_copy(update={"layout": "long", "columns": Columns(status=None)})


def with_points(name: str) -> pl.Expr:
    """Return a column with decimal points instead of decimal commas; a text with a point does not become a number."""
    text = pl.col(name)
    swapped = text.str.replace_many([",", "."], [".", ","])
    return pl.when(text.str.contains(NUMBER_WITH_COMMA)).then(swapped).otherwise(text).alias(name)


CODED = cs.categorical() | cs.enum()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn polars' errors about a damaged table into `BadInput`."""
    try:
        yield
    except (PolarsError, PanicException, ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        cure = "name its encoding in the mapping's dialect" if "utf-8" in reason else "export it again"
        raise BadInput(f"{path.name} is not a readable Parquet or CSV table ({reason}): {cure}.") from error


def numbered(columns: list[str]) -> list[str]:
    return [f"column_{i}" for i in range(1, len(columns) + 1)]


class PlainTables:
    """Converts tables in a mapping's dialect for polars. Temporary files are deleted together with this object."""

    def __init__(self, mapping: HistorianMapping) -> None:
        self.mapping = mapping
        self._written: dict[Path, Path] = {}
        self._folder: Path | None = None

    def parquet(self, file: Path) -> Path | None:
        """Return a table as a Parquet file; None if the table is text or has no times."""
        plain = self._plain(file)
        return plain if is_parquet(plain) and self.mapping.clock.start is None else None

    def scan(self, file: Path) -> pl.LazyFrame:
        """Open a table, with decimal points, and with times from clock.start if given; raise BadInput if unreadable."""
        plain, mapping = self._plain(file), self.mapping
        dialect, columns = mapping.dialect, mapping.columns
        blanks = dialect.delimiter == WHITESPACE
        if is_parquet(plain):
            table = pl.scan_parquet(plain).with_columns(CODED.cast(pl.String))
        elif dialect == Dialect():
            # Read all columns as text, because a column may contain numbers and texts.
            table = pl.scan_csv(plain, infer_schema=False)
        else:
            table = pl.scan_csv(
                plain,
                infer_schema=False,
                separator="," if file.suffix.lower() in WORKBOOKS else "\t" if blanks else dialect.delimiter,
                skip_lines=dialect.skip_rows,
                has_header=dialect.header,
                # polars' own default names depend on its version.
                with_column_names=None if dialect.header else numbered,
            )
        if mapping.layout == "transposed":
            return table
        if dialect.decimal == ",":
            values = [columns.value] if mapping.layout == "long" else [n for n in mapping.tags if n != mapping.episode]
            schema = table.collect_schema()
            table = table.with_columns(with_points(name) for name in values if schema.get(name) == pl.String)
        return table if mapping.clock.start is None else self._clocked(table, file)

    def _clocked(self, table: pl.LazyFrame, file: Path) -> pl.LazyFrame:
        name = self.mapping.columns.timestamp
        if name in table.collect_schema():
            raise BadInput(
                f"{file.name} has a column '{name}', but the mapping has clock.start: delete clock.start, or give "
                "columns.timestamp another name."
            )
        start, period = _start_and_period(self.mapping)
        row = pl.col(name).cast(pl.Int64)
        return table.with_row_index(name).with_columns((row * period + start).cast(pl.Datetime("ns", "UTC")))

    def _plain(self, file: Path) -> Path:
        if file not in self._written:
            self._written[file] = self._made(file)
        return self._written[file]

    def _made(self, file: Path) -> Path:
        dialect, transposed = self.mapping.dialect, self.mapping.layout == "transposed"
        workbook = file.suffix.lower() in WORKBOOKS
        parquet = not workbook and is_parquet(file)
        _check_kind(file, dialect, parquet, workbook)
        if parquet and transposed:
            raise BadInput(f"layout transposed needs text or a workbook, {file.name} is Parquet: save it as CSV.")
        plain = _unpacked(file, self._target(file, "csv")) if _begins(file, GZIP) else file
        if workbook:
            plain = self._target(file, "csv")
            sheet_to_csv(file, dialect.sheet, plain)
            dialect = dialect.model_copy(update={"delimiter": ",", "encoding": "utf-8"})
        if transposed:
            return self._transposed(plain, file, dialect)
        if not (parquet or workbook):
            _check_lines(plain)
        # If clock.start counts rows, blank lines must not count.
        counted = self.mapping.clock.start is not None
        if not parquet and (dialect.encoding != "utf-8" or dialect.delimiter == WHITESPACE or counted):
            return self._rewritten(plain, file, dialect)
        return plain

    def _target(self, file: Path, ending: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="neorl-table-"))
            weakref.finalize(self, shutil.rmtree, self._folder, True)
        return self._folder / f"{len(list(self._folder.iterdir()))}-{file.stem}.{ending}"

    def _rewritten(self, plain: Path, file: Path, dialect: Dialect) -> Path:
        """Write the lines as UTF-8 to a temporary file, with tabs instead of blanks, and without blank lines."""
        target = self._target(file, "csv")
        with _text(plain, dialect) as source, target.open("w", encoding="utf-8", newline="") as out:
            for number, line in enumerate(_lines(source, file, dialect)):
                if line.strip() or number < dialect.skip_rows:
                    out.write("\t".join(line.split()) + "\n" if dialect.delimiter == WHITESPACE else line)
        return target

    def _transposed(self, plain: Path, file: Path, dialect: Dialect) -> Path:
        """Convert a table with a row per tag to a long Parquet table (tag, timestamp, value) without empty cells."""
        import pyarrow.parquet as pq

        target = self._target(file, "parquet")
        writer, width, times = None, 0, None
        clock = self.mapping.clock
        names: Counter[str] = Counter()
        with _text(plain, dialect) as source:
            lines = (
                line for i, line in enumerate(_lines(source, file, dialect)) if i >= dialect.skip_rows and line.strip()
            )
            for number, line in enumerate(lines, 1):
                cells = _cells(line, number, file, dialect)
                name = cells.pop(0) if dialect.header and cells else f"row_{number}"
                width = width or len(cells)
                if len(cells) != width:
                    raise BadInput(
                        f"row {number} ('{name[:40]}') of {file.name} has {len(cells)} values, but the first row has "
                        f"{width}: export it again, or correct the mapping's dialect."
                    )
                if times is None:
                    times = self._times(name, cells, file)
                    if clock.start is None:
                        continue
                names[name] += 1
                if names[name] > 1:
                    raise BadInput(f"{file.name} has two rows of tag '{name[:40]}': rename or delete one row.")
                frame = pl.DataFrame(
                    {"tag": [name] * width, "timestamp": times, "value": pl.Series(cells, dtype=pl.String)}
                )
                if dialect.decimal == ",":
                    frame = frame.with_columns(with_points("value"))
                table = frame.filter(pl.col("value").str.strip_chars() != "").to_arrow()
                writer = writer or pq.ParquetWriter(target, table.schema)
                writer.write_table(table)
        if writer is None:
            raise BadInput(f"{file.name} has no row with values of a tag: check the mapping's dialect.")
        writer.close()
        return target

    def _times(self, name: str, cells: list[str], file: Path) -> pl.Series:
        """Return the times of a table with a row per tag, from clock.start if given, otherwise from the first row."""
        if self.mapping.clock.start is not None:
            start, period = _start_and_period(self.mapping)
            return (pl.int_range(len(cells), dtype=pl.Int64, eager=True) * period + start).cast(
                pl.Datetime("ns", "UTC")
            )
        if name != self.mapping.columns.timestamp:
            raise BadInput(
                f"the first row of {file.name} is '{name[:40]}', not '{self.mapping.columns.timestamp}': set the "
                "mapping's columns.timestamp to the name of the first row, or set clock.start if there are no times."
            )
        return pl.Series(cells, dtype=pl.String)


def _unpacked(file: Path, target: Path) -> Path:
    """Unpack a gzip file; raise BadInput if it is damaged, becomes too large, or fills the disk."""
    total, packed = 0, file.stat().st_size
    try:
        with gzip.open(file) as source, target.open("wb") as out:
            while piece := source.read(2**20):
                total += len(piece)
                if total > max(FREE_BYTES, MAX_RATIO * packed):
                    raise BadInput(
                        f"{file.name} unpacks to more than {total >> 20} MB, {total // packed} times its size: if it "
                        "is a table, unpack it yourself."
                    )
                if shutil.disk_usage(target.parent).free < KEPT_BYTES + len(piece):
                    raise BadInput(
                        f"{target.parent.parent} has less than {KEPT_BYTES >> 20} MB free after {total >> 20} MB of "
                        f"{file.name} were unpacked: free some space, or set TMPDIR to a folder on a larger disk."
                    )
                out.write(piece)
    except (OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())[:99]
        raise BadInput(f"{file.name} is not a complete gzip file ({reason}): export it again.") from error
    return target


def _start_and_period(mapping: HistorianMapping) -> tuple[int, int]:
    """Return the time of the first row in ns since 1970, UTC, and the time between rows in ns."""
    assert mapping.clock.start is not None
    return mapping.clock.moment(mapping.clock.start), round(
        (mapping.clock.period_seconds or mapping.period_seconds) * SECOND
    )


def _check_kind(file: Path, dialect: Dialect, parquet: bool, workbook: bool) -> None:
    """Raise BadInput if the dialect has a key that does not apply to this kind of file."""
    useless = {"encoding", "delimiter"} if workbook else {"sheet"}
    if parquet:
        useless = set(Dialect.model_fields)
    plain = Dialect()
    if odd := sorted(key for key in useless if getattr(dialect, key) != getattr(plain, key)):
        kind = "a Parquet file" if parquet else "a workbook" if workbook else "a text"
        raise BadInput(f"dialect.{odd[0]} does not apply to {kind} like {file.name}: delete this key of the mapping.")


def _check_lines(file: Path) -> None:
    """Raise BadInput for a very long line; only lines at regular places of the file are checked."""
    with file.open("rb") as stream:
        for place in range(0, max(file.stat().st_size, 1), LOOKED_AT_EVERY):
            stream.seek(place)
            piece = stream.read(USUAL_LINE)
            if b"\n" not in piece:
                piece += stream.read(LONGEST_HEAD - len(piece))
            if len(piece) == LONGEST_HEAD and b"\n" not in piece and stream.read(1):
                raise BadInput(
                    f"{file.name} has a line of more than {LONGEST_HEAD >> 20} MB: if the table has a row per tag, set "
                    "'layout: transposed'; otherwise export it with a row per time."
                )


def _text(file: Path, dialect: Dialect) -> IO[str]:
    encoding = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding
    return file.open(encoding=encoding, newline=None)


def _lines(source: IO[str], file: Path, dialect: Dialect) -> Iterator[str]:
    try:
        while line := source.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise BadInput(f"{file.name} has a line of more than {LONGEST_LINE >> 20} MB: export a shorter period.")
            yield line
    except UnicodeError as error:
        reason = " ".join(str(error).split())[:99]
        raise BadInput(
            f"{file.name} is not {dialect.encoding} text ({reason}): set dialect.encoding in the mapping."
        ) from error


def _cells(line: str, number: int, file: Path, dialect: Dialect) -> list[str]:
    if dialect.delimiter == WHITESPACE:
        return line.split()
    try:
        return next(csv.reader([line], delimiter=dialect.delimiter))
    except csv.Error as error:
        raise BadInput(
            f"a cell in row {number} of {file.name} has more than {csv.field_size_limit():,} characters ({error}): "
            "correct the file, or the mapping's dialect."
        ) from error
