"""Ends of interrupted commands, and of commands that find damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.redteam.stage import forge
from configs.home import Home
from flows.cli.main import _about_ledger, run
from flows.services.watched_folder import FOLDER
from tasks.evidence.rules import NoteBody
from tasks.files.canonical import write_json
from tests.evidence import PLANT, open_ledger
from tests.flows.services.waiting import foreign_server, killed_process, use_as_team

NEORL = Path(sys.executable).with_name("neorl")
INTERRUPTED = "interrupted: repeat the command."


def check_interrupted(process: subprocess.Popen[str]) -> None:
    """Check the message for people, the object for programs, and the exit code."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.endswith(f"neorl: {INTERRUPTED}\n")
    assert "Traceback" not in err
    assert json.loads(out) == {"error": INTERRUPTED, "exit_code": 130}


def test_an_interrupted_command_says_so(home: Path) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([NEORL, "watch", "--json"], text=True, **pipes) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("watching ")
        process.send_signal(signal.SIGINT)
        check_interrupted(process)


def test_an_unanswered_question_gives_an_error(home: Path, tmp_path: Path) -> None:
    """End of file (Ctrl-D) at the prompt for a passphrase, on a terminal."""
    ours, terminal = os.openpty()
    words = ["keys", "create", "--person", "Ada Lovelace", "--key", str(tmp_path / "ada.pem"), "--json"]
    pipes = {"stdin": terminal, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([NEORL, *words], text=True, start_new_session=True, **pipes) as process:
        assert process.stderr is not None
        said = ""
        while not said.endswith(": "):
            letter = process.stderr.read(1)
            assert letter, said
            said += letter
        os.write(ours, b"\x04")
        check_interrupted(process)
    os.close(ours)
    os.close(terminal)
    assert not (tmp_path / "ada.pem").exists()


def test_doctor_misses_a_dead_worker(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with foreign_server() as port:
        use_as_team(port, monkeypatch)
        assert run(["status"]) == 0
        dead = killed_process()
        entry = {"url": "", "port": 0, "token": "t", "pid": dead.pid, "created": dead.created}
        write_json(Home(home).services, {"worker": entry})
        assert run(["status"]) == 3
        capsys.readouterr()
        assert run(["doctor", "--json"]) == 1
    findings = {found["name"]: found for found in json.loads(capsys.readouterr().out)["findings"]}
    assert not findings["Prefect worker"]["ok"]
    assert findings["Prefect worker"]["detail"] == "the process ended by itself"


def test_watch_once_reports_unusable_files(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "incoming" / "tank"
    folder.mkdir(parents=True)
    path = Path(os.fsdecode(bytes(folder) + b"/\xdcbersicht.csv"))
    path.write_text("t\n1\n")
    os.utime(path, (time.time() - 60,) * 2)
    monkeypatch.setenv(FOLDER, str(folder.parent))
    monkeypatch.setattr("flows.services.watched_folder.QUIET", 0.0)
    assert run(["watch", "--once", "--json"]) == 1
    said = capsys.readouterr()
    why = f"file name '\\udcdcbersicht.csv' in {folder} is not UTF-8: rename the file."
    assert said.err == f"neorl: {why}\n"
    assert json.loads(said.out) == {"folder": str(folder.parent), "arrived": [], "failed": [why]}


@pytest.mark.parametrize(
    ("kind", "body", "command"),
    [
        ("promotion", {"version": 3}, "history"),
        ("candidate", {"composite": 1}, "candidates"),
        ("policy", {}, "policy show"),
    ],
)
def test_commands_name_a_forged_entry(
    home: Path, kind: str, body: dict[str, object], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The owner of the home's key can forge entries. All commands must report them without a traceback."""
    open_ledger(Home(home)).append("note", NoteBody(text="before"))
    forge(Home(home), kind, body, plant=PLANT)
    assert run([*command.split(), PLANT, "--json"]) == 1
    found = capsys.readouterr()
    said = f"invalid ledger entry (ledger entry 2: invalid body of a {kind}: "
    assert found.err.startswith(f"neorl: {said}")
    assert "run 'neorl audit verify'" in found.err
    assert json.loads(found.out.splitlines()[-1])["error"].startswith(said)


def test_a_valid_ledger_gives_no_message(home: Path) -> None:
    assert _about_ledger() is None
    open_ledger(Home(home)).append("note", NoteBody(text="before"))
    assert _about_ledger() is None
