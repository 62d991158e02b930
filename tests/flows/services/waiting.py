"""What the tests of services share."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from flows.services.processes import ProcessId


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for something that another process does; the limit only ends a test that has failed."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def killed_process() -> ProcessId:
    """The identity of a process that was killed with SIGKILL."""
    child = subprocess.Popen(["sleep", "600"])
    identity = ProcessId.of(child.pid)
    assert identity.alive
    child.kill()
    child.wait()
    assert not identity.alive
    return identity
