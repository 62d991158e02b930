"""What MLflow says of aliases and tags, asked without MLflow's client, which takes seconds of processor time to import.

Most runs find them right already. Where this finds no answer (a database without a server, a way to log in that only
the client knows, a server that has gone, a model that is not there), the client is to ask again, and to say why.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tasks.registry.version_page import Page

SECONDS = 10.0
"""How long to wait for an answer."""


class Listed(NamedTuple):
    """Pairs that MLflow's REST interface lists for an entity, and how it names all this."""

    kind: str
    entity: str
    field: str
    name: str
    value: str


ALIASES = Listed("registered-models", "registered_model", "aliases", "alias", "version")
TAGS = Listed("model-versions", "model_version", "tags", "key", "value")


def aliases(uri: str, plant: str) -> dict[str, str] | None:
    """A registered model's aliases: {"champion": "3", ...}; None where there is no answer."""
    return _pairs(uri, ALIASES, {"name": plant})


def tags(uri: str, plant: str, version: str) -> dict[str, str] | None:
    """A version's tags; None where there is no answer."""
    return _pairs(uri, TAGS, {"name": plant, "version": version})


def pages(uri: str, plant: str) -> dict[str, Page] | None:
    """What is said of each version of a plant; None where there is no answer."""
    found: dict[str, Page] = {}
    query = {"filter": f"name = '{plant}'", "max_results": "1000"}
    while True:
        answer = _answer(uri, "model-versions/search", query)
        try:
            for row in (answer or {}).get("model_versions", []):
                tags = {str(tag["key"]): str(tag.get("value", "")) for tag in row.get("tags", [])}
                found[str(row["version"])] = Page(tags, str(row.get("description", "")))
            token = answer.get("next_page_token") if answer is not None else None
        except (LookupError, TypeError, AttributeError):
            return None
        if answer is None or not token:
            return None if answer is None else found
        query["page_token"] = token


def _pairs(uri: str, listed: Listed, query: Mapping[str, str]) -> dict[str, str] | None:
    """Name -> value; MLflow leaves empty lists out."""
    try:
        rows = (_answer(uri, f"{listed.kind}/get", query) or {})[listed.entity].get(listed.field, [])
        return {str(row[listed.name]): str(row.get(listed.value, "")) for row in rows}
    except (LookupError, TypeError, AttributeError):
        return None


def _answer(uri: str, path: str, query: Mapping[str, str]) -> Any:
    """What MLflow's REST interface answers (https://mlflow.org/docs/latest/api_reference/rest-api.html), or None."""
    if not uri.startswith(("http://", "https://")):
        return None
    message = urllib.request.Request(f"{uri}/api/2.0/mlflow/{path}?{urlencode(query)}")
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{part}", "") for part in ("USERNAME", "PASSWORD"))
    if user and password:
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        message.add_header("Authorization", f"Basic {login}")
    try:
        # `urlopen` keeps the proxies of its first call for as long as the process lives.
        with urllib.request.build_opener().open(message, timeout=SECONDS) as answer:
            return json.load(answer)
    except (OSError, HTTPException, ValueError):
        return None
