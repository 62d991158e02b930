"""Removal of unneeded files; files named by the ledger always stay."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from configs.errors import Refused
from configs.home import Home
from flows.cli.main import run
from neorl_core.plants import PLANTS
from tasks.data.formats.exports import Flat
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import FileRecord, Provenance, SourceRecord
from tasks.data.store.writer import DatasetWriter
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import artefact
from tasks.evidence.rules import NoteBody
from tasks.files.canonical import exclusive, write_atomic, write_json, writing
from tasks.files.spec import spec_record
from tasks.maintenance import retention
from tasks.maintenance.retention import Ages, prune
from tests.evidence import PLANT, furnished_home, open_ledger

SPEC = PLANTS[PLANT].spec


def aged(path: Path, days: float = 1000.0) -> Path:
    """Set the age of a file or folder in days."""
    then = time.time() - days * 86_400
    for each in [path, *path.rglob("*")]:
        os.utime(each, (then, then))
    return path


def dataset(home: Home, start: float, parent: StoredDataset | None = None) -> str:
    """Make a dataset of one small shard, optionally with its parent's; its source had quarantined rows."""
    root = home.folder("datasets", PLANT)
    rows, width = 8, len(SPEC.observation.names)
    observations = np.arange(rows * width, dtype="f4").reshape(rows, width) + start
    with DatasetWriter(root, SPEC, parent) as writer:
        writer.append(
            {
                "observations": observations,
                "next_observations": observations + 1,
                "actions": np.zeros((rows, len(SPEC.action.names)), "f4"),
                "rewards": np.zeros(rows, "f4"),
                "terminals": np.zeros(rows, bool),
                "timeouts": np.arange(rows) == rows - 1,
            }
        )
        name = f"quarantine/{start}/part-00000.parquet"
        write_atomic(root / name, b"rows")
        source = SourceRecord(sha256=f"{start}", seen=8, quarantined=1, quarantine=(FileRecord(file=name, sha256="x"),))
        return writer.commit(Provenance(plant=spec_record(SPEC), format="npz", sources=(source,)))


def paths(home: Home, datasets: float | None = None, *, remove: bool = False) -> list[str]:
    return [piece.path for piece in prune(home, Ages(datasets=datasets), remove=remove).pieces]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    furnished_home(tmp_path / "home")
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


def test_nothing_needed_is_removed_at_any_age(home: Home) -> None:
    aged(home.root)
    assert paths(home, 1.0, remove=True) == []
    assert audit(home).passed


