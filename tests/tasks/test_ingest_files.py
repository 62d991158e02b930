"""Ingest of single files: the format is recognised, and without a known plant the rows give a spec.

A source is read as it was when it was hashed, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.mapping import HistorianMapping
from configs.run import OpenedRun
from flows.preflight import checked_run
from tasks.data.formats.exports import FORMATS, export
from tasks.data.formats.sources import SourceOptions
from tasks.data.store.episodes import read_logs
from tasks.data.store.records import IngestedSource
from tasks.data.store.row_checks import Quarantine, RowChecker
from tasks.data.store.schema import ALWAYS, NO_SUCCESSOR
from tasks.data.store.writer import DatasetWriter
from tasks.ingest import ingest, ingest_file
from tasks.models.plants.known import KnownPlant, plant_at, plant_of
from tasks.models.plants.opening import mapping_of
from tasks.sources import OpenSource, add_source, open_source, recipe_of
from tests import small_process
from tests.benchmark_files import walk, write_d4rl
from tests.small_archives import SPEC, STEPS, archive, opened, save

Added = Callable[[OpenSource, KnownPlant, HistorianMapping | None], IngestedSource]


def test_all_formats_give_the_same_dataset(tmp_path: Path, home: Path) -> None:
    source = save(tmp_path / "a.npz", archive())
    first = ingest_file(Home(home), source, SourceOptions("double_mass"))
    assert list(first.notes) == [
        "a.npz: NeoRL-2, recognised as an npz archive with obs, action, next_obs, reward, done, truncated",
        "  200 rows of 6 observations, 2 actions",
        "  episodes cut by time: from 'truncated'",
        "  costs: excess over each limit, by the formulas of double_mass",
        "  read as double_mass: names, units and limits of the plant",
    ]
    shards = opened(first).manifest.shards
    for to in FORMATS:
        out = tmp_path / f"{to}-v0"
        export(opened(first), to, out)
        again = ingest_file(Home(tmp_path / "other"), out, SourceOptions("double_mass"))
        assert again.quarantined == 0
        assert [shard.content for shard in opened(again).manifest.shards] == [s.content for s in shards], to
    view = ingest_file(Home(tmp_path / "other"), opened(first).view_path, SourceOptions("double_mass"))
    assert [shard.content for shard in opened(view).manifest.shards] == [s.content for s in shards]


def test_file_of_unknown_plant_gets_a_spec_from_its_rows(tmp_path: Path, home: Path) -> None:
    arrays = walk(100)
    path = write_d4rl(tmp_path / "Hopper-medium v2.hdf5", arrays, next_observations=None)
    reference = ingest_file(Home(home), path)
    cut = (
        int((arrays["timeouts"] & ~arrays["terminals"]).sum()) + 1
    )  # plus the last row, truncated by the end of the file
    assert (reference.plant, reference.reasons) == ("hopper_medium_v2", {NO_SUCCESSOR: cut})
    assert f"  left out: {cut} row(s), no next observation" in reference.notes
    held = opened(reference)
    assert held.keys == ALWAYS
    spec = held.spec
    assert (spec.observation.names, spec.action.low) == (("obs_0", "obs_1", "obs_2"), (-1.0,))
    used = held.arrays()["observations"]
    assert (used >= spec.observation.low).all()
    assert (used <= spec.observation.high).all()
    # Without time limits, episodes end where next observations do not continue.
    partial = write_d4rl(tmp_path / "b.hdf5", arrays, timeouts=None)
    found = opened(ingest_file(Home(home), partial))
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    np.testing.assert_array_equal(found.episodes, [0, *ends, 100])
    # The name of a plant alone is not enough.
    same = write_d4rl(tmp_path / "double_mass.hdf5", arrays)
    assert ingest_file(Home(home), same).plant == "double_mass_log"


def test_rows_of_a_plant_without_limits_pass(tmp_path: Path) -> None:
    spec = SPEC._replace(constraints=())
    checker = RowChecker(spec, Quarantine(tmp_path, spec), "source")
    path = np.random.default_rng(0).uniform(-1, 1, (31, 6)).astype(np.float32)
    rows = {
        **{"observations": path[:-1], "actions": path[1:, :2], "rewards": path[1:, 0], "next_observations": path[1:]},
        **{"terminals": np.zeros(30, bool), "timeouts": np.zeros(30, bool), "costs": np.zeros(30, np.float32)},
        "constraint_costs": np.zeros((30, 0), np.float32),
    }
    passed = [checker.push(rows), checker.flush()]
    assert [len(part["rewards"]) for part in passed if part is not None] == [28, 2]


def test_file_that_does_not_fit_is_refused(tmp_path: Path, home: Path) -> None:
    path = write_d4rl(tmp_path / "a.hdf5", walk(100))
    with pytest.raises(BadInput, match=r"double_mass has 6 observations, a\.hdf5 has 3"):
        ingest_file(Home(home), path, SourceOptions("double_mass"))
    with pytest.raises(BadInput, match="marks the ends of episodes itself, got horizon"):
        ingest_file(Home(home), save(tmp_path / "a.npz", archive()), SourceOptions(horizon=20))
    rewards = walk(100)["rewards"]
    rewards[:6] = np.nan
    with pytest.raises(Refused, match=r"6\.00% of the rows are lost \(6 of 100\), at most 5\.00% are allowed"):
        ingest_file(Home(home), write_d4rl(path, walk(100), rewards=rewards))
    assert not list(home.rglob("manifests/*"))


def test_official_files_are_read_or_refused_with_a_reason(dmsd_train: Path, home: Path) -> None:
    data = dmsd_train.parents[1]
    found = {}
    for path in sorted(data.glob("*/*")):
        try:
            found[path.name] = ingest_file(Home(home), path).rows
        except BadInput as error:
            found[path.name] = re.split(", (?!which)|:", str(error))[0]
    tables = {name: found.pop(name) for name in list(found) if name.endswith(".csv")}
    assert {"Building_1.csv", "weather.csv"} <= set(tables)
    assert tables == {name: f"{name} is a table, which needs a mapping" for name in tables}
    expected = {
        "DMSD-high-100000-train.npz": 100_000,
        "DMSD-high-20000-val.npz": 20_000,
        "trace0.npz": "trace0.npz has no rewards and next observations",
        "trace1.npz": "trace1.npz has no rewards and next observations",
    }
    assert {name: found.get(name) for name in expected} == expected


def test_grown_export_is_added_beside_the_earlier_one(tmp_path: Path, home: Path) -> None:
    """Both share the first 32 MB shard; each row counts once per source."""
    whole = archive(26_000)
    head = {key: values[: 24_000 * STEPS] for key, values in whole.items()}
    earlier, later = save(tmp_path / "week1.npz", head), save(tmp_path / "weeks12.npz", whole)
    run = OpenedRun(plant="double_mass")
    both = ingest(Home(home), run, [earlier, later])
    held = opened(both)
    names = [shard.file for shard in held.manifest.shards]
    assert (len(names), len(set(names)), len(both.shards)) == (4, 3, 3)
    assert (both.rows, both.quarantined) == (50_000 * STEPS, 0)
    held.verify()
    every = np.concatenate([head["reward"], whole["reward"]])
    np.testing.assert_array_equal(held.arrays(["rewards"])["rewards"], every)
    with h5py.File(held.view_path) as view:
        np.testing.assert_array_equal(view["rewards"][:], every)
    # An episode in both sources is on one side of the split.
    sides = np.zeros(50_000, bool)
    sides[held.split()[1]] = True
    np.testing.assert_array_equal(sides[:24_000], sides[24_000:48_000])
    assert read_logs(held, np.array([3, 24_003])).transitions.reward.tolist() == every[60:80].tolist() * 2
    assert ingest(Home(home), run, [earlier, later]) == both
    with pytest.raises(BadInput, match=r"week1\.npz and .*copy\.npz have the same content"):
        ingest(Home(home), run, [earlier, later, save(tmp_path / "copy.npz", head)])
    # The same rows in a different format are not a new source.
    np.savez_compressed(tmp_path / "packed.npz", **head)
    with pytest.raises(
        BadInput, match=r"given twice: all its rows are already in the dataset .*; give each source once"
    ):
        ingest(Home(home), run, [earlier, tmp_path / "packed.npz"])


@pytest.fixture
def added(tmp_path: Path) -> Added:
    """Function that adds a source to a dataset."""

    def add(source: OpenSource, plant: KnownPlant, mapping: HistorianMapping | None) -> IngestedSource:
        with DatasetWriter(Home(tmp_path / "home").folder("datasets", plant.spec.name), plant.spec) as writer:
            return add_source(writer, source, plant.spec, recipe_of(plant, "historian", mapping))

    return add


def memos(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "home").rglob("sources/*.json"))


def test_table_that_grows_while_read_is_refused(tmp_path: Path, added: Added) -> None:
    run = checked_run(small_process.project(tmp_path))
    plant, mapping = plant_of(run), mapping_of(run)
    log = small_process.export(tmp_path / "log.csv", 240)
    whole = log.read_text().splitlines(keepends=True)
    log.write_text("".join(whole[:200]))
    found = open_source(log, plant, mapping)
    with log.open("a") as file:
        file.writelines(whole[200:])
    with pytest.raises(BadInput, match=r"log\.csv changed while it was read: ingest a copy"):
        added(found, plant, mapping)
    assert not memos(tmp_path)
    # Once nothing writes to the file, it is accepted.
    assert added(open_source(log, plant, mapping), plant, mapping).seen == 239


def test_table_added_while_reading_is_left_for_later(tmp_path: Path, added: Added) -> None:
    run = checked_run(small_process.project(tmp_path))
    plant, mapping = plant_of(run), mapping_of(run)
    logs = tmp_path / "logs"
    logs.mkdir()
    small_process.export(logs / "january.csv", 240)
    found = open_source(logs, plant, mapping)
    small_process.export(logs / "february.csv", 120, seed=1, start="2026-02-05")
    assert added(found, plant, mapping).seen == 239
    assert open_source(logs, plant, mapping).sha256 != found.sha256


def test_archive_replaced_while_read_is_refused(tmp_path: Path, added: Added) -> None:
    plant = plant_at("double_mass")
    path = save(tmp_path / "a.npz", archive())
    found = open_source(path, plant, None)
    save(tmp_path / "b.npz", archive()).replace(path)
    with pytest.raises(BadInput, match=r"a\.npz changed while it was read: ingest a copy"):
        added(found, plant, None)
    assert not memos(tmp_path)
