"""Register the deployments of prefect.yaml with a Prefect server.

The command `prefect deploy --all` runs in the worker's process (`flows.services.worker`), in the background.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.error
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from configs.errors import BadInput, ServiceMissing
from configs.home import Home
from configs.yaml_files import read_yaml
from flows.services import processes, rest
from flows.services.processes import ProcessId
from flows.services.state import Services, environment
from tasks.files.canonical import digest_json, read_json, sha256_hex

PROJECT = Path(__file__).resolve().parents[2]
FILE = "prefect.yaml"
POOL = "neorl"


class Deployments(NamedTuple):
    """The parts of prefect.yaml that a registration needs."""

    path: Path
    names: list[str]
    pools: list[str]
    digest: str
    """Digest of prefect.yaml and of the flows' source files. Prefect reads the flows' parameters from the sources."""


def declared(project: Path | None = None) -> Deployments | None:
    """Read prefect.yaml of a project: by default in the working directory, else in this package's folder.

    Raises:
        BadInput: if a deployment has no name or entrypoint, or has parameters that are not a mapping.
    """
    path = (project or _project()) / FILE
    if not path.is_file():
        return None
    try:
        entries = read_yaml(path, aliases=True).get("deployments") or []
        names = [_text(entry, "name") for entry in entries]
        sources = sorted({_source(path.parent, _text(entry, "entrypoint")) for entry in entries})
        pools = {(entry.get("work_pool") or {}).get("name") or POOL for entry in entries}
        for entry in entries:
            if not isinstance(entry.get("parameters") or {}, Mapping):
                raise ValueError(f"parameters of {entry['name']} must be a mapping, got {entry['parameters']!r}")
    except (AttributeError, TypeError, LookupError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(
            f"'deployments' in {path} must be a list of items with name and entrypoint ({reason}): correct the file."
        ) from error
    digests = {str(file): sha256_hex(file.read_bytes()) for file in (path, *sources) if file.is_file()}
    # Names and pools with "{{" are left out, because Prefect fills them in from the environment.
    return Deployments(path, _plain(names), _plain(sorted(pools)), digest_json(digests))


def deployed_data(config: Path) -> list[Path]:
    """Return the logs that prefect.yaml in the working directory names for a run's file.

    Raises:
        BadInput: if prefect.yaml is malformed, or 'data' is not a list of paths.
    """
    if (deployments := declared(Path.cwd())) is None:
        return []
    for entry in read_yaml(deployments.path, aliases=True).get("deployments") or []:
        given = entry.get("parameters") or {}
        # Of a run's deployments, only the retraining names logs.
        if Path(str(given.get("config"))).resolve() == config.resolve() and (data := given.get("data")):
            if not (isinstance(data, list) and all(isinstance(path, str) for path in data)):
                raise BadInput(
                    f"'data' of deployment {entry['name']} in {deployments.path} must be a list of paths, "
                    f"got {data!r}: write each path as a list item."
                )
            return [Path(path) for path in data]
    return []


def due(services: Services, project: Path | None = None) -> Deployments | None:
    """Create the work pools, and return the deployments to register; None if nothing has changed since the last time.

    If a person pauses a schedule in Prefect's pages, the schedule therefore stays paused until prefect.yaml changes.

    Raises:
        BadInput: if prefect.yaml is malformed.
    """
    deployments = declared(project)
    if deployments is None or not deployments.pools:
        return None
    if _outcome(services.home, deployments) == 0 and _are_known(services, deployments.names):
        return None
    for pool in deployments.pools:
        _ensure_pool(services, pool)
    for path in (_outcome_file(services.home), _log(services.home)):
        path.unlink(missing_ok=True)
    return deployments


def arguments(home: Home, deployments: Deployments) -> list[str]:
    """Return the command-line arguments with which `flows.services.worker` registers these deployments."""
    return ["--register", str(deployments.path.parent), deployments.digest, str(_log(home)), str(_outcome_file(home))]


def finish(deployments: Deployments, services: Services, deadline: float, worker: ProcessId | None = None) -> None:
    """Wait until deployments are registered.

    Args:
        deployments: deployments from `due`.
        services: addresses of the servers.
        deadline: time limit, as a value of `time.monotonic` in seconds.
        worker: worker that was started with `arguments`; None starts a separate process for the registration.

    Raises:
        BadInput: if Prefect rejects a deployment.
        ServiceMissing: if the time limit passes.
    """
    log, process = _log(services.home), worker or _start(deployments, services)
    try:
        while _outcome(services.home, deployments) is None and process.alive:
            if time.monotonic() > deadline:
                raise ServiceMissing(
                    f"Prefect did not register {deployments.path} in time: read {log}, then run 'neorl up' again."
                )
            time.sleep(0.1)
    finally:
        if worker is None:
            processes.stop([process])
    if _outcome(services.home, deployments) != 0 or not _are_known(services, deployments.names):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise BadInput(
            f"Prefect rejected the deployments of {deployments.path} ('{lines[-1] if lines else 'no output'}'): "
            f"correct the file, then run 'neorl up' again. Details: {log}"
        )


def variables(services: Services) -> dict[str, str]:
    """Return the environment of a process that registers deployments, without the caller's Prefect settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    return kept | environment(services) | {"PREFECT_DEFAULT_WORK_POOL_NAME": POOL}


