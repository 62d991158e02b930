"""A verifier written from docs/reference/evidence-formats.md alone agrees with NeoRL."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

from configs.home import Home
from tests.evidence import crown, open_ledger

VERIFIER = Path(__file__).with_name("page_verifier.py")


def verified(home: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(VERIFIER), str(home)], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_a_verifier_made_from_the_page_alone_agrees(home: Path) -> None:
    ledger = open_ledger(Home(home))
    crown(ledger, "a" * 64)
    code, said = verified(home)
    assert (code, said.splitlines()[-1]) == (0, f"ok: {len(ledger.entries())} entries"), said
    with sqlite3.connect(home / "ledger.db") as database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f"drop trigger {name}")
        database.execute("delete from ledger where sequence = 2")
    code, said = verified(home)
    assert code == 1
    assert "failed: " in said.splitlines()[-1]
