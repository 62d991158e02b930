"""Make MLflow's start page open on machine learning and without the assistant.

By default MLflow 3.17 opens on generative AI, with the pane of an assistant that `guard` blocks. MLflow has no setting
for this, but the page reads two values from the browser's local storage. This module sets the two values if they are
absent, so a user's later choice is kept.
"""

from __future__ import annotations

import json

from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

DEFAULTS = {
    "mlflow.workflowType_v1": '"machine_learning"',
    # The page sets this value after it has opened the assistant's pane once.
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
}
HEAD = (
    f"<script>for (const [key, value] of Object.entries({json.dumps(DEFAULTS)})) "
    "if (localStorage.getItem(key) === null) localStorage.setItem(key, value)</script>"
    "<style>[data-assistant-ui] { display: none !important }"
    ".note-editor-preview-content :is(th, td) { padding: 1px 1.2em 1px 0; text-align: left }</style>"
)
"""Script and style for the page. The style hides the assistant's button and adds padding to tables."""

HEADERS = {"X-Frame-Options": "SAMEORIGIN", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
"""Headers that MLflow itself sends. Other sites then cannot show the page in a frame (clickjacking)."""


class StartPage:
    """ASGI middleware that answers requests for MLflow's start page and passes on all others."""

    def __init__(self, application: ASGIApp, page: str) -> None:
        self._application = application
        self._answer = HTMLResponse(page.replace("<head>", f"<head>{HEAD}", 1), headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_page = scope["type"] == "http" and scope["path"] == "/" and scope["method"] in {"GET", "HEAD"}
        await (self._answer if is_page else self._application)(scope, receive, send)
