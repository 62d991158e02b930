"""MLflow's start page in a new browser: training runs, without the assistant."""

from __future__ import annotations

import asyncio
import shutil
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from benchmarks.pictures.browser import Page, chromium
from flows.services.asgi.mlflow_start_page import HEAD, HEADERS, StartPage

if TYPE_CHECKING:
    from flows.services.state import Services


async def evaluate(page: Page, expression: str) -> Any:
    found = await page.call("Runtime.evaluate", expression=expression, returnByValue=True)
    return found["result"].get("value")


async def drawn(page: Page, text: str) -> str:
    """Return the page's text when it is loaded."""
    for _ in range(240):
        said = await evaluate(page, "document.body.innerText")
        if text in (said or ""):
            return str(said)
        await asyncio.sleep(0.25)
    raise AssertionError(f"expected {text!r} on the page, got {said!r}")


def test_start_page_is_mlflows_with_defaults_and_headers() -> None:
    """Other requests are passed on; MLflow's own answers have the same headers."""
    asked: list[tuple[str, str]] = []

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append((scope["method"], scope["path"]))
        await PlainTextResponse("MLflow's")(scope, receive, send)

    page = files("mlflow.server").joinpath("js", "build", "index.html").read_text(encoding="utf-8")

    async def ask() -> None:
        through = httpx.ASGITransport(StartPage(server, page))
        async with httpx.AsyncClient(transport=through, base_url="http://127.0.0.1") as client:
            answer = await client.get("/")
            assert f"<head>{HEAD}" in answer.text
            assert answer.text.replace(HEAD, "") == page
            assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
            for method, path in (("POST", "/"), ("GET", "/health")):
                assert (await client.request(method, path)).text == "MLflow's"

    asyncio.run(ask())
    assert asked == [("POST", "/"), ("GET", "/health")]


@pytest.mark.slow
def test_new_browser_opens_on_training_runs(services: Services) -> None:
    command = shutil.which("chromium")
    if command is None:
        pytest.skip("no Chromium on this machine: `make services` installs it")

    async def look() -> None:
        async with chromium(command) as page:
            await page.log_in(services.prefect.url, services.home.login.read_text().strip())
            await page.open(f"{services.mlflow.url}/#/experiments", 0.0)
            said = await drawn(page, "Model registry")
            assert "Prompts" not in said
            shown = "[...document.querySelectorAll('[data-assistant-ui]')].some(each => each.checkVisibility())"
            assert await evaluate(page, "document.querySelectorAll('[data-assistant-ui]').length") > 0
            assert await evaluate(page, shown) is False
            assert await evaluate(page, "localStorage.getItem('mlflow.assistant.panelOpen_v1')") != "true"
            assert "Assistant" not in said
            # The user's own choice is kept.
            await evaluate(page, "localStorage.setItem('mlflow.workflowType_v1', '\"genai\"')")
            await page.open(f"{services.mlflow.url}/#/experiments", 0.0)
            await drawn(page, "Prompts")

    asyncio.run(look())
