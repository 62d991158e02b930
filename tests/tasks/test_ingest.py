"""Ingest end to end: idempotent by content, atomic, and complete counts of failed rows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import Data, OpenedRun
from neorl_core.plants import PLANTS
from tasks.data.store.row_checks import Quarantine, RowChecker
from tasks.data.store.schema import Rows
from tasks.data.synthetic.reactor_history import generate
from tasks.files.provenance import modules_of
from tasks.ingest import ingest, ingest_file
from tests.small_archives import SPEC, STEPS, archive, opened, save

PROJECT = Path(__file__).parents[2]
REACTOR = PROJECT / "configs" / "mappings" / "chemical_reactor.yaml"


def run(max_quarantined: float = 0.05) -> OpenedRun:
    return OpenedRun(plant="double_mass", data=Data(max_quarantined=max_quarantined))


def files(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (home / "datasets").rglob("*") if path.is_file()}


def test_sound_archive_becomes_a_dataset(tmp_path: Path, home: Path) -> None:
    arrays = archive()
    reports: list[tuple[int, int, str]] = []
    source = save(tmp_path / "a.npz", arrays)
    reference = ingest(Home(home), run(), [source], lambda *args: reports.append(args))
    held = opened(reference)
    held.verify()
    assert (reference.plant, reference.rows, reference.episodes) == ("double_mass", 200, 10)
    assert (reference.quarantined, reference.quarantine) == (0, None)
    np.testing.assert_array_equal(held.arrays()["observations"], arrays["obs"])
    assert held.manifest.spec["name"] == "double_mass"
    assert held.manifest.provenance[0].sources[0].sha256 == reference.sources[0].sha256
    assert reports == [(1, 1, "sources")]


def test_ingest_is_idempotent_by_content_and_ignores_names(tmp_path: Path, home: Path) -> None:
    arrays = archive()
    arrays["reward"][5] = np.nan
    first = ingest(Home(home), run(), [save(tmp_path / "a.npz", arrays)])
    before = files(home)
    again = ingest(Home(home), run(), [save(tmp_path / "renamed.npz", arrays)])
    assert again == first.model_copy(update={"sources": again.sources})
    assert files(home) == before
    elsewhere = ingest(Home(tmp_path / "other"), run(), [save(tmp_path / "a.npz", arrays)])
    assert elsewhere.digest == first.digest
    arrays["reward"][6] += 1
    assert ingest(Home(home), run(), [save(tmp_path / "a.npz", arrays)]).digest != first.digest


def test_second_source_appends_without_rereading_the_first(tmp_path: Path, home: Path) -> None:
    old, new = save(tmp_path / "a.npz", archive()), save(tmp_path / "b.npz", archive(seed=1))
    first = ingest(Home(home), run(), [old])
    shards = {path: path.stat().st_mtime_ns for path in home.rglob("shards/*")}
    both = ingest(Home(home), run(), [old, new])
    assert opened(both).manifest.shards[:1] == opened(first).manifest.shards
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in shards.items())
    assert (both.rows, both.episodes) == (400, 20)
    with pytest.raises(BadInput, match="have the same content"):
        ingest(Home(home), run(), [old, old])


def test_ingesting_again_repairs_damage(tmp_path: Path, home: Path) -> None:
    arrays = archive()
    arrays["reward"][5] = np.inf
    source = save(tmp_path / "a.npz", arrays)
    first = ingest(Home(home), run(), [source])
    whole = files(home)
    for path, data in whole.items():
        path.write_bytes(data[: len(data) // 2])
        assert ingest(Home(home), run(), [source]) == first
        opened(first).verify()
    assert files(home) == whole


def test_missing_files_are_written_again(tmp_path: Path, home: Path) -> None:
    arrays = archive()
    arrays["reward"][5] = np.inf
    source = save(tmp_path / "a.npz", arrays)
    first = ingest(Home(home), run(), [source])
    kinds = {path.parent.name for path in first.files()}
    assert {"manifests", "shards", "views", "cards", "quarantine"} <= kinds
    # The other files in the folder record the sources already read.
    assert {path for path in files(home) if path.parent.name != "sources"} == {p for p in first.files() if p.is_file()}
    assert first.complete
    for path in (path for path in first.files() if path.is_file()):
        data = path.read_bytes()
        path.unlink()
        assert not first.complete, path
        assert ingest(Home(home), run(), [source]) == first
        assert first.complete, path
        assert path.read_bytes() == data


def test_only_relevant_code_changes_reread_a_source() -> None:
    uses = modules_of("tasks.sources")
    store, historian = "tasks.data.store", "tasks.data.historian"
    assert {f"{store}.writer", f"{store}.row_checks", f"{historian}.transitions", f"{historian}.tag_history"} <= set(
        uses
    )
    others = {
        f"{store}.cards.card",
        f"{store}.cards.page",
        f"{store}.statistics",
        f"{store}.expectations",
        f"{store}.stream",
    }
    others |= {"tasks.references", "tasks.ingest", "tasks.validate", "tasks.stages", "configs.run"}
    assert not others & set(uses)
    assert not [name for name in uses if name.startswith(("flows.", "tasks.pictures", "tasks.training"))]


SPOILS: dict[str, tuple[str, Any]] = {
    "observations.velocity_1 is not finite": ("obs", (slice(None), 2, np.nan)),
    "actions.force_2 is not finite": ("action", (slice(None), 1, -np.inf)),
    "actions.force_1 is outside -1..1": ("action", (slice(None), 0, 1.5)),
    "next_observations.position_2 is outside -5..5": ("next_obs", (slice(None), 1, -7.0)),
    "rewards is not finite": ("reward", (None, None, np.inf)),
    "terminals is neither 0 nor 1": ("done", (None, None, 0.5)),
    "timeouts is neither 0 nor 1": ("truncated", (None, None, np.nan)),
}


@pytest.mark.parametrize("reason", SPOILS)
def test_failed_row_is_quarantined_and_splits_its_episode(tmp_path: Path, home: Path, reason: str) -> None:
    arrays = archive()
    key, (columns, column, value) = SPOILS[reason]
    # Row 47 is the eighth of the third episode.
    arrays[key][47 if columns is None else (47, column)] = value
    reference = ingest(Home(home), run(), [save(tmp_path / "a.npz", arrays)])
    assert reference.reasons == {reason: 1}
    kept = pl.read_parquet(reference.quarantine / "*.parquet")
    assert kept["row"].to_list() == [47]
    assert kept["reason"].to_list() == [reason]
    np.testing.assert_array_equal(kept["actions.force_1"].to_numpy(), arrays["action"][[47], 0])
    held = opened(reference)
    rows = held.arrays()
    assert held.rows == 199
    np.testing.assert_array_equal(rows["actions"], np.delete(arrays["action"], 47, axis=0))
    assert np.flatnonzero(rows["timeouts"]).tolist() == [19, 39, 46, *range(58, 199, STEPS)]
    assert not rows["terminals"].any()


def test_rolled_next_observations_are_found(tmp_path: Path, home: Path) -> None:
    # A predecessor's bug: next_observations rolled from a shuffled batch.
    arrays = archive()
    order = np.random.default_rng(0).permutation(200)
    arrays = {key: values[order] for key, values in arrays.items()}
    arrays["next_obs"] = np.roll(arrays["obs"], 1, axis=0)
    with pytest.raises(Refused, match="do not continue in the next row's observations"):
        ingest(Home(home), run(), [save(tmp_path / "a.npz", arrays)])


def test_readings_slightly_out_of_range_pass(tmp_path: Path, home: Path) -> None:
    arrays = archive()
    arrays["action"][3] = (1.019, -1.019)  # within 1 % of the range of 2
    assert ingest(Home(home), run(), [save(tmp_path / "a.npz", arrays)]).quarantined == 0


def test_losses_above_threshold_are_refused_with_quarantine(tmp_path: Path, home: Path) -> None:
    arrays = archive()
    arrays["reward"][::10] = np.nan
    arrays["obs"][7, 0] = 99
    with pytest.raises(
        Refused, match=r"10\.50% .*\(21 of 200\), at most 5\.00% are allowed: rewards is not finite \(20\)"
    ):
        ingest(Home(home), run(), [save(tmp_path / "a.npz", arrays)])
    kept = pl.read_parquet(next(home.rglob("quarantine/*")) / "*.parquet")
    assert len(kept) == 21
    assert not list(home.rglob("manifests/*"))
    assert ingest(Home(home), run(max_quarantined=0.2), [tmp_path / "a.npz"]).rows == 179


def test_dataset_without_sound_rows_is_refused(tmp_path: Path, home: Path) -> None:
    arrays = archive()
    arrays["reward"][:] = np.nan
    with pytest.raises(Refused, match=r"100\.00% of the rows are lost"):
        ingest(Home(home), run(max_quarantined=0.99), [save(tmp_path / "a.npz", arrays)])


def test_row_checks_do_not_depend_on_block_size(tmp_path: Path) -> None:
    arrays = archive()
    rng = np.random.default_rng(0)
    rows: Rows = {
        "observations": arrays["obs"],
        "actions": arrays["action"],
        "rewards": np.where(rng.random(200) < 0.1, np.nan, 0.0),
        "next_observations": arrays["next_obs"] + (rng.random(200) < 0.1)[:, None],
        "costs": np.zeros(200),
        "terminals": np.zeros(200),
        "timeouts": arrays["truncated"],
        "constraint_costs": np.zeros((200, 2)),
    }

    def check(size: int) -> tuple[Rows, Quarantine]:
        quarantine = Quarantine(tmp_path / str(size), SPEC)
        checker = RowChecker(SPEC, quarantine, "x")
        parts = [checker.push({k: v[i : i + size] for k, v in rows.items()}) for i in range(0, 200, size)]
        parts.append(checker.flush() or {})
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}, quarantine

    whole, quarantine = check(200)
    assert 20 < quarantine.count < 60
    for size in (1, 2, 3, 7, 199):
        other, quarantined = check(size)
        assert quarantined.reasons == quarantine.reasons
        for key, values in whole.items():
            np.testing.assert_array_equal(other[key], values)


def test_unfinished_last_episode_ends_with_a_timeout(tmp_path: Path, home: Path) -> None:
    arrays = {key: values[:-5] for key, values in archive().items()}
    rows = opened(ingest(Home(home), run(), [save(tmp_path / "a.npz", arrays)])).arrays()
    assert rows["timeouts"][-1]
    assert not rows["terminals"].any()


def test_termination_is_not_also_a_timeout(tmp_path: Path, home: Path) -> None:
    arrays = archive()
    arrays["done"][19] = 1
    rows = opened(ingest(Home(home), run(), [save(tmp_path / "a.npz", arrays)])).arrays()
    assert np.flatnonzero(rows["terminals"]).tolist() == [19]
    assert np.flatnonzero(rows["timeouts"]).tolist() == list(range(39, 200, STEPS))


def test_large_quarantine_is_written_in_parts(tmp_path: Path) -> None:
    arrays = archive()
    names = {"observations": "obs", "actions": "action", "next_observations": "next_obs", "rewards": "reward"}
    names |= {"terminals": "done", "timeouts": "truncated"}
    quarantine = Quarantine(tmp_path, SPEC, part_records=30)
    for start in range(0, 200, 20):
        block = {key: arrays[name][start : start + 20] for key, name in names.items()}
        quarantine.add("x", np.arange(start, start + 20), np.full(20, "bad", dtype=object), block)
    quarantine.close()
    assert [len(pl.read_parquet(path)) for path in sorted(tmp_path.iterdir())] == [40] * 5
    assert pl.read_parquet(tmp_path / "*.parquet")["row"].to_list() == list(range(200))
    assert len(quarantine.digests) == 5


CLOSED = """
import os, sys
from pathlib import Path
from configs.errors import BadInput
from tasks.ingest import check_there

