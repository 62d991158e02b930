"""What may keep a home from working, each finding with its cure."""

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

from packaging.requirements import Requirement

from configs.errors import NeoRLError
from configs.home import LAYOUT, PASSPHRASE, Home
from flows.services import processes, servers
from flows.services.definitions import SERVICES, TITLES
from flows.services.deployments import PROJECT
from flows.services.locks import dead_runs, holders
from flows.services.state import read_services

if TYPE_CHECKING:
    from tasks.evidence.ledger.ledger import Ledger

LEAST_FREE_GB = 2.0


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    cure: str = ""


def examine(home: Home) -> list[Finding]:
    """Look at Python, packages, disk, the home, services, keys, the ledger and locks; changes nothing."""
    here = [_python(), _pins(), _disk(home), _home(home), _layout(home)]
    return [*here, *_services(home), examine_key(home), *_secrets(home), *_ledger(home), *_locks(home)]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= (3, 11), found, "install Python 3.11 or newer, then 'make run'")


def _pins() -> Finding:
    lock = PROJECT / "requirements.lock"
    if not lock.is_file():
        return Finding("packages", True, "no lock beside this installation to compare with")
    pins = _pinned(lock.read_text())
    wrong = []
    for name, version in pins.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed
        if found != version:
            wrong.append(f"{name} {found} in place of {version}")
    shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    detail = f"expected the {len(pins)} pinned versions, got {shown}" if wrong else f"{len(pins)} pins hold"
    return Finding("packages", not wrong, detail, "remove .venv, then 'make run' installs the lock")


def _pinned(lock: str) -> dict[str, str]:
    """The versions that a lock pins for this Python and platform; others have a marker that does not hold here."""
    entries = lock.replace("\\\n", " ").splitlines()
    requirements = [Requirement(entry.split(" --hash")[0]) for entry in entries if entry[:1].isalnum()]
    here = [found for found in requirements if found.marker is None or found.marker.evaluate()]
    return {found.name: next(iter(found.specifier)).version for found in here}


def _disk(home: Home) -> Finding:
    place = next(p for p in [home.root, *home.root.parents] if p.exists())
    free = shutil.disk_usage(place).free / 1e9
    cure = "free some space there, or point NEORL_HOME to another disk"
    return Finding("disk", free >= LEAST_FREE_GB, f"{free:.1f} GB free for {home.root}", cure)


def _home(home: Home) -> Finding:
    if not home.root.exists():
        return Finding("home", True, f"none yet at {home.root}; the first command makes it")
    mode = stat.S_IMODE(home.root.stat().st_mode)
    inside = sorted(path for path in home.root.iterdir() if path.is_dir()) if _is_open(home.root) else []
    closed = [str(path) for path in (home.root, *inside) if not _is_open(path)]
    if closed:
        detail = f"this account may not read and write {', '.join(closed[:3])}"
        return Finding("home", False, detail, "change owner or mode there, or point NEORL_HOME to another folder")
    detail = f"others may look into {home.root} (mode {mode:04o})" if mode & 0o077 else str(home.root)
    return Finding("home", not mode & 0o077, detail, f"chmod 700 {home.root}")


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _layout(home: Home) -> Finding:
    try:
        found = home.layout
        home.check_layout()
    except NeoRLError as error:
        said, _, cure = str(error).rstrip(".").rpartition(": ")
        return Finding("layout", False, said, cure)
    if found < LAYOUT:
        detail = f"{found}, of an earlier version; it opens as it is"
        return Finding("layout", True, detail, "'neorl down', then 'neorl migrate', which backs it up first")
    return Finding("layout", True, str(found))


def _secrets(home: Home) -> list[Finding]:
    """Secrets that others may read, and a passphrase that is not to be found."""
    findings = []
    for path in sorted([home.login, *(home.root / "keys" / "seeds").glob("*"), home.root / "witness" / "key.pem"]):
        if path.is_file() and path.stat().st_mode & 0o077:
            findings.append(Finding("secrets", False, f"others may read {path}", f"chmod 600 {path}, and replace it"))
    if not home.signing_key.exists():
        return findings
    from tasks.evidence.ledger import keys

    named = os.environ.get(keys.PASSPHRASE_FILE)
    if named and not Path(named).is_file():
        cure = f"bring it back, or unset {keys.PASSPHRASE_FILE}"
        findings.append(Finding("passphrase", False, f"no file at {named}, which {keys.PASSPHRASE_FILE} names", cure))
        return findings
    try:
        asked = keys.must_be_asked_for(home)
    except NeoRLError:
        return findings  # which the finding about the key says
    if asked and not os.environ.get(PASSPHRASE):
        kept = keys.kept_passphrase(home.signing_key.read_bytes())
        detail = (
            f"none of the signing key in {kept}: each command that signs asks for it, and none that is scheduled can"
        )
        cure = f"bring that file back, or name one by {keys.PASSPHRASE_FILE}"
        findings.append(Finding("passphrase", False, detail, cure))
    return findings


