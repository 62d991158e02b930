"""The first screens of each user, for docs/studies/screens.md: `make screens`.

They are pages of the home's servers and its reports, as a browser shows them at first and not edited afterwards; the
last retraining of the home is what they show (`make run` makes one).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.pictures.browser import chromium
from benchmarks.pictures.graph import last_run
from configs.home import Home
from flows.services.servers import connect, environment
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.ledger import Ledger
from tasks.registry.registry import Registry

FOLDER = Path(__file__).parents[2] / "docs" / "studies" / "screens"
PAGE = FOLDER.parent / "screens.md"
WIDTH, HEIGHT = 1360, 900
TEXT = """\
# First screens

What each user sees first, after `make run`. Written by `make screens`; nothing was edited afterwards.
"""


class Screen(NamedTuple):
    """A page that a user opens first."""

    name: str
    who: str
    what: str
    url: str


def screens(home: Home, plant: str = "chemical_reactor") -> list[Screen]:
    """The pages, of a home whose servers run and which has retrained the plant."""
    services, found = connect(home), last_run(home)
    os.environ.update(environment(services))
    ledger = Ledger.open(home, write=False)
    candidates = ledger.entries("candidate", plant)
    if found is None or not candidates:
        raise SystemExit(f"expected a finished retraining of {plant}, got none: make run, then neorl up.")
    record = record_of(candidates[-1])
    mlflow, training = services.mlflow.url, "workflowType=machine_learning"
    experiment = Registry(mlflow).experiment(plant)
    report = sorted((home.root / "reports" / plant).glob("*.html"), key=lambda path: path.stat().st_mtime)[-1]
    return [
        Screen(
            "deployments",
            "MLOps engineer",
            "Prefect's deployments, one for each plant and task.",
            f"{services.prefect.url}/deployments",
        ),
        Screen(
            "run",
            "MLOps engineer",
            "A retraining: its stages, and what each depends on.",
            f"{services.prefect.url}/runs/flow-run/{found[2]}",
        ),
        Screen(
            "experiment",
            "Data scientist",
            "MLflow's runs: the candidate and every member that was trained.",
            f"{mlflow}/#/experiments/{experiment}/runs?{training}",
        ),
        Screen(
            "model",
            "Reviewer",
            "MLflow's versions of a plant's policy, status first.",
            f"{mlflow}/#/models/{plant}?{training}",
        ),
        Screen(
            "version",
            "Reviewer",
            "A version: decision, claim, comparison and gates (docs/how-to/review.md explains them).",
            f"{mlflow}/#/models/{plant}/versions/{record.version}?{training}",
        ),
        Screen(
            "report",
            "Safety engineer",
            "`neorl report PLANT`: one HTML file, which opens without any server.",
            report.as_uri(),
        ),
    ]


async def take(command: str, home: Home) -> None:
    """Take all pictures."""
    services, found = connect(home), last_run(home)
    login = found[1] if found else ""
    for screen in screens(home):
        # Each as a new user's browser shows it, which has kept nothing.
        async with chromium(command, WIDTH, HEIGHT) as page:
            if not screen.url.startswith("file:"):
                await page.log_in(services.prefect.url, login)
            await page.open(screen.url)
            await page.picture(FOLDER / f"{screen.name}.png")
            print(f"wrote docs/studies/screens/{screen.name}.png", flush=True)


def main() -> int:
    """Write the pictures and their page; 1 without a browser."""
    command = shutil.which("chromium")
    if command is None:
        print("no pictures: they need Chromium ('make services')")
        return 1
    FOLDER.mkdir(exist_ok=True)
    home = Home.locate()
    asyncio.run(take(command, home))
    parts = [f"\n## {s.who}\n\n{s.what}\n\n![{s.what}](screens/{s.name}.png)\n" for s in screens(home)]
    PAGE.write_text(TEXT + "".join(parts))
    print("wrote docs/studies/screens.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
