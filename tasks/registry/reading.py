"""Read aliases, tags and pages of versions through MLflow's REST interface, because its client imports slowly.

Without an answer, the functions return None. Causes are a missing server or model, or a login that only the client
supports. Callers then use MLflow's client, which also reports the cause.

A page's description begins with the ledger's current status. The findings at registration follow.
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

SECONDS = 10.0


def aliases(uri: str, plant: str) -> dict[str, str] | None:
    """Return a registered model's aliases, {"champion": "3", ...}; None if MLflow does not answer."""
    return _pairs(uri, "registered-model", "aliases", ("alias", "version"), {"name": plant})


def tags(uri: str, plant: str, version: str) -> dict[str, str] | None:
    """Return a version's tags; None if MLflow does not answer."""
    return _pairs(uri, "model-version", "tags", ("key", "value"), {"name": plant, "version": version})


def pages(uri: str, plant: str) -> dict[str, Page] | None:
    """Return the page of each version of a plant; None if MLflow does not answer."""
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


def _pairs(uri: str, kind: str, field: str, pair: tuple[str, str], query: Mapping[str, str]) -> dict[str, str] | None:
    """Return a list of MLflow's answer as a dictionary. MLflow omits empty lists."""
    key, value = pair
    try:
        rows = (_answer(uri, f"{kind}s/get", query) or {})[kind.replace("-", "_")].get(field, [])
        return {str(row[key]): str(row.get(value, "")) for row in rows}
    except (LookupError, TypeError, AttributeError):
        return None


def _answer(uri: str, path: str, query: Mapping[str, str]) -> Any:
    """Return the answer of MLflow's REST interface (https://mlflow.org/docs/latest/api_reference/rest-api.html), or
    None."""
    if not uri.startswith(("http://", "https://")):
        return None
    message = urllib.request.Request(f"{uri}/api/2.0/mlflow/{path}?{urlencode(query)}")
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{part}", "") for part in ("USERNAME", "PASSWORD"))
    if user and password:
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        message.add_header("Authorization", f"Basic {login}")
    try:
        # `urlopen` would keep the proxies of its first call for the life of the process.
        with urllib.request.build_opener().open(message, timeout=SECONDS) as answer:
            return json.load(answer)
    except (OSError, HTTPException, ValueError):
        return None


STATUS, END = "### Status: ", "\n\n---\n\n"
"""Start and end of the ledger's part of a description. It comes first, because MLflow cuts off long descriptions."""
TOLD_ONCE = tuple(f"neorl.{name}" for name in ("decided_by", "decided_at", "meaning", "note", "signed"))
"""Tags that earlier versions of NeoRL wrote. They are removed, because the description states the same."""
LIMIT = 5000
"""Longest description in characters that all of MLflow's databases accept."""


class Page(NamedTuple):
    tags: Mapping[str, str]
    description: str


def split(description: str) -> tuple[str, str]:
    """Split a description into the ledger's part, which may be empty, and the findings."""
    if not description.startswith(STATUS):
        return "", description
    told, _, rest = description.partition(END)
    return told + END, rest


def joined(told: str, rest: str) -> str:
    """Join the two parts of a description; cut the text at MLflow's limit."""
    return (told + rest)[:LIMIT]
