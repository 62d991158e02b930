"""`make fleet`: retrain twenty generated reactors with `neorl fleet retrain`, kill it once and repeat it.

The constants of the sites differ by up to 3 %, and one site has a broken log. After a few sites have finished, the
command kills the first run with all its processes and runs it again. A third run must add nothing. Trainings are short,
because the test is that each site gets its own decision, not the quality of the policies.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.setting import commit, own_home
from configs.errors import BadInput
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import write_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fleet.json"
SOURCES = ("neorl_core", "tasks", "configs", "flows", "benchmarks/fleet.py")
"""Files and folders that a result depends on."""
RUN = """\
plant: chemical_reactor
data: {{mapping: {mapping}, held_out: 0.3}}
train: {{algorithm: td3_bc, updates: 300, seeds: 2, checkpoint_every: 100, hyperparameters: {{hidden: [16]}}}}
evaluate: {{model_updates: 40, bootstraps: 50, rollouts: 32, discount: 0.95}}
gates: {{beat_plant: false}}
approval: auto
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument(
        "--kill-after", type=int, default=4, help="kill the first run after this many sites have finished"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    try:
        at = commit(SOURCES)
    except BadInput as refused:
        parser.error(str(refused))
    with tempfile.TemporaryDirectory(prefix="neorl-fleet-") as name, own_home(Path(name) / "home") as home:
        found = play(home, Path(name), options.sites, options.kill_after)
    write_json(options.out, {"commit": at, **found})
    print(json.dumps(found, indent=1))
    return 0


def play(home: Home, folder: Path, sites: int, kill_after: int) -> dict[str, Any]:
    """Make the fleet, retrain it three times and check the outcomes.

    Args:
        home: home of the fleet; its servers are started if they do not run.
        folder: folder for the fleet.
        sites: number of sites; the last one has a broken log.
        kill_after: number of finished sites before the first run is killed.
    """
    run = folder / "run.yaml"
    run.write_text(RUN.format(mapping=ROOT / "configs" / "mappings" / "chemical_reactor.yaml"))
    fleet = folder / "reactors"
    neorl("fleet", "generate", str(fleet), "--like", str(run), "--sites", str(sites), "--broken", "1")
    file = fleet / "fleet.yaml"
    ended_before = kill(file, kill_after)
    first, seconds = retrained(file)
    entries = len(Ledger.open(home, write=False).entries())
    again, seconds_again = retrained(file)
    promotions = [entry for entry in Ledger.open(home, write=False).entries() if entry.kind == "promotion"]
    found = {
        "sites": sites,
        "ended_before_kill": ended_before,
        "decided": sum(site["outcome"] is not None for site in first["sites"]),
        "refused": {site["site"]: site["refused"] for site in first["sites"] if site["refused"]},
        "verdicts": Counter(site["outcome"]["verdict"] for site in first["sites"] if site["outcome"]),
        "champions": len({entry.plant for entry in promotions}),
        "promotions": len(promotions),
        "headline": first["headline"],
        "outliers": first["outliers"],
        "seconds": seconds,
        "again": {
            "verdicts": Counter(site["outcome"]["verdict"] for site in again["sites"] if site["outcome"]),
            "new_entries": len(Ledger.open(home, write=False).entries()) - entries,
            "seconds": seconds_again,
        },
        "audit": audit(home).passed,
    }
    whole = found["decided"] == sites - 1 == found["champions"] == found["promotions"] and len(found["refused"]) == 1
    same = found["again"]["verdicts"] == {"unchanged": sites - 1} and found["again"]["new_entries"] == 0
    if not (whole and same and found["audit"] and ended_before < sites):
        raise SystemExit(f"not {sites - 1} decisions, one refusal and nothing new: {json.dumps(found)}")
    return found


def retrained(file: Path) -> tuple[dict[str, Any], float]:
    """Retrain the fleet; return the answer and the seconds. Expects exit code 1, because one log is broken."""
    started = time.monotonic()
    return neorl("fleet", "retrain", str(file), code=1), round(time.monotonic() - started, 1)


def neorl(*arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a `neorl` command in a new process, check its exit code and return its JSON answer."""
    words = [sys.executable, "-m", "flows", *arguments, "--json"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if done.returncode != code:
        raise SystemExit(f"neorl {' '.join(arguments)} exited with {done.returncode}, not {code}: {answer}")
    return answer


def kill(file: Path, after: int) -> int:
    """Start a retraining of the fleet, and kill all its processes after some sites have finished.

    Returns:
        Number of finished sites.
    """
    words = [sys.executable, "-m", "flows", "fleet", "retrain", str(file)]
    ended = 0
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            ended += line.startswith("neorl: site_")
            if ended == after:
                os.killpg(process.pid, signal.SIGKILL)
                break
    return ended


if __name__ == "__main__":
    sys.exit(main())