def test_leftovers_checkpoints_and_logs_are_removed(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    aged(write_atomic(home.root / "bundles" / ".composite.npz.a1b2c3d4", b"12345"))
    write_atomic(home.root / "bundles" / ".composite.npz.e5f6g7h8", b"being written now")
    write_atomic(home.root / ".backup.x1y2z3" / "ledger.db", b"123")
    aged(write_atomic(home.root / "logs" / "mlflow.log", b"old"))
    write_atomic(home.root / "logs" / "prefect.log", b"new")
    for key, ended, days in (("aaaa", True, 30), ("bbbb", False, 30), ("cccc", True, 1)):
        write_atomic(home.root / "checkpoints" / PLANT / f"{key}-2000" / "steps" / "1" / "state", b"1234567")
        if ended:
            aged(write_atomic(home.root / "runs" / PLANT / "populations" / key / "curves.npz", b"curves"), days)
    expected = [
        ".backup.x1y2z3",
        "bundles/.composite.npz.a1b2c3d4",
        "logs/mlflow.log",
        f"checkpoints/{PLANT}/aaaa-2000",
    ]
    assert paths(home) == expected
    assert run(["prune"]) == 0
    shown = capsys.readouterr().out
    assert "checkpoints: 1 removable, 0.0 MB\n  checkpoints/chemical_reactor/aaaa-2000\n" in shown
    assert all((home.root / path).exists() for path in expected)
    assert run(["prune", "--remove", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["size"], answer["removed"]) == (3 + 5 + 3 + 7, True)
    assert not any((home.root / path).exists() for path in expected)
    assert (home.root / "checkpoints" / PLANT / "bbbb-2000").is_dir()
    assert paths(home) == []
    assert audit(home).passed


def test_windows_and_site_logs_are_removed_but_watched_files_stay(home: Home) -> None:
    old, incoming = home.root / "backfill" / PLANT, home.root / "incoming" / PLANT
    for path in (old / "a.parquet", old / "b.csv", incoming / ".historian.csv.filepart", incoming / "historian.csv"):
        aged(write_atomic(path, b"rows"), 31)
    aged(write_atomic(old / "c.csv", b"rows"), 29)
    aged(write_atomic(home.root / "logs" / "sites" / "site_01.log", b"old"))
    ledger = open_ledger(home)
    files = [artefact(home, old / "b.csv", "what was looked at")]
    ledger.append("note", NoteBody(text="looked at"), plant=PLANT, artefacts=files)
    with exclusive(home.lock_of(PLANT)):
        assert paths(home) == ["logs/sites/site_01.log"]
    assert paths(home, remove=True) == ["logs/sites/site_01.log", f"backfill/{PLANT}/a.parquet"]
    assert paths(home) == []


def test_files_of_a_killed_process_are_leftovers(home: Home) -> None:
    made = home.folder("made")
    # Two that write one file at a time do not meet, and the last one's stays.
    with writing(made / "log.csv") as first, writing(made / "log.csv") as second, Flat(made / "log.hdf5", ()):
        first.write_bytes(b"first")
        second.write_bytes(b"second")
        written = sorted(made.iterdir())
        for path in written:
            shutil.copyfile(path, made / f"{path.name[:-8]}deadbeef")
    assert len(written) == 3
    assert (made / "log.csv").read_bytes() == b"first"
    left = sorted(path.name for path in aged(made).iterdir() if path.name.endswith(".deadbeef"))
    assert left == [".log.csv.deadbeef", ".log.hdf5.deadbeef"]
    assert paths(home, remove=True) == [f"made/{name}" for name in left]


def test_shared_checkpoints_are_removed_once_the_weights_are_kept(home: Home) -> None:
    for key, kept in (("aaaa", True), ("bbbb", False)):
        write_atomic(home.root / "checkpoints" / PLANT / f"{key}-2000" / "steps" / "1" / "state", b"x")
        aged(write_json(home.root / "starts" / "reactors" / f"{key}.json", {"start": f"of {key}", "datasets": []}), 30)
        if kept:
            write_atomic(home.root / "starts" / f"of {key}.npz", b"weights")
    write_json(home.root / "starts" / "reactors" / "current.json", {"start": "of aaaa"})
    assert paths(home, remove=True) == [f"checkpoints/{PLANT}/aaaa-2000"]
    assert (home.root / "starts" / "of aaaa.npz").exists()


def test_locked_plants_and_running_backups_are_left_alone(home: Home) -> None:
    write_atomic(home.root / "checkpoints" / PLANT / "aaaa-2000" / "state", b"x")
    aged(write_atomic(home.root / "runs" / PLANT / "populations" / "aaaa" / "curves.npz", b"curves"))
    write_atomic(home.root / ".backup.x1y2z3" / "ledger.db", b"123")
    with exclusive(home.lock_of(PLANT)), exclusive(home.folder("locks") / "backup.lock"):
        found = prune(home, Ages(), remove=True)
    assert (found.pieces, found.busy) == ((), (PLANT,))
    assert paths(home) == [".backup.x1y2z3", f"checkpoints/{PLANT}/aaaa-2000"]


def test_unnamed_datasets_are_removed_but_shared_shards_stay(home: Home) -> None:
    store = home.root / "datasets" / PLANT
    kept = dataset(home, 1.0)
    longer = dataset(home, 100.0, StoredDataset.open(store, kept))
    alone = dataset(home, 200.0)
    ledger = open_ledger(home)
    files = [artefact(home, store / "manifests" / f"{kept}.json", "dataset manifest")]
    ledger.append("note", NoteBody(text="ingested"), plant=PLANT, artefacts=files)
    spoken = dataset(home, 400.0)
    ledger.append("note", NoteBody(text=f"looked at {spoken}: it is fine"), plant=PLANT)
    aged(store)
    assert paths(home) == [], "datasets go only when asked for"
    young = dataset(home, 300.0)
    gone = paths(home, 365.0, remove=True)
    assert {path for path in gone if "/manifests/" in path} == {
        f"datasets/{PLANT}/manifests/{digest}.json" for digest in (longer, alone)
    }
    assert sum("/shards/" in path for path in gone) == 2
    assert sum("/views/" in path for path in gone) == 2
    assert [path for path in gone if "/quarantine/" in path] == [
        f"datasets/{PLANT}/quarantine/{start}" for start in (100.0, 200.0)
    ]
    for digest in (kept, young, spoken):
        assert len(StoredDataset.open(store, digest).arrays()["rewards"]) == 8
    assert audit(home).passed
    assert paths(home, 365.0) == []


def test_a_dataset_named_meanwhile_is_kept(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home.root / "datasets" / PLANT
    digest = dataset(home, 1.0)
    ledger = open_ledger(home)
    aged(store)
    plants = retention._plants

    def meanwhile(home: Home) -> list[str]:
        """A run that ends between the first reading of the ledger and the lock."""
        files = [artefact(home, store / "manifests" / f"{digest}.json", "dataset manifest")]
        ledger.append("note", NoteBody(text="ingested"), plant=PLANT, artefacts=files)
        return plants(home)

    monkeypatch.setattr(retention, "_plants", meanwhile)
    assert paths(home, 365.0, remove=True) == []
    assert audit(home).passed


def test_nothing_is_removed_without_a_readable_ledger(home: Home) -> None:
    aged(write_atomic(home.root / "logs" / "mlflow.log", b"old"))
    home.ledger.write_bytes(b"no database, but long enough to be read as one" * 100)
    with pytest.raises(Refused, match="the ledger cannot be read"):
        prune(home, Ages(), remove=True)
    assert (home.root / "logs" / "mlflow.log").exists()
