"""Command `neorl doctor`: check the installation and the home."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from configs.errors import NeoRLError
from configs.home import LAYOUT, PASSPHRASE, Home
from flows.cli.common import AsJson, emit

if TYPE_CHECKING:
    from tasks.evidence.ledger.ledger import Ledger

LEAST_FREE_GB = 2.0


def doctor(as_json: AsJson = False) -> None:
    """Find problems of the installation and of this home, each with a cure. Exit code 1 if there is a problem.

    Example: neorl doctor
    """
    findings = examine(Home.locate(any_layout=True))
    failed = [f for f in findings if not f.ok]
    lines = [f"{'ok  ' if f.ok else 'FAIL'}  {f.name}: {f.detail}" + ("" if f.ok else f": {f.cure}") for f in findings]
    emit({"ok": not failed, "findings": [f._asdict() for f in findings]}, as_json, lines)
    if failed:
        raise typer.Exit(1)


class Finding(NamedTuple):
    """Result of one check."""

    name: str
    ok: bool
    detail: str
    cure: str = ""


def examine(home: Home) -> list[Finding]:
    """Check Python, packages, disk, home, services, keys, ledger and locks, without changing anything."""
    local = [_python(), _pins(), _disk(home), _home(home), _layout(home)]
    return [*local, *_services(home), examine_key(home), *_secrets(home), *_ledger(home), *_locks(home)]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer, then 'make run'")


def _pins() -> Finding:
    from flows.services.deployments import PROJECT

    lock = PROJECT / "requirements.lock"
    if not lock.is_file():
        return Finding("packages", True, f"not compared: {lock} does not exist")
    pins = _pinned(lock.read_text())
    wrong = []
    for name, version in pins.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # belongs to an extra that is not installed
        if found != version:
            wrong.append(f"{name} {found} instead of {version}")
    shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    detail = f"{len(wrong)} of {len(pins)} packages differ from the lock: {shown}"
    detail = detail if wrong else f"{len(pins)} packages match the lock"
    return Finding("packages", not wrong, detail, "remove .venv, then 'make run' installs the locked versions")


def _pinned(lock: str) -> dict[str, str]:
    """Return the versions that a lock file pins for this Python and platform."""
    from packaging.requirements import Requirement

    entries = lock.replace("\\\n", " ").splitlines()
    requirements = [Requirement(entry.split(" --hash")[0]) for entry in entries if entry[:1].isalnum()]
    here = [found for found in requirements if found.marker is None or found.marker.evaluate()]
    return {found.name: next(iter(found.specifier)).version for found in here}


def _disk(home: Home) -> Finding:
    folder = next(p for p in [home.root, *home.root.parents] if p.exists())
    free = shutil.disk_usage(folder).free / 1e9
    cure = "free some space, or set NEORL_HOME to a folder on another disk"
    return Finding("disk", free >= LEAST_FREE_GB, f"{free:.1f} GB free for {home.root}", cure)


def _home(home: Home) -> Finding:
    if not home.root.exists():
        return Finding("home", True, f"none yet at {home.root}; the first command creates it")
    mode = stat.S_IMODE(home.root.stat().st_mode)
    inside = sorted(path for path in home.root.iterdir() if path.is_dir()) if _is_open(home.root) else []
    closed = [str(path) for path in (home.root, *inside) if not _is_open(path)]
    if closed:
        detail = f"this account cannot read and write {', '.join(closed[:3])}"
        return Finding("home", False, detail, "change their owner or mode, or set NEORL_HOME to another folder")
    detail = f"other users can read {home.root} (mode {mode:04o})" if mode & 0o077 else str(home.root)
    return Finding("home", not mode & 0o077, detail, f"chmod 700 {home.root}")


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _layout(home: Home) -> Finding:
    try:
        found = home.layout
        home.check_layout()
    except NeoRLError as error:
        return Finding("layout", False, *_problem_and_cure(error))
    if found < LAYOUT:
        detail = f"{found}, of an earlier version, still supported"
        return Finding("layout", True, detail, "run 'neorl down', then 'neorl migrate', which makes a backup first")
    return Finding("layout", True, str(found))


def _problem_and_cure(error: NeoRLError) -> tuple[str, str]:
    problem, _, cure = str(error).rstrip(".").rpartition(": ")
    return problem, cure


def _secrets(home: Home) -> list[Finding]:
    """Find secrets that other users can read, and a missing passphrase of the signing key."""
    findings = []
    for path in sorted([home.login, *(home.root / "keys" / "seeds").glob("*"), home.root / "witness" / "key.pem"]):
        if path.is_file() and path.stat().st_mode & 0o077:
            cure = f"run 'chmod 600 {path}', and replace the secret"
            findings.append(Finding("secrets", False, f"other users can read {path}", cure))
    if not home.signing_key.exists():
        return findings
    from tasks.evidence.ledger import keys

    named = os.environ.get(keys.PASSPHRASE_FILE)
    if named and not Path(named).is_file():
        cure = f"restore the file, or unset {keys.PASSPHRASE_FILE}"
        findings.append(Finding("passphrase", False, f"{keys.PASSPHRASE_FILE} names the absent file {named}", cure))
        return findings
    try:
        must_ask = keys.must_be_asked_for(home)
    except NeoRLError:
        return findings  # reported by the check of the key
    if must_ask and not os.environ.get(PASSPHRASE):
        kept = keys.kept_passphrase(home.signing_key.read_bytes())
        detail = f"the signing key's passphrase is not in {kept}: commands ask for it, and scheduled runs cannot sign"
        cure = f"restore that file, or set {keys.PASSPHRASE_FILE}"
        findings.append(Finding("passphrase", False, detail, cure))
    return findings


def _ledger(home: Home) -> list[Finding]:
    """Check that the ledger is valid, that the clock is not behind the last entry, and that the witnesses answer."""
    from tasks.evidence.ledger.ledger import Ledger

    if not Ledger.exists(home):
        return []
    from tasks.evidence.audit.witnesses import check_clock

    try:
        ledger = Ledger.open(home, write=False)
        entries = ledger.entries()
        witnesses = list(_witnesses(home, ledger))
    except NeoRLError as error:
        return [Finding("ledger", False, *_problem_and_cure(error))]
    findings = [Finding("ledger", True, f"{len(entries):,} entries, each signed by a pinned key"), *witnesses]
    clock = check_clock(entries, datetime.now(UTC))
    if not clock.passed:
        findings.append(Finding("clock", False, clock.detail, "correct this machine's clock, else nothing is signed"))
    return findings


def _witnesses(home: Home, ledger: Ledger) -> Iterator[Finding]:
    """Check that the witnesses of other parties answer. Without enough witnesses nothing is certified or promoted."""
    from tasks.evidence.witness.pinned import pinned
    from tasks.evidence.witness.transport import OWN, http_transport

    found = pinned(home, ledger.trust)
    for witness in found.witnesses if found else ():
        if witness.url == OWN:
            continue
        try:
            http_transport(home)(witness, "/key", None)
        except OSError as error:
            cure = "ask the owner to run 'neorl witness serve', or pin another witness"
            detail = f"{witness.verifier.name} at {witness.url} does not answer ({error})"
            yield Finding("witness", False, detail, cure)
        else:
            yield Finding("witness", True, f"{witness.verifier.name} answers at {witness.url}")


def _services(home: Home) -> list[Finding]:
    from flows.services import processes, servers
    from flows.services.service_table import SERVICES, TITLES
    from flows.services.state import read_services

    findings, known = [], read_services(home)
    for name, found in servers.status(home).services.items():
        title, port = TITLES[name], SERVICES[name].port
        log = f"read {home.root / 'logs' / name}.log"
        # After 'neorl down' the record names no process.
        if found.state == "stopped" and name in known and known[name].process:
            findings.append(Finding(title, False, "the process ended by itself", f"{log}, then run 'neorl up'"))
            continue
        if found.state == "stopped" and port and not processes.port_is_free(port):
            detail = f"not running; port {port} is used by another program, so another port will be used"
            findings.append(Finding(title, True, detail))
            continue
        ok, detail = found.state != "not answering", " ".join(filter(None, [found.state, found.url]))
        findings.append(Finding(title, ok, detail, f"{log}, then run 'neorl down' and 'neorl up'"))
    return findings


def examine_key(home: Home) -> Finding:
    """Check that the signing key exists or can be created, and that only the owner can read it."""
    path = home.root / "keys" / "signing.pem"
    if not path.exists():
        from tasks.evidence.ledger.ledger import Ledger

        lost = Ledger.exists(home)
        detail = f"the ledger's key {path} is missing" if lost else "none yet; the first run creates one"
        return Finding("keys", not lost, detail, f"restore {path} from a backup")
    loose = path.stat().st_mode & 0o077
    return Finding("keys", not loose, f"other users can read {path}" if loose else str(path), f"chmod 600 {path}")


def _locks(home: Home) -> list[Finding]:
    from flows.services.locks import dead_runs, holders

    findings = []
    for holder in holders(home):
        state = "a run is in progress" if holder.alive else "left by a killed run; the next run takes over"
        findings.append(Finding(f"lock {holder.plant}", True, f"{state} (process {holder.pid})"))
    dead = dead_runs(home)
    if dead:
        detail = f"Prefect may still show {len(dead)} killed run(s) as running"
        findings.append(Finding("runs", False, detail, "run 'neorl up', which marks them as crashed"))
    return findings
