"""Registers the deployments of prefect.yaml with a Prefect server: `prefect deploy --all`, in a process of its own.

Only its child imports prefect and the flows, while the other services are still starting.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from configs.errors import BadInput, ServiceMissing
from flows.services import rest
from flows.services.processes import private_log
from flows.services.state import Services, environment
from tasks.adapters.files.canonical import digest_json, sha256_hex, write_atomic

PROJECT = Path(__file__).resolve().parents[2]
POOL = "neorl"


class Deployments(NamedTuple):
    """What prefect.yaml declares, as far as it matters here."""

    path: Path
    names: list[str]
    pools: list[str]
    digest: str
    """Digest of the file and of the flows' sources, from which Prefect derives the parameters."""


class Registration(NamedTuple):
    """A `prefect deploy` that goes on in the background."""

    deployments: Deployments
    process: subprocess.Popen[bytes]
    output: Path
    mark: Path
    """Where the digest of what was registered last is kept."""


def declared(project: Path = PROJECT) -> Deployments | None:
    """What a project's prefect.yaml declares; None where there is no such file, and so nothing to schedule.

    Raises:
        BadInput: when it is not a list of deployments, each with a name and an entrypoint.
    """
    path = project / "prefect.yaml"
    if not path.is_file():
        return None
    try:
        entries = YAML(typ="safe", pure=True).load(path.read_text()).get("deployments") or []
        names = [_text(entry, "name") for entry in entries]
        sources = sorted({_text(entry, "entrypoint").rpartition(":")[0] for entry in entries})
        pools = {(entry.get("work_pool") or {}).get("name") or POOL for entry in entries}
    except (YAMLError, AttributeError, TypeError, LookupError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise BadInput(
            f"expected a list of deployments in {path}, each with a name and an entrypoint, got '{said}': correct it."
        ) from error
    files = [path, *(project / source for source in sources)]
    digests = {str(file): sha256_hex(file.read_bytes()) for file in files if file.is_file()}
    # Names and pools that Prefect fills in from the environment are known to Prefect alone.
    return Deployments(path, _plain(names), _plain(sorted(pools)), digest_json(digests))


def begin(services: Services, project: Path = PROJECT) -> Registration | None:
    """Start to register what prefect.yaml declares, unless all of it was registered from the same content before.

    So a schedule that somebody paused in the UI stays paused as long as nothing has changed.

    Args:
        services: whose Prefect server.
        project: the folder with `prefect.yaml`; runs work in it.

    Returns:
        What goes on in the background, or None when nothing needs to be done.

    Raises:
        BadInput: when prefect.yaml is malformed.
    """
    found = declared(project)
    if found is None or not found.pools:
        return None
    mark = services.home.folder("prefect") / "deployments.digest"
    if mark.is_file() and mark.read_text() == found.digest and _are_known(services, found.names):
        return None
    for pool in found.pools:
        _ensure_pool(services, pool)
    output = services.home.folder("logs") / "deployments.log"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    # Wide, so that the reason of a refusal stays on one line.
    variables = kept | environment(services) | {"PREFECT_DEFAULT_WORK_POOL_NAME": POOL, "COLUMNS": "1000"}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    output.unlink(missing_ok=True)
    with private_log(output) as log:
        process = subprocess.Popen(
            command, env=variables, cwd=project, stdin=subprocess.DEVNULL, stdout=log, stderr=log, umask=0o077
        )
    return Registration(found, process, output, mark)


def finish(registration: Registration, services: Services, deadline: float) -> None:
    """Wait until the deployments are registered.

    Args:
        registration: what `begin` started.
        services: whose Prefect server.
        deadline: when to give up, in seconds on the clock of `time.monotonic`.

    Raises:
        BadInput: when Prefect refuses one of them.
        ServiceMissing: when it takes too long.
    """
    found, process, output, mark = registration
    try:
        code = process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired as error:
        cancel(registration)
        raise ServiceMissing(
            f"expected Prefect to register {found.path} in time, got no end: read {output}, then run 'neorl up' again."
        ) from error
    if code or not _are_known(services, found.names):
        said = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
        raise BadInput(
            f"expected Prefect to accept the deployments of {found.path}, got '{said[-1] if said else 'no word'}': "
            f"correct the file, then run 'neorl up' again; {output} tells more."
        )
    write_atomic(mark, found.digest.encode())


def cancel(registration: Registration) -> None:
    """End what goes on in the background, if it still does."""
    registration.process.kill()
    registration.process.wait()


def worker_is_online(api: str, worker: str, login: str, pool: str = POOL) -> bool:
    """Whether a worker of this name polls the pool.

    Args:
        api: address of Prefect's API.
        worker: the worker's name.
        login: `name:password` for the API; empty for one without.
        pool: the work pool's name.
    """
    try:
        workers = rest.request(f"{api}/work_pools/{pool}/workers/filter", {}, login=login)
    except urllib.error.HTTPError:
        return False
    return any(w["name"] == worker and w["status"] == "ONLINE" for w in workers)


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} as {key}")
    return value


def _plain(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if "{{" not in text]


def _are_known(services: Services, names: Sequence[str]) -> bool:
    wanted = {"deployments": {"name": {"any_": list(names)}}}
    return {found["name"] for found in services.ask_prefect("deployments/filter", wanted)} >= set(names)


def _ensure_pool(services: Services, pool: str) -> None:
    # The worker fills in the job template when it finds an empty one; made by it, the pool would come too late.
    try:
        services.ask_prefect("work_pools/", {"name": pool, "type": "process"})
    except urllib.error.HTTPError as error:
        if error.code != 409:  # 409: it exists already
            raise
