"""Registers the deployments of prefect.yaml with a Prefect server: `prefect deploy --all`, and when it is due.

It runs in the background, in the process that is to be the home's worker: `flows.services.worker`.
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
    """What prefect.yaml declares, as far as it matters here."""

    path: Path
    names: list[str]
    pools: list[str]
    digest: str
    """Digest of the file and of the flows' sources, from which Prefect derives the parameters."""


def declared(project: Path | None = None) -> Deployments | None:
    """What a project's prefect.yaml declares; None where there is no such file, and so nothing to schedule.

    Args:
        project: its folder; the working directory when not given, or where that has none, the folder of this package.

    Raises:
        BadInput: when it is not a list of deployments, each with a name and an entrypoint, or parameters are no
            mapping.
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
                raise ValueError(f"{entry['parameters']!r} as parameters, which is no mapping")
    except (AttributeError, TypeError, LookupError, ValueError) as error:
        said = " ".join(str(error).split())
        raise BadInput(
            f"expected a list of deployments in {path}, each with a name and an entrypoint, got '{said}': correct it."
        ) from error
    digests = {str(file): sha256_hex(file.read_bytes()) for file in (path, *sources) if file.is_file()}
    # Names and pools that Prefect fills in from the environment are known to Prefect alone.
    return Deployments(path, _plain(names), _plain(sorted(pools)), digest_json(digests))


def deployed_data(config: Path) -> list[Path]:
    """The logs that the deployment of a run's file reads, of the working directory's prefect.yaml; none without one.

    Raises:
        BadInput: when that file is malformed, or the logs are no list of paths.
    """
    if (found := declared(Path.cwd())) is None:
        return []
    for entry in read_yaml(found.path, aliases=True).get("deployments") or []:
        given = entry.get("parameters") or {}
        # Of the deployments of a run's file the retraining names its logs.
        if Path(str(given.get("config"))).resolve() == config.resolve() and (data := given.get("data")):
            if not (isinstance(data, list) and all(isinstance(path, str) for path in data)):
                raise BadInput(
                    f"expected 'data' of deployment {entry['name']} in {found.path} as a list of paths, got {data!r}: "
                    "write each path as an item of a list."
                )
            return [Path(path) for path in data]
    return []


def due(services: Services, project: Path | None = None) -> Deployments | None:
    """What prefect.yaml declares, unless all of it was registered from the same content before; its pools are made.

    So a schedule that somebody paused in the UI stays paused as long as nothing has changed.

    Args:
        services: whose Prefect server.
        project: the folder with `prefect.yaml`, as for `declared`; runs work in it.

    Raises:
        BadInput: when prefect.yaml is malformed.
    """
    found = declared(project)
    if found is None or not found.pools:
        return None
    if _outcome(services.home, found) == 0 and _are_known(services, found.names):
        return None
    for pool in found.pools:
        _ensure_pool(services, pool)
    for path in (_outcome_file(services.home), _log(services.home)):
        path.unlink(missing_ok=True)
    return found


def arguments(home: Home, found: Deployments) -> list[str]:
    """Arguments of `flows.services.worker` that make it register these deployments."""
    return ["--register", str(found.path.parent), found.digest, str(_log(home)), str(_outcome_file(home))]


def finish(found: Deployments, services: Services, deadline: float, worker: ProcessId | None = None) -> None:
    """Wait until deployments are registered.

    Args:
        found: what is due.
        services: whose Prefect server.
        deadline: when to give up, in seconds on the clock of `time.monotonic`.
        worker: the one that was started with their `arguments`; without one, a process of their own registers them.

    Raises:
        BadInput: when Prefect refuses one of them.
        ServiceMissing: when it takes too long.
    """
    log, process = _log(services.home), worker or _start(found, services)
    try:
        while _outcome(services.home, found) is None and process.alive:
            if time.monotonic() > deadline:
                raise ServiceMissing(
                    f"expected Prefect to register {found.path} in time, got no end: read {log}, then run 'neorl up' "
                    "again."
                )
            time.sleep(0.1)
    finally:
        if worker is None:
            processes.stop([process])
    if _outcome(services.home, found) != 0 or not _are_known(services, found.names):
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise BadInput(
            f"expected Prefect to accept the deployments of {found.path}, got '{said[-1] if said else 'no word'}': "
            f"correct the file, then run 'neorl up' again; {log} tells more."
        )


def variables(services: Services) -> dict[str, str]:
    """The environment of a process that registers deployments; nothing of the caller's own Prefect leaks into it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    return kept | environment(services) | {"PREFECT_DEFAULT_WORK_POOL_NAME": POOL}


