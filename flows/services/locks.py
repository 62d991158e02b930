"""Plant locks, which allow one run per plant at a time, and run records, which show killed runs."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from configs.errors import Refused
from configs.home import Home
from flows.services.processes import ProcessId
from tasks.files.canonical import canonical_json, exclusive, write_json


@dataclass(frozen=True)
class RunRecord:
    """Record of a process that executes a run, stored in the plant's lock and in one file per flow run."""

    plant: str
    pid: int
    created: float
    started: str
    run: str = ""
    """Name of the run (in plant locks)."""
    flow_run: str = ""
    """Id of the flow run (in run records)."""
    host: str = ""
    """Host name of the process's machine or container; empty (in older records) means this machine."""

    @classmethod
    def of_this_process(cls, plant: str, *, run: str = "", flow_run: str = "") -> RunRecord:
        """Return a record of this process, started now."""
        me = ProcessId.current()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(plant, me.pid, me.created, now, run, flow_run, socket.gethostname())

    @property
    def alive(self) -> bool:
        """Whether the process runs. A process of another machine cannot be checked and is taken to run."""
        return self.host not in ("", socket.gethostname()) or ProcessId(self.pid, self.created).alive

    def __str__(self) -> str:
        run = f"run {self.run}, " if self.run else ""
        where = f" on {self.host}" if self.host not in ("", socket.gethostname()) else ""
        return f"{run}process {self.pid}{where}, running since {self.started}"


@contextmanager
def plant_lock(
    home: Home,
    plant: str,
    policy: Literal["wait", "refuse"] = "refuse",
    run: str = "",
    on_wait: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Lock a plant for one run.

    Args:
        home: folder of the lock.
        plant: the plant's name.
        policy: wait, or refuse, if another process has locked the plant.
        run: name or id of this run, for messages of other runs.
        on_wait: called once with a message if this run has to wait.

    Raises:
        Refused: if another run has locked the plant and the policy is `refuse`.
    """
    path = home.lock_of(plant)

    def held() -> None:
        holder = _read_fresh(path) or "a run that has just started"
        if policy == "refuse":
            raise Refused(
                f"{plant} is locked by {holder}: wait for its end, or set 'concurrency: wait' in the run's file."
            )
        if on_wait:
            on_wait(f"waiting for {holder}")

    with exclusive(path, held):
        # Write in place, because renaming would replace the locked file.
        path.write_bytes(canonical_json(asdict(RunRecord.of_this_process(plant, run=run))) + b"\n")
        try:
            yield
        finally:
            path.write_bytes(b"")


@contextmanager
def recorded_run(home: Home, flow_run_id: str, plant: str) -> Iterator[None]:
    """Keep a record while a flow run lasts. If the process is killed, `reap_dead_runs` later finds the record."""
    path = home.folder("locks", "runs") / f"{flow_run_id}.json"
    write_json(path, asdict(RunRecord.of_this_process(plant, flow_run=flow_run_id)))
    try:
        yield
    finally:
        # Prefect itself reports exceptions; only a killed process leaves a record.
        path.unlink(missing_ok=True)


def dead_runs(home: Home) -> list[tuple[Path, RunRecord]]:
    """Return file and record of each flow run that ended with a killed process."""
    records = [(path, _read(path)) for path in sorted((home.root / "locks" / "runs").glob("*.json"))]
    return [(path, record) for path, record in records if record and not record.alive]


def holders(home: Home) -> list[RunRecord]:
    """Return the record in each plant's lock. A killed process leaves a record that is not `alive`."""
    records = [_read(path) for path in sorted((home.root / "locks" / "plants").glob("*.lock"))]
    return [record for record in records if record]


def _read_fresh(path: Path) -> RunRecord | None:
    """Read a plant's lock; wait up to a second, because the record is written just after locking."""
    for _ in range(20):
        if record := _read(path):
            return record
        time.sleep(0.05)
    return None


def _read(path: Path) -> RunRecord | None:
    """Read a record; None if it is absent or incomplete."""
    try:
        return RunRecord(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
