"""A home for the trials, with its servers, and the search for violations."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from configs.errors import ServiceMissing
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.champions import IN_FORCE, champion
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.ledger import Ledger

if TYPE_CHECKING:
    from benchmarks.chaos.network import Host
    from flows.services.servers import Services
    from tests.servers import Postgres

ROOT = Path(__file__).resolve().parents[2]
PLANT = "chemical_reactor"
CONFIG = """\
plant: chemical_reactor
seed: {seed}
data: {{mapping: {mapping}}}
train:
  {{algorithm: td3_bc, updates: 300, seeds: 2, checkpoint_every: 100, hyperparameters: {{critics: 2, hidden: [16]}}}}
evaluate: {{model_updates: 40, bootstraps: 50, rollouts: 32, discount: 0.95}}
gates: {{beat_plant: false}}
approval: auto
concurrency: wait
"""
DEPLOYMENTS = """\
deployments:
  - name: struck
    entrypoint: flows.retrain.retrain
    work_pool: {name: neorl}
    concurrency_limit: {limit: 1, collision_strategy: ENQUEUE}
    triggers:
      - name: retrain on an event of the campaign
        match: {prefect.resource.id: neorl.chaos}
        expect: [neorl.chaos.arrived]
        parameters: {config: "{{ event.payload.config }}", data: "{{ event.payload.data }}"}
"""
"""Deployments of the trials; `neorl up` reads this file from the current folder."""
FAKETIME = re.compile(r"Exception in thread .*?time\.sleep\(1\)\nOSError: \[Errno 22\] Invalid argument\n", re.DOTALL)
"""Message of an error in `time.sleep` of a Prefect thread that only libfaketime 0.9.10 causes, not a real clock."""
PATIENCE = 300.0
"""Seconds after which a command or a run's state counts as hanging."""


