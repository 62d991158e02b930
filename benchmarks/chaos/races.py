"""Races: two processes approve two candidates at the same time; exactly one candidate may become champion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from configs.home import Home
from flows.services.servers import down, up
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.champions import champion
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import write_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "chaos" / "races.json"


def kept_races() -> list[dict[str, Any]]:
    """Return the results of the races so far."""
    kept: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return kept


def races(count: int, end: float) -> None:
    """Run the missing races, and write each result to disk.

    Args:
        count: number of races, kept ones included.
        end: monotonic time after which no race starts.
    """
    from tasks.lifecycle.policy import sign
    from tests.evidence import POLICY
    from tests.tasks.lifecycle.served import Served

    found = kept_races()
    if len(found) >= count:
        return
    with (
        tempfile.TemporaryDirectory(prefix="neorl-races-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        services = up(Home(Path(folder) / "services"), worker=False)
        try:
            served = Served(services, Path(folder) / "home", patch)
            sign(served.ledger, POLICY, "a reviewer", "before the first promotion")
            while len(found) < count and time.monotonic() < end:
                found.append(_race(served))
                write_json(RESULTS, found)
                summary = "; ".join(found[-1]["violations"]) or f"version {found[-1]['champion']} is champion"
                print(f"race {len(found)}: {summary} ({found[-1]['seconds']:.0f} s)", flush=True)
            served.close()
        finally:
            down(services.home)


def _race(served: Any) -> dict[str, Any]:
    """Approve two candidates from two processes, and return the result of the race with its violations."""
    from tests.evidence import PLANT

    begun = time.monotonic()
    before = champion(Ledger.open(served.home, write=False).entries(), PLANT)
    versions = [served.candidate().body["version"] for _ in range(2)]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "flows", "approve", PLANT, version, "--by", f"reviewer {version}", "--json"],
            cwd=ROOT,
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for version in versions
    ]
    outputs = [process.communicate(timeout=300) for process in both]
    codes = [process.returncode for process in both]
    entries = Ledger.open(served.home, write=False).entries()
    now = champion(entries, PLANT)
    crowned = json.loads(outputs[codes.index(0)][0].splitlines()[-1]).get("champion") if 0 in codes else None
    violations = [f"a traceback: {err.strip().splitlines()[-1]}" for _, err in outputs if "Traceback" in err]
    violations += [str(check) for check in audit(served.home).failures]
    promoted = sum(entry.kind == "promotion" for entry in entries if before is None or entry.sequence > before.sequence)
    if promoted > 1:
        violations.append(f"{promoted} promotions")
    if now is None or (now == before and 0 in codes):
        violations.append("an approval succeeded without a new champion")
    elif served.registry.aliases(PLANT).get("champion") != now.body["version"]:
        violations.append("MLflow's champion differs from the ledger's")
    return {
        "codes": codes,
        "champion": now.body["version"] if now else None,
        "told": crowned,
        "violations": violations,
        "seconds": time.monotonic() - begun,
    }
