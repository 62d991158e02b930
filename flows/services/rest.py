"""HTTP requests with JSON in and out, without prefect, whose import takes longer than all requests of a start.

`python -m flows.services.rest URL` exits with 0 where a GET of the URL succeeds: a container's health check.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from flows.services.processes import HOST

BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 0.0)
"""How long to wait for a server that says it is busy, before each further try; at the last one it is an error."""

SOON = 10.0
"""Seconds within which a server answers whoever only wants to know."""
SILENT = 90.0
"""Seconds for which a run bears a server that took its question and says nothing: Prefect's does so while it waits
for a lock of its SQLite database, for a minute at most."""


def request(
    url: str,
    body: object = None,
    *,
    login: str = "",
    bearer: str = "",
    timeout: float = SOON,
    method: str | None = None,
) -> Any:
    """One HTTP request; plain text comes back as a string.

    Args:
        url: the whole address.
        body: what to POST as JSON; None makes it a GET.
        login: `name:password`, sent as HTTP Basic authentication; empty sends none.
        bearer: token, sent as such in place of a login.
        timeout: seconds for each try.
        method: another than GET or POST.

    Returns:
        The answer's JSON, for the caller to check.

    Raises:
        urllib.error.HTTPError: when the server refuses.
        OSError: when nothing answers in time.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = basic(login)
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    message = urllib.request.Request(url, data, headers, method=method)
    for patience in BUSY_SECONDS:
        try:
            with _opener(url).open(message, timeout=timeout) as answer:
                text = answer.read().decode()
            break
        except urllib.error.HTTPError as error:
            error.close()
            # Prefect's answer while its SQLite database is locked, as it is for seconds on a busy machine.
            if error.code != 503 or not patience:
                raise
            time.sleep(patience)
    return json.loads(text) if "json" in answer.headers.get("Content-Type", "") and text else text


def answers(url: str, *, login: str = "", timeout: float = SOON) -> bool:
    """Whether a GET of this address succeeds."""
    try:
        request(url, login=login, timeout=timeout)
    except (OSError, ValueError, HTTPException):
        return False  # refused, reset, timed out, an HTTP error, or no HTTP at all
    return True


def basic(login: str) -> str:
    """The Authorization header of HTTP Basic authentication."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def _opener(url: str) -> urllib.request.OpenerDirector:
    """A proxy set for the outside world must not be asked for loopback addresses."""
    local = urlsplit(url).hostname in {HOST, "localhost", "::1"}
    return urllib.request.build_opener(urllib.request.ProxyHandler({})) if local else urllib.request.build_opener()


if __name__ == "__main__":
    sys.exit(not answers(sys.argv[1], timeout=5.0))
