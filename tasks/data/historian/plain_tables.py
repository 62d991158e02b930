"""Tables in the dialects in which people have them, as plain ones that polars streams.

A delimiter, lines to skip, decimal commas and a missing clock cost nothing: polars is told of them. What it cannot read
(other encodings, blanks as delimiters, a row per tag, workbooks) is first written into a temporary file, in one pass
that holds a line at a time.
"""

from __future__ import annotations

import csv
import gzip
import shutil
import tempfile
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import polars as pl

from configs.dialect import WHITESPACE, Dialect
from configs.errors import BadInput
from configs.mapping import Columns, HistorianMapping
from tasks.data.historian.workbooks import sheet_to_csv

SECOND = 10**9
PARQUET = b"PAR1"
GZIP = b"\x1f\x8b"
WORKBOOKS = (".xlsx", ".xlsm")
LONGEST_HEAD = 2**22
"""Bytes within which a line of a table with a row per moment must end."""
USUAL_LINE = 2**16
"""Bytes within which nearly every line ends."""
LOOKED_AT_EVERY = 2**25
"""Bytes between places at which a line's end is looked for."""
LONGEST_LINE = 2**26
"""Characters of a line that is held in memory."""
MAX_RATIO = 400
"""Bytes that one byte of a gzip file may stand for; tables of which only the clock moves stay below 150."""
FREE_BYTES = 2**26
"""Bytes of text below which nothing is held against the ratio."""
KEPT_BYTES = 2**28
"""Bytes of the disk that are left to others."""
NUMBER_WITH_COMMA = r"^\s*[+-]?[\d.]*,?[\d.]*([eE][+-]?\d+)?\s*$"


def is_parquet(file: Path) -> bool:
    """Whether a table is Parquet, by its name or by its first bytes."""
    if file.suffix == ".parquet":
        return True
    with file.open("rb") as stream:
        return stream.read(4) == PARQUET


def as_read(mapping: HistorianMapping) -> HistorianMapping:
    """The mapping of the tables that `PlainTables` gives: a table with a row per tag becomes a long one."""
    if mapping.layout != "transposed":
        return mapping
    return mapping.model_copy(update={"layout": "long", "columns": Columns(status=None)})


def with_points(name: str) -> pl.Expr:
    """A column of texts whose decimal commas become points; a point, which is no decimal one there, makes no number."""
    text = pl.col(name)
    swapped = text.str.replace_many([",", "."], [".", ","])
    return pl.when(text.str.contains(NUMBER_WITH_COMMA)).then(swapped).otherwise(text).alias(name)


def _with_texts(table: pl.LazyFrame) -> pl.LazyFrame:
    """A table whose categories are texts, as they are in all other tables."""
    kinds = (pl.Categorical, pl.Enum)
    coded = [name for name, kind in table.collect_schema().items() if isinstance(kind, kinds)]
    return table.with_columns(pl.col(coded).cast(pl.String)) if coded else table


def numbered(columns: list[str]) -> list[str]:
    """Names of columns that have none."""
    return [f"column_{i}" for i in range(1, len(columns) + 1)]


