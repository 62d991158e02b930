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
from typing import NamedTuple
from urllib.parse import urlencode

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


def _pairs(uri: str, listed: Listed, query: Mapping[str, str]) -> dict[str, str] | None:
    """Name -> value (https://mlflow.org/docs/latest/api_reference/rest-api.html); MLflow leaves empty lists out."""
    if not uri.startswith(("http://", "https://")):
        return None
    message = urllib.request.Request(f"{uri}/api/2.0/mlflow/{listed.kind}/get?{urlencode(query)}")
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{part}", "") for part in ("USERNAME", "PASSWORD"))
    if user and password:
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        message.add_header("Authorization", f"Basic {login}")
    try:
        with urllib.request.urlopen(message, timeout=SECONDS) as answer:
            rows = json.load(answer)[listed.entity].get(listed.field, [])
        return {str(row[listed.name]): str(row.get(listed.value, "")) for row in rows}
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return None
