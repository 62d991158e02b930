"""The cases: odd files, and the expected outcome of each."""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta

import polars as pl

from benchmarks.nasty.logs import declared, discrete, foreign
from benchmarks.nasty.tables import (
    LONG,
    LONG_PLAIN,
    ROWS,
    WIDE,
    Case,
    parquet,
    refused,
    sheet,
    stamped,
    table,
    tall,
    text,
    used,
    with_cells,
    with_row,
)


def strays() -> list[Case]:
    """Return files with rows that have impossible timestamps."""
    one = "1 lost|3 lost: timestamp"
    return [
        used(
            f"stray-{place}-{stamp[:4]}.csv",
            f"a row stamped {stamp[:4]}",
            with_row(place, f"{stamp},60,5,0.5"),
            says=one,
        )
        for stamp in ("1970-01-01T00:00:00Z", "2199-01-01T00:00:00Z", "2300-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
        for place in (0, 120, ROWS)
    ]


def clocks() -> list[Case]:
    """Return files with problems of clocks, such as the change to winter time."""
    local = WIDE.replace("tags:", "clock: {zone: Europe/Berlin}\ntags:", 1)
    autumn = [(datetime(2024, 10, 27) + timedelta(minutes=i)).strftime("%Y-%m-%d %H:%M") for i in range(ROWS)]
    spring = [(datetime(2024, 3, 31) + timedelta(minutes=i)).strftime("%Y-%m-%d %H:%M") for i in range(ROWS)]
    backwards = table().reverse()
    return [
        refused(
            "autumn.csv",
            "the repeated hour in autumn",
            text(table().with_columns(time=pl.Series(autumn))),
            "is ambiguous",
            local,
        ),
        refused(
            "spring.csv",
            "the missing hour in spring",
            text(table().with_columns(time=pl.Series(spring))),
            "does not exist",
            local,
        ),
        used("backwards.csv", "newest rows first", text(backwards)),
        used("shuffled.csv", "rows in any order", text(table().sample(fraction=1.0, shuffle=True, seed=1))),
    ]


def stamps() -> list[Case]:
    """Return files with ambiguous times or missing rows."""
    return [
        refused(
            "epoch.csv",
            "seconds since 1970, undeclared",
            text(stamped().with_columns(pl.col("time").dt.epoch("s"))),
            "not an unambiguous time|clock.epoch",
        ),
        used(
            "epoch-declared.csv",
            "seconds since 1970, declared",
            text(stamped().with_columns(pl.col("time").dt.epoch("s"))),
            WIDE.replace("tags:", "clock: {epoch: s}\ntags:", 1),
        ),
        refused(
            "days.csv",
            "dates with day and month in unknown order",
            with_cells("time", lambda i, _: f"0{1 + i % 9}/0{1 + i % 9}/2024 00:{i % 60:02d}"),
            "not an unambiguous time",
        ),
        refused(
            "no-times.csv",
            "an empty time column",
            with_cells("time", lambda i, _: ""),
            "no-times.csv|timestamp is missing",
        ),
        used(
            "same-time.csv",
            "a repeated row",
            with_row(50, text().decode().splitlines()[51]),
            says="repeats an earlier row",
        ),
        used(
            "year-of-silence.csv",
            "a log with a gap of a year",
            text() + b"\n".join(line.replace(b"2024-", b"2025-") for line in text().splitlines()[1:]) + b"\n",
            says="a signal was not archived",
        ),
        refused(
            "gaps.csv",
            "half of the half hours missing",
            text(table().filter(pl.int_range(ROWS) % 60 < 30)),
            "max_gaps",
        ),
        refused("one-row.csv", "a single row", text(table().head(1)), "control step"),
    ]


def values() -> list[Case]:
    """Return files with wrong cells."""
    few = {3, 50, 51, 200}
    return [
        used("empty-cells.csv", "a few empty cells", with_cells("P", lambda i, x: None if i in few else x)),
        used(
            "words.csv",
            "'Bad Input' among numbers",
            with_cells("P", lambda i, x: "Bad Input" if i in few else x),
            says="digital state 'Bad Input' .4",
        ),
        used(
            "nan.csv",
            "NaN and inf among numbers",
            with_cells("P", lambda i, x: ("nan", "inf")[i % 2] if i in few else x),
            says="not a number .2|not finite .2",
        ),
        used(
            "spikes.csv",
            "values beyond the instrument's range",
            with_cells("P", lambda i, x: 9e9 if i in few else x, pl.Float64),
            says="outside the instrument's range .4",
        ),
        used(
            "minus-999.csv",
            "-999 where a value is missing",
            with_cells("P", lambda i, x: -999.0 if i in few else x, pl.Float64),
            says="outside the instrument's range .4",
        ),
        used(
            "beyond-limits.csv",
            "limits violated in 77 % of the steps",
            with_cells("T", lambda i, x: 90.0 if i % 100 < 73 else 50.0, pl.Float64),
            says="beyond a limit",
        ),
        used(
            "huge.csv",
            "values beyond single precision",
            with_cells("T", lambda i, x: "1e39" if i == 100 else x),
            says="lost",
        ),
    ]


def texts() -> list[Case]:
    """Return text files with wrong or unusual formats."""
    return [
        refused("all-words.csv", "a column without numbers", with_cells("P", lambda i, x: "n/a"), "max_quarantined"),
        refused("constant-text.csv", "a tag that is always ON", with_cells("V", lambda i, x: "ON"), "max_quarantined"),
        refused(
            "commas.csv",
            "decimal commas in a comma-separated file",
            text().replace(b".", b","),
            "commas.csv",
        ),
        used(
            "semicolons.csv",
            "semicolons and decimal commas, declared",
            text(table(), separator=";").replace(b".", b","),
            WIDE.replace("tags:", "dialect: {delimiter: ';', decimal: ','}\ntags:", 1),
        ),
        refused(
            "semicolons-undeclared.csv",
            "semicolons, undeclared",
            text(table(), separator=";"),
            "'time'",
        ),
        refused(
            "latin.csv",
            "degree signs in a Windows encoding",
            text(table().rename({"P": "P°"})).decode().encode("cp1252"),
            "encoding",
        ),
        refused(
            "ragged.csv",
            "a row with too many cells",
            with_row(9, "2024-03-04T00:00:30Z,1,2,3,4,5"),
            "Parquet or CSV",
        ),
        refused(
            "broken-quote.csv",
            "an unclosed quotation mark",
            with_row(9, '"2024-03-04T00:00:30Z,1,2,3'),
            "Parquet or CSV",
        ),
        refused("doubled.csv", "a duplicate column", text().replace(b"time,T,P,V", b"time,T,T,V"), "'T'"),
        used("bom.csv", "a byte order mark", b"\xef\xbb\xbf" + text()),
        used("crlf.csv", "Windows line ends", text().replace(b"\n", b"\r\n")),
        used("blank-lines.csv", "blank lines at the end", text() + b"\n\n", says="control steps"),
    ]


def tags() -> list[Case]:
    """Return files with wrong names, units or statuses."""
    more = table().with_columns(**{f"X{i}": pl.lit(1.0) for i in range(12)})
    da = tall(192).with_columns(
        status=pl.when(pl.int_range(3 * ROWS) % 40 == 0).then(pl.lit(24)).otherwise(pl.lit(192))
    )
    return [
        refused("unknown-tags.csv", "twelve unmapped columns", text(more), "'X0', 'X1', 'X10'"),
        used("ignored-tags.csv", "twelve columns ignored by a pattern", text(more), WIDE + "ignore: ['X*']\n"),
        refused(
            "lacks-a-tag.csv",
            "a missing tag",
            text(table().drop("P")),
            "'P'",
        ),
        refused("other-case.csv", "a tag in lower case", text(table().rename({"T": "t"})), "'T'"),
        refused(
            "unit.csv",
            "an unknown unit",
            text(),
            "did you mean 'bar'",
            WIDE.replace("unit: bar", "unit: baar"),
        ),
        used("gauge.csv", "a gauge in bar(g)", text(), WIDE.replace("unit: bar,", "unit: bar(g), to_unit: kPa,")),
        refused("opc-da.parquet", "OPC DA qualities, undeclared", parquet(da), "status_codes: opc_da", LONG),
        used(
            "opc-da-declared.parquet",
            "OPC DA qualities, declared",
            parquet(da),
            f"status_codes: opc_da\n{LONG}",
            says="status is Bad",
        ),
    ]


def kinds() -> list[Case]:
    """Return files with columns of a wrong type."""
    return [
        refused("status-words.parquet", "unknown status words", parquet(tall("Prima")), "'Prima'", LONG),
        refused(
            "status-lists.parquet",
            "lists as statuses",
            parquet(tall().with_columns(status=pl.concat_list(pl.lit(0)))),
            "List",
            LONG,
        ),
        refused(
            "value-lists.parquet",
            "lists as values",
            parquet(tall().with_columns(value=pl.concat_list("value"))),
            "List",
            LONG,
        ),
        refused(
            "value-bytes.parquet",
            "bytes as values",
            parquet(tall().with_columns(value=pl.lit(b"1"))),
            "Binary",
            LONG,
        ),
        refused(
            "value-times.parquet",
            "times as values",
            parquet(tall().with_columns(value=pl.col("timestamp"))),
            "Datetime",
            LONG,
        ),
    ]


def rare() -> list[Case]:
    """Return files with columns of a rare type, or with missing rows or columns."""
    return [
        refused(
            "value-structs.parquet",
            "structures as values",
            parquet(tall().with_columns(value=pl.struct("value"))),
            "Struct",
            LONG,
        ),
        used(
            "categories.parquet",
            "categories as tags and values",
            parquet(
                tall().with_columns(
                    pl.col("tag").cast(pl.Categorical), pl.col("value").cast(pl.String).cast(pl.Categorical)
                )
            ),
            LONG,
        ),
        used(
            "nameless.parquet",
            "rows without a tag",
            parquet(tall().with_columns(tag=pl.when(pl.int_range(3 * ROWS) != 7).then("tag"))),
            LONG,
            says="tag is missing",
        ),
        used(
            "decimals.parquet",
            "fixed-point decimals",
            parquet(tall().with_columns(value=pl.col("value").cast(pl.Decimal(12, 3)))),
            LONG,
        ),
        refused(
            "no-status.parquet",
            "no status column",
            parquet(tall().drop("status")),
            "'status'",
            LONG,
        ),
        used("no-status-declared.parquet", "no status column, declared", parquet(tall().drop("status")), LONG_PLAIN),
    ]


def files() -> list[Case]:
    """Return odd files and folders."""
    lines = text().splitlines(keepends=True)
    parts = [lines[0] + b"".join(lines[1 + 80 * i : 81 + 80 * i]) for i in range(3)]
    folder = {
        "f/a.csv": parts[0],
        "f/B.CSV": parts[1],
        "f/sub/c.csv.gz": gzip.compress(parts[2]),
        "f/readme.txt": b"Exported.",
    }
    rows = [table().columns, *table().rows()]
    return [
        used(
            "f",
            "a folder of .csv, .CSV, a sub-folder with .csv.gz and a note",
            folder,
            says="not read in f .*readme.txt",
        ),
        used("packed.csv.gz", "a gzip file", gzip.compress(text())),
        used("packed.csv", "a gzip file without the suffix .gz", gzip.compress(text())),
        refused("cut.csv.gz", "a truncated gzip file", gzip.compress(text())[:-50], "gzip"),
        used("book.xlsx", "a workbook", sheet(rows)),
        refused("empty.csv", "an empty file", b"", "empty.csv"),
        refused("head.csv", "column names only", b"time,T,P,V\n", "head.csv"),
        refused("zeros.csv", "a file of zero bytes", bytes(4096), "zeros.csv"),
        refused("cut.parquet", "a truncated Parquet file", parquet(stamped())[:-40], "Parquet or CSV"),
        refused("words.parquet", "a text file named .parquet", b"hello " * 99, "Parquet or CSV"),
        refused("page.csv", "a web page", b"<!DOCTYPE html><html><body>Log in</body></html>\n", "'time'"),
        refused("e", "an empty folder", {"e/readme.txt": b"Soon."}, "Parquet or CSV"),
        refused("unmapped.csv", "a table without a mapping", text(), "neorl init --from", None),
        refused("notes.bin", "an unknown format", b"\x00\x01\x02\x03" * 99, "starts with", None),
        refused("damaged.hdf5", "a truncated HDF5 file", b"\x89HDF\r\n\x1a\n" + bytes(100), "damaged.hdf5", None),
        refused("damaged.npz", "a truncated npz archive", b"PK\x03\x04" + bytes(100), "damaged.npz", None),
    ]


def all_cases() -> list[Case]:
    """Return all cases in the order of the table."""
    tabular = [*strays(), *clocks(), *stamps(), *values(), *texts(), *tags(), *kinds(), *rare(), *files()]
    return [*tabular, *foreign(), *discrete(), *declared()]
