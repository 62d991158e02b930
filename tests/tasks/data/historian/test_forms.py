"""Forms of exports: long and wide, files and folders, clocks, statuses and states."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from configs.errors import BadInput
from configs.process import described_spec
from tasks.data.historian import dialects, long_tables
from tasks.data.historian import export as historian
from tasks.data.historian.raw_rows import RawQuarantine
from tests.small_tank import MAPPING, STEPS, long, mapping, read, wide
from tests.tasks.data.historian.whole import HistorianLog


def same(one: HistorianLog, other: HistorianLog) -> None:
    assert len(one.rows["rewards"]) == STEPS - 1
    for key, values in one.rows.items():
        np.testing.assert_array_equal(values, other.rows[key])


@pytest.fixture
def plain(tmp_path: Path) -> HistorianLog:
    long().write_parquet(tmp_path / "long.parquet")
    return read(tmp_path / "long.parquet")


def test_rows_of_a_log_only_plant_by_hand(plain: HistorianLog) -> None:
    spec = described_spec(mapping())
    assert (spec.observation.names, spec.action.names, spec.dt, spec.time_unit) == (("level",), ("valve",), 10.0, "s")
    np.testing.assert_allclose(plain.rows["observations"][:, 0], 1.0 + np.arange(STEPS - 1) / 100)
    np.testing.assert_allclose(plain.rows["actions"][:, 0], np.arange(STEPS - 1) / 100)
    np.testing.assert_allclose(plain.rows["rewards"], -1.01 - np.arange(STEPS - 1) / 100, rtol=1e-6)


def test_wide_tables_give_the_same_rows(tmp_path: Path, plain: HistorianLog) -> None:
    frame = wide()
    frame.write_parquet(tmp_path / "wide.parquet")
    frame.write_csv(tmp_path / "wide.csv", datetime_format="%Y-%m-%dT%H:%M:%S%.3fZ")
    for name in ("wide.parquet", "wide.csv"):
        same(read(tmp_path / name, layout="wide"), plain)
    holed = frame.with_columns(
        pl.when(pl.col("LI-1") != 105).then("LI-1"),
        pl.when(pl.col("LI-1") != 105).then(pl.lit("Good")).alias("LI-1.st"),
    )
    marked = holed.with_columns(
        pl.when(pl.col("LI-1") == 110).then(pl.lit("Bad")).otherwise("LI-1.st").alias("LI-1.st")
    )
    marked.write_parquet(tmp_path / "marked.parquet")
    quarantine = RawQuarantine()
    log = read(tmp_path / "marked.parquet", quarantine, layout="wide", columns={"status_suffix": ".st"}, causal=False)
    # An empty cell without a status gives no row, a Bad one does; both are bridged.
    same(log, read(tmp_path / "wide.parquet", layout="wide", causal=False))
    (record,) = quarantine.table().to_dicts()
    assert (record["row"], record["tag"], record["reason"]) == (10, "LI-1", "status is Bad (0x80000000)")


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("written", ["7", "", "  "])
def test_bad_values_count_with_empty_cells_too(tmp_path: Path, written: str, form: str) -> None:
    # The valve is Bad from row 8 to 17, Good without a value in row 20, and not archived in row 22.
    valve = [written if 8 <= k < 18 else "" if k in (20, 22) else str(k) for k in range(STEPS)]
    statuses = ["Bad" if 8 <= k < 18 else None if k == 22 else "Good" for k in range(STEPS)]
    table = wide().with_columns(pl.Series("FV-3", valve), pl.Series("FV-3.st", statuses))
    rows = [
        table.select("timestamp", tag=pl.lit(tag), value=pl.col(tag).cast(pl.String), status=pl.lit("Good"))
        for tag in ("LI-1", "FI-2")
    ]
    rows.append(table.select("timestamp", tag=pl.lit("FV-3"), value="FV-3", status="FV-3.st").drop_nulls())
    logs = []
    for layout, frame in {"wide": table, "long": pl.concat(rows).sort("timestamp")}.items():
        path, quarantine = tmp_path / f"{layout}.{form}", RawQuarantine()
        frame.write_parquet(path) if form == "parquet" else frame.write_csv(path, datetime_format="%Y-%m-%dT%H:%M:%SZ")
        logs.append(read(path, quarantine, layout=layout, columns={"status_suffix": ".st"} if layout == "wide" else {}))
        assert quarantine.reasons == {"status is Bad (0x80000000)": 10, "value is missing or not a number": 1}
    same(*logs)
    assert logs[0].account.samples == logs[1].account.samples
    # The value holds for 30 s after it turned Bad at 80 s: at 85, 95 and 105 s, the middle of steps 8 to 10.
    assert np.flatnonzero(logs[0].rows["rejected"] != "").tolist() == [*range(11, 18)]
    np.testing.assert_allclose(
        logs[0].rows["actions"][[7, 8, 10, 18, 19, 20, 21, 22, 23], 0] * 100, [7, 7, 7, 18, 19, 19, 21, 21, 23]
    )


def test_folders_and_unsorted_tables_give_the_same_rows(
    tmp_path: Path, plain: HistorianLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = long()
    days = tmp_path / "days"
    days.mkdir()
    for name, (begin, end) in {"c": (0, 31), "a": (31, 60), "b": (60, 90)}.items():
        frame[begin:end].write_parquet(days / f"{name}.parquet")
    same(read(days), plain)
    tags = tmp_path / "tags"
    tags.mkdir()
    for i, (_, part) in enumerate(frame.group_by("tag", maintain_order=True)):
        part.write_csv(tags / f"{i}.csv", datetime_format="%Y-%m-%dT%H:%M:%SZ")
    monkeypatch.setattr(long_tables, "BUCKET_ROWS", 20)
    late = {"late_seconds": 0.0}
    log = read(tags, clock=late)
    same(log, plain)
    assert not log.account.raw.in_order_of_time
    frame.sort("tag", "timestamp").write_parquet(tmp_path / "tags.parquet")
    same(read(tmp_path / "tags.parquet", clock=late), plain)
    renamed = tmp_path / "renamed"
    days.rename(renamed)
    before = dialects.digest_of_tables(renamed, dialects.table_digests(dialects.source_files(renamed)))
    (renamed / "c.parquet").rename(renamed / "z.parquet")
    assert dialects.digest_of_tables(renamed, dialects.table_digests(dialects.source_files(renamed))) == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="has no Parquet or CSV files"):
        read(tmp_path / "empty")


def test_overlapping_files_lose_nothing(tmp_path: Path, plain: HistorianLog) -> None:
    frame, folder = long(), tmp_path / "exports"
    folder.mkdir()
    moment = pl.col("timestamp").rank("dense") - 1
    # The first file lacks the valve at the five times that both files have.
    frame.filter((moment < 20) & ((moment < 15) | (pl.col("tag") != "FV-3"))).write_parquet(folder / "one.parquet")
    frame.filter(moment >= 15).write_parquet(folder / "other.parquet")
    quarantine = RawQuarantine()
    log = read(folder, quarantine, clock={"late_seconds": 10.0})
    same(log, plain)
    assert quarantine.reasons == {"repeats an earlier row": 10}


@pytest.mark.parametrize(("unit", "factor"), [("s", 1e-9), ("ms", 1e-6), ("us", 1e-3), ("ns", 1)])
def test_numeric_timestamps(tmp_path: Path, plain: HistorianLog, unit: str, factor: float) -> None:
    numbers = long().with_columns((pl.col("timestamp").dt.epoch("ns") // round(1 / factor)).alias("timestamp"))
    numbers.write_parquet(tmp_path / "numbers.parquet")
    same(read(tmp_path / "numbers.parquet", clock={"epoch": unit}), plain)
    numbers.with_columns(pl.col("timestamp").cast(pl.Float64)).write_csv(tmp_path / "numbers.csv")
    if unit != "ns":  # not exact in a double
        same(read(tmp_path / "numbers.csv", clock={"epoch": unit}), plain)
    with pytest.raises(BadInput, match=r"clock\.epoch"):
        read(tmp_path / "numbers.parquet")


def local(moments: list[str]) -> pl.DataFrame:
    rows = [(tag, moment, value) for moment in moments for tag, value in (("LI-1", 1.0), ("FI-2", 5.0), ("FV-3", 1.0))]
    frame = pl.DataFrame(rows, {"tag": pl.String, "timestamp": pl.String, "value": pl.Float64}, orient="row")
    return frame.with_columns(status=pl.lit("Good"))


AUTUMN = [
    # Berlin, 2026-10-25: at 03:00 summer time clocks go back to 02:00 (Directive 2000/84/EC: 01:00 UTC).
    *(f"2026-10-25 01:{m:02d}:00" for m in range(0, 60, 10)),
    *(f"2026-10-25 02:{m:02d}:00" for m in range(0, 60, 10)),
    *(f"2026-10-25 02:{m:02d}:00" for m in range(0, 60, 10)),
    *(f"2026-10-25 03:{m:02d}:00" for m in range(0, 60, 10)),
]


def test_repeated_hours_follow_the_rule_or_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "autumn.csv"
    local(AUTUMN).write_csv(path)
    gaps = {"max_gap_seconds": 700}
    clock = {"zone": "Europe/Berlin"}
    quarantine = RawQuarantine()
    log = read(path, quarantine, clock=clock, episodes=gaps, period_seconds=600)
    assert quarantine.reasons == {"timestamp is ambiguous, because clocks were set back": 36}
    # From 01:50 (23:50 UTC) to 03:00 (02:00 UTC) nothing is known.
    assert log.account.rows == 10
    assert log.account.gap == 13
    quarantine = RawQuarantine()
    log = read(path, quarantine, clock=clock | {"ambiguous": "order"}, episodes=gaps, period_seconds=600)
    assert not quarantine.count
    # 01:00 summer time is 23:00 UTC, 03:50 winter time is 02:50 UTC: 24 moments, 23 steps.
    assert log.account.rows == 23
    first = np.datetime64("2026-10-24T23:00:00", "ns").astype(np.int64)
    np.testing.assert_array_equal(log.rows["timestamps"], first + np.arange(23) * 600 * 10**9)
    for rule, hour in (("earlier", 0), ("later", 1)):
        once = local(AUTUMN[6:12])
        once.write_csv(path)
        log = read(path, clock=clock | {"ambiguous": rule}, episodes=gaps, period_seconds=600)
        assert log.rows["timestamps"][0] == first + (1 + hour) * 3600 * 10**9


def test_skipped_hours_are_refused(tmp_path: Path) -> None:
    # Berlin, 2026-03-29: from 02:00 winter time clocks go to 03:00.
    moments = [f"2026-03-29T0{h}:{m:02d}:00" for h in (1, 2, 3) for m in range(0, 60, 10)]
    path = tmp_path / "spring.csv"
    local(moments).write_csv(path)
    quarantine = RawQuarantine()
    log = read(path, quarantine, clock={"zone": "Europe/Berlin"}, episodes={"max_gap_seconds": 700}, period_seconds=600)
    table = quarantine.table()
    assert table["row"].to_list() == list(range(18, 36))
    assert set(table["reason"]) == {"timestamp does not exist, because clocks were set forward"}
    assert table["text"][0] == "2026-03-29T02:00:00"
    assert log.account.rows == 11  # 01:50 and 03:00 are ten minutes apart
    offsets = [f"{moment}{'+01:00' if i < 6 else '+02:00'}" for i, moment in enumerate(moments) if not 6 <= i < 12]
    local(offsets).write_csv(path)
    again = read(path, episodes={"max_gap_seconds": 700}, period_seconds=600)
    np.testing.assert_array_equal(again.rows["timestamps"], log.rows["timestamps"])


def test_unknown_zones_are_refused() -> None:
    with pytest.raises(ValueError, match="zone 'Europe/Berln' is unknown: use an IANA name"):
        mapping(clock={"zone": "Europe/Berln"})


def test_states_and_statuses_follow_the_mapping(tmp_path: Path, plain: HistorianLog) -> None:
    frame = long().with_columns(pl.col("value").cast(pl.String), status=pl.lit(192))
    valve = (pl.col("tag") == "FV-3") & (pl.col("value") == "0.0")
    frame = frame.with_columns(value=pl.when(valve).then(pl.lit("Closed")).otherwise("value"))
    frame.write_parquet(tmp_path / "states.parquet")
    tags = MAPPING["tags"] | {"FV-3": MAPPING["tags"]["FV-3"] | {"states": {"Closed": 0}}}
    same(read(tmp_path / "states.parquet", status_codes="opc_da", tags=tags), plain)
    quarantine = RawQuarantine()
    read(tmp_path / "states.parquet", quarantine, status_codes="opc_da")
    assert quarantine.table().select("row", "tag", "text", "reason").row(0) == (
        2,
        "FV-3",
        "Closed",
        "digital state 'Closed'",
    )
    long().with_columns(status=pl.lit("fein")).write_parquet(tmp_path / "words.parquet")
    same(read(tmp_path / "words.parquet", statuses={"fein": "good"}), plain)
    # OPC UA Part 8: severities 0, 1, 2 in the two highest bits; 3 is reserved.
    odd = long().with_columns(status=pl.when(pl.col("value") == 107).then(0xC0000000).otherwise(0).cast(pl.UInt32))
    odd.write_parquet(tmp_path / "odd.parquet")
    quarantine = RawQuarantine()
    read(tmp_path / "odd.parquet", quarantine)
    assert dict(quarantine.reasons) == {"status is of the reserved severity (0xC0000000)": 1}
    long().drop("status").write_parquet(tmp_path / "none.parquet")
    same(read(tmp_path / "none.parquet", columns={"status": None}), plain)


def test_a_wrong_column_gives_a_bounded_number_of_reasons(tmp_path: Path) -> None:
    frame = long().with_columns(value=pl.concat_str(pl.lit("x"), pl.int_range(pl.len()).cast(pl.String)))
    frame = pl.concat([frame] * 4).with_columns(value=pl.concat_str("value", pl.int_range(pl.len()).cast(pl.String)))
    frame.write_parquet(tmp_path / "texts.parquet")
    quarantine = RawQuarantine()
    log = read(tmp_path / "texts.parquet", quarantine)
    assert (log.rows["rejected"] != "").all()
    assert quarantine.count == len(frame)
    assert len(quarantine.reasons) == 101
    assert quarantine.reasons["digital state"] == len(frame) - 100


def test_every_row_is_used_rejected_or_ignored(tmp_path: Path) -> None:
    others = long().with_columns(tag=pl.lit("XX-9"))
    frame = pl.concat([long(), others]).sort("timestamp", maintain_order=True)
    frame = frame.with_columns(tag=pl.when(pl.int_range(pl.len()) != 8).then("tag"))
    frame.write_parquet(tmp_path / "others.parquet")
    log = read(tmp_path / "others.parquet", ignore=["XX-9"])
    raw = log.account.raw
    used = sum(counts.good + counts.uncertain + counts.bad for counts in log.account.samples.values())
    assert raw.reasons == {"tag is missing": 1}
    assert raw.rows == len(frame) == used + raw.rejected + raw.ignored


def test_footers_show_the_order_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = long()
    path = tmp_path / "groups.parquet"
    late = pl.concat([frame[:40], frame[60:61], frame[40:60], frame[61:]])
    grouped = pl.concat(part.sort("tag", "timestamp") for part in frame.iter_slices(30))
    for table, used in ((frame, True), (late, False), (grouped, False)):
        table.write_parquet(path, row_group_size=10 if used else 30)
        export = historian.Export(path, mapping(clock={"late_seconds": 0}), [path])
        glance = export._footer_times(path)
        assert (glance is not None) == used
        look = export._file_times(path)
        monkeypatch.setattr(historian, "time_groups", lambda *_: None)
        read_whole = export._file_times(path)
        monkeypatch.undo()
        for name in ("first", "last", "rows", "behind"):
            assert getattr(look, name) == getattr(read_whole, name)
        assert look.centre == pytest.approx(read_whole.centre, rel=1e-6)


def test_later_files_of_a_folder_are_checked_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(historian, "FOOTER_CHECK_ROWS", 8)
    frame = long()
    begun, ended = frame[:8].reverse(), frame[-8:].reverse()
    orders = {"a": frame, "b": pl.concat([begun, frame[8:]]), "c": pl.concat([frame[:-8], ended])}
    for name, table in orders.items():
        table.write_parquet(tmp_path / f"{name}.parquet", row_group_size=20)
    files = [tmp_path / f"{name}.parquet" for name in orders]
    export = historian.Export(tmp_path, mapping(clock={"late_seconds": 1e6}), files)
    assert [export._footer_times(file) is not None for file in files] == [True, False, False]
    # A wrong clock among the unread rows.
    for at, years in ((len(frame) - 12, 80), (12, -40)):
        when = pl.when(pl.int_range(pl.len()) == at).then(pl.col("timestamp").dt.offset_by(f"{years}y"))
        frame.with_columns(timestamp=when.otherwise("timestamp")).write_parquet(files[2], row_group_size=20)
        assert export._footer_times(files[2]) is None


@pytest.mark.parametrize("name", ["long.parquet", "wide.parquet", "long.csv", "wide.csv"])
def test_damaged_tables_are_refused_or_read(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    path, layout = tmp_path / name, name.split(".")[0]
    frame = long() if layout == "long" else wide()
    if path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=20)
    else:
        frame.write_csv(path, datetime_format="%Y-%m-%dT%H:%M:%SZ")
    whole, messages = path.read_bytes(), []
    for i in range(40):
        damaged = bytearray(whole[: rng.integers(len(whole))] if i % 4 == 0 else whole)
        for at in rng.integers(0, len(damaged), rng.integers(1, 6)) if len(damaged) and i % 4 else ():
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read(path, layout=layout)
        except BadInput as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert all(re.fullmatch(r".+: .+[.?]", message) for message in messages)
