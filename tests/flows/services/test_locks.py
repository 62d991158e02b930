"""Plant locks and records of killed runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from configs.errors import Refused
from configs.home import Home
from flows.services.locks import RunRecord, dead_runs, holders, plant_lock, recorded_run
from tasks.files.canonical import exclusive

PROJECT = Path(__file__).parents[3]
HOLD = """
import sys, time
from configs.home import Home
from flows.services.locks import plant_lock
with plant_lock(Home.locate(), "reactor", run="first"):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(home: Path) -> Iterator[subprocess.Popen[str]]:
    variables = {**os.environ, "NEORL_HOME": str(home)}
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_is_refused(home: Path) -> None:
    with holder(home) as first:
        who = rf"reactor is locked by run first, process {first.pid}, running since"
        with pytest.raises(Refused, match=who), plant_lock(Home(home), "reactor"):
            pass
        with plant_lock(Home(home), "another"):
            assert {h.plant: h.alive for h in holders(Home(home))} == {"another": True, "reactor": True}
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert [h.alive for h in holders(Home(home))] == [False]
        with plant_lock(Home(home), "reactor", run="second"):
            assert [h.run for h in holders(Home(home))] == ["second"]
    assert holders(Home(home)) == []


def test_a_second_run_may_wait(home: Path) -> None:
    said: list[str] = []
    with holder(home) as first:

        def told(words: str) -> None:
            said.append(words)
            first.kill()

        with plant_lock(Home(home), "reactor", "wait", on_wait=told):
            first.wait()
    assert said
    assert f"waiting for run first, process {first.pid}" in said[0]


@pytest.mark.parametrize("plant", ["seeds", "signer", "keys", "services", "backup", "witness", "trust"])
def test_plant_names_never_clash_with_other_locks(plant: str, home: Path) -> None:
    """A run takes the locks of seeds and signer while it has the plant's lock, so equal names would deadlock."""

    def held() -> None:
        raise AssertionError("the plant's lock is another's")

    with plant_lock(Home(home), plant), exclusive(Home(home).folder("locks") / f"{plant}.lock", held):
        assert [holder.plant for holder in holders(Home(home))] == [plant]


def test_an_ended_run_leaves_no_record(home: Path) -> None:
    record = home / "locks" / "runs" / "abc.json"
    with recorded_run(Home(home), "abc", "p"):
        assert record.exists()
        assert dead_runs(Home(home)) == []
    assert not record.exists()
    # A run in another container on the same home may still be alive.
    theirs = RunRecord("p", pid=2**22 + 1, created=1.0, started="", flow_run="abc", host="another")
    record.write_text(json.dumps(asdict(theirs)))
    assert dead_runs(Home(home)) == []
    record.write_text(json.dumps(asdict(replace(theirs, host=socket.gethostname()))))
    assert [found.flow_run for _, found in dead_runs(Home(home))] == ["abc"]
    record.unlink()
    with pytest.raises(FileExistsError), recorded_run(Home(home), "abc", "p"):
        record.touch(exist_ok=False)
    assert not record.exists()
