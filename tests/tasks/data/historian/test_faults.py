"""Injected faults are found row by row, and the true signals are recovered between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from configs.mapping import HistorianMapping
from configs.process import described_spec
from tasks.data.historian import export as historian
from tasks.data.historian import tag_history, transitions
from tasks.data.historian.raw_rows import RawQuarantine
from tasks.files.canonical import file_sha256
from tests.tasks.data.historian.fault_log import (
    CURVATURE,
    DEADBAND,
    LATE_SECONDS,
    REASONS,
    SCAN,
    SLOPE,
    START_NS,
    clean_rows,
    truth,
    write_faulty,
)
from tests.tasks.data.historian.whole import HistorianLog, read_historian

MAPPING: dict[str, Any] = {
    "process": {"name": "vessel", "horizon": 200},
    "period_seconds": 10,
    "causal": False,
    "clock": {"late_seconds": LATE_SECONDS},
    "tags": {
        "TI-1": {
            "role": "observation",
            "signal": "temperature",
            "unit": "degC",
            "to_unit": "K",
            "interpolation": "sloped",
            "range": [0, 100],
            "limits": [None, 69],
        },
        "LI-2": {
            "role": "observation",
            "signal": "level",
            "unit": "m",
            "interpolation": "sloped",
            "stale_seconds": 400,
            "range": [0, 5],
        },
        "FV-3": {"role": "action", "signal": "valve", "unit": "%", "to_unit": "1", "interpolation": "stepped"},
        "MODE": {"role": "mode", "interpolation": "stepped", "running": [1]},
    },
    "reward": {"expression": "-abs(next.level - quantity(2, 'm')) / quantity(1, 'm') - 0.1 * valve", "unit": "1"},
    "episodes": {"max_gap_seconds": 30},
}


def read(path: Path, quarantine: RawQuarantine, **changed: Any) -> HistorianLog:
    mapping = HistorianMapping.model_validate(MAPPING | changed)
    return read_historian(path, mapping, described_spec(mapping), None, quarantine)


@pytest.mark.parametrize(("file_format", "files"), [("parquet", 1), ("csv", 1), ("parquet", 4)])
def test_every_fault_is_found(tmp_path: Path, file_format: Any, files: int) -> None:
    made = write_faulty(tmp_path, seed=5, hours=6, each=16, files=files, file_format=file_format)
    quarantine = RawQuarantine()
    log = read(made.path, quarantine)
    folder = made.path if files > 1 else made.path.parent
    digests = {path.name: file_sha256(path)[:16] for path in folder.iterdir()}
    expected = {(digests[fault.file], fault.row): fault for fault in made.faults}
    found = {(row["file"], row["row"]): row for row in quarantine.table().to_dicts()}
    assert len(found) == quarantine.count == len(expected)
    assert set(found) == set(expected)
    for key, fault in expected.items():
        assert found[key]["reason"].startswith(REASONS[fault.fault]), (fault, found[key])
        assert found[key]["tag"] == fault.tag
    assert {fault.fault for fault in made.faults} >= set(REASONS) - {"timeless", "garbled"}
    raw = log.account.raw
    assert (raw.rows, raw.rejected, raw.put_in_place) == (made.rows, len(expected), raw.put_in_place)
    assert raw.put_in_place >= made.displaced > 0
    # The original text is kept.
    assert {row["text"] for row in found.values() if row["reason"].startswith("digital")} <= {
        "I/O Timeout",
        "Bad Input",
        "No Data",
    }


@pytest.mark.parametrize("causal", [False, True])
def test_true_signals_are_recovered_within_sampling_error(tmp_path: Path, causal: bool) -> None:
    made = write_faulty(tmp_path, seed=6, hours=6, each=16)
    log = read(made.path, RawQuarantine(), causal=causal)
    sound = log.rows["rejected"] == ""
    seconds = (log.rows["timestamps"][sound] - START_NS) / 1e9
    assert len(seconds) > 0.8 * 6 * 360  # a seventh of the time the temperature is beyond its limit
    observed = log.rows["observations"][sound]
    for i, (tag, offset) in enumerate((("TI-1", 273.15), ("LI-2", 0.0))):
        error = np.abs(observed[:, i] - offset - truth(tag, seconds))
        archived = made.archived[tag]
        after = np.clip(np.searchsorted(archived, seconds, side="right"), 1, len(archived) - 1)
        width = archived[after] - archived[after - 1]
        slope = {"TI-1": 10 * 2 * np.pi / 1800, "LI-2": SLOPE["LI-2"]}[tag]
        # The error of a held value is bounded by the signal's change since (mean value theorem).
        last = seconds >= archived[-1]
        bound = slope * (seconds - archived[after - np.where(last, 0, 1)]) + 1e-9
        if not causal:
            # Interpolation error: h^2 / 8 max |f''| (Stoer and Bulirsch, Introduction to Numerical Analysis, 2.1.4).
            # There is no interpolation after the last row.
            bound = np.where(last, bound, CURVATURE[tag] * width**2 / 8 + 1e-9)
        assert (error <= bound).all(), (tag, (error - bound).max())
        assert error.max() > 0.1 * bound.max()  # the bound must be tight
    # Deadband: between two originally consecutive rows the signal stays within the deadband of the first, and exceeds
    # it at the second by at most the change of one scan.
    clean = clean_rows(6, 6.0)["LI-2"]
    together = np.searchsorted(clean, archived[after]) - np.searchsorted(clean, archived[after - 1]) == 1
    assert together.mean() > 0.5
    assert (error[together] <= 2 * DEADBAND + SLOPE["LI-2"] * SCAN).all()
    moments = seconds + 5.0
    np.testing.assert_allclose(log.rows["actions"][sound, 0], truth("FV-3", moments) / 100, atol=1e-12)


def test_chunk_size_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_faulty(tmp_path, seed=7, hours=3, each=12)
    whole, parts = RawQuarantine(), RawQuarantine()
    log = read(made.path, whole)
    monkeypatch.setattr(historian, "CHUNK_ROWS", 257)
    monkeypatch.setattr(tag_history, "PORTION_ROWS", 100)
    monkeypatch.setattr(transitions, "SETTLE_ROWS", 300)
    again = read(made.path, parts)
    key = ["file", "row", "tag"]
    assert whole.table().sort(key).equals(parts.table().sort(key))
    assert log.account.model_dump(exclude={"raw"}) == again.account.model_dump(exclude={"raw"})
    for name, values in log.rows.items():
        np.testing.assert_array_equal(again.rows[name], values)


def test_causal_observations_use_no_later_samples(tmp_path: Path) -> None:
    made = write_faulty(tmp_path, seed=8, hours=2, each=2)
    frame = pl.read_parquet(made.path)
    moment = START_NS + 3600 * 10**9
    later = pl.col("timestamp").dt.epoch("ns") > moment
    other = frame.with_columns(value=pl.when(later & (pl.col("tag") != "MODE")).then(pl.lit("50")).otherwise("value"))
    path = tmp_path / "other.parquet"
    other.write_parquet(path)
    limits = {"late_seconds": LATE_SECONDS, "same_time": "first"}
    for causal in (True, False):
        one, two = (read(p, RawQuarantine(), causal=causal, clock=limits) for p in (made.path, path))
        until = [log.rows["timestamps"] <= moment for log in (one, two)]
        same = np.array_equal(one.rows["observations"][until[0]], two.rows["observations"][until[1]])
        # Interpolation by Part 13 uses later samples; causal resampling must not.
        assert same == causal
