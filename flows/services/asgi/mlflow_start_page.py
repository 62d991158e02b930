"""MLflow's page as a new browser opens it: on what is trained here, without its assistant.

MLflow 3.17 has no setting for either. Its page begins with generative AI, and opens the pane of an assistant, none of
whose calls the guard hands on, beside the first thing that a reviewer is to read. Both follow from what the page finds
kept in the browser, so it finds that at first; what a user chooses later stays.
"""

from __future__ import annotations

import json

from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

KEPT = {
    "mlflow.workflowType_v1": '"machine_learning"',
    # The mark that the page leaves once it has opened the pane.
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
}
"""What the page finds in a browser that has kept nothing of it."""
BEGINS = (
    f"<script>for (const [key, value] of Object.entries({json.dumps(KEPT)})) "
    "if (localStorage.getItem(key) === null) localStorage.setItem(key, value)</script>"
    "<style>[data-assistant-ui] { display: none !important }"
    ".note-editor-preview-content :is(th, td) { padding: 1px 1.2em 1px 0; text-align: left }</style>"
)
"""The button of the assistant is left out, too, for it would lead to nothing; tables of a description get air."""

HEADERS = {"X-Frame-Options": "SAMEORIGIN", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
"""As MLflow answers: a page of another web site must not lay this one, with its buttons, under its own."""


class FirstPage:
    """Answers for the page itself, and hands on everything else.

    Args:
        application: MLflow's server.
        page: its page, as HTML.
    """

    def __init__(self, application: ASGIApp, page: str) -> None:
        self._application = application
        self._answer = HTMLResponse(page.replace("<head>", f"<head>{BEGINS}", 1), headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        whole = scope["type"] == "http" and scope["path"] == "/" and scope["method"] in {"GET", "HEAD"}
        await (self._answer if whole else self._application)(scope, receive, send)
