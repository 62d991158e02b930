"""Search tracked files for secrets and pinned packages for known vulnerabilities (`make scan`).

The baseline is a file that lists false positives by file name and digest, but not by line. `make baseline` rewrites it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path

from detect_secrets import SecretsCollection
from detect_secrets.core import baseline
from detect_secrets.settings import default_settings

ROOT = Path(__file__).parents[1]
BASELINE = "infra/secrets.baseline.json"
DIGESTS = "HexHighEntropyString"
"""Detector that reports every digest as a secret, so it is disabled."""
LOCKS = ("requirements.lock", "infra/federation.lock")
"""Lock files of environments."""
LEFT_OUT = (*LOCKS, "infra/uv.lock", BASELINE, "benchmarks/results/", "tests/golden/")
"""Generated files that contain only digests and numbers."""
AUDIT = ("-m", "pip_audit", "--disable-pip", "--progress-spinner", "off", "-f", "json", "-r")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Print findings; return exit code 1 if there are any."""
    found = secrets_of(root)
    if arguments:
        baseline.save_to_file(found, str(root / BASELINE))
        print(f"wrote {BASELINE}: review its changes")
        return 0
    new = found - SecretsCollection.load_from_baseline(baseline.load_from_file(str(root / BASELINE)))
    places = [f"{name}, line {secret.line_number} ({secret.type})" for name, secret in sorted(new, key=str)]
    for place in places:
        print(f"possible secret in {place}: remove and replace it, or run 'make baseline' for a false positive.")
    print(f"secrets: {len(places)} new in tracked files")
    sound = True
    for lock in LOCKS:
        passed, summary = audited(*audit(root, lock))
        sound &= passed
        print(f"{lock}: {summary}")
    return int(bool(places) or not sound)


def secrets_of(root: Path) -> SecretsCollection:
    """Return the possible secrets in all files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(LEFT_OUT) and (root / name).is_file()]
    found = SecretsCollection()
    # The baseline identifies secrets by relative file names.
    with chdir(root), default_settings() as settings:
        settings.disable_plugins(DIGESTS)
        for name in names:
            found.scan_file(name)
    return found


def audit(root: Path, lock: str = LOCKS[0]) -> tuple[str, str]:
    """Run pip-audit on a lock file; return its report and the last line of its error output."""
    done = subprocess.run([sys.executable, *AUDIT, lock], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout, (done.stderr.strip().splitlines() or ["no output"])[-1]


def audited(report: str, last: str) -> tuple[bool, str]:
    """Return whether the packages have no known vulnerability, and a summary.

    Args:
        report: pip-audit's report; empty if its database does not answer.
        last: last line of its error output.
    """
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, LookupError):
        return True, f"vulnerabilities: not run: the database does not answer ({last})"
    known = [each for each in packages if "skip_reason" not in each]
    if not known:
        return True, f"vulnerabilities: not run: the database has none of {len(packages)} packages"
    flaws = [f"{each['name']} {each['version']}: {flaw['id']}" for each in known for flaw in each["vulns"]]
    unknown = f"; {len(packages) - len(known)} are not in the database" if len(known) < len(packages) else ""
    summary = f"vulnerabilities: {len(flaws)} known in {len(known)} packages{unknown}"
    return not flaws, "\n".join([*(f"known vulnerability in {flaw}: pin another version." for flaw in flaws), summary])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
