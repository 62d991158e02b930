"""HTTP requests with JSON, without the slow import of Prefect's client.

Containers use `python -m flows.services.rest URL` as health check: it exits with 0 if a GET of the URL succeeds.
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
"""Seconds to wait after each attempt if the server is busy (HTTP 503); 0 after the last attempt."""

SOON = 10.0
"""Time limit of a status request, in seconds."""
SILENT = 90.0
"""Time limit of a run's request, in seconds. Prefect is silent for up to a minute while it waits for a SQLite lock."""


def request(
    url: str,
    body: object = None,
    *,
    login: str = "",
    bearer: str = "",
    timeout: float = SOON,
    method: str | None = None,
) -> Any:
    """Send an HTTP request and return the answer as JSON, or as text if it is not JSON.

    Args:
        url: the complete address.
        body: JSON to POST; None sends a GET.
        login: `name:password` for HTTP Basic authentication, or empty.
        bearer: bearer token, in place of a login.
        timeout: seconds per attempt.
        method: HTTP method, if neither GET nor POST.

    Raises:
        urllib.error.HTTPError: if the server rejects the request.
        OSError: if nothing answers in time.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = basic(login)
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    message = urllib.request.Request(url, data, headers, method=method)
    for pause in BUSY_SECONDS:
        try:
            with _opener(url).open(message, timeout=timeout) as answer:
                text = answer.read().decode()
            break
        except urllib.error.HTTPError as error:
            error.close()
            # Prefect answers 503 while SQLite is locked, for seconds on a busy machine.
            if error.code != 503 or not pause:
                raise
            time.sleep(pause)
    return json.loads(text) if "json" in answer.headers.get("Content-Type", "") and text else text


def answers(url: str, *, login: str = "", timeout: float = SOON) -> bool:
    """Return whether a GET of this address succeeds."""
    try:
        request(url, login=login, timeout=timeout)
    except (OSError, ValueError, HTTPException):
        return False  # refused, reset, timed out, an HTTP error, or no HTTP at all
    return True


def basic(login: str) -> str:
    """Return the Authorization header of HTTP Basic authentication."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def _opener(url: str) -> urllib.request.OpenerDirector:
    # Loopback addresses must bypass a configured proxy.
    local = urlsplit(url).hostname in {HOST, "localhost", "::1"}
    return urllib.request.build_opener(urllib.request.ProxyHandler({})) if local else urllib.request.build_opener()


if __name__ == "__main__":
    sys.exit(not answers(sys.argv[1], timeout=5.0))
