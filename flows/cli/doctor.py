"""What may keep a home from working, each finding with its cure."""

from __future__ import annotations

import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from configs.home import Home
from flows.services import processes
from flows.services import servers as services
from flows.services.locks import dead_runs, holders

PROJECT = Path(__file__).resolve().parents[2]
LEAST_FREE_GB = 2.0


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    cure: str = ""


def examine(home: Home) -> list[Finding]:
    """Look at Python, packages, disk, ports, services, keys and locks; changes nothing."""
    return [_python(), _pins(), _disk(home), *_services(home), _keys(home), *_locks(home)]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= (3, 11), found, "install Python 3.11 or newer, then 'make run'")


def _pins() -> Finding:
    lock = PROJECT / "requirements.lock"
    if not lock.is_file():
        return Finding("packages", True, "no lock beside this installation to compare with")
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock.read_text(), re.MULTILINE))
    wrong = []
    for name, version in pins.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # pinned for another platform or Python
        if found != version:
            wrong.append(f"{name} {found} in place of {version}")
    shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    detail = f"expected the {len(pins)} pinned versions, got {shown}" if wrong else f"{len(pins)} pins hold"
    return Finding("packages", not wrong, detail, "remove .venv, then 'make run' installs the lock")


def _disk(home: Home) -> Finding:
    place = next(p for p in [home.root, *home.root.parents] if p.exists())
    free = shutil.disk_usage(place).free / 1e9
    cure = "free some space there, or point NEORL_HOME to another disk"
    return Finding("disk", free >= LEAST_FREE_GB, f"{free:.1f} GB free for {home.root}", cure)


def _services(home: Home) -> list[Finding]:
    report = services.status(home)
    findings = []
    for name, title in services.TITLES.items():
        state = report[name]["state"]
        if name in services.PORTS and state == "stopped" and not processes.port_is_free(services.PORTS[name]):
            detail = f"not running; another program has port {services.PORTS[name]}, so another one will be used"
            findings.append(Finding(title, True, detail))
            continue
        cure = f"read {home.root / 'logs' / name}.log, then 'neorl down' and 'neorl up'"
        detail = " ".join(filter(None, [state, report[name].get("url", "")]))
        findings.append(Finding(title, state != "not answering", detail, cure))
    return findings


def _keys(home: Home) -> Finding:
    path = home.root / "keys" / "signing.pem"
    if not path.exists():
        from tasks.adapters.ledger.ledger import Ledger

        lost = Ledger.exists(home)
        detail = "the ledger's key is gone" if lost else "none yet; the first run makes one"
        return Finding("keys", not lost, detail, f"restore {path} from its backup")
    loose = path.stat().st_mode & 0o077
    return Finding("keys", not loose, "readable by others" if loose else str(path), f"chmod 600 {path}")


def _locks(home: Home) -> list[Finding]:
    findings = []
    for holder in holders(home):
        state = "a run is going on" if holder["alive"] else "a killed run; the next run takes over"
        findings.append(Finding(f"lock {holder['plant']}", True, f"{state} (process {holder['pid']})"))
    dead = dead_runs(home)
    if dead:
        detail = f"{len(dead)} killed run(s) that Prefect may still show as running"
        findings.append(Finding("runs", False, detail, "'neorl up' marks them as crashed"))
    return findings
