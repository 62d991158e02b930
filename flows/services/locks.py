"""One run per plant at a time, and the trace that a killed run leaves so that it can be reported as crashed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

import psutil

from configs.errors import Refused
from configs.home import Home
from tasks.adapters.files.canonical import canonical_json, write_json


@dataclass(frozen=True)
class ProcessId:
    """A process that a later process with the same number cannot be mistaken for."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, round(psutil.Process(pid).create_time(), 2))

    @classmethod
    def current(cls) -> ProcessId:
        return cls.of(os.getpid())

    @property
    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            # A zombie has ended; only its parent has not asked yet.
            return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - self.created) < 0.05
        except psutil.NoSuchProcess:
            return False


def utc_now() -> str:
    """The time as records show it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait for a file's lock and hold it; the kernel frees it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
    path = home.folder("locks") / f"{plant}.lock"
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _describe(_patient_read(file))
            if policy == "refuse":
                raise Refused(
                    f"expected no other run of {plant}, got {holder}: wait for it to end, or set 'concurrency: wait' "
                    "in the run's file."
                ) from error
            if on_wait:
                on_wait(f"waiting for {holder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        me = ProcessId.current()
        _write(file, {"created": me.created, "pid": me.pid, "plant": plant, "run": run, "started": utc_now()})
        try:
            yield
        finally:
            _write(file, None)


@contextmanager
def recorded_run(home: Home, flow_run_id: str, plant: str) -> Iterator[None]:
    """Leave a record while a flow run is going on; `reap_dead_runs` finds it if the process is killed."""
    me = ProcessId.current()
    path = home.folder("locks", "runs") / f"{flow_run_id}.json"
    write_json(
        path, {"created": me.created, "flow_run": flow_run_id, "pid": me.pid, "plant": plant, "started": utc_now()}
    )
    try:
        yield
    finally:
        # An exception is reported by Prefect itself: only a killed process leaves its record.
        path.unlink(missing_ok=True)


def dead_runs(home: Home) -> list[tuple[Path, dict[str, Any]]]:
    """Records of flow runs whose process is gone."""
    found = []
    for path in sorted((home.root / "locks" / "runs").glob("*.json")):
        record = _read_record(path)
        if record is not None and not ProcessId(record["pid"], record["created"]).alive:
            found.append((path, record))
    return found


def holders(home: Home) -> list[dict[str, Any]]:
    """Who holds each plant now, and what dead holders left behind (`alive` tells them apart)."""
    found = []
    for path in sorted((home.root / "locks").glob("*.lock")):
        with path.open("rb") as file:
            record = _read(file)
        if record and "plant" in record:
            found.append({**record, "alive": ProcessId(record["pid"], record["created"]).alive})
    return found


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None  # its run ended between listing and reading


def _patient_read(file: IO[bytes]) -> dict[str, Any] | None:
    """The holder writes its record just after taking the lock."""
    for _ in range(20):
        if record := _read(file):
            return record
        time.sleep(0.05)
    return None


def _read(file: IO[bytes]) -> dict[str, Any] | None:
    file.seek(0)
    text = file.read()
    try:
        return dict(json.loads(text)) if text.strip() else None
    except json.JSONDecodeError:
        return None  # half-written: the holder was killed, or is writing now


def _write(file: IO[bytes], record: dict[str, Any] | None) -> None:
    file.seek(0)
    file.truncate()
    if record is not None:
        file.write(canonical_json(record) + b"\n")
    file.flush()


def _describe(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "one that has just started"
    run = f"run {holder['run']}, " if holder.get("run") else ""
    return f"{run}process {holder['pid']}, going on since {holder['started']}"
