"""Writes stages into docs/architecture.md, the picture of a finished graph beside it, metrics into docs/operations.md.

The table is read from the flow's source. The picture is a screenshot of Prefect's page, in headless Chromium and logged
in, of the last retraining of the home (`make run` makes one); without Chromium or a run the picture stays as it is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

from benchmarks.pictures.browser import chromium
from configs.errors import ServiceMissing
from configs.home import Home
from flows.graph import table
from flows.services.servers import connect, environment
from tasks.monitoring.catalogue import table as metrics

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "graph.png"
MARKS = {
    "simulated": ("<!-- stages: begin -->", "<!-- stages: end -->"),
    "process": ("<!-- process stages: begin -->", "<!-- process stages: end -->"),
}
OPERATIONS = ROOT / "docs" / "operations.md"
METRICS = ("<!-- metrics: begin -->", "<!-- metrics: end -->")


def with_table(text: str) -> str:
    """The page with the tables of stages between their markers."""
    for kind, marks in MARKS.items():
        text = _between(text, marks, table(kind))
    return text


def with_metrics(text: str) -> str:
    """The page about operations with the table of metrics between its markers."""
    return _between(text, METRICS, "\n".join(metrics()))


def _between(text: str, marks: tuple[str, str], table: str) -> str:
    begin, end = marks
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"


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


async def screenshot(command: str, url: str, login: str, run: str, out: Path) -> None:
    """Take a picture of a flow run's page."""
    async with chromium(command) as page:
        await page.log_in(url, login)
        await page.open(f"{url}/runs/flow-run/{run}")
        await page.picture(out)


def main() -> None:
    """Write the table, and the picture where there is something to show."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    OPERATIONS.write_text(with_metrics(OPERATIONS.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote the tables of stages into {PAGE.relative_to(ROOT)}")
    command, found = shutil.which("chromium"), last_run(Home.locate())
    if command is None or found is None:
        print("no picture: it needs Chromium ('make services') and a finished retraining ('make run')")
        return
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    asyncio.run(screenshot(command, *found, PICTURE))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
