"""`make screens`: pictures of the first pages that each user sees, for docs/studies/screens.md.

Run `make run` first. A browser then opens the pages of the home's servers, and the report.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from typing import NamedTuple

from benchmarks import pages
from benchmarks.pages import STUDIES
from benchmarks.pictures.browser import chromium
from benchmarks.pictures.graph import last_run
from configs.home import Home
from flows.services.servers import connect, environment
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.ledger import Ledger
from tasks.registry.registry import Registry

FOLDER = STUDIES / "screens"
PAGE = STUDIES / "screens.md"
WIDTH, HEIGHT = 1360, 900


class Screen(NamedTuple):
    """A page that a user opens first."""

    name: str
    user: str
    about: str
    url: str


def screens(home: Home, plant: str = "chemical_reactor") -> list[Screen]:
    """Return the pages of a home with running servers and a finished retraining of the plant."""
    services, found = connect(home), last_run(home)
    os.environ.update(environment(services))
    ledger = Ledger.open(home, write=False)
    candidates = ledger.entries("candidate", plant)
    if found is None or not candidates:
        raise SystemExit(f"no finished retraining of {plant} in {home.root}: run `make run`, then `neorl up`.")
    record = record_of(candidates[-1])
    mlflow, training = services.mlflow.url, "workflowType=machine_learning"
    experiment = Registry(mlflow).experiment(plant)
    report = sorted((home.root / "reports" / plant).glob("*.html"), key=lambda path: path.stat().st_mtime)[-1]
    return [
        Screen(
            "deployments",
            "MLOps engineer",
            "Prefect's deployments, one for each plant and flow.",
            f"{services.prefect.url}/deployments",
        ),
        Screen(
            "run",
            "MLOps engineer",
            "A retraining in Prefect: tasks and dependencies.",
            f"{services.prefect.url}/runs/flow-run/{found[2]}",
        ),
        Screen(
            "experiment",
            "Data scientist",
            "MLflow's runs: the candidate and every trained member.",
            f"{mlflow}/#/experiments/{experiment}/runs?{training}",
        ),
        Screen(
            "model",
            "Reviewer",
            "MLflow's versions of a plant's policy.",
            f"{mlflow}/#/models/{plant}?{training}",
        ),
        Screen(
            "version",
            "Reviewer",
            "A version: decision, claim, comparison and gates.",
            f"{mlflow}/#/models/{plant}/versions/{record.version}?{training}",
        ),
        Screen(
            "report",
            "Safety engineer",
            "`neorl report PLANT`: one HTML file that opens without a server.",
            report.as_uri(),
        ),
    ]


def page(shown: list[Screen]) -> str:
    """Return docs/studies/screens.md."""
    pictures = [f"## {s.user}: {s.name}\n\n{s.about}\n\n![{s.about}](screens/{s.name}.png)" for s in shown]
    return pages.study(
        "First screens",
        "Which page does each user see first?",
        "Prefect shows deployments and runs; MLflow shows trainings, versions and decisions. The report is one file.",
        "`make run` makes a retraining; then `make screens` takes the pictures.",
        *pictures,
    )


async def take(command: str, home: Home) -> None:
    """Take the pictures of all pages of a home."""
    services, found = connect(home), last_run(home)
    login = found[1] if found else ""
    for screen in screens(home):
        # Start a new browser for each page, so that no stored state changes the picture.
        async with chromium(command, WIDTH, HEIGHT) as page:
            if not screen.url.startswith("file:"):
                await page.log_in(services.prefect.url, login)
            await page.open(screen.url)
            await page.picture(FOLDER / f"{screen.name}.png")
            print(f"wrote docs/studies/screens/{screen.name}.png", flush=True)


def main() -> int:
    """Write the pictures and the page; return 1 without a browser."""
    command = shutil.which("chromium")
    if command is None:
        print("no pictures: install Chromium with `make services`")
        return 1
    FOLDER.mkdir(exist_ok=True)
    home = Home.locate()
    asyncio.run(take(command, home))
    PAGE.write_text(page(screens(home)))
    print("wrote docs/studies/screens.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
