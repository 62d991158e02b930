"""`neorl train`: a file in; policy, curves and record out; the same bytes after a kill; plain about what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import Refused
from flows.cli.main import run
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import fit
from neorl_core.networks import policy_act
from tasks.data.formats.recordings import read
from tasks.models.bundles.policy_file import load_policy
from tasks.models.user_code.known import KnownAlgorithm
from tasks.training.recording import fit_recording
from tests.benchmark_files import walk, write_d4rl, write_dsrl
from tests.tasks.models.bundles.test_policy_file import by_numpy

TD3_BC = KnownAlgorithm(ALGORITHMS["td3_bc"], (ALGORITHMS.module("td3_bc"),))
PROJECT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {"updates": 1200, "seeds": 2, "overrides": {"hidden": [8], "alpha": 1}, "batch_size": 16}
OPTIONS = ["--updates", "1200", "--seeds", "2", "--set", "hidden=[8]", "--set", "alpha=1", "--batch-size", "16"]
WRITTEN = ("policy-0.npz", "policy-1.npz", "curves.npz", "curves.png", "run.json")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small D4RL file without next observations."""
    return write_d4rl(tmp_path_factory.mktemp("data") / "toy-v0.hdf5", walk(400), next_observations=None)


@pytest.fixture(scope="module")
def done(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("train") / "out"
    assert run(["train", str(file), *OPTIONS, "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_a_policy_file_acts_as_the_policy_in_memory(file: Path, done: Path) -> None:
    log = read(file)
    learned = fit(log.transitions, log.spec, "td3_bc", **{**SETTINGS, "seeds": range(2)})
    x = log.transitions.observation
    for seed, policy in enumerate(learned.policies):
        path = done / f"policy-{seed}.npz"
        found, spec, made_by = load_policy(path)
        assert (spec, made_by.seed, made_by.algorithm) == (log.spec, seed, "td3_bc")
        np.testing.assert_array_equal(policy_act(found, x), policy_act(policy, x))
        np.testing.assert_allclose(by_numpy(path, x), policy_act(policy, x), atol=1e-5)
    with np.load(done / "curves.npz", allow_pickle=False) as curves:
        assert set(curves) == {"step", *learned.curves}
        np.testing.assert_array_equal(curves["step"], learned.steps)
        for name, rows in learned.curves.items():
            np.testing.assert_array_equal(curves[name], rows)
    record = json.loads((done / "run.json").read_bytes())
    assert record["data"] == asdict(log.about)
    assert record["hyperparameters"] == json.loads(json.dumps(learned.config._asdict()))
    assert record["hyperparameters"]["alpha"] == 1
    assert [member["metrics"]["q"] for member in record["members"]] == [float(q) for q in learned.curves["q"][:, -1]]
    assert record["versions"].keys() >= {"python", "jax", "numpy"}
    assert (done / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_once_more_and_nothing_is_left_to_do(file: Path, done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: (done / name).read_bytes() for name in WRITTEN}
    assert run(["train", str(file), *OPTIONS, "--out", str(done)]) == 0
    shown = capsys.readouterr().out
    for words in (
        "D4RL layout",
        "next observations: derived within episodes",
        "td3_bc: 1,200 updates",
        "policy-1.npz",
        "curves.png",
    ):
        assert words in shown
    assert run(["train", str(file), *OPTIONS, "--out", str(done), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0]).items() >= {"algorithm": "td3_bc", "updates": 1200, "folder": str(done)}.items()
    assert {name: (done / name).read_bytes() for name in WRITTEN} == before


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes_without_servers_or_their_packages(
    file: Path, done: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = f"""
        import os, signal, sys, time

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {{"prefect", "mlflow", "sqlalchemy", "polars", "pandas", "pandera",
                                               "great_expectations", "pydantic", "ruamel", "cryptography", "jinja2"}}:
                    raise ImportError(name)

        sys.meta_path.insert(0, Absent())
        from pathlib import Path
        import flows.cli.main
        from tasks.data.formats.recordings import read
        from tasks.models.user_code.known import our_algorithm
        from tasks.training.recording import fit_recording

        def die(done, *_):
            steps = Path({str(out / "checkpoints" / "steps")!r})
            while done and not any(step.name.isdigit() for step in steps.iterdir()):
                time.sleep(0.01)
            if done:
                os.kill(os.getpid(), signal.SIGKILL)

        known = our_algorithm("td3_bc")
        fit_recording(read({str(file)!r}), Path({str(out)!r}), known, **{SETTINGS!r}, progress=die, save_seconds=0)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=PROJECT, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(path.name for path in out.iterdir()) == ["checkpoints"]
    assert {path.name for path in (out / "checkpoints" / "steps").iterdir()} == {"600"}
    assert run(["train", str(file), *OPTIONS, "--out", str(out)]) == 0
    for name in WRITTEN:
        assert (out / name).read_bytes() == (done / name).read_bytes(), name


@pytest.mark.slow
def test_an_interrupted_run_says_where_it_goes_on(
    file: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, reached = read(file), 0

    def interrupt(updates: int, *_: Any) -> None:
        nonlocal reached
        if updates:
            with pytest.raises(Refused, match=f"another training is active in {tmp_path}"):
                fit_recording(log, tmp_path, TD3_BC, **SETTINGS)
            reached = updates
            signal.raise_signal(signal.SIGINT)

    # A shell lets what it starts in the background ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            fit_recording(log, tmp_path, TD3_BC, **SETTINGS, progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (
        f"kept at update {reached:,} in {tmp_path / 'checkpoints'}: run the same command again"
        in capsys.readouterr().err
    )
    told: list[int] = []
    fit_recording(log, tmp_path, TD3_BC, **SETTINGS, progress=lambda updates, *_: told.append(updates))
    assert told[0] == reached > 0
    for name in WRITTEN:
        assert (tmp_path / name).read_bytes() == (done / name).read_bytes(), name


@pytest.mark.slow
def test_dsrl_one_seed_and_a_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dsrl(tmp_path / "OfflineCarCircle.hdf5", walk(200))
    options = ["--algorithm", "bc", "--updates", "10", "--set", "hidden=[8]"]
    assert run(["train", "OfflineCarCircle.hdf5", *options]) == 0
    shown = capsys.readouterr().out
    assert "DSRL layout" in shown
    assert "costs: read from 'costs'" in shown
    names = {path.name for path in (tmp_path / "OfflineCarCircle-bc").iterdir()}
    assert names == {"policy.npz", "curves.npz", "curves.png", "run.json", "checkpoints"}


@pytest.mark.slow
def test_a_run_of_other_settings_is_refused_with_the_difference(
    file: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", str(file), *OPTIONS, "--set", "alpha=2", "--out", str(done)]) == 1
    assert "which differs in hyperparameters.alpha 2.0 (checkpoint: 1.0): restore" in capsys.readouterr().err


@pytest.mark.slow
def test_divergence_is_refused_and_leaves_no_policy(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", str(file), *OPTIONS, "--set", "critic_lr=1e30", "--out", str(tmp_path)]) == 1
    assert "every member diverged" in capsys.readouterr().err
    assert not list(tmp_path.glob("policy*"))
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--algorithm", "td3bc"], "unknown algorithm 'td3bc'"),
        (["--algorithm", "td3_bc", "--set", "temperature=1"], "unknown hyper-parameter 'temperature' of td3_bc"),
        (["--algorithm", "td3_bc", "--set", "hidden=8"], "hidden of td3_bc must be a value such as (64, 64), got 8"),
        (["--algorithm", "td3_bc", "--set", "alpha=two"], "alpha of td3_bc must be a value such as 2.5, got 'two'"),
        (["--algorithm", "td3_bc", "--set", "discount=1.5"], "discount of td3_bc must be from 0 to 1, got 1.5"),
        (["--set", "alpha"], "--set must have the form name=value, got 'alpha'"),
        (["--updates", "0"], "'--updates'"),
        (["--horizon", "100"], "omit --horizon"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert run(["train", str(file), *options, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_wrong_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.hdf5").write_text("no HDF5")
    write_d4rl(tmp_path / "short.hdf5", walk(50), rewards=None)
    write_d4rl(tmp_path / "nan.hdf5", walk(50), rewards=np.full(50, np.nan))
    for name, says in [
        ("none", "there is no source"),
        ("text", "starts with"),
        ("short", "no array 'rewards'"),
        ("nan", "got 50 with NaN or infinity in rewards"),
    ]:
        assert run(["train", str(tmp_path / f"{name}.hdf5"), "--out", str(tmp_path / "out"), "--json"]) == 2
        captured = capsys.readouterr()
        assert says in captured.err
        said = [line for line in captured.err.splitlines() if not line.startswith("  read: ")]
        assert len(said) == 1
        assert json.loads(captured.out.splitlines()[-1])["exit_code"] == 2
    assert not (tmp_path / "out").exists()