def _ledger(home: Home) -> list[Finding]:
    """Whether the ledger can be read and verified, this machine's clock is not behind it, and its witnesses answer."""
    from tasks.evidence.ledger.ledger import Ledger

    if not Ledger.exists(home):
        return []
    from tasks.evidence.audit.witnesses import check_clock

    try:
        ledger = Ledger.open(home, write=False)
        entries = ledger.entries()
        witnesses = list(_witnesses(home, ledger))
    except NeoRLError as error:
        said, _, cure = str(error).rstrip(".").rpartition(": ")
        return [Finding("ledger", False, said, cure)]
    findings = [Finding("ledger", True, f"{len(entries):,} entries, each signed by a pinned key"), *witnesses]
    clock = check_clock(entries, datetime.now(UTC))
    if not clock.passed:
        findings.append(
            Finding("clock", False, clock.detail, "set this machine's clock right; nothing is signed before")
        )
    return findings


def _witnesses(home: Home, ledger: Ledger) -> Iterator[Finding]:
    """Whether the witnesses that others run answer: too few of them, and nothing is certified or promoted."""
    from tasks.evidence.witness.pinned import pinned
    from tasks.evidence.witness.transport import OWN, http_transport

    found = pinned(home, ledger.trust)
    for witness in found.witnesses if found else ():
        if witness.url == OWN:
            continue
        try:
            http_transport(home)(witness, "/key", None)
        except OSError as error:
            cure = "have its owner start it with 'neorl witness serve', or pin another one"
            detail = f"{witness.verifier.name} at {witness.url} does not answer ({error})"
            yield Finding("witness", False, detail, cure)
        else:
            yield Finding("witness", True, f"{witness.verifier.name} answers at {witness.url}")


def _services(home: Home) -> list[Finding]:
    findings, known = [], read_services(home)
    for name, found in servers.status(home).services.items():
        title, port = TITLES[name], SERVICES[name].port
        log = f"read {home.root / 'logs' / name}.log"
        # 'neorl down' leaves no process in the record.
        if found.state == "stopped" and name in known and known[name].process:
            findings.append(Finding(title, False, "its process has ended by itself", f"{log}, then 'neorl up'"))
            continue
        if found.state == "stopped" and port and not processes.port_is_free(port):
            detail = f"not running; another program has port {port}, so another one will be used"
            findings.append(Finding(title, True, detail))
            continue
        ok, detail = found.state != "not answering", " ".join(filter(None, [found.state, found.url]))
        findings.append(Finding(title, ok, detail, f"{log}, then 'neorl down' and 'neorl up'"))
    return findings


def examine_key(home: Home) -> Finding:
    """Whether the signing key is there, or can still be made, and is its owner's alone."""
    path = home.root / "keys" / "signing.pem"
    if not path.exists():
        from tasks.evidence.ledger.ledger import Ledger

        lost = Ledger.exists(home)
        detail = "the ledger's key is gone" if lost else "none yet; the first run makes one"
        return Finding("keys", not lost, detail, f"restore {path} from its backup")
    loose = path.stat().st_mode & 0o077
    return Finding("keys", not loose, "readable by others" if loose else str(path), f"chmod 600 {path}")


def _locks(home: Home) -> list[Finding]:
    findings = []
    for holder in holders(home):
        state = "a run is going on" if holder.alive else "a killed run; the next run takes over"
        findings.append(Finding(f"lock {holder.plant}", True, f"{state} (process {holder.pid})"))
    dead = dead_runs(home)
    if dead:
        detail = f"{len(dead)} killed run(s) that Prefect may still show as running"
        findings.append(Finding("runs", False, detail, "'neorl up' marks them as crashed"))
    return findings