def worker_name(token: str) -> str:
    """Return the name of a worker. The name contains the host name, because Prefect does not record hosts."""
    return f"neorl-{socket.gethostname()}-{token[:8]}"


def workers_elsewhere(services: Services) -> list[str]:
    """Return the names of online workers on other machines, and of online workers that `neorl` did not start."""
    online = services.ask_prefect(f"work_pools/{POOL}/workers/filter", {"workers": {"status": {"any_": ["ONLINE"]}}})
    here = worker_name("").rpartition("-")[0]
    return sorted(worker["name"] for worker in online if worker["name"].rpartition("-")[0] != here)


def worker_is_online(api: str, token: str, login: str, timeout: float = rest.SOON) -> bool:
    """Return whether the worker with this token is online. The worker's name ends with 8 digits of the token."""
    try:
        workers = rest.request(f"{api}/work_pools/{POOL}/workers/filter", {}, login=login, timeout=timeout)
    except urllib.error.HTTPError:
        return False
    return any(w["name"].rpartition("-")[2] == token[:8] and w["status"] == "ONLINE" for w in workers)


def _start(deployments: Deployments, services: Services) -> ProcessId:
    command = [sys.executable, "-P", "-m", "flows.services.worker", *arguments(services.home, deployments)]
    return processes.spawn(command, variables(services), _log(services.home), services.home.folder("prefect"))


def _log(home: Home) -> Path:
    return home.folder("logs") / "deployments.log"


def _outcome_file(home: Home) -> Path:
    return home.folder("prefect") / "deployments.json"


def _outcome(home: Home, deployments: Deployments) -> int | None:
    """Return the exit code of the last registration of exactly these deployments, or None."""
    try:
        last = read_json(_outcome_file(home))
        return int(last["code"]) if last["digest"] == deployments.digest else None
    except (BadInput, LookupError, TypeError, ValueError):
        return None


def _project() -> Path:
    here = Path.cwd()
    return here if (here / FILE).is_file() else PROJECT


def _source(project: Path, entrypoint: str) -> Path:
    """Return the file of a flow: `file.py:name` in the project, or `package.module.name` in this package."""
    file, colon, _ = entrypoint.rpartition(":")
    return project / file if colon else PROJECT.joinpath(*entrypoint.split(".")[:-1]).with_suffix(".py")


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be text, got {value!r}")
    return value


def _plain(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if "{{" not in text]


def _are_known(services: Services, names: Sequence[str]) -> bool:
    # Deployments of different flows may share a name, such as the plant's.
    wanted = {"deployments": {"name": {"any_": sorted(set(names))}}}
    known = Counter(each["name"] for each in services.ask_prefect("deployments/filter", wanted))
    return known >= Counter(names)


def _ensure_pool(services: Services, pool: str) -> None:
    # Deployments need the pool before the worker creates the pool. The worker later fills in the job template.
    try:
        services.ask_prefect("work_pools/", {"name": pool, "type": "process"})
    except urllib.error.HTTPError as error:
        if error.code != 409:  # 409: the pool exists
            raise
