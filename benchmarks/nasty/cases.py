"""The cases: files as plants have them, and what must be said of each."""

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
    """Rows that a wrong clock stamped."""
    one = "1 lost|3 lost: timestamp"
    return [
        used(
            f"stray-{place}-{stamp[:4]}.csv",
            f"a row stamped {stamp[:4]} as {where}",
            with_row(place, f"{stamp},60,5,0.5"),
            says=one,
        )
        for stamp in ("1970-01-01T00:00:00Z", "2199-01-01T00:00:00Z", "2300-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
        for place, where in ((0, "the first"), (120, "one in the middle"), (ROWS, "the last"))
    ]


def clocks() -> list[Case]:
    """Times that are wrong."""
    local = WIDE.replace("tags:", "clock: {zone: Europe/Berlin}\ntags:", 1)
    autumn = [(datetime(2024, 10, 27) + timedelta(minutes=i)).strftime("%Y-%m-%d %H:%M") for i in range(ROWS)]
    spring = [(datetime(2024, 3, 31) + timedelta(minutes=i)).strftime("%Y-%m-%d %H:%M") for i in range(ROWS)]
    backwards = table().reverse()
    return [
        refused(
            "autumn.csv",
            "the hour that comes twice, of four",
            text(table().with_columns(time=pl.Series(autumn))),
            "comes twice",
            local,
        ),
        refused(
            "spring.csv",
            "the hour that does not exist, of four",
            text(table().with_columns(time=pl.Series(spring))),
            "does not exist",
            local,
        ),
        used("backwards.csv", "youngest rows first", text(backwards)),
        used("shuffled.csv", "rows in any order", text(table().sample(fraction=1.0, shuffle=True, seed=1))),
    ]


def stamps() -> list[Case]:
    """Times whose meaning is unclear, and logs that are not whole."""
    return [
        refused(
            "epoch.csv",
            "seconds since 1970 without a word",
            text(stamped().with_columns(pl.col("time").dt.epoch("s"))),
            "can be read in more than one way|clock.epoch",
        ),
        used(
            "epoch-said.csv",
            "seconds since 1970, declared",
            text(stamped().with_columns(pl.col("time").dt.epoch("s"))),
            WIDE.replace("tags:", "clock: {epoch: s}\ntags:", 1),
        ),
        refused(
            "days.csv",
            "day or month first, nobody knows",
            with_cells("time", lambda i, _: f"0{1 + i % 9}/0{1 + i % 9}/2024 00:{i % 60:02d}"),
            "more than one way",
        ),
        refused(
            "no-times.csv",
            "no time in the column of times",
            with_cells("time", lambda i, _: ""),
            "expected (timestamps|values)|timestamp is missing",
        ),
        used(
            "same-time.csv",
            "a row that comes twice",
            with_row(50, text().decode().splitlines()[51]),
            says="repeats an earlier row",
        ),
        used(
            "year-of-silence.csv",
            "a log that goes on after a year",
            text() + b"\n".join(line.replace(b"2024-", b"2025-") for line in text().splitlines()[1:]) + b"\n",
            says="a signal was not archived",
        ),
        refused(
            "gaps.csv",
            "every other half hour missing",
            text(table().filter(pl.int_range(ROWS) % 60 < 30)),
            "in gaps to be lost",
        ),
        refused("one-row.csv", "one row alone", text(table().head(1)), "at least one control step"),
    ]


def values() -> list[Case]:
    """Cells that are wrong."""
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
            "limits crossed in 73 % of the steps",
            with_cells("T", lambda i, x: 90.0 if i % 100 < 73 else 50.0, pl.Float64),
            says="steps end beyond a limit",
        ),
        used(
            "huge.csv",
            "values that single precision does not hold",
            with_cells("T", lambda i, x: "1e39" if i == 100 else x),
            says="lost",
        ),
    ]


def texts() -> list[Case]:
    """Texts that are wrong as a whole."""
    return [
        refused("all-words.csv", "no number at all in a column", with_cells("P", lambda i, x: "n/a"), "to be lost"),
        refused("constant-text.csv", "a tag that is ON throughout", with_cells("V", lambda i, x: "ON"), "to be lost"),
        refused(
            "commas.csv",
            "decimal commas between commas",
            text().replace(b".", b","),
            "column|Parquet or CSV|more than one way|expected",
        ),
        used(
            "semicolons.csv",
            "semicolons and decimal commas, declared",
            text(table(), separator=";").replace(b".", b","),
            WIDE.replace("tags:", "dialect: {delimiter: ';', decimal: ','}\ntags:", 1),
        ),
        refused(
            "semicolons-unsaid.csv",
            "semicolons without a word",
            text(table(), separator=";"),
            "expected a column 'time'",
        ),
        refused(
            "latin.csv",
            "degree signs of Windows",
            text(table().rename({"P": "P°"})).decode().encode("cp1252"),
            "encoding",
        ),
        refused(
            "ragged.csv",
            "a row with more cells",
            with_row(9, "2024-03-04T00:00:30Z,1,2,3,4,5"),
            "expected a Parquet or CSV table",
        ),
        refused(
            "broken-quote.csv",
            "a quotation mark that is never closed",
            with_row(9, '"2024-03-04T00:00:30Z,1,2,3'),
            "expected",
        ),
        refused(
            "doubled.csv", "a column twice", text().replace(b"time,T,P,V", b"time,T,T,V"), "expected every column once"
        ),
        used("bom.csv", "a byte order mark", b"\xef\xbb\xbf" + text()),
        used("crlf.csv", "line ends of Windows", text().replace(b"\n", b"\r\n")),
        used("blank-lines.csv", "blank lines at the end", text() + b"\n\n", says="control steps"),
    ]


