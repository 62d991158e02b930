"""A population trained by two real processes that share a home, as two pods of an Indexed Job do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.home import Home
from flows.cli.main import run as neorl
from flows.preflight import checked_run
from neorl_core.training.loop import RunState
from neorl_core.training.population import policies
from tasks.data.synthetic.reactor_history import generate
from tasks.ingest import ingest
from tasks.models.bundles.bundle import load_bundle
from tasks.training.population import train_members, training_run
from tasks.training.train import train
from tests.flows.services.waiting import wait_until
from tests.small_data import MAPPING, PLANT, reactor_dataset, reactor_run

PROJECT = Path(__file__).parents[3]
RUN = """\
plant: chemical_reactor
data: {{mapping: {mapping}, held_out: 0.3}}
train:
  {{algorithm: td3_bc, updates: 40, batch_size: 32, seeds: 2, checkpoint_every: 20, members: {members},
   hyperparameters: {{critics: 2, hidden: [8]}}}}
"""


def written(folder: Path) -> dict[str, int]:
    """When each checkpoint's file was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_two_processes_train_what_one_does_to_the_last_bit(tmp_path: Path) -> None:
    log, config, shared = generate(PLANT, tmp_path, 0, 0.1).path, tmp_path / "run.yaml", tmp_path / "shared"
    config.write_text(RUN.format(mapping=MAPPING, members="processes"))
    words = [sys.executable, "-m", "flows", "members", str(config), "--data", str(log), "--processes", "2", "--json"]
    pods = [
        subprocess.Popen(
            words,
            cwd=PROJECT,
            env={**os.environ, "NEORL_HOME": str(shared), "JOB_COMPLETION_INDEX": str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    said = [json.loads(pod.communicate(timeout=300)[0].splitlines()[-1]) for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0]
    assert [answer["trained"] for answer in said] == [["td3_bc 0 (seed 0)"], ["td3_bc 1 (seed 1)"]]

    run, before = checked_run(config), written(shared / "checkpoints")
    assert {name for path in before for name in Path(path).parts if name.startswith("member-")} == {
        "member-0",
        "member-1",
    }
    dataset = ingest(Home(shared), run.part("data"), [log])
    assert dataset.digest == said[0]["dataset"] == said[1]["dataset"]
    gathered = train(Home(shared), run.for_training(), dataset)
    steps = {name: when for name, when in written(shared / "checkpoints").items() if name in before}
    assert steps == before, "the gathering trained nothing again"

    # This process alone, in a home of its own.
    training = training_run(Home(tmp_path / "alone"), run.for_training(), dataset)
    with training.data.open(None) as rows:
        parts = [train_members(training, rows, only=member.index)[0] for member in training.members]
    with np.load(gathered.learners[0].curves) as curves:
        for name in parts[0].curves:
            np.testing.assert_array_equal(curves[name], np.concatenate([part.curves[name] for part in parts]))
    for member, part in zip(gathered.members, parts, strict=True):
        policy = load_bundle(member.bundle.folder, member.bundle.digest)[1].policy
        (alone,) = policies(training.algorithm, part.population, training.data.scaling.normaliser)
        for one, other in zip(*map(jax.tree.leaves, (policy, alone)), strict=True):
            np.testing.assert_array_equal(one, other)
    assert len({member.bundle.digest for member in gathered.members}) == 2


def test_of_two_that_train_a_member_at_once_one_waits_and_finds_it_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "home")
    dataset, said, told = reactor_dataset(home, tmp_path, 0.1), [""], []
    found: list[RunState] = []

    def trained(progress: Callable[..., None]) -> None:
        training = training_run(home, reactor_run(train={"members": "processes"}), dataset)
        with training.data.open(None) as rows:
            found.append(train_members(training, rows, only=0, progress=progress)[0])

    second = threading.Thread(target=trained, args=[lambda done, *_: told.append(done)])

    def waits() -> bool:
        said[0] += capsys.readouterr().err
        return "waits for another training in" in said[0] or not second.is_alive()

    def begin_second(done: int, *_: object) -> None:
        if done == 20:
            second.start()
            wait_until(waits)

    trained(begin_second)
    second.join()
    assert said[0].count("waits for another training in") == 1
    assert told == [40], "the second trained nothing"
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_members_of_one_program_cannot_be_shared(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, config = generate(PLANT, home / "generated", 0, 0.1).path, tmp_path / "run.yaml"
    config.write_text(RUN.format(mapping=MAPPING, members="vmapped"))
    # As a deployment names it, whose home is elsewhere than in its folder.
    monkeypatch.chdir(tmp_path)
    words = ["members", str(config), "--data", f".neorl/generated/{log.name}", "--processes", "2"]
    assert neorl(words) == 2
    assert "train.members of td3_bc is 'vmapped'" in capsys.readouterr().err
    assert neorl([*words, "--process", "2"]) == 2
    assert "--process must be below --processes (2), got 2: numbers start at 0." in capsys.readouterr().err


def test_a_site_shares_out_the_member_that_goes_on_from_its_fleets_policy(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, fleet = tmp_path / "run.yaml", tmp_path / "reactors" / "fleet.yaml"
    config.write_text(RUN.format(mapping=MAPPING, members="processes"))
    assert neorl(["fleet", "generate", str(fleet.parent), "--like", str(config), "--sites", "2", "--weeks", "0.1"]) == 0
    assert not home.exists()
    fleet.write_text(f"{fleet.read_text()}shared: {{updates: 40, fine_tune: 20}}\n")
    assert neorl(["members", f"{fleet}#site_01", "--data", str(tmp_path / "log.parquet"), "--processes", "2"]) == 1
    assert "fleet reactors has no shared policy" in capsys.readouterr().err
    # What is compiled is kept from the first time on.
    assert (home / "cache" / "jax").is_dir()
