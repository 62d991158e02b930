"""Stopping processes with their descendants."""

from __future__ import annotations

import os
from pathlib import Path

from flows.services import processes
from flows.services.processes import ProcessId
from tests.flows.services.waiting import wait_until


def test_stop_ends_stubborn_descendants(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 600 & echo $! > child; while true; do sleep 0.1; done"
    leader = processes.spawn(["sh", "-c", script], os.environ, tmp_path / "log", tmp_path)
    wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    child = ProcessId.of(int((tmp_path / "child").read_text()))
    assert leader.alive
    assert child.alive
    processes.stop([leader], grace=0.5)
    assert not leader.alive
    assert not child.alive
    processes.stop([leader])
