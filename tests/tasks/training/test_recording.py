"""What `neorl train` learns from: one log, whether it is named by a file, a digest or its plant."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from configs.errors import BadInput
from configs.home import Home
from flows.cli.main import run
from tasks.data.formats.recordings import read
from tasks.data.formats.sources import SourceOptions
from tasks.data.store.reader import StoredDataset
from tasks.files.arrays import npz_bytes
from tasks.ingest import find_dataset, logs_of
from tasks.training.recording import open_recording
from tests.benchmark_files import walk, write_d4rl
from tests.tasks.test_accounts import MAPPING, STEPS, frame

OPTIONS = ["--algorithm", "bc", "--updates", "10", "--set", "hidden=[8]"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A historian's log in CSV, with its mapping beside it."""
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    frame().write_csv(tmp_path / "log.csv")
    return tmp_path / "log.csv"


def test_a_historians_log_its_dataset_and_its_plant_are_one(home: Home, log: Path) -> None:
    found = open_recording(home, log, SourceOptions(mapping=log.parent / "mapping.yaml"))
    assert found.about.dataset is not None
    held = StoredDataset.open(home.folder("datasets", "kettle"), found.about.dataset)
    rows = held.arrays()
    np.testing.assert_array_equal(found.transitions.observation, rows["observations"])
    np.testing.assert_array_equal(found.transitions.next_observation, rows["next_observations"])
    np.testing.assert_array_equal(found.transitions.cost, rows["costs"])
    assert found.spec == held.spec
    about = found.about
    assert (about.rows, about.transitions, about.episodes, about.longest) == (STEPS, STEPS, 10, 100)
    assert about.returns.mean == pytest.approx(rows["rewards"].astype(float).sum() / 10)
    assert str(found).startswith(
        f"log.csv: dataset {held.digest[:12]} of historian rows, 1,000 rows in 10 episode(s)\n"
    )
    for named in (held.digest, held.digest[:8], "kettle"):
        again = open_recording(home, Path(named))
        np.testing.assert_array_equal(again.transitions.action, found.transitions.action)
        assert (again.about.sha256, again.about.name) == (held.digest, f"kettle-{held.digest[:12]}")


def test_a_d4rl_file_is_read_as_it_is_and_fills_no_home(home: Home, tmp_path: Path) -> None:
    file = write_d4rl(tmp_path / "toy-v0.hdf5", walk(60))
    found, plain = open_recording(home, file), read(file)
    assert found.about == plain.about
    assert not (home.root / "datasets").exists()
    np.testing.assert_array_equal(found.transitions.observation, plain.transitions.observation)


@pytest.mark.slow
def test_a_npz_archive_and_its_digest_train_the_same_policy(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = walk(60)
    ends = {"done": arrays["terminals"], "truncated": arrays["timeouts"]}
    named = {"obs": "observations", "action": "actions", "next_obs": "next_observations", "reward": "rewards"}
    columns = {new: arrays[old] for new, old in named.items()} | ends
    columns |= {key: columns[key].reshape(-1, 1) for key in ("reward", "done", "truncated")}
    image = npz_bytes({key: values.astype(np.float32) for key, values in columns.items()})
    (tmp_path / "toy.npz").write_bytes(image)
    assert run(["train", "toy.npz", *OPTIONS]) == 0
    assert "toy.npz: dataset " in capsys.readouterr().out
    record = json.loads((tmp_path / "toy-bc" / "run.json").read_text())
    digest = record["data"]["dataset"]
    assert run(["train", digest[:12], *OPTIONS]) == 0
    assert (tmp_path / f"toy-{digest[:12]}-bc" / "policy.npz").read_bytes() == (
        tmp_path / "toy-bc/policy.npz"
    ).read_bytes()
    capsys.readouterr()
    assert run(["validate", "toy.npz"]) in (0, 1)
    assert f"dataset {digest}: " in capsys.readouterr().out


def test_what_names_no_dataset_is_one_sentence(home: Home, log: Path, tmp_path: Path) -> None:
    mapping = log.parent / "mapping.yaml"
    with pytest.raises(BadInput, match=r"'kettle' is neither a file, .*: ingest logs first"):
        find_dataset(home, Path("kettle"))
    find_dataset(home, log, SourceOptions(mapping=mapping))
    for named, options, says in (
        (
            "kettl",
            {},
            r"'kettl' is neither a file, nor six digits .*: did you mean 'kettle'\?",
        ),
        ("abcdef12", {}, "no datasets have a digest that begins with abcdef12: ingest the sources first"),
        ("abc", {}, "is neither a file, nor six digits of a dataset's digest"),
        ("../../etc/nothing", {}, "there is no source ../../etc/nothing"),
        ("*" * 8, {"folder": log.parent}, "is neither a file, nor six digits of a dataset's digest"),
        (
            "none.csv",
            {"options": SourceOptions(mapping=mapping)},
            "--plant, --mapping, --spec and --horizon need a file, got none.csv",
        ),
        (
            "kettle",
            {"options": SourceOptions(horizon=5)},
            "--plant, --mapping, --spec and --horizon need a file, got kettle",
        ),
        (str(log), {}, "log.csv is a table, which needs a mapping"),
    ):
        with pytest.raises(BadInput, match=says):
            find_dataset(home, Path(named), **options)
    frame()[:500].write_csv(log)
    find_dataset(home, log, SourceOptions(mapping=mapping))
    with pytest.raises(BadInput, match=r"kettle has 2 datasets: name one of [0-9a-f]{12}, [0-9a-f]{12} \(newest"):
        find_dataset(home, Path("kettle"))


def test_a_runs_logs_may_be_a_dataset_where_no_mapping_reads_them(home: Home, log: Path) -> None:
    held = find_dataset(home, log, SourceOptions(mapping=log.parent / "mapping.yaml")).held
    assert logs_of(home, log, mapped=True) == log
    assert logs_of(home, Path("nothing.csv"), mapped=False) == Path("nothing.csv")
    for named in (held.digest[:10], "kettle"):
        assert logs_of(home, Path(named), mapped=False) == held.view_path
        with pytest.raises(BadInput, match=f"a run with a mapping needs logs, got dataset {held.digest[:12]}"):
            logs_of(home, Path(named), mapped=True)
    # A view is a source as all others, and holds the same rows.
    again = find_dataset(home, held.view_path).held
    assert again.rows == held.rows