# The superuser may read everything.
if os.getuid() == 0:
    os.setuid(65534)
for name in sys.argv[1:]:
    try:
        print(check_there([Path(name)]))
    except BadInput as refused:
        print(refused)
"""


def test_unreadable_sources_are_named_and_never_skipped() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, export, month = Path(folder, "log.npz"), Path(folder, "export"), Path(folder, "export", "2026-02")
        month.mkdir(parents=True)
        for path in (log, export / "a.csv", month / "b.csv"):
            path.write_bytes(b"1")
        for path, mode in ((Path(folder), 0o755), (log, 0o200), (month, 0o200)):
            path.chmod(mode)
        asked = [sys.executable, "-c", CLOSED, str(log), str(export), str(export / "a.csv")]
        lines = subprocess.run(asked, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
        month.chmod(0o700)
    closed = "this account may not read {}: change the owner or the permissions"
    assert lines == [closed.format(log), closed.format(month), "None"]


def test_missing_sources_plants_and_mappings_are_named(tmp_path: Path, home: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no source .*none\.npz"):
        ingest(Home(home), run(), [tmp_path / "none.npz"])
    with pytest.raises(BadInput, match=r"there is no source n{5000}: check"):
        ingest_file(Home(home), Path("n" * 5000))
    with pytest.raises(BadInput, match="no source files"):
        ingest(Home(home), run(), [])
    source = save(tmp_path / "a.npz", archive())
    with pytest.raises(BadInput, match="unknown plant 'kettle'"):
        ingest(Home(home), OpenedRun(plant="kettle"), [source])
    with pytest.raises(BadInput, match="not of double_mass"):
        ingest(Home(home), OpenedRun(plant="double_mass", data=Data(mapping=REACTOR)), [source])
    assert not list(home.rglob("*.json"))


def test_historian_log_becomes_a_dataset(tmp_path: Path, home: Path) -> None:
    made = generate("chemical_reactor", tmp_path, seed=0, weeks=0.15)
    reactor = OpenedRun(plant="chemical_reactor", data=Data(mapping=REACTOR))
    reference = ingest(Home(home), reactor, [made.path])
    assert ingest(Home(home), reactor, [made.path]) == reference
    held = opened(reference)
    held.verify()
    (account,) = reference.accounts
    assert account is not None
    assert held.rows + reference.quarantined == account.rows + account.rejected
    rows = held.arrays()
    assert np.diff(held.episodes).max() <= PLANTS["chemical_reactor"].spec.horizon
    assert (rows["terminals"] | rows["timeouts"]).sum() == reference.episodes
    # Rows of an episode follow each other at the control period of 26 s.
    inside = ~(rows["terminals"] | rows["timeouts"])[:-1]
    assert (np.diff(rows["timestamps"])[inside] == 26 * 10**9).all()
    np.testing.assert_array_equal(rows["next_observations"][:-1][inside], rows["observations"][1:][inside])
    # Source: pc-gym's tracking cost, truth 1.1: -((Ca' - SP) / 0.3)^2 inside the limits.
    error = (rows["next_observations"][:, 0] - rows["next_observations"][:, 3]) / 0.3
    np.testing.assert_allclose(rows["rewards"], -(error**2), atol=1e-6)


def test_log_of_a_stopped_plant_gives_an_empty_dataset(tmp_path: Path, home: Path) -> None:
    made = generate("chemical_reactor", tmp_path, seed=0, weeks=0.02)
    stopped = pl.when(pl.col("tag") == "AIC-101.MODE").then(0.0)
    path = tmp_path / "stopped.parquet"
    pl.read_parquet(made.path).with_columns(value=stopped.otherwise(pl.col("value"))).write_parquet(path)
    with pytest.raises(BadInput, match=r"dataset would be empty \(.*the plant was not running \([\d,]+\).*\): check"):
        ingest(Home(home), OpenedRun(plant="chemical_reactor", data=Data(mapping=REACTOR)), [path])


@pytest.mark.slow
def test_full_disk_leaves_no_partial_dataset(tmp_path: Path) -> None:
    # A child process with a limit on file size stands for a full disk.
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from configs.errors import BadInput
        from configs.home import Home
        from tests.tasks.test_ingest import archive, ingest, run, save
        root = Path(sys.argv[1])
        source = save(root / "a.npz", archive())
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        try:
            ingest(Home(root / "home"), run(), [source])
        except BadInput as error:
            print(error)
        print([str(p) for p in (root / "home" / "datasets").rglob("*") if p.is_file()])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(ingest(Home(root / "home"), run(), [source]).rows)
        """
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=root, capture_output=True, text=True, check=True
    )
    sentence, left, rows = done.stdout.splitlines()
    assert sentence.startswith("cannot write ")
    assert left == "[]"
    assert rows == "200"


def test_official_data_are_ingested_completely(dmsd_train: Path, home: Path) -> None:
    reference = ingest(Home(home), run(), [dmsd_train])
    # Source: data/README.md: 100,000 rows; episodes of 100 steps, truth 1.4.
    assert (reference.rows, reference.episodes, reference.quarantined) == (100_000, 1000, 0)
    rows = opened(reference).arrays(["rewards", "costs"])
    assert rows["costs"].sum() == 0
    # Truth 1.4: the data score 56.6 = 100 (return - 30.60) / (849.51 - 30.60).
    score = 100 * (rows["rewards"].reshape(1000, 100).sum(axis=1).mean() - 30.60) / (849.51 - 30.60)
    assert score == pytest.approx(56.6, abs=0.1)
