"""Servers of a team from Debian packages and PyPI, each on a loopback port and with a password."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

POSTGRESQL = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
USER = "neorl"
PROJECT = Path(__file__).parents[2]


PORTS = 1000
"""Ports in the block of each pytest worker."""
FIRST = 20_000 + PORTS * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""First port of the block, below the ports that the kernel gives to clients."""
_drawn = itertools.count(os.getpid())


def free_port() -> int:
    """Return a free port that no other test of this run gets."""
    for drawn in itertools.islice(_drawn, PORTS):
        port = FIRST + drawn % PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port from {FIRST} to {FIRST + PORTS - 1} is free: stop the programs that listen there.")


def wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 60.0, host: str = "127.0.0.1") -> bool:
    """Wait until a port is in use; return False if the process ends before."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return True
        time.sleep(0.05)
    return False


class Postgres:
    """A PostgreSQL server for one test."""

    def __init__(self, folder: Path, port: int, password: str, host: str, inside: Sequence[str]) -> None:
        self.folder, self.port, self.password, self.host, self.inside = folder, port, password, host, inside
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres", scheme: str = "postgresql") -> str:
        """Return the URL of a database."""
        return f"{scheme}://{USER}:{self.password}@{self.host}:{self.port}/{database}"

    def start(self) -> None:
        """Start the server, also after a kill."""
        options = ["-D", str(self.folder / "data"), "-k", str(self.folder), "-h", self.host, "-p", str(self.port)]
        # Children of a killed server keep its memory for a moment.
        for _ in range(50):
            with (self.folder / "log").open("ab") as log:
                command = [*self.inside, *_as_somebody(), str(POSTGRESQL[-1] / "postgres"), *options]
                self.process = subprocess.Popen(command, stdout=log, stderr=log)
            if wait_for(self.port, self.process, host=self.host):
                break
            time.sleep(0.2)
        ready = [str(POSTGRESQL[-1] / "pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        while subprocess.run(ready).returncode:
            time.sleep(0.05)

    def create(self, database: str) -> str:
        """Create a database and return the URL."""
        command = [str(POSTGRESQL[-1] / "psql"), "-q", "-d", self.url(), "-c", f'CREATE DATABASE "{database}"']
        subprocess.run(command, check=True)
        return self.url(database)

    def run(self, database: str, statement: str) -> str:
        """Return the output of the administrator's client."""
        command = [str(POSTGRESQL[-1] / "psql"), "-qAt", "-d", self.url(database), "-c", statement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr


@contextmanager
def postgres(folder: Path, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> Iterator[Postgres]:
    """Yield a PostgreSQL server; skip the test without Debian's package.

    Args:
        folder: folder of the server.
        host: listening address; clients come from the same network.
        inside: command prefix, such as for a network namespace.
    """
    if not POSTGRESQL:
        pytest.skip("PostgreSQL is not installed: make services")
    folder.mkdir(parents=True)
    if _as_somebody():
        shutil.chown(folder, "postgres")
        _let_through(folder.parent)
    password = folder / "password"
    server = Postgres(folder, free_port(), secrets.token_hex(16), host, inside)
    password.write_text(server.password)
    password.chmod(0o644)
    options = ["-D", str(folder / "data"), "-U", USER, "-A", "scram-sha-256", f"--pwfile={password}", "--no-sync"]
    command = [*_as_somebody(), str(POSTGRESQL[-1] / "initdb"), *options]
    subprocess.run(command, check=True, capture_output=True)
    with (folder / "data" / "pg_hba.conf").open("a") as clients:
        clients.write(f"host all all {host}/24 scram-sha-256\n")
    server.start()
    try:
        yield server
    finally:
        assert server.process is not None
        server.process.terminate()
        server.process.wait(30)


class Redis(NamedTuple):
    """A Redis server for one test."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def redis(folder: Path) -> Iterator[Redis]:
    """Yield a Redis server with a password; skip the test without Debian's package."""
    if shutil.which("redis-server") is None:
        pytest.skip("Redis is not installed: make services")
    folder.mkdir(parents=True)
    port, password = free_port(), secrets.token_hex(16)
    settings = f"port {port}\nbind 127.0.0.1\nrequirepass {password}\nsave ''\ndir {folder}\n"
    process = subprocess.Popen(["redis-server", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(settings.encode())
    process.stdin.close()
    assert wait_for(port, process)
    try:
        yield Redis(f"redis://:{password}@127.0.0.1:{port}/0", process)
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def storage(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """Yield an S3-like server with an empty bucket, and the environment of clients."""
    folder.mkdir(parents=True)
    port = free_port()
    variables = {
        "AWS_ACCESS_KEY_ID": "neorl",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        assert wait_for(port, process), (folder / "log").read_text()
        try:
            put = urllib.request.Request(f"{variables['AWS_ENDPOINT_URL']}/{bucket}", method="PUT")
            with urllib.request.urlopen(put) as answer:
                assert answer.status == 200
            yield variables
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def dask(folder: Path, workers: int) -> Iterator[str]:
    """Yield the address of a Dask cluster: a scheduler and workers as processes."""
    folder.mkdir(parents=True)
    port = free_port()
    here = f"tcp://127.0.0.1:{port}"
    variables = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    # Functions of test files are pickled by name.
    variables["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))

        def start(*words: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", *words, "--host", "127.0.0.1", "--no-dashboard"]
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, cwd=folder)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            return process

        scheduler = start("distributed.cli.dask_scheduler", "--port", str(port))
        assert wait_for(port, scheduler), (folder / "log").read_text()
        many = ("--nworkers", str(workers), "--nthreads", "1", "--local-directory", str(folder))
        start("distributed.cli.dask_worker", here, *many)
        from distributed import Client

        with Client(here) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(workers, 120)  # type: ignore[no-untyped-call]
        yield here


def _as_somebody() -> list[str]:
    """Return an unprivileged user, because PostgreSQL refuses to run as root."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []


def _let_through(folder: Path) -> None:
    """Let PostgreSQL's user enter a folder that pytest made for root only."""
    for above in (folder, *folder.parents):
        if above.stat().st_uid == 0 and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
