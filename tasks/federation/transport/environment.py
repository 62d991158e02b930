"""Flower's environment, and its processes: started beside NeoRL's, and ending with it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from configs.errors import BadInput, ServiceMissing
from tasks.federation.transport.frames import Frame, Pipe
from tasks.files.canonical import write_secret
from tasks.files.provenance import ROOT

PYTHON = "NEORL_FLOWER_PYTHON"
"""Variable with the Python of Flower's environment, where it is not the checkout's `.venv-federation`."""
HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "DO_NOT_TRACK": "true",
}
"""Flower tells nobody who runs it, and asks nobody for newer versions."""
INHERITED = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "GRPC_VERBOSITY")
STARTS = 60.0
"""Seconds that a Flower process may take until it is ready."""


class Flower(NamedTuple):
    """A Flower process; it ends when the pipe is closed, and so also when NeoRL is killed."""

    process: subprocess.Popen[bytes]
    pipe: Pipe
    log: Path

    def stop(self) -> None:
        """End it."""
        self.pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def failure(self) -> BadInput:
        """The end of its log as one sentence."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        said = " ".join(lines[-1:])[:300] or "nothing"
        return BadInput(f"expected Flower's process to run, got '{said}': see {self.log}.")


def flower_python() -> Path:
    """The Python of Flower's environment.

    Raises:
        ServiceMissing: when there is none.
    """
    path = Path(os.environ.get(PYTHON) or ROOT / ".venv-federation" / "bin" / "python")
    if not path.exists():
        raise ServiceMissing(
            f"expected Flower in an environment of its own, got no {path}: run 'make federation', or name the Python "
            f"of one by {PYTHON}."
        )
    return path


def start(
    program: Literal["superlink", "supernode"],
    folder: Path,
    arguments: Sequence[str],
    *,
    app: str,
    control_address: str = "",
    authority: str = "",
    keys: Mapping[str, str] | None = None,
) -> Flower:
    """Start one of Flower's programs, with its settings sent over the pipe.

    Args:
        program: which.
        folder: its own, for its log and what it keeps.
        arguments: of Flower's command, without those that are the same for all.
        app: the option that says where it offers its tasks, which is on this machine alone.
        control_address: of a SuperLink, where it is controlled.
        authority: PEM, where it speaks TLS.
        keys: of a SuperLink, the sites' public keys (PEM) by name.

    Raises:
        ServiceMissing: when Flower is not installed.
    """
    python = flower_python()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret, app_address = secrets.token_bytes(32), f"{HOST}:{free_port()}"
    write_secret(folder / "secret", secret)
    settings = {
        "arguments": [
            "--isolation=process",
            f"--superexec-auth-secret-file={folder / 'secret'}",
            f"{app}={app_address}",
            *arguments,
        ],
        "app_address": app_address,
        "secret": secret.hex(),
        "control_address": control_address,
        "authority": authority,
        "keys": dict(keys or {}),
    }
    ours, theirs = socket.socketpair()
    environment = {name: value for name in INHERITED if (value := os.environ.get(name))}
    environment |= {**QUIET, "FLWR_HOME": str(folder), "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"} if sys.dont_write_bytecode else {}
    log = folder / "flower.log"
    with theirs, open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as output:
        process = subprocess.Popen(
            [python, "-m", f"tasks.federation.transport.flower.{program}", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for NeoRL, which ends it.
            start_new_session=True,
            umask=0o077,
        )
    pipe = Pipe(ours)
    pipe.send(Frame("settings", json.dumps(settings)))
    return Flower(process, pipe, log)


def free_port() -> int:
    """A port of the loopback interface that the kernel says is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