class PlainTables:
    """Tables as polars reads them; what had to be written anew is deleted with this object.

    Args:
        mapping: says in which dialect they are.
    """

    def __init__(self, mapping: HistorianMapping) -> None:
        self.mapping = mapping
        self._written: dict[Path, Path] = {}
        self._folder: Path | None = None

    def parquet(self, file: Path) -> Path | None:
        """The Parquet file that holds a table as it is; None where it is a text, or has no clock of its own."""
        plain = self._plain(file)
        return plain if is_parquet(plain) and self.mapping.clock.start is None else None

    def scan(self, file: Path) -> pl.LazyFrame:
        """A table with a column of timestamps and, in texts, decimal points.

        Raises:
            BadInput: when it does not fit the dialect.
        """
        plain, mapping = self._plain(file), self.mapping
        dialect, columns = mapping.dialect, mapping.columns
        if is_parquet(plain):
            table = _with_texts(pl.scan_parquet(plain))
        elif dialect == Dialect():
            # Texts are read as they are: what a number is, is decided row by row.
            table = pl.scan_csv(plain, infer_schema=False)
        else:
            table = pl.scan_csv(
                plain,
                infer_schema=False,
                separator=self._separator(file),
                skip_lines=dialect.skip_rows,
                has_header=dialect.header,
                # Without names polars counts from a number that depends on its version.
                with_column_names=None if dialect.header else numbered,
            )
        if mapping.layout == "transposed":
            return table
        if dialect.decimal == ",":
            values = [columns.value] if mapping.layout == "long" else [n for n in mapping.tags if n != mapping.episode]
            schema = table.collect_schema()
            table = table.with_columns(with_points(name) for name in values if schema.get(name) == pl.String)
        return table if mapping.clock.start is None else self._clocked(table, file)

    def _separator(self, file: Path) -> str:
        if file.suffix.lower() in WORKBOOKS:
            return ","
        return "\t" if self.mapping.dialect.delimiter == WHITESPACE else self.mapping.dialect.delimiter

    def _clocked(self, table: pl.LazyFrame, file: Path) -> pl.LazyFrame:
        name = self.mapping.columns.timestamp
        if name in table.collect_schema():
            raise BadInput(
                f"expected no column '{name}' in {file.name} beside the mapping's clock.start, got one: delete "
                "clock.start, or give columns.timestamp another name."
            )
        start, period = _start_and_period(self.mapping)
        row = pl.col(name).cast(pl.Int64)
        return table.with_row_index(name).with_columns((row * period + start).cast(pl.Datetime("ns", "UTC")))

    def _plain(self, file: Path) -> Path:
        """A table that polars can read: the file itself, unless it had to be written anew."""
        if file not in self._written:
            self._written[file] = self._made(file)
        return self._written[file]

    def _made(self, file: Path) -> Path:
        dialect, transposed = self.mapping.dialect, self.mapping.layout == "transposed"
        workbook = file.suffix.lower() in WORKBOOKS
        parquet = not workbook and is_parquet(file)
        _check_kind(file, dialect, parquet, workbook)
        if parquet and transposed:
            raise BadInput(
                f"expected a text or a workbook with a row per tag, got the Parquet file {file.name}: transpose it."
            )
        plain = _unpacked(file, self._target(file, "csv")) if _is_gzip(file) else file
        if workbook:
            plain = self._target(file, "csv")
            sheet_to_csv(file, dialect.sheet, plain)
            dialect = dialect.model_copy(update={"delimiter": ",", "encoding": "utf-8"})
        if transposed:
            return self._transposed(plain, file, dialect)
        if not (parquet or workbook):
            _check_lines(plain)
        # Where rows are counted, a blank line must not be one.
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
        """The same lines as UTF-8, with tabs where there was any run of blanks; blank lines are left out."""
        target = self._target(file, "csv")
        with _text(plain, dialect) as source, target.open("w", encoding="utf-8", newline="") as out:
            for number, line in enumerate(_lines(source, file, dialect)):
                if line.strip() or number < dialect.skip_rows:
                    out.write("\t".join(line.split()) + "\n" if dialect.delimiter == WHITESPACE else line)
        return target

    def _transposed(self, plain: Path, file: Path, dialect: Dialect) -> Path:
        """A row per tag as a long table in Parquet: tag, timestamp and value, tag after tag, no row of empty cells."""
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
                        f"expected {width} values in every row of {file.name}, got {len(cells)} in row {number} "
                        f"('{name[:40]}'): export it again, or correct the mapping's dialect."
                    )
                if times is None:
                    times = self._times(name, cells, file)
                    if clock.start is None:
                        continue
                names[name] += 1
                if names[name] > 1:
                    raise BadInput(f"expected every tag once in {file.name}, got '{name[:40]}' twice: rename one.")
                frame = pl.DataFrame(
                    {"tag": [name] * width, "timestamp": times, "value": pl.Series(cells, dtype=pl.String)}
                )
                if dialect.decimal == ",":
                    frame = frame.with_columns(with_points("value"))
                table = frame.filter(pl.col("value").str.strip_chars() != "").to_arrow()
                writer = writer or pq.ParquetWriter(target, table.schema)
                writer.write_table(table)
        if writer is None:
            raise BadInput(f"expected a row per tag in {file.name}, got none: check the mapping's dialect.")
        writer.close()
        return target

    def _times(self, name: str, cells: list[str], file: Path) -> pl.Series:
        """The times of a transposed table's columns: its first row, or those of a clock that the mapping gives."""
        if self.mapping.clock.start is not None:
            start, period = _start_and_period(self.mapping)
            return (pl.int_range(len(cells), dtype=pl.Int64, eager=True) * period + start).cast(
                pl.Datetime("ns", "UTC")
            )
        if name != self.mapping.columns.timestamp:
            raise BadInput(
                f"expected the times '{self.mapping.columns.timestamp}' in the first row of {file.name}, got "
                f"'{name[:40]}': name it in the mapping's columns.timestamp, or give clock.start where there is none."
            )
        return pl.Series(cells, dtype=pl.String)


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == GZIP


