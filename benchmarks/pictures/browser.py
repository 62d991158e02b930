"""Take pictures of the pages of a home's servers with Chromium."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.services.rest import basic

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

SECONDS = 12.0
"""Seconds that a page may take to render."""


class Page:
    """A page of the browser, controlled by Chromium's DevTools protocol."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, itertools.count(1)

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method and wait for the answer."""
        number = next(self._numbers)
        await self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (found := json.loads(await self._connection.recv())).get("id") != number:
            pass
        if "result" not in found:
            raise SystemExit(f"Chromium failed to answer {method}: {found.get('error')}: repeat the command.")
        result: dict[str, Any] = found["result"]
        return result

    async def open(self, url: str, seconds: float = SECONDS) -> None:
        """Open a page and wait until it is rendered."""
        # Open an empty page first, because Chromium does not load a URL again that differs only in the fragment.
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)
        await asyncio.sleep(seconds)

    async def log_in(self, prefect: str, login: str) -> None:
        """Log in to the home's servers. Prefect's pages store the login; MLflow gets it with each request."""
        secret = base64.b64encode(login.encode()).decode()
        await self.open(prefect, 2.0)
        await self.call("Runtime.evaluate", expression=f"localStorage.setItem('prefect-password', '{secret}')")
        await self.call("Network.enable")
        await self.call("Network.setExtraHTTPHeaders", headers={"Authorization": basic(login)})

    async def picture(self, out: Path) -> None:
        """Save a screenshot."""
        shot = await self.call("Page.captureScreenshot", format="png")
        out.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def chromium(command: str, width: int = 1500, height: int = 1000) -> AsyncIterator[Page]:
    """Start a browser and yield its page; stop the browser at the end of the block.

    Args:
        command: Chromium's command.
        width: width of the page in pixels.
        height: height of the page in pixels.
    """
    import websockets

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [command, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
        words += ["--disable-background-networking", f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        words += ["--hide-scrollbars", "--remote-allow-origins=*", "about:blank"]
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            port = Path(profile) / "DevToolsActivePort"
            while not port.exists():
                await asyncio.sleep(0.1)
            number = port.read_text().splitlines()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{number}/json") as answer:
                target = next(page for page in json.load(answer) if page["type"] == "page")
            async with websockets.connect(target["webSocketDebuggerUrl"], max_size=None) as connection:
                yield Page(connection)
        finally:
            process.terminate()
            process.wait()
