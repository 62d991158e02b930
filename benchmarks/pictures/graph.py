"""Write docs/explanation/graph.png, a screenshot of the last retraining in Prefect. Run `make run` first."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

from benchmarks.pictures.browser import chromium
from configs.environment import no_proxy_variables
from configs.errors import ServiceMissing
from configs.home import Home
from flows.services.servers import connect, environment

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "explanation" / "graph.png"


def last_run(home: Home) -> tuple[str, str, str] | None:
    """Return (server address, login, run id) of the last retraining that decided, or None if there is none."""
    try:
        services = connect(home)
    except ServiceMissing:
        return None
    wanted = {"sort": "START_TIME_DESC", "limit": 200, "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    found: list[dict[str, Any]] = services.ask_prefect("flow_runs/filter", wanted)
    # Leave out runs without a decision: without new data, a run skips half of the tasks.
    runs = [run for run in found if "unchanged" not in run["tags"]]
    login = environment(services).get("PREFECT_API_AUTH_STRING", "")
    return (services.prefect.url, login, str(runs[0]["id"])) if runs else None


async def screenshot(command: str, url: str, login: str, run: str, out: Path) -> None:
    """Save a screenshot of a flow run's page."""
    async with chromium(command) as page:
        await page.log_in(url, login)
        await page.open(f"{url}/runs/flow-run/{run}")
        await page.picture(out)


def main() -> None:
    """Write the picture if there is a run to show."""
    command, found = shutil.which("chromium"), last_run(Home.locate())
    if command is None or found is None:
        print("no picture: install Chromium ('make services') and finish a retraining ('make run') first")
        return
    os.environ.update(no_proxy_variables())
    asyncio.run(screenshot(command, *found, PICTURE))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
