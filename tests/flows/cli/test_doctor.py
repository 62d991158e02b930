"""The doctor: what may keep a home from working, each with its cure."""

from __future__ import annotations

from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from configs.home import Home
from flows.cli.doctor import _pinned, examine
from flows.services.locks import RunRecord
from tasks.adapters.files.canonical import write_json
from tests.flows.services.waiting import killed_process


def test_the_doctor_names_what_is_wrong_with_a_cure(home: Path) -> None:
    place = Home(home)
    assert all(finding.ok for finding in examine(place) if finding.name != "packages")
    key = place.folder("keys") / "signing.pem"
    key.write_text("secret")
    key.chmod(0o644)
    dead = killed_process()
    record = RunRecord("reactor", dead.pid, dead.created, "now", "r", "r")
    write_json(place.folder("locks", "runs") / "r.json", asdict(record))
    write_json(place.folder("locks") / "reactor.lock", asdict(record))
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


def test_only_pins_for_this_python_and_platform_are_compared() -> None:
    lock = (
        "numpy==1.0 ; python_full_version < '3.11' \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "numpy==2.4.6 ; python_full_version >= '3.11' \\\n    --hash=sha256:cc\n"
        "pywin32==312 ; sys_platform == 'win32' \\\n    --hash=sha256:dd\n"
        "# a comment\njinja2==3.1.6 \\\n    --hash=sha256:ee\n"
    )
    assert _pinned(lock) == {"numpy": "2.4.6", "jinja2": "3.1.6"}


def test_the_doctor_compares_every_pin_of_the_lock_that_applies_here() -> None:
    """The lock is universal: some packages stand in it with several versions, each with a marker."""
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
