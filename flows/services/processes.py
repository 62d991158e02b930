"""Background processes that belong to one home: starting, recognising and stopping them, and their ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

HOST = "127.0.0.1"
TOKEN = "NEORL_SERVICE_TOKEN"

# A Popen that is collected while its process lives warns; services outlive the command that starts them.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class ProcessId:
    """A process that a later process with the same number cannot be mistaken for."""

    pid: int
    created: float
    """When it started: seconds since 1970."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has this number now."""
        return cls(pid, round(psutil.Process(pid).create_time(), 2))

    @classmethod
    def current(cls) -> ProcessId:
        """This process."""
        return cls.of(os.getpid())

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        try:
            process = psutil.Process(self.pid)
            # A zombie has ended; only its parent has not asked yet.
            return bool(process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - self.created) < 0.05)
        except psutil.NoSuchProcess:
            return False


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> ProcessId:
    """Start a process in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it.

    Args:
        command: the program and its arguments; any user of the machine can read them, so they hold no secrets.
        environment: all of its variables.
        log: file to which its output is appended.
        folder: its working directory.

    Returns:
        The process; files that it makes are its owner's alone.
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
    """A log to append to, which only its owner may read."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def belongs(process: ProcessId, home: Path, token: str) -> bool:
    """Whether a live process is the one that was started for this home: its own environment must say so.

    Args:
        process: what the home's record names.
        home: the home's root.
        token: what the process was given when it was started.
    """
    if not process.alive:
        return False
    try:
        environment = psutil.Process(process.pid).environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False  # another user's, or gone meanwhile: in both cases not ours
    return (environment.get(TOKEN), environment.get("NEORL_HOME")) == (token, str(home))


def listens(process: ProcessId, port: int) -> bool:
    """Whether the process itself, and not some other one, has the port."""
    try:
        connections = psutil.Process(process.pid).net_connections("tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def stop(processes: Sequence[ProcessId], grace: float = 6.0) -> None:
    """End processes with all that they started: politely first, by force after `grace` seconds."""
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
        # It may end, as one of a group that was just killed, before its turn comes.
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
    """Whether a server could listen on this port of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def any_free_port() -> int:
    """A port of the loopback interface that the kernel says is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
