"""JAX's compilation cache, and printing of untrusted text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.home import Home
from flows.cli.common import emit, show_table
from flows.cli.history import _lines
from flows.cli.main import run
from tasks.evidence.decisions.verdicts import approve
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.signing import HEAD_TYPE
from tasks.evidence.rules import NoteBody
from tasks.evidence.witness.pinned import FILE, PinnedWitness, Witnesses, pin
from tasks.evidence.witness.server import open_witness
from tasks.files.provenance import COMPILED
from tasks.lifecycle.in_force import in_force_at
from tasks.record import history_rows
from tests.evidence import PLANT, open_ledger, put, verdict

ADDS = """
import sys
from contextlib import nullcontext
from flows.cli.common import fresh_compilation, keep_compiled

keep_compiled()
import jax

def adds(x):
    return x + float(sys.argv[1])

with fresh_compilation() if "anew" in sys.argv else nullcontext():
    print(float(jax.jit(adds)(1.0)))
"""


def test_repeated_tests_ignore_planted_programs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Home(home).folder("datasets")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    variables["NEORL_HOME"] = str(home)

    def said(*words: str) -> str:
        asked = [sys.executable, "-c", ADDS, *words]
        return subprocess.run(asked, env=variables, capture_output=True, text=True, check=True).stdout.strip()

    def programs() -> set[Path]:
        return {path for path in (home / "cache" / "jax").rglob("jit_adds-*") if not path.name.endswith("-atime")}

    assert (said("1"), COMPILED in variables) == ("2.0", False)
    (one,) = programs()
    assert said("100") == "101.0"
    (hundred,) = programs() - {one}
    one.write_bytes(hundred.read_bytes())
    # Normally a cached program runs; with a fresh cache it does not.
    assert said("1") == "101.0"
    assert said("1", "anew") == "2.0"
    assert one.read_bytes() == hundred.read_bytes()


def test_file_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, False, ["not read: \x1b[2Jlog.csv"])
    show_table(("tag",), [("T-101\x07",)])
    assert capsys.readouterr().out.splitlines() == [r"not read: \x1b[2Jlog.csv", "tag", r"T-101\x07"]


def test_a_note_cannot_fake_a_line_of_history(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Attack: the note of one decision looks like another person's decision."""
    ledger = open_ledger(Home(home))
    note = "fine\n2026-11-20T10:00:00.000000Z  approved for closed loop by Ada, key 0123456789abcdef"
    put(ledger, approve(ledger, PLANT, verdict(ledger, "a" * 64, note=note)), None)
    then = in_force_at(ledger.entries(), PLANT, "2999-01-01")
    assert not any(line.startswith("2026-11-20") for line in "\n".join(_lines(then)).splitlines())
    show_table(("detail",), [[row.detail] for row in history_rows(ledger.entries(), PLANT)])
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(ledger.entries(plant=PLANT))


def test_audit_reads_the_folders_of_heads(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEORL_HOME", str(home))
    ledger = open_ledger(Home(home))
    ledger.append("note", NoteBody(text="first"))
    longer, kept = open_ledger(Home(tmp_path / "longer")), tmp_path / "kept"
    found = Witnesses(origin="neorl/x", witnesses=[_witness(tmp_path)], heads=[str(kept)])
    pin(home / FILE, found)
    assert run(["audit", "verify"]) == 1
    assert f"FAIL  heads: {kept} in witnesses.yaml does not exist" in capsys.readouterr().out
    kept.mkdir()
    assert run(["audit", "verify"]) == 0
    # A head of the same key over a longer history.
    key, _ = open_keys(Home(home), first_use=False)
    longer.append("note", NoteBody(text="other"))
    (kept / "monday.head").write_bytes(key.seal(HEAD_TYPE, longer.head()._asdict()))
    assert run(["audit", "verify"]) == 1
    assert "entries were altered or replaced" in capsys.readouterr().out


def _witness(folder: Path) -> PinnedWitness:
    return PinnedWitness(key=str(open_witness(folder / "witness", "witness.example/w1").verifier), url="http://h:1")
