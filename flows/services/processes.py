"""Background processes of one home: start, recognise and stop them, and find free ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import psutil

HOST = "127.0.0.1"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN = "NEORL_SERVICE_TOKEN"
LOGIN = "NEORL_SERVICE_LOGIN"
NAMES = "NEORL_SERVICE_NAMES"
"""Host names of a server for clients on other machines, separated by spaces. Loopback names always work."""

# Python warns if a Popen is garbage-collected while the process runs; services outlive the command that starts them.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class ProcessId:
    """Identity of a process: number and start time, because the system reuses numbers."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the process that has this number now."""
        return cls(pid, round(psutil.Process(pid).create_time(), 2))

    @classmethod
    def current(cls) -> ProcessId:
        """Return this process."""
        return cls.of(os.getpid())

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        try:
            process = psutil.Process(self.pid)
            # A zombie has ended, although the parent has not collected it.
            return bool(process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - self.created) < 0.05)
        except psutil.NoSuchProcess:
            return False


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> ProcessId:
    """Start a process that neither Ctrl-C nor closing the terminal ends. The process creates files with mode 0600.

    Args:
        command: program and arguments, without secrets, because all users of the machine can read them.
        environment: the complete environment.
        log: file to which the output is appended.
        folder: working directory.
    """
    with private_log(log) as output:
        child = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
        )
    _children[child.pid] = child
    return ProcessId.of(child.pid)


def private_log(path: Path) -> IO[bytes]:
    """Open a log for appending, readable by the owner only."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def belongs(process: ProcessId, home: Path, token: str) -> bool:
    """Return whether a process runs and was started for this home, according to the process's environment."""
    if not process.alive:
        return False
    try:
        environment = psutil.Process(process.pid).environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False  # another user's process, or ended in the meantime
    return (environment.get(TOKEN), environment.get("NEORL_HOME")) == (token, str(home))


def listens(process: ProcessId, port: int) -> bool:
    """Return whether the process itself, not another one, listens on the port."""
    try:
        connections = psutil.Process(process.pid).net_connections("tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def stop(processes: Sequence[ProcessId], grace: float = 6.0) -> None:
    """Terminate processes with all descendants. Kill every process that still runs after `grace` seconds."""
    family: dict[int, psutil.Process] = {}
    leaders = []
    for identity in processes:
        if not identity.alive:
            continue
        try:
            leader = psutil.Process(identity.pid)
            family |= {p.pid: p for p in [leader, *leader.children(recursive=True)]}
        except psutil.NoSuchProcess:
            continue
        leaders.append(identity.pid)
        _signal_group(identity.pid, signal.SIGTERM)
    _, left = psutil.wait_procs(list(family.values()), timeout=grace)
    for pid in leaders:
        _signal_group(pid, signal.SIGKILL)
    for process in left:
        # The signal to the group may have ended this process already.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=grace)
    for identity in processes:
        if child := _children.pop(identity.pid, None):
            child.wait(timeout=grace)


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return  # the whole group has ended


def port_is_free(port: int) -> bool:
    """Return whether a server can listen on this loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def any_free_port() -> int:
    """Return a free loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
