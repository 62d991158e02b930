"""Audit a restored home in a process with limited memory, because its contents may be anything."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

from configs.errors import NeoRLError
from configs.home import Home
from tasks.maintenance.restored import foreign_database

MEMORY = 150_000_000
"""Bytes that the audit may allocate."""
MOST, LONGEST = 500, 400
"""Number of checks, and characters of a check's message."""
VERIFY = "run 'neorl audit verify' in the restored home"

Found = tuple[str, bool | None, str]
"""Name, verdict and message of a check."""


def limited_audit(home: Home) -> list[Found]:
    """Return the checks of an audit; an audit that fails for any reason is a failed check."""
    if not home.ledger.exists():
        return []
    command = [sys.executable, "-P", "-m", __name__, str(home.root)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    try:
        return [(str(name), passed, str(detail)) for name, passed, detail in json.loads(done.stdout)]
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [("audit", False, f"ended with code {done.returncode} ({said[:LONGEST]}): {VERIFY}")]


def _checks(home: Home) -> list[Found]:
    # A view instead of the table could compute rows without end.
    with foreign_database(home.ledger) as connection:
        kinds = connection.execute("SELECT type FROM sqlite_master WHERE name = 'ledger'").fetchall()
    if kinds != [("table",)]:
        return [("table", False, f"{home.ledger.name} has no table of entries: take another copy of the backup")]
    from tasks.evidence.audit.audit import audit

    status = Path("/proc/self/statm")
    if status.exists():
        pages = int(status.read_text().split()[5])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return [(check.name, check.passed, check.detail[:LONGEST]) for check in audit(home).checks[:MOST]]


def main() -> None:
    """Print the checks of the home that the command line names as JSON."""
    try:
        found = _checks(Home(Path(sys.argv[1])))
    except NeoRLError as error:
        found = [("audit", False, str(error))]
    except MemoryError:
        found = [("audit", False, f"needs more than {MEMORY // 1_000_000} MB of memory: {VERIFY}")]
    except Exception as error:
        # The digests are correct, but the contents may be anything.
        found = [("audit", False, f"{type(error).__name__}: {str(error)[:LONGEST]}")]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