def worker_name(token: str) -> str:
    """What Prefect calls a worker that this machine starts: Prefect itself does not tell where a worker runs."""
    return f"neorl-{socket.gethostname()}-{token[:8]}"


def workers_elsewhere(services: Services) -> list[str]:
    """Names of the pool's workers that are online, by Prefect's last look, and of another machine as far as one knows.

    One that was started without `neorl`, whose name may say nothing of its machine, counts as such.

    Args:
        services: whose Prefect server.
    """
    online = services.ask_prefect(f"work_pools/{POOL}/workers/filter", {"workers": {"status": {"any_": ["ONLINE"]}}})
    here = worker_name("").rpartition("-")[0]
    return sorted(worker["name"] for worker in online if worker["name"].rpartition("-")[0] != here)


def worker_is_online(api: str, token: str, login: str, timeout: float = rest.SOON) -> bool:
    """Whether the worker that was started with this token polls the pool of the deployments.

    Args:
        api: address of Prefect's API.
        token: ends the worker's name, of which an earlier version's says nothing else.
        login: `name:password` for the API; empty for one without.
        timeout: seconds to wait for the answer.
    """
    try:
        workers = rest.request(f"{api}/work_pools/{POOL}/workers/filter", {}, login=login, timeout=timeout)
    except urllib.error.HTTPError:
        return False
    return any(w["name"].rpartition("-")[2] == token[:8] and w["status"] == "ONLINE" for w in workers)


def _start(found: Deployments, services: Services) -> ProcessId:
    command = [sys.executable, "-m", "flows.services.worker", *arguments(services.home, found)]
    return processes.spawn(command, variables(services), _log(services.home), services.home.folder("prefect"))


def _log(home: Home) -> Path:
    return home.folder("logs") / "deployments.log"


def _outcome_file(home: Home) -> Path:
    return home.folder("prefect") / "deployments.json"


def _outcome(home: Home, found: Deployments) -> int | None:
    """The exit code of the last registration, if that was of these deployments."""
    try:
        last = read_json(_outcome_file(home))
        return int(last["code"]) if last["digest"] == found.digest else None
    except (BadInput, LookupError, TypeError, ValueError):
        return None


def _project() -> Path:
    """The folder whose deployments are meant."""
    here = Path.cwd()
    return here if (here / FILE).is_file() else PROJECT


def _source(project: Path, entrypoint: str) -> Path:
    """The file of a flow: `flow.py:name` of the project, or `package.module.name`, of which only ours are followed."""
    file, colon, _ = entrypoint.rpartition(":")
    return project / file if colon else PROJECT.joinpath(*entrypoint.split(".")[:-1]).with_suffix(".py")


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} as {key}")
    return value


def _plain(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if "{{" not in text]


def _are_known(services: Services, names: Sequence[str]) -> bool:
    # Flows may have deployments of the same name, such as that of their plant.
    wanted = {"deployments": {"name": {"any_": sorted(set(names))}}}
    known = Counter(found["name"] for found in services.ask_prefect("deployments/filter", wanted))
    return known >= Counter(names)


def _ensure_pool(services: Services, pool: str) -> None:
    # The worker fills in the job template when it finds an empty one; made by it, the pool would come too late.
    try:
        services.ask_prefect("work_pools/", {"name": pool, "type": "process"})
    except urllib.error.HTTPError as error:
        if error.code != 409:  # 409: it exists already
            raise
