"""Validation: refusals, warnings, and Data Docs that work offline."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

from configs.home import Home
from configs.run import OpenedRun
from neorl_core.plants import PLANTS
from neorl_core.types import Clock, PlantSpec
from tasks.data.store.expectations import check_episode_table
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Provenance
from tasks.data.store.row_checks import find_failures
from tasks.data.store.schema import Rows
from tasks.data.store.statistics import stability_index, summarise
from tasks.data.store.writer import DatasetWriter
from tasks.references import Dataset, DriftReference
from tasks.validate import dataset_checks, validate

SPEC = PLANTS["double_mass"].spec
RUN = OpenedRun.model_validate({"plant": "double_mass"})


def make_rows(lengths: list[int], seed: int = 0) -> Rows:
    """Random windows within the plant's bounds, each cut by time."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    states = rng.uniform(-1, 1, size=(n + 1, 6)).astype(np.float32)
    ends = np.zeros(n, bool)
    ends[np.cumsum(lengths) - 1] = True
    return {
        "observations": states[:-1],
        "actions": rng.uniform(-1, 1, size=(n, 2)).astype(np.float32),
        "rewards": rng.normal(size=n).astype(np.float32),
        "next_observations": states[1:],
        "costs": np.zeros(n, np.float32),
        "terminals": np.zeros(n, bool),
        "timeouts": ends,
        "constraint_costs": np.zeros((n, len(SPEC.constraints)), np.float32),
    }


def write(root: Path, rows: Rows) -> Dataset:
    with DatasetWriter(root, SPEC, shard_bytes=4000) as writer:
        writer.append(rows)
        digest = writer.commit(Provenance(format="test"))
    held = StoredDataset.open(root, digest)
    shards = tuple(map(held.shard_path, held.manifest.shards))
    counts = {"rows": held.rows, "episodes": len(held.episodes) - 1}
    return Dataset(digest=digest, plant="double_mass", store=root, manifest=held.manifest_path, shards=shards, **counts)


def opened(reference: Dataset) -> StoredDataset:
    return StoredDataset.open(reference.store, reference.digest)


def refusals(
    tmp_path: Path, rows: Rows, older: Rows | None = None, spec: PlantSpec = SPEC
) -> tuple[list[str], list[str]]:
    """Return refusals and warnings of `dataset_checks`, without Great Expectations."""
    store = opened(write(tmp_path / "new", rows))
    before = summarise(opened(write(tmp_path / "old", older)), SPEC) if older else None
    summary = summarise(store, spec)
    table, checks = dataset_checks(summary, before, spec, *(len(side) for side in store.split()))
    failed = []
    for check in checks:
        values = np.atleast_1d(table[check.column] if check.table == "dataset" else summary.episodes[check.column])
        values = np.median(values, keepdims=True) if check.of == "median" else values
        low, high = (edge if edge is not None else np.nan for edge in (check.low, check.high))
        if (values < low).any() or (values > high).any():
            failed.append(check)
    return [c.reason for c in failed if c.refuses], [c.reason for c in failed if not c.refuses]


