"""Registers the deployments of prefect.yaml with a Prefect server, by its REST API and without importing prefect."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from flows.services.processes import request
from tasks.adapters.files.canonical import digest_json

PROJECT = Path(__file__).resolve().parents[2]
POOL = "neorl"
# What Prefect itself derives from the signature of flows.retrain:retrain (a test compares the two); written out
# because `neorl up` would otherwise import prefect, which takes as long as the server's start.
PARAMETERS: dict[str, Any] = {
    "title": "Parameters",
    "type": "object",
    "properties": {
        "config": {
            "default": "configs/chemical_reactor.yaml",
            "position": 0,
            "title": "config",
            "type": "string",
        },
        "data": {
            "anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}],
            "default": None,
            "position": 1,
            "title": "data",
        },
    },
    "required": [],
    "definitions": {},
}


def register(api: str, project: Path = PROJECT) -> list[str]:
    """Create or update the work pool and the deployments of `prefect.yaml`.

    A deployment that was registered from the same content is left alone, so that a schedule which somebody paused in
    the UI stays paused.

    Args:
        api: address of the server's API.
        project: the folder with `prefect.yaml`; runs work in it.

    Returns:
        Names of the deployments, `flow/deployment`.
    """
    path = project / "prefect.yaml"
    if not path.is_file():
        return []  # installed without the project around it: there is nothing to schedule
    names = []
    for deployment in YAML(typ="safe", pure=True).load(path.read_text())["deployments"]:
        _ensure_pool(api, deployment["work_pool"]["name"])
        names.append(_ensure_deployment(api, deployment, project))
    return names


def worker_is_online(api: str, worker: str, pool: str = POOL) -> bool:
    """Whether a worker of this name polls the pool."""
    try:
        workers = request(f"{api}/work_pools/{pool}/workers/filter", {})
    except urllib.error.HTTPError:
        return False
    return any(w["name"] == worker and w["status"] == "ONLINE" for w in workers)


def _ensure_pool(api: str, pool: str) -> None:
    # The worker fills in the job template when it finds an empty one.
    _create(f"{api}/work_pools/", {"name": pool, "type": "process", "description": "Runs NeoRL flows as processes."})


def _ensure_deployment(api: str, deployment: dict[str, Any], project: Path) -> str:
    flow = deployment["entrypoint"].rpartition(":")[2].replace("_", "-")
    limit = deployment["concurrency_limit"]
    body = {
        "name": deployment["name"],
        "description": deployment["description"],
        "entrypoint": deployment["entrypoint"],
        "path": str(project),
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(project)}}],
        "work_pool_name": deployment["work_pool"]["name"],
        "parameters": deployment["parameters"],
        "parameter_openapi_schema": PARAMETERS,
        "enforce_parameter_schema": True,
        "concurrency_limit": limit["limit"],
        "concurrency_options": {"collision_strategy": limit["collision_strategy"]},
        "schedules": [
            {"schedule": {"cron": s["cron"], "timezone": s["timezone"]}, "active": s.get("active", True)}
            for s in deployment["schedules"]
        ],
        "tags": deployment.get("tags", []),
    }
    body["version"] = digest_json(body)[:12]
    name = f"{flow}/{body['name']}"
    try:
        if request(f"{api}/deployments/name/{name}")["version"] == body["version"]:
            return name
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
    body["flow_id"] = request(f"{api}/flows/", {"name": flow})["id"]
    request(f"{api}/deployments/", body)
    return name


def _create(url: str, body: dict[str, Any]) -> None:
    try:
        request(url, body)
    except urllib.error.HTTPError as error:
        if error.code != 409:  # 409: it exists already
            raise