class Ended(NamedTuple):
    """A finished command."""

    code: int
    """Negative if a signal ended the command."""
    answer: dict[str, Any]
    """JSON object of the last line; empty if there is none."""
    stderr: str
    """Standard error."""

    @property
    def sentence(self) -> str:
        """The error message."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("neorl: ")]
        return str(self.answer.get("error") or (lines[-1] if lines else ""))

    @property
    def fault(self) -> str:
        """The violation, which is a traceback or a failure without a message; empty if there is none."""
        stderr = FAKETIME.sub("", self.stderr)
        if "Traceback" in stderr:
            return f"a traceback: {stderr[stderr.index('Traceback') :].strip()[-600:]}"
        if self.code > 0 and not (self.answer or self.sentence):
            return f"exit code {self.code} without a message"
        return ""


class Site:
    """A home with servers."""

    def __init__(self, folder: Path, database: Postgres | None = None, elsewhere: Host | None = None) -> None:
        """Use a home in a folder, or with ledger, Prefect and MLflow in a database on the host `elsewhere`."""
        self.folder, self.home, self.database, self.elsewhere = folder, Home(folder / "home"), database, elsewhere
        self.log, self.seconds = folder / "log" / "historian.parquet", 30.0
        self.environment = {
            **os.environ,
            "NEORL_HOME": str(self.home.root),
            "PYTHONPATH": str(ROOT),
        }
        if database is not None:
            names = ("LEDGER", "PREFECT_DATABASE", "MLFLOW_DATABASE")
            urls = {f"NEORL_{name}_URL": database.create(name.lower()) for name in names}
            self.environment |= urls
            os.environ.update(urls)

    def prepare(self) -> None:
        """Start the servers and make the log, if missing."""
        (self.folder / "prefect.yaml").write_text(DEPLOYMENTS)
        self.up()
        if not self.log.exists():
            done = self.run("generate", PLANT, "--out", str(self.log.parent), "--weeks", "0.5")
            if done.code:
                raise SystemExit(f"chaos: neorl generate exited with {done.code}: {done.stderr[-2000:]}")

    def up(self) -> None:
        """Start the servers that are not running."""
        done = self.run("up")
        if done.code:
            raise SystemExit(f"chaos: neorl up exited with {done.code}: {done.stderr[-2000:]}")

    def config(self, seed: int) -> Path:
        """Write the configuration of a trial and return the file."""
        path = self.folder / f"seed-{seed}.yaml"
        path.write_text(CONFIG.format(seed=seed, mapping=ROOT / "configs" / "mappings" / f"{PLANT}.yaml"))
        return path

    def start(
        self, *words: str, largest_file: int | None = None, before: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start a command in a process group of its own.

        Args:
            words: words of the command, without `neorl`.
            largest_file: limit on the size of written files in bytes, which simulates a full disk.
            before: command prefix.
        """

        def limit() -> None:
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))

        return subprocess.Popen(
            [*before, sys.executable, "-m", "flows", *words, "--json"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=limit,
        )

    def retrain(self, seed: int, **options: Any) -> subprocess.Popen[str]:
        """Start a trial's retraining."""
        return self.start("retrain", str(self.config(seed)), "--data", str(self.log), **options)

    def run(self, *words: str) -> Ended:
        """Run a command to its end."""
        return ended(self.start(*words))

    @property
    def services(self) -> Services:
        """The running servers."""
        from flows.services.servers import connect, environment

        found = connect(self.home)
        os.environ.update(environment(found))
        return found

    def ask_prefect(self, path: str, body: object = None) -> Any:
        """Send a request to Prefect; retry on a busy machine."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.services.ask_prefect(path, body)
            except (ServiceMissing, OSError):
                if time.monotonic() > end:
                    raise
            time.sleep(1.0)

    def deployed(self, seed: int) -> str:
        """Start a retraining at Prefect's worker and return the id of its run in Prefect."""
        deployment = self.ask_prefect("deployments/name/retrain/struck")["id"]
        parameters = {"config": str(self.config(seed)), "data": [str(self.log)]}
        run = self.ask_prefect(f"deployments/{deployment}/create_flow_run", {"parameters": parameters})
        return str(run["id"])

    def arrive(self, seed: int) -> int:
        """Send one event twice and then a second event, and return the number of started runs."""
        event = {
            "occurred": datetime.now(UTC).isoformat(),
            "event": "neorl.chaos.arrived",
            "resource": {"prefect.resource.id": "neorl.chaos"},
            "payload": {"config": str(self.config(seed)), "data": [str(self.log)]},
        }
        first, again = ({**event, "id": str(uuid4())} for _ in range(2))
        before = len(self.triggered())
        for each in (first, first, again):
            self.ask_prefect("events", [each])
        for _ in range(int(2 * PATIENCE)):
            if len(self.triggered()) > before + 1:
                break
            time.sleep(0.5)
        time.sleep(2.0)  # time for a wrong third run
        return len(self.triggered()) - before

    def triggered(self) -> list[dict[str, Any]]:
        """Return the runs that events started."""
        deployment = self.ask_prefect("deployments/name/retrain/struck")["id"]
        query = {"deployments": {"id": {"any_": [deployment]}}}
        found = self.ask_prefect("flow_runs/filter", query)
        return [run for run in found if (run["created_by"] or {}).get("type") == "AUTOMATION"]

    def running(self) -> dict[str, str]:
        """Return the states of the worker's unfinished runs."""
        states = {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING"]}}
        return {
            run["id"]: run["state_name"]
            for run in self.ask_prefect("flow_runs/filter", {"flow_runs": {"state": states}})
            if run["deployment_id"]
        }

    def hanging(self) -> list[str]:
        """Wait for the worker's runs, and return a message for each run that hangs."""
        before, since = dict[str, str](), time.monotonic()
        while going_on := self.running():
            if going_on != before:
                before, since = going_on, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                return [f"a run of the worker's did not end: {state}" for state in going_on.values()]
            time.sleep(1.0)
        return []

    def datasets(self) -> set[str]:
        """Return the paths of all manifests and shards, relative to the folder of datasets."""
        kept = self.home.root / "datasets"
        return {str(path.relative_to(kept)) for part in ("manifests", "shards") for path in kept.glob(f"*/{part}/*")}

    def faults(self, before: set[str]) -> list[str]:
        """Return the violations in the state of the home.

        Args:
            before: result of `datasets` before the trial.
        """
        found = [f"{name} is lost" for name in sorted(before - self.datasets())]
        found += [str(check) for check in audit(self.home).failures]
        ledger = Ledger.open(self.home, write=False)
        entries = ledger.entries()
        now = champion(entries, PLANT)
        if now is not None:
            record = record_of(ledger.entry(now.body["candidate"]))
            if not record.passed or not all(gate.passed for gate in record.gates):
                found.append(f"the champion, version {record.version}, did not pass every gate")
            aliases = self._aliases()
            if aliases != record.version:
                found.append(f"MLflow's champion is version {aliases}, the ledger's {record.version}")
        elif any(entry.kind in IN_FORCE and entry.plant == PLANT for entry in entries):
            found.append("there was a champion, and there is none")
        return found

    def _aliases(self) -> str:
        from tasks.registry.registry import Registry

        return Registry(self.services.mlflow.url).aliases(PLANT).get("champion", "none")


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for a command and return its result; kill a command that hangs."""
    try:
        out, stderr = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, stderr = process.communicate()
        stderr += f"\nTraceback: none, but it hung for {PATIENCE:.0f} s"
    last = (out.strip().splitlines() or [""])[-1]
    try:
        answer = json.loads(last)
    except ValueError:
        answer = {}
    return Ended(process.returncode, answer if isinstance(answer, dict) else {}, stderr)
