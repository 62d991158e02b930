"""Transitions from a historian's long table: by hand on a small plant, and against the truth of a generated plant."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from configs.yaml_files import load_yaml
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Constraint, PlantSpec, Space
from tasks.data.historian import export as historian
from tasks.data.historian import tag_history, transitions
from tasks.data.historian.export import Export
from tasks.data.store.records import SampleCounts
from tasks.data.synthetic.reactor_history import generate
from tests.tasks.data.historian.whole import HistorianLog, read_historian

SECOND = 10**9
START = 1_700_000_000 * SECOND
REACTOR = Path(__file__).parents[4] / "configs" / "mappings" / "chemical_reactor.yaml"

# A small plant: one temperature in K with a set point, one valve, a period of 10 s, at most 4 steps per episode.
SPEC = PlantSpec(
    name="kettle",
    observation=Space(("temperature", "setpoint"), ("K", "K"), (250.0, 250.0), (400.0, 400.0)),
    action=Space(("valve",), ("1",), (0.0,), (1.0,)),
    constraints=(Constraint("temperature", "K", 260.0, 373.15),),
    dt=10.0,
    time_unit="s",
    horizon=4,
    score_range=(-1.0, 0.0),
)
SIGNALS = LoggedSignals(
    reward=lambda o, a, following: -((following[..., 0] - o[..., 1]) ** 2),
    margins=lambda following: 373.15 - following[..., :1],
)
MAPPING: dict[str, Any] = {
    "plant": "kettle",
    "period_seconds": 10,
    # Interpolation by Part 13 unless a test sets causal.
    "causal": False,
    "tags": {
        "TI-1.PV": {"role": "observation", "signal": "temperature", "unit": "degC", "interpolation": "sloped"},
        "TIC-1.SP": {"role": "set_point", "signal": "setpoint", "unit": "degC", "interpolation": "stepped"},
        "TV-1.OP": {"role": "action", "signal": "valve", "unit": "%", "interpolation": "stepped"},
        "MODE": {"role": "mode", "interpolation": "stepped", "running": [1, 2]},
    },
    "episodes": {"max_gap_seconds": 15},
}
Record = list[tuple[float, float | None, Any]]


def record(**changed: Record) -> dict[str, Record]:
    """Eleven samples on the grid: 20, 21, ... 30 degC, set point 25 degC, valve 0, 1, ... 10 %."""
    tags: dict[str, Record] = {
        "TI-1.PV": [(10 * k, 20.0 + k, "Good") for k in range(11)],
        "TIC-1.SP": [(0, 25.0, "Good")],
        "TV-1.OP": [(10 * k, float(k), "Good") for k in range(11)],
        "MODE": [(0, 1.0, "Good")],
    }
    return tags | {name.replace("_", "-", 1).replace("_", "."): rows for name, rows in changed.items()}


def table(tags: dict[str, Record]) -> pl.DataFrame:
    rows = [(tag, START + round(t * SECOND), v, s) for tag, samples in tags.items() for t, v, s in samples]
    frame = pl.DataFrame(
        rows, {"tag": pl.String, "timestamp": pl.Int64, "value": pl.Float64, "status": pl.String}, orient="row"
    )
    return frame.with_columns(pl.col("timestamp").cast(pl.Datetime("ns", "UTC")))


def read(folder: Path, frame: pl.DataFrame | None = None, **changed: Any) -> HistorianLog:
    path = folder / "export.parquet"
    (table(record()) if frame is None else frame).write_parquet(path)
    return read_historian(path, HistorianMapping.model_validate(MAPPING | changed), SPEC, SIGNALS)


def kept(log: HistorianLog) -> list[int]:
    return log.rows["numbers"].tolist()


def test_rows_by_hand(tmp_path: Path) -> None:
    log = read(tmp_path)
    rows = log.rows
    temperature = 20.0 + np.arange(11) + 273.15
    np.testing.assert_allclose(rows["observations"], np.stack([temperature[:10], np.full(10, 298.15)], 1), rtol=1e-6)
    np.testing.assert_allclose(rows["next_observations"][:, 0], temperature[1:], rtol=1e-6)
    np.testing.assert_allclose(rows["actions"][:, 0], np.arange(10) / 100, rtol=1e-6)
    # -(T' - SP)^2: 21 - 25 = -4 -> -16, ..., 30 - 25 = 5 -> -25.
    np.testing.assert_allclose(rows["rewards"], [-16, -9, -4, -1, 0, -1, -4, -9, -16, -25], atol=2e-3)
    assert rows["timestamps"].tolist() == [START + 10 * k * SECOND for k in range(10)]
    assert not rows["terminals"].any()
    # Episodes of at most 4 steps; the end of the log cuts the last.
    assert np.flatnonzero(rows["timeouts"]).tolist() == [3, 7, 9]
    assert (rows["constraint_costs"] == 0).all()
    assert (rows["costs"] == 0).all()


def test_samples_off_the_grid_and_late_commands(tmp_path: Path) -> None:
    late: Record = [(10 * k + (0 if k == 0 else 1.5), float(k), "Good") for k in range(11)]
    early: Record = [(max(10 * k - 0.5, 0), 20.0 + max(k - 0.05, 0), "Good") for k in range(12)]
    log = read(tmp_path, table(record(TI_1_PV=early, TV_1_OP=late)))
    np.testing.assert_allclose(log.rows["observations"][:, 0], 293.15 + np.arange(11)[: len(kept(log))], atol=1e-9)
    np.testing.assert_allclose(log.rows["actions"][:9, 0], np.arange(9) / 100)


def test_the_grid_may_be_given(tmp_path: Path) -> None:
    log = read(tmp_path, origin="2023-11-14T22:13:25Z")  # START + 5 s
    assert log.rows["timestamps"][0] == START + 5 * SECOND
    np.testing.assert_allclose(log.rows["observations"][:2, 0], [293.65, 294.65])


@pytest.mark.parametrize("machine", ["UTC", "Asia/Kolkata"])
def test_times_without_zone_use_the_clocks_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setenv("TZ", machine)
    time.tzset()
    try:
        # 23:13:20 in Berlin's winter is 22:13:20 UTC, the log's begin. An hour is not a multiple of 7 s.
        log = read(tmp_path, origin="2023-11-14T23:13:20", clock={"zone": "Europe/Berlin"}, period_seconds=7)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert log.rows["timestamps"][:2].tolist() == [START, START + 7 * SECOND]


def test_a_gap_cuts_and_never_terminates(tmp_path: Path) -> None:
    holes: Record = [(10 * k, 20.0 + k, "Good") for k in range(11) if k not in (4, 5)]
    log = read(tmp_path, table(record(TI_1_PV=holes)))
    # 40 s and 50 s are between samples 30 s apart: steps that begin or end there are missing.
    assert kept(log) == [0, 1, 2, 6, 7, 8, 9]
    assert log.rows["numbers"][log.rows["timeouts"]].tolist() == [2, 9]
    assert not log.rows["terminals"].any()
    assert log.account.gap == 3


def test_a_missed_scan_is_bridged(tmp_path: Path) -> None:
    holes: Record = [(10 * k, 20.0 + k, "Good") for k in range(11) if k != 4]
    log = read(tmp_path, table(record(TI_1_PV=holes)), episodes={"max_gap_seconds": 20})
    assert kept(log) == list(range(10))
    np.testing.assert_allclose(log.rows["observations"][4, 0], 297.15)


def test_long_bad_quality_is_rejected(tmp_path: Path) -> None:
    bad: Record = [(10 * k, 20.0 + k, 0x808A0000 if k in (4, 5) else 0) for k in range(11)]
    log = read(tmp_path, table(record(TI_1_PV=[(t, v, str(s)) for t, v, s in bad])))
    assert kept(log) == list(range(10))
    assert log.rows["numbers"][log.rows["rejected"] != ""].tolist() == [3, 4, 5]
    assert log.rows["rejected"][4] == "TI-1.PV had no usable value for more than 15 s"
    assert log.account.samples["TI-1.PV"] == SampleCounts(good=9, uncertain=0, bad=2)
    blip: Record = [(5 * k, 20.0 + k / 2, "Bad_SensorFailure" if k == 8 else "Good") for k in range(21)]
    log = read(tmp_path, table(record(TI_1_PV=blip)))
    assert (log.rows["rejected"] == "").all()
    np.testing.assert_allclose(log.rows["observations"][4, 0], 297.15)


def test_bad_set_points_are_held_for_a_limited_time(tmp_path: Path) -> None:
    log = read(tmp_path, table(record(TIC_1_SP=[(0, 25.0, "Good"), (30, None, "Bad"), (80, 26.0, "Good")])))
    # Held for 15 s after it turned bad at 30 s: good at 30 and 40 s, rejected for steps that need 50, 60 or 70 s.
    assert log.rows["numbers"][log.rows["rejected"] != ""].tolist() == [4, 5, 6, 7]


def test_uncertain_values_count_by_default(tmp_path: Path) -> None:
    doubtful: Record = [(10 * k, 20.0 + k, "Uncertain" if k in (4, 5) else "Good") for k in range(11)]
    frame = table(record(TI_1_PV=doubtful))
    assert (read(tmp_path, frame).rows["rejected"] == "").all()
    assert (read(tmp_path, frame, treat_uncertain_as_bad=True).rows["rejected"] != "").sum() == 3


def test_mode_changes_cut_episodes(tmp_path: Path) -> None:
    log = read(
        tmp_path, table(record(MODE=[(0, 1.0, "Good"), (15, 2.0, "Good"), (40, 0.0, "Good"), (70, 1.0, "Good")]))
    )
    # At 15 s the mode changes from automatic to manual, both running: the episode ends, the step stays. At 40 s the
    # plant stops.
    assert kept(log) == [0, 1, 2, 7, 8, 9]
    assert log.rows["numbers"][log.rows["timeouts"]].tolist() == [1, 2, 9]
    assert not log.rows["terminals"].any()
    assert log.account.not_running == 4


def test_trips_terminate_episodes(tmp_path: Path) -> None:
    hot: Record = [(10 * k, 20.0 + k if k not in (5, 6) else 101.0, "Good") for k in range(11)]
    log = read(tmp_path, table(record(TI_1_PV=hot, MODE=[(0, 1.0, "Good"), (48, 0.0, "Good"), (70, 1.0, "Good")])))
    assert kept(log) == [0, 1, 2, 3, 4, 7, 8, 9]
    assert log.rows["numbers"][log.rows["terminals"]].tolist() == [4]
    assert log.rows["numbers"][log.rows["timeouts"]].tolist() == [3, 9]
    assert log.account.trips == 1
    rows = log.rows
    np.testing.assert_allclose(rows["constraint_costs"][4], [101.0 + 273.15 - 373.15], rtol=1e-4)
    assert rows["costs"].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]


def test_steps_that_begin_outside_the_limits_are_left_out(tmp_path: Path) -> None:
    hot: Record = [(10 * k, 20.0 + k if k not in (5, 6) else 101.0, "Good") for k in range(11)]
    log = read(tmp_path, table(record(TI_1_PV=hot)))
    assert kept(log) == [0, 1, 2, 3, 4, 7, 8, 9]
    assert log.account.outside_limits == 2


def test_every_step_is_accounted_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noisy: Record = [
        (10.0 * k, 20.0 + rng.uniform(0, 100), str(rng.choice(["Good", "Good", "Good", "Uncertain", "Bad"])))
        for k in range(500)
        if rng.random() > 0.1
    ]
    modes: Record = [(20.0 * k, float(rng.integers(3)), "Good") for k in range(250)]
    log = read(tmp_path, table(record(TI_1_PV=noisy, MODE=modes)))
    outcomes = ("rows", "rejected", "gap", "not_running", "outside_limits")
    assert all(getattr(log.account, outcome) > 0 for outcome in outcomes)
    assert sum(getattr(log.account, outcome) for outcome in outcomes) == log.account.steps
    ends = log.rows["terminals"] | log.rows["timeouts"]
    # An episode ends wherever kept steps are not consecutive; none is longer than the horizon.
    assert ends[:-1][np.diff(log.rows["numbers"]) > 1].all()
    assert np.diff(np.flatnonzero(ends)).max() <= SPEC.horizon


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "points"), [(1, 1), (7, 5)])
def test_small_blocks_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, points: int, causal: bool
) -> None:
    rng = np.random.default_rng(1)
    # Long stretches of one status, so that a tag stays Bad over many chunks; every seventh row is duplicated.
    grades = np.repeat(rng.choice(["Good", "Good", "Uncertain", "Bad"], 40), 5)
    noisy: Record = [
        (10.0 * k + float(rng.uniform(0, 3)), 20.0 + rng.uniform(0, 90), str(grades[k]))
        for k in range(200)
        if rng.random() > 0.1
    ]
    noisy += [(t, v + (i % 2), "Good") for i, (t, v, _) in enumerate(noisy) if i % 7 == 0 and v is not None]
    noisy += [(t, v, "Good") for i, (t, v, _) in enumerate(noisy[:150]) if i % 14 == 0]
    held: Record = [(100.0 * k, 25.0, "Bad" if k % 4 == 2 else "Good") for k in range(20)]
    modes: Record = [(200.0 * k, float(k % 3), "Good") for k in range(10)]
    valve: Record = [(10.0 * k, float(k % 50), "Good") for k in range(200)]
    frame = table(record(TI_1_PV=noisy, TIC_1_SP=held, MODE=modes, TV_1_OP=valve)).sort(
        "timestamp", maintain_order=True
    )
    how: dict[str, Any] = {"causal": causal, "clock": {"late_seconds": 0}, "episodes": {"max_gap_seconds": 25}}
    whole = read(tmp_path, frame, **how)
    assert whole.account.raw.in_order_of_time
    assert (
        min(getattr(whole.account, outcome) for outcome in ("rows", "rejected", "gap", "not_running", "outside_limits"))
        > 0
    )
    assert "contradicts another row of the same time" in whole.account.raw.reasons
    monkeypatch.setattr(historian, "CHUNK_ROWS", rows)
    monkeypatch.setattr(tag_history, "PORTION_ROWS", max(rows // 2, 1))
    monkeypatch.setattr(transitions, "SETTLE_ROWS", rows)
    monkeypatch.setattr(transitions, "GRID_POINTS", points)
    assert_same(read(tmp_path, frame, **how), whole)


def test_formats_and_status_spellings_give_the_same_rows(tmp_path: Path) -> None:
    frame = table(record())
    parquet = read(tmp_path, frame)
    codes = frame.with_columns(pl.lit(0, pl.UInt32).alias("status"))
    assert_same(read(tmp_path, codes), parquet)
    naive = frame.with_columns(pl.col("timestamp").dt.replace_time_zone(None).cast(pl.Datetime("ms")))
    assert_same(read(tmp_path, naive), parquet)
    for form in ("%Y-%m-%dT%H:%M:%S%.3fZ", "%Y-%m-%d %H:%M:%S"):
        frame.write_csv(tmp_path / "export.csv", datetime_format=form)
        mapping = HistorianMapping.model_validate(MAPPING)
        assert_same(read_historian(tmp_path / "export.csv", mapping, SPEC, SIGNALS), parquet)


def assert_same(one: HistorianLog, other: HistorianLog) -> None:
    assert one.account == other.account
    for key, values in one.rows.items():
        np.testing.assert_array_equal(values, other.rows[key])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda f: f.filter(pl.col("tag") != "TV-1.OP"),
            r"tag 'TV-1\.OP' of the mapping is not in export\.parquet",
        ),
        (lambda f: f.with_columns(pl.col("tag").replace("TV-1.OP", "TV-1.OUT")), r"did you mean 'TV-1\.OUT'\?"),
        (lambda f: f.with_columns(pl.col("tag").replace("MODE", "XMODE")), "tag 'MODE' of the mapping is not in"),
        (
            lambda f: pl.concat([f, f[:1].with_columns(tag=pl.lit("FI-9.PV"))]),
            r"tags that the mapping lacks: 'FI-9\.PV': add each tag to 'tags'",
        ),
        (lambda f: f[:0], "has no rows"),
        (lambda f: f.drop("status"), "has no column 'status'"),
        (lambda f: f.with_columns(status=pl.lit("fine")), "'fine' in export.parquet is neither Good"),
        (lambda f: f.with_columns(status=pl.lit("-1")), "'-1' in export.parquet is neither Good"),
        (lambda f: f.with_columns(timestamp=pl.lit("31.12.2026 10:00")), "export ISO 8601"),
        (lambda f: f.with_columns(timestamp=pl.lit("2026-99-99T10:00:00")), "2026-99-99|appropriate format"),
        (lambda f: f.with_columns(timestamp=pl.lit(None, pl.Datetime("ns"))), "has no readable timestamps"),
        (lambda f: f.filter(pl.col("timestamp") == pl.col("timestamp").min()), "is shorter than one control step"),
    ],
)
def test_invalid_exports_are_refused(tmp_path: Path, spoil: Any, message: str) -> None:
    frame = spoil(table(record()))
    with pytest.raises(BadInput, match=message) as error:
        read(tmp_path, frame)
    assert "\n" not in str(error.value)


def test_missing_and_damaged_exports_are_refused(tmp_path: Path) -> None:
    frame = table(record())
    extra = pl.concat([frame, frame[:1].with_columns(tag=pl.lit("FI-9.PV"))])
    assert kept(read(tmp_path, extra, ignore=["FI-9.PV"])) == list(range(10))
    mapping = HistorianMapping.model_validate(MAPPING)
    with pytest.raises(BadInput, match="give the path of a historian export"):
        Export.open(tmp_path / "none.parquet", mapping)
    path = tmp_path / "export.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match="is not a readable Parquet or CSV table") as error:
        Export.open(path, mapping)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tag", "changed", "message"),
    [
        ("TI-1.PV", {"unit": None}, "has no 'unit'"),
        ("TI-1.PV", {"signal": None}, "needs 'signal'"),
        ("TI-1.PV", {"running": [1]}, "cannot have 'running', only role mode can"),
        ("MODE", {"running": []}, "role mode needs 'running'"),
        ("MODE", {"interpolation": "sloped"}, "role mode must be stepped"),
    ],
)
def test_incomplete_mappings_are_refused(tag: str, changed: dict[str, Any], message: str) -> None:
    tags = MAPPING["tags"]
    with pytest.raises(ValueError, match=message):
        HistorianMapping.model_validate(MAPPING | {"tags": tags | {tag: tags[tag] | changed}})


@pytest.mark.parametrize(
    ("tag", "changed", "message"),
    [
        ("TI-1.PV", {"unit": "baar"}, r"tag TI-1\.PV: 'baar' is no unit such as degC"),
        ("TI-1.PV", {"unit": "bar"}, r"tag TI-1\.PV: 'bar' is a unit of pressure"),
        ("TI-1.PV", {"unit": "dBm"}, "a unit of power"),
        ("TI-1.PV", {"unit": "mol/L"}, "a unit of concentration"),
        ("TI-1.PV", {"signal": "pressure"}, "unknown signal 'pressure': choose from temperature, setpoint"),
        (
            "TIC-1.SP",
            {"signal": "temperature"},
            r"signal 'temperature' has 2 \(TI-1\.PV, TIC-1\.SP\) tags of role",
        ),
    ],
)
def test_mappings_that_do_not_fit_the_plant_are_refused(
    tmp_path: Path, tag: str, changed: dict[str, Any], message: str
) -> None:
    tags = MAPPING["tags"]
    with pytest.raises(BadInput, match=message):
        read(tmp_path, tags=tags | {tag: tags[tag] | changed})


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text(REACTOR.read_text().replace("unit: degC, interpolation: sloped", "interpolation: sloped"))
    with pytest.raises(BadInput, match=r"mapping\.yaml, line \d+: signal temperature has no 'unit'"):
        load_yaml(path, HistorianMapping)


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_the_truth_of_a_generated_log_is_recovered(tmp_path: Path, file_format: Any) -> None:
    # Compare with the generator's truth at every control instant, which the export does not contain.
    made = generate("chemical_reactor", tmp_path, seed=3, weeks=0.15, file_format=file_format)
    spec, logged = PLANTS["chemical_reactor"].spec, LOGGED["chemical_reactor"]
    log = read_historian(made.path, load_yaml(REACTOR, HistorianMapping), spec, logged)
    truth = np.load(made.truth, allow_pickle=False)
    sound = log.rows["rejected"] == ""
    at = np.searchsorted(truth["timestamps"], log.rows["timestamps"][sound])
    np.testing.assert_array_equal(truth["timestamps"][at], log.rows["timestamps"][sound])
    assert len(at) > 0.9 * made.steps
    assert set(truth["mode"][at]) == {1, 2}
    error = log.rows["observations"][sound] - truth["observations"][at]
    # A sample up to 0.25 s of 26 s off the grid mixes in 1 % of a neighbour. Single missing samples are interpolated,
    # up to the noise of 0.1 K and the reactor's change in a step. The coolant has a deadband of 0.01 K.
    assert np.sqrt((error**2).mean(axis=0))[0] < 1e-4
    assert np.sqrt((error**2).mean(axis=0))[1] < 0.02
    assert np.abs(error[:, 1]).max() < 1.0
    assert np.abs(error[:, 2]).max() < 0.0101
    assert np.abs(error[:, 3]).max() < 1e-7  # the truth is in single precision
    np.testing.assert_allclose(log.rows["actions"][sound], truth["actions"][at], atol=1e-9)
    following = log.rows["next_observations"][sound] - truth["observations"][at + 1]
    assert np.sqrt((following**2).mean(axis=0))[1] < 0.02
