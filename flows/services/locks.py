"""One run per plant at a time, and the record that a killed run leaves so that it can be reported as crashed."""

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
from tasks.files.canonical import canonical_json, write_json
from tasks.files.locks import exclusive


@dataclass(frozen=True)
class RunRecord:
    """Which process runs what: kept in a plant's lock while a run holds it, and in a file of its own per flow run."""

    plant: str
    pid: int
    created: float
    started: str
    run: str = ""
    """The run's name in a plant's lock."""
    flow_run: str = ""
    """The flow run's id in a record of its own."""
    host: str = ""
    """The machine or container whose processes `pid` counts; this one where an earlier version wrote the record."""

    @classmethod
    def of_this_process(cls, plant: str, *, run: str = "", flow_run: str = "") -> RunRecord:
        """A record of this process from now on."""
        me = ProcessId.current()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(plant, me.pid, me.created, now, run, flow_run, socket.gethostname())

    @property
    def alive(self) -> bool:
        """Whether its process still runs, as far as this machine can tell: it knows nothing of another's."""
        return self.host not in ("", socket.gethostname()) or ProcessId(self.pid, self.created).alive

    def __str__(self) -> str:
        run = f"run {self.run}, " if self.run else ""
        where = f" on {self.host}" if self.host not in ("", socket.gethostname()) else ""
        return f"{run}process {self.pid}{where}, going on since {self.started}"


@contextmanager
def plant_lock(
    home: Home,
    plant: str,
    policy: Literal["wait", "refuse"] = "refuse",
    run: str = "",
    on_wait: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold a plant for one run.

    Args:
        home: where the lock lives.
        plant: the plant's name.
        policy: what to do while another process holds it.
        run: this run's name or id, shown to whoever is refused.
        on_wait: told once, in words, whom this run waits for.

    Raises:
        Refused: when another run holds the plant and the policy is `refuse`.
    """
    path = home.lock_of(plant)

    def held() -> None:
        holder = _patient_read(path) or "one that has just started"
        if policy == "refuse":
            raise Refused(
                f"expected no other run of {plant}, got {holder}: wait for it to end, or set 'concurrency: wait' "
                "in the run's file."
            )
        if on_wait:
            on_wait(f"waiting for {holder}")

    with exclusive(path, held):
        # Written in place: a file put there by renaming would be another file than the locked one.
        path.write_bytes(canonical_json(asdict(RunRecord.of_this_process(plant, run=run))) + b"\n")
        try:
            yield
        finally:
            path.write_bytes(b"")


@contextmanager
def recorded_run(home: Home, flow_run_id: str, plant: str) -> Iterator[None]:
    """Leave a record while a flow run is going on; `reap_dead_runs` finds it if the process is killed.

    Args:
        home: where the record lies.
        flow_run_id: the run's id in Prefect.
        plant: the plant's name.
    """
    path = home.folder("locks", "runs") / f"{flow_run_id}.json"
    write_json(path, asdict(RunRecord.of_this_process(plant, flow_run=flow_run_id)))
    try:
        yield
    finally:
        # An exception is reported by Prefect itself: only a killed process leaves its record.
        path.unlink(missing_ok=True)


def dead_runs(home: Home) -> list[tuple[Path, RunRecord]]:
    """Records of flow runs whose process is gone, with their files."""
    records = [(path, _read(path)) for path in sorted((home.root / "locks" / "runs").glob("*.json"))]
    return [(path, record) for path, record in records if record and not record.alive]


def holders(home: Home) -> list[RunRecord]:
    """Who holds each plant now, and what dead holders left behind (`alive` tells them apart)."""
    records = [_read(path) for path in sorted((home.root / "locks" / "plants").glob("*.lock"))]
    return [record for record in records if record]


def _patient_read(path: Path) -> RunRecord | None:
    """The record of a plant's holder, which writes it just after taking the lock."""
    for _ in range(20):
        if record := _read(path):
            return record
        time.sleep(0.05)
    return None


def _read(path: Path) -> RunRecord | None:
    """A record; None where there is none, or only the half of one whose writer was killed or is writing now."""
    try:
        return RunRecord(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
