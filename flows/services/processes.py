"""Background processes that belong to one home: starting, recognising and stopping them, ports and probes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from flows.services.locks import ProcessId

HOST = "127.0.0.1"
TOKEN = "NEORL_SERVICE_TOKEN"

# A Popen that is collected while its process lives warns; services outlive the command that starts them.
_children: dict[int, subprocess.Popen[bytes]] = {}


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> ProcessId:
    """Start a process in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    return ProcessId.of(child.pid)


def belongs(process: ProcessId, home: Path, token: str) -> bool:
    """Whether a live process is the one that was started for this home: its own environment must say so."""
    if not process.alive:
        return False
    try:
        environment = psutil.Process(process.pid).environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False  # another user's, or gone meanwhile: in both cases not ours
    return environment.get(TOKEN) == token and environment.get("NEORL_HOME") == str(home)


def listens(process: ProcessId, port: int) -> bool:
    """Whether the process itself, and not some other one, has the port."""
    try:
        connections = psutil.Process(process.pid).net_connections("tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def stop(processes: Sequence[ProcessId], grace: float = 6.0) -> None:
    """End processes with all that they started: politely, then not."""
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
        if process.is_running():
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


BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 0.0)
"""How long to wait for a server that says it is busy, before each further try; at the last one it is an error."""


def request(url: str, body: Any = None, method: str | None = None, timeout: float = 10.0) -> Any:
    """One HTTP request with JSON in and out (plain text comes back as a string).

    Raises:
        urllib.error.HTTPError: when the server refuses.
        OSError: when nothing answers in time.
    """
    data = None if body is None else json.dumps(body).encode()
    message = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    for patience in BUSY_SECONDS:
        try:
            with _opener(url).open(message, timeout=timeout) as answer:
                text = answer.read().decode()
            break
        except urllib.error.HTTPError as error:
            # Prefect's answer while its SQLite database is locked, as it is for seconds on a busy machine.
            if error.code != 503 or not patience:
                raise
            time.sleep(patience)
    return json.loads(text) if "json" in answer.headers.get("Content-Type", "") and text else text


def answers(url: str, timeout: float = 10.0) -> bool:
    """Whether a GET of this address succeeds."""
    try:
        request(url, timeout=timeout)
    except (OSError, ValueError):
        return False  # refused, reset, timed out, an HTTP error, or no HTTP at all
    return True


def _opener(url: str) -> urllib.request.OpenerDirector:
    """A proxy set for the outside world must not be asked for loopback addresses."""
    local = urlsplit(url).hostname in {HOST, "localhost", "::1"}
    return urllib.request.build_opener(urllib.request.ProxyHandler({})) if local else urllib.request.build_opener()
