"""All dialects of a table give the same rows; contradictions are refused."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import polars as pl
import pytest

from configs.dialect import chrono_format
from configs.errors import BadInput
from configs.mapping import Clock
from tasks.data.historian import workbooks
from tasks.data.historian.raw_rows import RawQuarantine
from tasks.data.historian.timestamps import TimestampReader
from tests.small_tank import MAPPING, STEPS, read, wide
from tests.tasks.data.historian.whole import HistorianLog

TAGS = MAPPING["tags"]
CLOCK = {"start": "2026-01-05T00:00:00Z"}
EPISODE = {"role": "episode", "interpolation": "stepped"}


def renamed(names: str) -> dict[str, Any]:
    return {f"{names}_{i}": tag for i, tag in enumerate(TAGS.values(), 1)}


@pytest.fixture(scope="module")
def plain_text() -> str:
    return wide().write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def plain(tmp_path: Path) -> HistorianLog:
    wide().write_parquet(tmp_path / "plain.parquet")
    return read(tmp_path / "plain.parquet", layout="wide")


def columns(text: str) -> list[tuple[str, ...]]:
    return list(zip(*(line.split(",") for line in text.split()), strict=True))


def without_clock(text: str) -> str:
    return "\n".join(line.partition(",")[2] for line in text.split()[1:])


Case = tuple[Callable[[str], str], str, dict[str, Any]]
CASES: dict[str, Case] = {
    "semicolons and decimal commas": (
        lambda t: "exported\n\n" + t.replace(",", ";").replace(".0", ",0"),
        "utf-8",
        {"dialect": {"delimiter": ";", "decimal": ",", "skip_rows": 2}},
    ),
    "tabs": (lambda t: t.replace(",", "\t").replace("\n", "\r\n"), "utf-8", {"dialect": {"delimiter": "\t"}}),
    "blanks": (
        lambda t: "x\n" + t.replace(",", " \t  ").replace("\n", "  \n"),
        "utf-8",
        {"dialect": {"delimiter": "whitespace", "skip_rows": 1}},
    ),
    "utf-16": (lambda t: t, "utf-16", {"dialect": {"encoding": "utf-16"}}),
    "another encoding": (
        lambda t: t.replace("LI-1", "LI °"),
        "cp1252",
        {"dialect": {"encoding": "cp1252"}, "tags": {"LI °": TAGS["LI-1"], "FI-2": TAGS["FI-2"], "FV-3": TAGS["FV-3"]}},
    ),
    "a byte order mark": (lambda t: t, "utf-8-sig", {}),
    "no names and no clock": (
        lambda t: without_clock(t) + "\n\n",
        "utf-8",
        {"dialect": {"header": False}, "tags": renamed("column"), "clock": CLOCK},
    ),
    "a row per tag": (lambda t: "\n".join(map(",".join, columns(t))), "utf-8", {"layout": "transposed"}),
    "a row per tag with commas": (
        lambda t: "\n".join(map(";".join, columns(t))).replace(".0", ",0"),
        "utf-8",
        {"layout": "transposed", "dialect": {"delimiter": ";", "decimal": ","}},
    ),
    "times in another order": (
        lambda t: t.replace("2026-01-05T00:", "05/01/26 00:").replace("Z", ""),
        "utf-8",
        {"clock": {"format": "%d/%m/%y %H:%M:%S"}},
    ),
    "iso times of the basic form": (lambda t: t.replace("2026-01-05T00:", "20260105T00").replace(":", ""), "utf-8", {}),
    "iso times with comma fractions": (
        lambda t: t.replace(",", ";").replace("Z", ",0Z"),
        "utf-8",
        {"dialect": {"delimiter": ";"}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_dialect_gives_the_same_rows(name: str, tmp_path: Path, plain: HistorianLog, plain_text: str) -> None:
    write, encoding, keys = CASES[name]
    path = tmp_path / "table.csv"
    path.write_bytes(write(plain_text).encode(encoding))
    log = read(path, **({"layout": "wide"} | keys))
    assert len(log.rows["rewards"]) == STEPS - 1
    for key, values in plain.rows.items():
        np.testing.assert_array_equal(log.rows[key], values)


def test_rows_without_names_and_without_a_clock(tmp_path: Path, plain: HistorianLog, plain_text: str) -> None:
    rows = [line.split(",")[1:] for line in plain_text.split()[1:]]
    path = tmp_path / "d00.dat"
    path.write_text("\n".join("  ".join(column) for column in zip(*rows, strict=True)))
    dialect = {"delimiter": "whitespace", "header": False}
    log = read(path, layout="transposed", dialect=dialect, tags=renamed("row"), clock=CLOCK | {"period_seconds": 10})
    for key, values in plain.rows.items():
        np.testing.assert_array_equal(log.rows[key], values)


def test_workbooks_give_the_same_rows(tmp_path: Path, plain: HistorianLog, plain_text: str) -> None:
    path = tmp_path / "book.xlsx"
    book = openpyxl.Workbook()
    book.active.append(["nothing here"])
    sheet = book.create_sheet("Data")
    for i, row in enumerate(wide().iter_rows()):
        if i == 0:
            sheet.append(wide().columns)
        sheet.append([row[0].replace(tzinfo=None), *row[1:]])
    book.save(path)
    for which in ("Data", 2):
        log = read(path, layout="wide", dialect={"sheet": which})
        for key, values in plain.rows.items():
            np.testing.assert_array_equal(log.rows[key], values)
    with pytest.raises(BadInput, match=r"book\.xlsx has no sheet 'Dta', only Sheet, Data"):
        read(path, layout="wide", dialect={"sheet": "Dta"})


def test_damaged_workbooks_are_refused(tmp_path: Path) -> None:
    for packing in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
        path = tmp_path / f"damaged{packing}.xlsx"
        with zipfile.ZipFile(path, "w", packing) as archive:
            archive.writestr("xl/worksheets/sheet1.xml", b"<row>" * 1000)
            begin = archive.infolist()[0].header_offset + 30 + len("xl/worksheets/sheet1.xml")
        raw = bytearray(path.read_bytes())
        raw[begin + 4 : begin + 20] = b"\xff" * 16
        path.write_bytes(raw)
        with pytest.raises(BadInput, match=r"damaged.*\.xlsx is not a readable xlsx workbook"):
            workbooks._check(path)


def test_workbooks_that_inflate_or_declare_entities_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.xlsx"
    # A workbook names its own sheets, so any member may be a sheet.
    for name in ("xl/worksheets/sheet1.xml", "xl/media/image1.png"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, b"<a/>" + b" " * 50_000_000)
        with pytest.raises(BadInput, match=r"times its size; the limit is .* MB: save it as CSV"):
            read(path, layout="wide")
    declared = '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'
    for name, encoding in (("xl/workbook.xml", "utf-8"), ("xl/workbook.xml", "utf-16"), ("xl/sheet.dat", "utf-8")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, declared.encode(encoding))
        with pytest.raises(BadInput, match="declares entities"):
            read(path, layout="wide")
    path.write_bytes(b"PK\3\4 no archive")
    with pytest.raises(BadInput, match=r"bomb\.xlsx is not a readable xlsx workbook \(File is not a zip file\)"):
        read(path, layout="wide")
    # A cell in the last corner must not create all cells before it.
    book = openpyxl.Workbook()
    book.active.append(wide().columns)
    book.active["XFD1048576"] = 1
    book.save(path)
    target = tmp_path / "sheet.csv"
    workbooks.sheet_to_csv(path, None, target)
    assert target.stat().st_size < 2**23
    # The CSV is limited, too: a cell at the end of a row implies all before it, and cells may share long texts.
    monkeypatch.setattr(workbooks, "MAX_BYTES", 2**20)
    book = openpyxl.Workbook()
    for row in range(1, 101):
        book.active.cell(row, 16_384, 1)
    book.save(path)
    with pytest.raises(BadInput, match=r"the sheet in bomb\.xlsx has more than 1 MB of text"):
        workbooks.sheet_to_csv(path, None, target)


def test_episode_columns_cut_episodes(tmp_path: Path) -> None:
    batch = pl.Series("batch", ["a"] * 10 + ["b"] * 10 + ["a"] * 10)
    frame = wide().drop("timestamp").with_columns(batch)
    # The level of the second batch begins a row late: the first batch's last level must not be used.
    frame = frame.with_columns(pl.when(pl.int_range(pl.len()) != 10).then("LI-1").alias("LI-1"))
    tags = TAGS | {"batch": EPISODE}
    for name in ("batches.parquet", "batches.csv"):
        path = tmp_path / name
        frame.write_parquet(path) if name.endswith("parquet") else frame.write_csv(path)
        log = read(path, layout="wide", clock=CLOCK, tags=tags, causal=False)
        # No steps from row 9 to 10, from 10 (unknown) to 11, and from 19 to 20.
        assert log.rows["numbers"].tolist() == [*range(9), *range(11, 19), *range(20, 29)]
        assert log.rows["numbers"][log.rows["timeouts"]].tolist() == [8, 18, 28]
        assert log.account.gap == 3


def test_points_are_invalid_with_decimal_commas(tmp_path: Path, plain_text: str) -> None:
    path = tmp_path / "thousands.csv"
    path.write_text(plain_text.replace(",", ";").replace(".0", ",0").replace("105,0", "1.105,0"))
    quarantine = RawQuarantine()
    read(path, quarantine, layout="wide", dialect={"delimiter": ";", "decimal": ","})
    (record,) = quarantine.table().to_dicts()
    assert (record["row"], record["tag"]) == (5, "LI-1")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dialect": {"delimiter": ";;"}}, "delimiter must be one character such as ';'"),
        ({"dialect": {"delimiter": "1"}}, "delimiter must be one character such as ';'"),
        ({"dialect": {"delimeter": ";"}}, "Extra inputs are not permitted"),
        ({"dialect": {"encoding": "zip"}}, "Input should be 'utf-8'"),
        (
            {"clock": {"format": "%d.%m.%Y", "epoch": "s"}},
            "the clock has epoch and format: keep only one",
        ),
        ({"clock": {"period_seconds": 1}}, "the clock has period_seconds 1 but no 'start'"),
        ({"clock": CLOCK, "layout": "long"}, "but layout is long: delete clock.start"),
        ({"layout": "transposed", "columns": {"status_suffix": ".st"}}, "needs layout wide, got transposed"),
        ({"layout": "long", "tags": TAGS | {"b": EPISODE}}, "needs layout wide, got long"),
        (
            {"layout": "wide", "tags": TAGS | {"b": EPISODE, "c": EPISODE}},
            "b, c all have role episode",
        ),
        ({"tags": TAGS | {"b": EPISODE | {"unit": "1"}}}, "role episode must be stepped without"),
    ],
)
def test_contradicting_keys_are_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "none.csv", **keys)


@pytest.mark.parametrize(
    ("write", "keys", "message"),
    [
        (lambda t: t, {"dialect": {"sheet": 1}}, "dialect.sheet does not apply to a text like table.csv"),
        (lambda t: t, {"clock": CLOCK}, "table.csv has a column 'timestamp', but the mapping has clock.start"),
        (lambda t: t.replace("FI-2", "LI-1"), {}, "table.csv has two columns 'LI-1'"),
        (lambda t: "x" * 5_000_000, {}, "table.csv has a line of more than 4 MB"),
        (lambda t: t + "\0" * 40_000_000, {}, "table.csv has a line of more than 4 MB"),
        (
            lambda t: t,
            {"layout": "transposed"},
            "'LI-1' in table.csv is not an unambiguous time",
        ),
        (
            lambda t: "timestamp,1,2\na,1\n",
            {"layout": "transposed"},
            r"row 2 \('a'\) of table.csv has 1 values, but the first row has 2",
        ),
        (
            lambda t: f"timestamp,1\na,{'1' * 131_073}\n",
            {"layout": "transposed"},
            r"a cell in row 2 of table.csv has more than 131,072 characters \(field larger .*\): correct",
        ),
        (
            lambda t: "timestamp,1\na,1\na,2\n",
            {"layout": "transposed"},
            "table.csv has two rows of tag 'a'",
        ),
        (
            lambda t: t,
            {"clock": {"format": "%d/%m/%Y"}},
            "'2026.*' in table.csv does not fit clock.format '%d/%m/%Y'",
        ),
        (lambda t: t.replace("2026-01-05T", "01/02/2026 "), {}, "set clock.format in the mapping"),
    ],
)
def test_tables_that_do_not_fit_the_dialect_are_refused(
    write: Callable[[str], str], keys: dict[str, Any], message: str, tmp_path: Path, plain_text: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(write(plain_text))
    with pytest.raises(BadInput, match=message) as error:
        read(path, **({"layout": "wide"} | keys))
    assert "\n" not in str(error.value)


def test_wrong_encodings_and_parquet_dialects_are_refused(tmp_path: Path, plain_text: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(plain_text.replace("LI-1", "LI °").encode("cp1252"))
    with pytest.raises(BadInput, match=r"table\.csv is not UTF-8 text"):
        read(path, layout="wide")
    path.write_bytes(plain_text.encode() + b"2026-01-05T00:09:00Z,\x81,1,1\n")
    with pytest.raises(BadInput, match=r"table\.csv is not cp1252 text \(.*\): set dialect.encoding"):
        read(path, layout="wide", dialect={"encoding": "cp1252"})
    wide().write_parquet(tmp_path / "table.parquet")
    with pytest.raises(BadInput, match=r"dialect\.delimiter does not apply to a Parquet file"):
        read(tmp_path / "table.parquet", layout="wide", dialect={"delimiter": ";"})


@pytest.mark.parametrize(
    ("text", "form", "iso"),
    [
        ("20260131T235959Z", None, "2026-01-31T23:59:59"),
        ("20260131 235959,5", None, "2026-01-31T23:59:59.5"),
        ("2026-01-31T23:59:59,25Z", None, "2026-01-31T23:59:59.25"),
        ("2026-01-31", None, "2026-01-31T00:00"),
        ("2026-01-31T23", None, "2026-01-31T23:00"),
        ("2026-01-31T23:59+01", None, "2026-01-31T22:59"),
        ("20260131T235959+0100", None, "2026-01-31T22:59:59"),
        ("2014:10:07 12:30:00", None, "2014-10-07T12:30"),
        ("2014/1/7 3:00", None, "2014-01-07T03:00"),
        ("06/01/14 00", "%d/%m/%y %H", "2014-01-06T00:00"),
        ("01/06/14", "%m/%d/%y", "2014-01-06T00:00"),
        ("7.10.2014 1:05:02,5", "%d.%m.%Y %H:%M:%S,%f", "2014-10-07T01:05:02.5"),
        ("07-Oct-14 1:00 PM", "%d-%b-%y %I:%M %p", "2014-10-07T13:00"),
        ("2014-280 13:00", "%Y-%j %H:%M", "2014-10-07T13:00"),
        ("7.10.2014 13:00 +0100", "%d.%m.%Y %H:%M %z", "2014-10-07T12:00"),
    ],
)
def test_unambiguous_times_are_read_without_a_format(text: str, form: str | None, iso: str) -> None:
    times, reasons = TimestampReader(Clock(format=form)).read(pl.Series([text, None, text]), "table")
    assert times[[0, 2]].tolist() == [np.datetime64(iso, "ns").astype(np.int64)] * 2
    assert reasons is not None
    assert reasons.tolist() == [0, 2, 0]


@pytest.mark.parametrize("form", ["%H:%M", "%d.%m.%Y %M", "%Q", "%d.%m.%Y %", "%d.%d.%m.%Y", "%d.%m.%Y %I", "", "%s"])
def test_incomplete_time_formats_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"'{form}'")):
        chrono_format(form)
