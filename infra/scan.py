"""Looks for secrets in tracked files, and for known flaws of pinned packages: `make scan`.

What detect-secrets found that is no secret is listed in a baseline, by file and by digest of what was found, so that
lines may move. `make baseline` writes it anew.
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
"""The detector that takes every digest for a secret; this project names everything by digests."""
LOCKS = ("requirements.lock", "infra/federation.lock")
"""What is installed together."""
LEFT_OUT = (*LOCKS, "infra/uv.lock", BASELINE, "benchmarks/results/", "tests/golden/")
"""Files of digests and numbers alone, written by commands."""
AUDIT = ("-m", "pip_audit", "--disable-pip", "--progress-spinner", "off", "-f", "json", "-r")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Say what is found; the exit code is 1 where something is."""
    found = secrets_of(root)
    if arguments:
        baseline.save_to_file(found, str(root / BASELINE))
        print(f"wrote {BASELINE}: review it with the change that made it necessary")
        return 0
    new = found - SecretsCollection.load_from_baseline(baseline.load_from_file(str(root / BASELINE)))
    said = [f"{name}, line {secret.line_number} ({secret.type})" for name, secret in sorted(new, key=str)]
    for where in said:
        print(f"expected no secret in {where}: take it out and replace it, or 'make baseline' where it is none.")
    print(f"secrets: {len(said)} new in tracked files")
    sound = True
    for lock in LOCKS:
        free, words = audited(*audit(root, lock))
        sound &= free
        print(f"{lock}: {words}")
    return int(bool(said) or not sound)


def secrets_of(root: Path) -> SecretsCollection:
    """What looks like a secret in the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(LEFT_OUT) and (root / name).is_file()]
    found = SecretsCollection()
    # From there, for a secret is known by the file's name as it was given.
    with chdir(root), default_settings() as settings:
        settings.disable_plugins(DIGESTS)
        for name in names:
            found.scan_file(name)
    return found


def audit(root: Path, lock: str = LOCKS[0]) -> tuple[str, str]:
    """What pip-audit prints about the packages that a lock pins, and its last words."""
    done = subprocess.run([sys.executable, *AUDIT, lock], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout, (done.stderr.strip().splitlines() or ["no word"])[-1]


def audited(report: str, last: str) -> tuple[bool, str]:
    """Whether pinned packages are free of known flaws, as far as the database answered, and that in words.

    Args:
        report: what pip-audit printed; nothing where its database does not answer.
        last: its last words then.
    """
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, LookupError):
        return True, f"flaws: not run: the database does not answer ({last})"
    asked = [each for each in packages if "skip_reason" not in each]
    if not asked:
        return True, f"flaws: not run: the database that answers knows none of {len(packages)} packages"
    flaws = [f"{each['name']} {each['version']}: {flaw['id']}" for each in asked for flaw in each["vulns"]]
    unknown = f"; {len(packages) - len(asked)} are not in the database" if len(asked) < len(packages) else ""
    found = f"flaws: {len(flaws)} known in {len(asked)} packages{unknown}"
    return not flaws, "\n".join(
        [*(f"expected no known flaw, got {flaw}: pin another version." for flaw in flaws), found]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
