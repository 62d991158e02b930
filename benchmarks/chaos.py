"""`make chaos`: kill -9 a retrain at random moments, run it again, and compare with an undisturbed run.

Two homes get the same log. In the first, one retrain runs undisturbed. In the second, retrains are killed one after
the other, each at a moment drawn uniformly from the first part of what an undisturbed run takes (what a killed run had
finished is found again, so that later kills fall into later stages), and the last one runs to its end. Then: the
parameters have the same digest, the ledger verifies, there is exactly one champion, and no stage whose result was
persisted has been computed twice (as the Prefect server saw it).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """\
plant: chemical_reactor
data: {mapping: %s}
train: {algorithm: td3_bc, updates: 1200, seeds: 2, checkpoint_every: 200}
evaluate: {fqe_updates: 400, model_updates: 400, bootstraps: 100, rollouts: 64, discount: 0.95}
approval: auto
"""
PART = 0.4
CACHED = ("ingest", "validate", "identify", "train", "fallback", "evaluate", "simulate", "validate_simulator")


class Home:
    """One `NEORL_HOME` with services of its own."""

    def __init__(self, folder: Path, config: Path, log: Path) -> None:
        self.folder, self.config, self.log = folder, config, log
        self.environment = {**os.environ, "NEORL_HOME": str(folder)}

    def neorl(self, *arguments: str) -> dict[str, Any]:
        """Run a command to its end and return its JSON."""
        command = [sys.executable, "-m", "flows", *arguments, "--json"]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"chaos: neorl {' '.join(arguments)} left with {done.returncode}:\n{done.stderr[-3000:]}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    def retrain(self) -> dict[str, Any]:
        return self.neorl("retrain", str(self.config), "--data", str(self.log))

    def retrain_killed_after(self, seconds: float) -> bool:
        """Start a retrain and kill -9 it; False when it had finished before."""
        command = [sys.executable, "-m", "flows", "retrain", str(self.config), "--data", str(self.log)]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, cwd=ROOT, env=self.environment, start_new_session=True, **silent)
        try:
            process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True

    def computed(self) -> Counter[str]:
        """How often each stage ran to completion rather than being found in the cache, over all flow runs."""
        code = (
            "import asyncio, json\n"
            "from prefect.client.orchestration import get_client\n"
            "async def main():\n"
            "    async with get_client() as client:\n"
            "        runs, more = [], True\n"
            "        while more:\n"
            "            more = await client.read_task_runs(limit=200, offset=len(runs))\n"
            "            runs += more\n"
            "    print(json.dumps([[run.name, run.state_name] for run in runs]))\n"
            "asyncio.run(main())\n"
        )
        environment = {**self.environment, **self.neorl("status", "--export")}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        runs = json.loads(done.stdout.strip().splitlines()[-1])
        return Counter(name for name, state in runs if state == "Completed" and name in CACHED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--weeks", type=float, default=1.0, help="length of the generated log")
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="neorl-chaos-") as name:
        folder = Path(name)
        config = folder / "chemical_reactor.yaml"
        config.write_text(CONFIG % (ROOT / "configs/mappings/chemical_reactor.yaml"))
        log = folder / "log" / "historian.parquet"
        calm, wild = (Home(folder / part, config, log) for part in ("calm", "wild"))
        try:
            calm.neorl("up")
            calm.neorl("generate", "chemical_reactor", "--out", str(log.parent), "--weeks", str(arguments.weeks))
            started = time.monotonic()
            expected = calm.retrain()
            seconds = time.monotonic() - started
            calm.neorl("down")
            print(f"undisturbed: parameters {expected['population'][:12]} in {seconds:.0f} s", flush=True)
            wild.neorl("up")
            for kill in range(arguments.kills):
                moment = moments.uniform(1.0, PART * seconds)
                killed = wild.retrain_killed_after(moment)
                what = "killed" if killed else "had finished"
                print(f"kill {kill + 1:2d}: {what} after {moment:5.1f} s", flush=True)
            final = wild.retrain()
            audit = wild.neorl("audit", "verify")
            computed = wild.computed()
            history = wild.neorl("history", "chemical_reactor")["champions"]
        finally:
            for home in (calm, wild):
                if home.folder.exists():
                    home.neorl("down")
    checks = {
        "same parameters": final["population"] == expected["population"],
        "same verdict": (final["decided"] or final["verdict"]) == expected["verdict"],
        "ledger verifies": bool(audit["passed"]),
        "exactly one champion": len(history) == 1
        and final["champion"]["composite"] == expected["champion"]["composite"],
        "no finished stage computed again": all(computed[stage] <= 1 for stage in CACHED),
    }
    for check, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'} {check}")
    print(f"computed: {dict(computed)}; parameters {final['population'][:12]}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
