"""MLflow's page in a browser that has kept nothing: models and their training, and no assistant beside them."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.pictures.browser import Page, chromium

if TYPE_CHECKING:
    from flows.services.state import Services


async def evaluate(page: Page, expression: str) -> Any:
    found = await page.call("Runtime.evaluate", expression=expression, returnByValue=True)
    return found["result"].get("value")


async def drawn(page: Page, text: str) -> str:
    """What the page says, once a text is on it."""
    for _ in range(240):
        said = await evaluate(page, "document.body.innerText")
        if text in (said or ""):
            return str(said)
        await asyncio.sleep(0.25)
    raise AssertionError(f"expected {text!r} on the page, got {said!r}")


@pytest.mark.slow
def test_a_new_browser_opens_on_what_is_trained_here_without_an_assistant(services: Services) -> None:
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
            assert await evaluate(page, shown) is False
            assert "Assistant" not in said
            # A user's own choice stays.
            await evaluate(page, "localStorage.setItem('mlflow.workflowType_v1', '\"genai\"')")
            await page.open(f"{services.mlflow.url}/#/experiments", 0.0)
            await drawn(page, "Prompts")

    asyncio.run(look())