def _unpacked(file: Path, target: Path) -> Path:
    """The text in a gzip file, in a file of its own; what inflates beyond reason or fills the disk is refused."""
    total, packed = 0, file.stat().st_size
    try:
        with gzip.open(file) as source, target.open("wb") as out:
            while piece := source.read(2**20):
                total += len(piece)
                if total > max(FREE_BYTES, MAX_RATIO * packed):
                    raise BadInput(
                        f"expected a table packed in {file.name}, got one that inflates to more than {total >> 20} MB, "
                        f"{total // packed} times its size: unpack it yourself if it is one."
                    )
                if shutil.disk_usage(target.parent).free < KEPT_BYTES + len(piece):
                    raise BadInput(
                        f"expected room for the text of {file.name} in {target.parent.parent}, got {KEPT_BYTES >> 20} "
                        f"MB free after {total >> 20} MB of it: make room, or set TMPDIR to a larger disk."
                    )
                out.write(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(
            f"expected a whole gzip file, got '{' '.join(str(error).split())[:99]}' in {file.name}: export it again."
        ) from error
    return target


def _start_and_period(mapping: HistorianMapping) -> tuple[int, int]:
    """ns since 1970, UTC, of the first row, and ns between rows."""
    assert mapping.clock.start is not None
    return mapping.clock.moment(mapping.clock.start), round(
        (mapping.clock.period_seconds or mapping.period_seconds) * SECOND
    )


def _check_kind(file: Path, dialect: Dialect, parquet: bool, workbook: bool) -> None:
    """Hold the dialect's keys against the kind of file, which may have no use for them."""
    useless = {"encoding", "delimiter"} if workbook else {"sheet"}
    if parquet:
        useless = set(Dialect.model_fields)
    plain = Dialect()
    if odd := sorted(key for key in useless if getattr(dialect, key) != getattr(plain, key)):
        kind = "a Parquet file" if parquet else "a workbook" if workbook else "a text"
        raise BadInput(f"expected no dialect.{odd[0]} for {kind}, got it for {file.name}: delete it from the mapping.")


def _check_lines(file: Path) -> None:
    """Refuse what a parser would take for one long line, which covers at least one of the places that are looked at."""
    with file.open("rb") as stream:
        for place in range(0, max(file.stat().st_size, 1), LOOKED_AT_EVERY):
            stream.seek(place)
            piece = stream.read(USUAL_LINE)
            if b"\n" not in piece:
                piece += stream.read(LONGEST_HEAD - len(piece))
            if len(piece) == LONGEST_HEAD and b"\n" not in piece and stream.read(1):
                raise BadInput(
                    f"expected lines of at most {LONGEST_HEAD >> 20} MB in {file.name}, got a longer one: a table with "
                    "a row per tag has layout transposed, and anything else is no table."
                )


def _text(file: Path, dialect: Dialect) -> IO[str]:
    encoding = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding
    return file.open(encoding=encoding, newline=None)


def _lines(source: IO[str], file: Path, dialect: Dialect) -> Iterator[str]:
    try:
        while line := source.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise BadInput(
                    f"expected lines of at most {LONGEST_LINE >> 20} MB in {file.name}, got more: divide it."
                )
            yield line
    except UnicodeError as error:
        raise _not_encoded(file, dialect, error) from error


def _cells(line: str, number: int, file: Path, dialect: Dialect) -> list[str]:
    """The cells of a line of a transposed table."""
    if dialect.delimiter == WHITESPACE:
        return line.split()
    try:
        return next(csv.reader([line], delimiter=dialect.delimiter))
    except csv.Error as error:
        raise BadInput(
            f"expected cells of at most {csv.field_size_limit():,} characters in {file.name}, got '{error}' in row "
            f"{number}: correct the file, or the mapping's dialect."
        ) from error


def _not_encoded(file: Path, dialect: Dialect, error: UnicodeError) -> BadInput:
    return BadInput(
        f"expected {dialect.encoding} text in {file.name}, got '{' '.join(str(error).split())[:99]}': name its "
        "encoding in the mapping's dialect."
    )
