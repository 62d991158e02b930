"""Writes the table of stages into docs/architecture.md, and the picture of a finished retraining's graph beside it.

The table is read from the flow's source. The picture is a screenshot of Prefect's page, in headless Chromium and logged
in, of the last retraining of the home (`make run` makes one); without Chromium or a run the picture stays as it is.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from configs.errors import ServiceMissing
from configs.home import Home
from flows.graph import table
from flows.services.servers import connect, environment

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "graph.png"
MARKS = {
    "simulated": ("<!-- stages: begin -->", "<!-- stages: end -->"),
    "process": ("<!-- process stages: begin -->", "<!-- process stages: end -->"),
}
SECONDS = 12.0
"""How long the page may take to draw."""


def with_table(text: str) -> str:
    """The page with the tables of stages between their markers."""
    for kind, (begin, end) in MARKS.items():
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n\n{table(kind)}\n\n{end}{tail}"
    return text


def last_run(home: Home) -> tuple[str, str, str] | None:
    """(the server's address, the login, the id) of the last retraining that decided; None where nothing answers."""
    try:
        services = connect(home)
    except ServiceMissing:
        return None
    wanted = {"sort": "START_TIME_DESC", "limit": 200, "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    found: list[dict[str, Any]] = services.ask_prefect("flow_runs/filter", wanted)
    # One that changed nothing shows only half of the stages.
    runs = [run for run in found if "unchanged" not in run["tags"]]
    login = environment(services).get("PREFECT_API_AUTH_STRING", "")
    return (services.prefect.url, login, str(runs[0]["id"])) if runs else None


async def screenshot(chromium: str, url: str, login: str, run: str, out: Path) -> None:
    """Take a picture of a flow run's page."""
    import websockets

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
        words += ["--disable-background-networking", f"--user-data-dir={profile}", "--window-size=1500,1000"]
        words += ["--remote-allow-origins=*", "about:blank"]
        browser = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            port = Path(profile) / "DevToolsActivePort"
            while not port.exists():
                await asyncio.sleep(0.1)
            number = port.read_text().splitlines()[0]
            import urllib.request

            with urllib.request.urlopen(f"http://127.0.0.1:{number}/json") as answer:
                target = next(page for page in json.load(answer) if page["type"] == "page")
            async with websockets.connect(target["webSocketDebuggerUrl"], max_size=None) as page:
                numbers = itertools.count(1)

                async def call(method: str, **parameters: object) -> dict[str, Any]:
                    number = next(numbers)
                    await page.send(json.dumps({"id": number, "method": method, "params": parameters}))
                    while (found := json.loads(await page.recv())).get("id") != number:
                        pass
                    result: dict[str, Any] = found["result"]
                    return result

                await call("Page.navigate", url=url)
                await asyncio.sleep(2.0)
                secret = base64.b64encode(login.encode()).decode()
                await call("Runtime.evaluate", expression=f"localStorage.setItem('prefect-password', '{secret}')")
                await call("Page.navigate", url=f"{url}/runs/flow-run/{run}")
                await asyncio.sleep(SECONDS)
                shot = await call("Page.captureScreenshot", format="png")
            out.write_bytes(base64.b64decode(shot["data"]))
        finally:
            browser.terminate()
            browser.wait()


def main() -> None:
    """Write the table, and the picture where there is something to show."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote the tables of stages into {PAGE.relative_to(ROOT)}")
    chromium, found = shutil.which("chromium"), last_run(Home.locate())
    if chromium is None or found is None:
        print("no picture: it needs Chromium ('make services') and a finished retraining ('make run')")
        return
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    asyncio.run(screenshot(chromium, *found, PICTURE))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
