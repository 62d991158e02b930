"""`neorl doctor`: problems and cures."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.home import Home
from flows.cli.doctor import Finding, _pinned, examine
from flows.services.locks import RunRecord
from tasks.evidence.ledger import keys
from tasks.evidence.ledger.signing import SigningKey
from tasks.evidence.rules import NoteBody
from tasks.evidence.witness.notes import COSIGNATURE, Verifier
from tasks.files.canonical import write_atomic, write_json
from tests.evidence import furnished_home, open_ledger
from tests.flows.services.waiting import killed_process


def test_doctor_names_problems_with_cures(home: Path) -> None:
    place = Home(home)
    assert all(finding.ok for finding in examine(place) if finding.name != "packages")
    key = place.folder("keys") / "signing.pem"
    key.write_text("secret")
    key.chmod(0o644)
    dead = killed_process()
    record = RunRecord("reactor", dead.pid, dead.created, "now", "r", "r")
    write_json(place.folder("locks", "runs") / "r.json", asdict(record))
    write_json(place.lock_of("reactor"), asdict(record))
    home.chmod(0o755)
    found = {finding.name: finding for finding in examine(place)}
    assert not found["keys"].ok
    assert found["keys"].cure == f"chmod 600 {key}"
    assert not found["runs"].ok
    assert "killed run" in found["lock reactor"].detail
    assert found["home"].cure == f"chmod 700 {home}"
    key.unlink()
    place.ledger.touch()
    assert "restore" in next(f for f in examine(place) if f.name == "keys").cure


def test_doctor_checks_ledger_and_passphrases(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> dict[str, Finding]:
        return {finding.name: finding for finding in examine(Home(home))}

    furnished_home(home)
    assert found()["ledger"].detail == "15 entries, each signed by a pinned key"
    assert found()["layout"].ok
    assert "passphrase" not in found()
    kept = keys.kept_passphrase(Home(home).signing_key.read_bytes())
    kept.rename(kept.with_suffix(".away"))
    assert f"passphrase is not in {kept}" in found()["passphrase"].detail
    assert found()["passphrase"].cure == "restore that file, or set NEORL_KEY_PASSPHRASE_FILE"
    monkeypatch.setenv("NEORL_KEY_PASSPHRASE_FILE", str(home / "none"))
    assert found()["passphrase"].cure == "restore the file, or unset NEORL_KEY_PASSPHRASE_FILE"
    monkeypatch.delenv("NEORL_KEY_PASSPHRASE_FILE")
    kept.with_suffix(".away").rename(kept)
    login = Home(home).folder("secrets") / "login"
    login.write_text("neorl:secret")
    login.chmod(0o644)
    assert found()["secrets"].cure == f"run 'chmod 600 {login}', and replace the secret"
    login.chmod(0o600)
    with closing(sqlite3.connect(home / "ledger.db", isolation_level=None)) as database:
        database.execute("DROP TRIGGER ledger_no_update")
        database.execute("UPDATE ledger SET plant = 'double_mass' WHERE sequence = 7")
    assert not found()["ledger"].ok
    assert found()["ledger"].detail.startswith("ledger entry 7: plant must be 'chemical_reactor', got 'double_mass'")


def test_doctor_checks_clock_and_witness(home: Path) -> None:
    future = open_ledger(Home(home), clock=lambda: datetime.now(UTC) + timedelta(days=3))
    future.append("note", NoteBody(text="of the future"), plant="chemical_reactor")
    with socket.socket() as nobody:
        # Bound, but not listening: connections are refused at once.
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        key = Verifier.of("witness.example/w1", COSIGNATURE, SigningKey(Ed25519PrivateKey.generate()))
        write_atomic(
            home / "witnesses.yaml",
            f'origin: "neorl/0"\nrequired: 1\nwitnesses:\n  - {{key: "{key}", url: "{url}"}}\n'.encode(),
        )
        found = {finding.name: finding for finding in examine(Home(home))}
    assert found["clock"].detail.startswith("ledger entry 1: ")
    assert found["clock"].cure.startswith("correct this machine's clock")
    assert found["witness"].detail.startswith(f"witness.example/w1 at {url} does not answer (")
    assert "neorl witness serve" in found["witness"].cure


def test_only_pins_for_this_platform_are_compared() -> None:
    lock = (
        "numpy==1.0 ; python_full_version < '3.11' \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "numpy==2.4.6 ; python_full_version >= '3.11' \\\n    --hash=sha256:cc\n"
        "pywin32==312 ; sys_platform == 'win32' \\\n    --hash=sha256:dd\n"
        "# a comment\njinja2==3.1.6 \\\n    --hash=sha256:ee\n"
    )
    assert _pinned(lock) == {"numpy": "2.4.6", "jinja2": "3.1.6"}


def test_doctor_compares_every_applicable_pin() -> None:
    """The lock file is universal: some packages have several versions with markers."""
    pins = _pinned((Path(__file__).parents[3] / "requirements.lock").read_text())
    assert len(pins) > 150
    wrong = {}
    for name, version in pins.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if found != version:
            wrong[name] = (found, version)
    shown = next(finding for finding in examine(Home(Path("nowhere"))) if finding.name == "packages")
    assert shown.ok is not bool(wrong), (shown, wrong)