def tags() -> list[Case]:
    """Names, units and statuses that are wrong."""
    more = table().with_columns(**{f"X{i}": pl.lit(1.0) for i in range(12)})
    da = tall(192).with_columns(
        status=pl.when(pl.int_range(3 * ROWS) % 40 == 0).then(pl.lit(24)).otherwise(pl.lit(192))
    )
    return [
        refused("unknown-tags.csv", "twelve columns that nobody mapped", text(more), "'X0', 'X1', 'X10'"),
        used("ignored-tags.csv", "the same, ignored by a pattern", text(more), WIDE + "ignore: ['X*']\n"),
        refused(
            "lacks-a-tag.csv",
            "a tag of the mapping is missing",
            text(table().drop("P")),
            "expected tag 'P' of the mapping",
        ),
        refused("other-case.csv", "a tag in small letters", text(table().rename({"T": "t"})), "expected tag 'T'"),
        refused(
            "unit.csv",
            "a unit that does not exist",
            text(),
            "did you mean 'bar'",
            WIDE.replace("unit: bar", "unit: baar"),
        ),
        used("gauge.csv", "a gauge in bar(g)", text(), WIDE.replace("unit: bar,", "unit: bar(g), to_unit: kPa,")),
        refused("opc-da.parquet", "qualities of OPC DA without a word", parquet(da), "status_codes: opc_da", LONG),
        used(
            "opc-da-said.parquet",
            "qualities of OPC DA, declared",
            parquet(da),
            f"status_codes: opc_da\n{LONG}",
            says="status is Bad",
        ),
    ]


def kinds() -> list[Case]:
    """Columns of a kind that does not belong there."""
    return [
        refused(
            "status-words.parquet", "statuses in a historian's own words", parquet(tall("Prima")), "got 'Prima'", LONG
        ),
        refused(
            "status-lists.parquet",
            "lists as statuses",
            parquet(tall().with_columns(status=pl.concat_list(pl.lit(0)))),
            "got List",
            LONG,
        ),
        refused(
            "value-lists.parquet",
            "lists as values",
            parquet(tall().with_columns(value=pl.concat_list("value"))),
            "got List",
            LONG,
        ),
        refused(
            "value-bytes.parquet",
            "bytes as values",
            parquet(tall().with_columns(value=pl.lit(b"1"))),
            "got Binary",
            LONG,
        ),
        refused(
            "value-times.parquet",
            "times as values",
            parquet(tall().with_columns(value=pl.col("timestamp"))),
            "got Datetime",
            LONG,
        ),
    ]


def rare() -> list[Case]:
    """Columns of a rare kind, and rows and columns that are missing."""
    return [
        refused(
            "value-structs.parquet",
            "structures as values",
            parquet(tall().with_columns(value=pl.struct("value"))),
            "got Struct",
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
            "decimal numbers of fixed places",
            parquet(tall().with_columns(value=pl.col("value").cast(pl.Decimal(12, 3)))),
            LONG,
        ),
        refused(
            "no-status.parquet",
            "no column of statuses",
            parquet(tall().drop("status")),
            "expected a column 'status'",
            LONG,
        ),
        used("no-status-said.parquet", "no column of statuses, declared", parquet(tall().drop("status")), LONG_PLAIN),
    ]


def files() -> list[Case]:
    """Files and folders that are odd."""
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
        used("packed.csv.gz", "a gzip", gzip.compress(text())),
        used("packed.csv", "a gzip by another name", gzip.compress(text())),
        refused("cut.csv.gz", "a gzip that was cut", gzip.compress(text())[:-50], "expected a whole gzip file"),
        used("book.xlsx", "a workbook", sheet(rows)),
        refused("empty.csv", "an empty file", b"", "expected"),
        refused("head.csv", "names alone", b"time,T,P,V\n", "got an empty table"),
        refused("zeros.csv", "a file of zeros", bytes(4096), "expected"),
        refused(
            "cut.parquet", "a Parquet file that was cut", parquet(stamped())[:-40], "expected a Parquet or CSV table"
        ),
        refused("words.parquet", "a text by the name of Parquet", b"hello " * 99, "expected a Parquet or CSV table"),
        refused(
            "page.csv", "a web page", b"<!DOCTYPE html><html><body>Log in</body></html>\n", "expected a column 'time'"
        ),
        refused("e", "an empty folder", {"e/readme.txt": b"Soon."}, "expected Parquet or CSV files"),
        refused("unmapped.csv", "a table without a mapping", text(), "neorl init --from", None),
        refused("notes.bin", "a file of no known form", b"\x00\x01\x02\x03" * 99, "starts with", None),
        refused("damaged.hdf5", "HDF5 that was cut", b"\x89HDF\r\n\x1a\n" + bytes(100), "damaged.hdf5", None),
        refused("damaged.npz", "an archive that was cut", b"PK\x03\x04" + bytes(100), "damaged.npz", None),
    ]


def all_cases() -> list[Case]:
    """Every case, in the order of the table."""
    tabular = [*strays(), *clocks(), *stamps(), *values(), *texts(), *tags(), *kinds(), *rare(), *files()]
    return [*tabular, *foreign(), *discrete(), *declared()]
