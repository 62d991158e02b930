"""Start Flower's programs in a separate Python environment. The programs end together with NeoRL."""

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
"""Variable that names the Python of Flower's environment; default is `.venv-federation` in the checkout."""
HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "DO_NOT_TRACK": "true",
}
"""Switches off Flower's telemetry and update check."""
INHERITED = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "GRPC_VERBOSITY")
STARTS = 60.0
"""Time limit for the start of a Flower process in seconds."""


class Flower(NamedTuple):
    """A Flower process that ends when the pipe closes."""

    process: subprocess.Popen[bytes]
    pipe: Pipe
    log: Path

    def stop(self) -> None:
        self.pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def failure(self) -> BadInput:
        """Return an error with the last line of the log."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        last = " ".join(lines[-1:])[:300] or "an empty log"
        return BadInput(f"Flower's process ended with '{last}': see {self.log}")


def flower_python() -> Path:
    """Return the Python of Flower's environment.

    Raises:
        ServiceMissing: if there is none.
    """
    path = Path(os.environ.get(PYTHON) or ROOT / ".venv-federation" / "bin" / "python")
    if not path.exists():
        raise ServiceMissing(
            f"Flower is not installed ({path} is missing): run 'make federation', or set {PYTHON} to Flower's Python"
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
    """Start one of Flower's programs and send the settings over the pipe.

    Args:
        app: name of the option for the local address at which the program offers tasks.
        control_address: control address of a SuperLink.
        authority: PEM certificates for TLS; empty without TLS.
        keys: public keys (PEM) of the sites by name, for a SuperLink.

    Raises:
        ServiceMissing: if Flower is not installed.
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
            # In a session of its own the program does not receive Ctrl-C; NeoRL receives it and ends the program.
            start_new_session=True,
            umask=0o077,
        )
    pipe = Pipe(ours)
    pipe.send(Frame("settings", json.dumps(settings)))
    return Flower(process, pipe, log)


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