@pytest.mark.slow
def test_sound_drifted_and_refused_datasets_have_offline_docs(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    sound = write(tmp_path / "data", make_rows([20] * 30))
    seen: list[tuple[int, int, str]] = []
    passed = validate(home, RUN, sound, progress=lambda done, total, unit: seen.append((done, total, unit)))
    assert passed.passed, passed
    assert passed.reasons == passed.warnings == ()
    assert seen[-1] == (600, 600, "rows")
    assert json.loads(passed.summary.read_text())["table"]["episodes"] == 30

    moved = make_rows([20] * 30, seed=1)
    moved["observations"][:, 0] *= 0.1
    moved["observations"][:, 0] += 1.0
    drifted = validate(home, RUN, write(tmp_path / "data", moved), earlier=DriftReference(dataset=sound))
    # Drift only warns; next_observations are compared at ingest.
    assert drifted.passed
    assert any("mean of observation position_1" in warning for warning in drifted.warnings)
    assert any("distribution of observation position_1 differs" in warning for warning in drifted.warnings)

    still = make_rows([20] * 30, seed=2)
    still["actions"][:, 1] = 0.25
    still["actions"][5, 0] = np.nan
    refused = validate(home, RUN, write(tmp_path / "data", still))
    assert not refused.passed
    assert any("constant actions do not show their effect" in reason for reason in refused.reasons)
    assert any("actions.force_1 is not finite" in reason for reason in refused.reasons)

    for result, words in (
        (passed, "passed"),
        (drifted, "Warnings"),
        (refused, "constant actions do not show their effect"),
    ):
        index = result.data_docs
        assert words in index.read_text()
        pages = list(index.parent.rglob("*.html"))
        assert pages == [index]
        text = index.read_text()
        assert not re.search(r"""(src|href)\s*=|@import|url\(\s*['"]?http""", text)
        assert "<script" not in text
        # Rows without timestamps are counted in order; datasets with NaN have no pictures.
        for title in ("Used and lost rows over time", "Histograms of signals"):
            assert (title in text) is (result is not refused)
        # Random rows do not respond to actions.
        assert "Responses of signals to actions" not in text
    # Validating again replaces the pages.
    assert validate(home, RUN, sound) == passed
    assert [p.name for p in passed.data_docs.parent.parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(("episodes", "side"), [(1, "held-out"), (2, "held-out"), (3, "held-out")])
def test_too_few_episodes_are_refused(tmp_path: Path, episodes: int, side: str) -> None:
    reasons, _ = refusals(tmp_path, make_rows([20] * episodes))
    assert any(f"at least 2 {side} episodes are needed, got" in reason for reason in reasons)


def test_constant_and_narrow_actions(tmp_path: Path) -> None:
    rows = make_rows([20] * 30)
    rows["actions"][:, 0] = -0.5
    rows["actions"][:, 1] *= 0.05
    reasons, warnings = refusals(tmp_path, rows)
    assert len(reasons) == 1
    assert "deviation of action force_1 is 0.00% of the range, at least 0.1%" in reasons[0]
    assert any("action force_2 covers 4" in warning for warning in warnings)


def test_dead_sensor_and_violations_warn(tmp_path: Path) -> None:
    rows = make_rows([20] * 30)
    rows["observations"][:, 3] = 0.125
    rows["costs"][:60] = 1
    reasons, warnings = refusals(tmp_path, rows)
    assert not reasons
    assert any("observation velocity_2 is constant at 0.125" in warning for warning in warnings)
    assert any("10.0% of rows violate a limit" in warning for warning in warnings)


def test_signals_in_small_units_are_not_dead_sensors(tmp_path: Path) -> None:
    rows = make_rows([20] * 30)
    rows["observations"][:, 3] = 3e-12 + 1e-13 * rows["observations"][:, 3]
    # Two actions without a range: one in m3/s, one constant.
    unbounded = SPEC._replace(action=SPEC.action._replace(low=(-np.inf,) * 2, high=(np.inf,) * 2))
    rows["actions"] = rows["actions"] * np.asarray([2e-9, 0.0], np.float32)
    (reason,), warnings = refusals(tmp_path, rows, spec=unbounded)
    assert "the standard deviation of action force_2 is 0.00%" in reason
    assert not any("is constant" in warning for warning in warnings)


def test_values_out_of_range_and_windows_of_one_step_are_refused(tmp_path: Path) -> None:
    rows = make_rows([1] * 60)
    rows["actions"][7, 1] = 1.5
    reasons, _ = refusals(tmp_path, rows)
    assert any("action force_2 must be within -1..1, got 1.5" in reason for reason in reasons)
    assert any("median episode has 1 steps" in reason for reason in reasons)


@pytest.mark.parametrize(("low", "high", "edge"), [(3.8, np.inf, 3.8), (-np.inf, 99.9, 99.9), (0.1, 1.0, 0.091)])
def test_value_on_its_bound_passes_both_checks(tmp_path: Path, low: float, high: float, edge: float) -> None:
    """In single precision 3.8 and 0.091 round down and 99.9 rounds up; 0.091 is 0.1 minus 1 % of 0.9."""
    spec = SPEC._replace(observation=SPEC.observation._replace(low=(low,) * 6, high=(high,) * 6))
    kept = np.float32(edge)
    assert float(kept) < edge if np.isfinite(low) else float(kept) > edge
    rows = make_rows([20] * 30)
    inwards = 1.0 if np.isfinite(low) else -1.0
    rows["observations"] = (kept + inwards * np.abs(rows["observations"]) / 2).astype(np.float32)
    rows["observations"][7, 2] = kept
    rows["next_observations"] = np.append(rows["observations"][1:], rows["observations"][:1], axis=0)
    assert set(find_failures(rows, spec)) == {""}
    assert refusals(tmp_path / "on", rows, spec=spec)[0] == []
    # The next float outwards fails both checks.
    rows["observations"] = rows["observations"].copy()
    rows["observations"][7, 2] = np.nextafter(kept, np.float32(-inwards * np.inf))
    assert find_failures(rows, spec)[7] == f"observations.velocity_1 is outside {low:g}..{high:g}"
    (reason,) = refusals(tmp_path / "beyond", rows, spec=spec)[0]
    assert reason.startswith(f"observation velocity_1 must be within {low:g}..{high:g}")


def test_same_data_has_no_drift(tmp_path: Path) -> None:
    rows = make_rows([20] * 30)
    assert refusals(tmp_path, rows, rows) == ([], [])


def test_summaries_agree_with_numpy_for_any_block_size(tmp_path: Path) -> None:
    # Source: NumPy on each episode's own slice. Blocks of 7 rows cut episodes and carry their last row over.
    lengths = [5, 20, 1, 13, 40]
    rows = make_rows(lengths)
    rows["observations"] += np.float32(1e4)
    rows["actions"][::4, 0] = 1.0
    store = opened(write(tmp_path, rows))
    summary = summarise(store, SPEC, block_rows=7)
    bounds = np.cumsum([0, *lengths])
    for e, (start, stop) in enumerate(itertools.pairwise(bounds)):
        x: npt.NDArray[Any] = rows["observations"][start:stop, 2].astype(float)
        a: npt.NDArray[Any] = rows["actions"][start:stop, 0].astype(float)
        column = {name: values[e] for name, values in summary.episodes.items()}
        assert column["length"] == stop - start
        np.testing.assert_allclose(column["return"], rows["rewards"][start:stop].astype(float).sum())
        np.testing.assert_allclose(column["observation velocity_1 mean"], x.mean())
        np.testing.assert_allclose(column["observation velocity_1 deviation"], x.std(), atol=1e-9)
        assert column["observation velocity_1 min"] == x.min()
        assert column["observation velocity_1 max"] == x.max()
        assert column["action force_1 at bounds"] == (np.abs(a) >= 0.998).mean()
        expected = np.abs(np.diff(a)).mean() if len(a) > 1 else 0.0
        np.testing.assert_allclose(column["action force_1 change"], expected)
    signal = summary.signals["action force_1"]
    actions = rows["actions"][:, 0].astype(float)
    np.testing.assert_allclose([signal.mean, signal.deviation], [actions.mean(), actions.std()])
    assert signal.distinct == len(np.unique(actions))
    # All rows are far outside the bounds; the first faulty signal names the fault.
    assert summary.faults == {"observations.position_1 is outside -5..5": sum(lengths)}


def test_contradictory_flags_are_faults(tmp_path: Path) -> None:
    rows = make_rows([10, 10, 10])
    rows["terminals"][9] = True
    assert summarise(opened(write(tmp_path, rows)), SPEC).faults["a row is both terminal and timeout"] == 1


def test_episodes_that_contradict_flags_are_faults(tmp_path: Path) -> None:
    """The shard is altered after the check of its digest."""
    dataset = write(tmp_path, make_rows([10, 10, 10]))
    checked = opened(dataset)
    with h5py.File(dataset.shards[0], "r+") as shard:
        assert len(shard["timeouts"]) == 30
        shard["timeouts"][9] = False
        shard["timeouts"][14] = True
    assert summarise(checked, SPEC).faults == {"episodes do not end where terminals and timeouts say": 2}


def test_stability_index() -> None:
    # Worked by hand: deciles of 0..99; the new data lie in the lowest half, so that p = (.2 x 5, 0 x 5), q = .1 each,
    # and an empty bin of 100 values counts as .005: 5 (.1 ln 2) + 5 (-.095 ln .05).
    old = np.arange(100.0)
    assert stability_index(old, old) == 0
    expected = 5 * 0.1 * np.log(2) + 5 * -0.095 * np.log(0.05)
    np.testing.assert_allclose(stability_index(np.repeat(np.arange(50.0), 2), old), expected)


def test_clock_that_ends_elsewhere_or_never_warns(tmp_path: Path) -> None:
    name = SPEC.observation.names[0]
    spec, rows = SPEC._replace(clock=Clock(name, 5.0)), make_rows([20] * 30)

    def warnings(place: str) -> list[str]:
        return [line for line in refusals(tmp_path / place, rows, spec=spec)[1] if f"{name} reaches its end 5" in line]

    assert ["in no episode" in line for line in warnings("never")] == [True]
    rows["next_observations"] = rows["next_observations"].copy()
    rows["next_observations"][19::20, 0] = 5.0
    assert warnings("last") == []
    rows["next_observations"] = rows["next_observations"].copy()
    rows["next_observations"][[3, 7], 0] = 5.0
    assert ["within an episode 2 times" in line for line in warnings("others")] == [True]


def test_table_of_episodes_has_a_schema(tmp_path: Path) -> None:
    table = summarise(opened(write(tmp_path, make_rows([5, 6, 7]))), SPEC).episodes
    assert check_episode_table(table) == []
    returns = table["return"].copy()
    returns[1] = np.inf
    assert "is finite" in check_episode_table(table | {"return": returns})[0]
    assert "field_uniqueness" in check_episode_table(table | {"episode": np.array([0, 0, 1])})[0]
    swapped = table | {"action force_1 min": table["action force_1 max"] + 1}
    assert "action force_1 must have min <= mean <= max, got" in check_episode_table(swapped)[0]


def test_split_of_few_episodes_leaves_two_per_side(tmp_path: Path) -> None:
    for seed, episodes in enumerate([10] * 8 + [9, 6, 5, 4]):
        held = opened(write(tmp_path / f"s{seed}", make_rows([4] * episodes, seed=seed)))
        train, out = held.split()
        assert min(len(train), len(out)) >= 2, (seed, len(train), len(out))
        assert sorted([*train, *out]) == list(range(episodes))
    assert [len(side) for side in opened(write(tmp_path / "two", make_rows([4] * 2))).split()] == [1, 1]
    assert [len(side) for side in opened(write(tmp_path / "one", make_rows([4]))).split()] != [0, 0]
