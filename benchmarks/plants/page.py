"""Write docs/studies/plants.md from the kept results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks import pages
from benchmarks.pages import wrap
from benchmarks.plants import scores, sensitivity, speed, steps, truths
from benchmarks.plants.kept import PICTURES, kept
from benchmarks.tuning import report
from configs.plant_scores import PATH as SCORES
from neorl_core.plants import NAMES, PLANTS
from tasks.pictures.trajectories import controllers_of, draw_plant

COLOURS = 32
"""Number of colours of a picture; few colours make small files."""


def draw(name: str) -> Path:
    """Draw an episode of a plant for the tuned and the best known controller, with the limits, and return the file."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.png"
    draw_plant(PLANTS[name], path, 0, 1, controllers_of(PLANTS[name]))
    with Image.open(path) as picture:
        small = picture.quantize(COLOURS)
    small.save(path, optimize=True)
    return path


def page() -> str:
    """Return the page."""
    measured, searched = json.loads(SCORES.read_text()) if SCORES.exists() else {}, report.kept()
    rows, speeds = kept("truths") or [], kept("speed")
    drawn = [name for name in NAMES if (PICTURES / f"{name}.png").exists()]
    return pages.study(
        "Plants, measured",
        QUESTION,
        answer(rows, searched),
        COMMAND,
        "## Outside values",
        OUTSIDE,
        truths.section(rows),
        "## Controllers",
        CONTROLLERS,
        scores.section(measured),
        without_row(measured),
        "## Search for better parameters",
        SEARCH,
        report.table(searched),
        without_row(searched),
        "## Speed",
        speed.section(speeds) if speeds else "",
        "## Step size",
        STEPS,
        steps.section(),
        "## Sensitivity",
        SENSITIVITY,
        sensitivity.section(),
        "## An episode of each plant",
        "\n\n".join(f"![{name}](plants/{name}.png)" for name in drawn),
    )


def answer(rows: list[dict[str, Any]], searched: Mapping[str, Any]) -> str:
    """Return the answer in two sentences."""
    sources = {row["source"] for row in rows}
    best = max((row["gain"][0] for row in searched.values()), default=0.0)
    return (
        f"All {len(rows)} compared values from {len(sources)} outside sources agree within their tolerance. A search "
        f"over each tuned controller's parameters finds at most {best:.2f} points more."
    )


def without_row(rows: Mapping[str, Any]) -> str:
    """Return a sentence that names the plants without a row; empty if there is no table or no such plant."""
    missing = [name for name in NAMES if name not in rows]
    return f"Not measured yet: {', '.join(missing)}." if rows and missing else ""


QUESTION = """Do the simulated plants agree with published values and other simulators, how good are the tuned
controllers, and how fast are the simulators?"""
COMMAND = """`make plants` takes an hour and `make tune` half an hour; `python -m benchmarks.plants page` only writes
this page. Signals and limits of each plant are in the [reference](../reference/plants.md)."""
OUTSIDE = """The plants' tests compare values of the simulators with sources outside this project. A value agrees if
its error is at most the tolerance. All values are in `benchmarks/results/plants-truths.json`."""
CONTROLLERS = f"""The [reference](../reference/plants.md) describes the controllers of each plant. Columns:

- *idle* to *best known*: scores of four controllers; – if the plant has no such controller. *Idle* is a constant
  action, *as found* the controller that made the `pid` logs, *tuned* the shield's fallback, which a candidate must
  exceed
- *return of tuned*: mean return of an episode with a 95 % interval, in the plant's unit of reward
- *violated episodes*: how many of {scores.EPISODES:,} episodes violate a limit, in the order of the controllers
  ({scores.PLANNED_EPISODES} episodes for a *best known* controller that plans online)

A controller better than the best known may exist."""
SEARCH = f"""`make tune` searches for better parameters of each tuned controller. It draws 1,000 parameter sets, drops
the worst in several rounds and improves the rest by the cross-entropy method. The results are compared in new
episodes. A controller counts as tuned if the search gains at most {report.BAR:g} points. Columns:

- *parameters*: number of parameters; *CPU s*: CPU seconds of the search
- *as found*, *tuned*, *searched*: scores in the new episodes
- *gain over tuned*: searched minus tuned in points, with a 95 % interval; violations in 0.01 % of the episodes count
  as a loss of one point
- *violated*: episodes with a violated limit, as found, tuned and searched"""
STEPS = wrap(
    """Each plant divides a control step into substeps. The table compares this with eight times as many substeps in
    double precision, in four episodes of the tuned controller with the same actions. A *margin* is the distance to a
    limit; the score's error is in points. A plant without a row needs no substeps or was not measured."""
)
SENSITIVITY = wrap(
    """Each constant without an outside source was made lower and higher by a fifth (the end of a range by a fifth of
    the range). The tuned controller stays the same. *Violated* counts episodes with a violated limit and nominal
    constants. *Worst change* is the change with the most violated episodes. *Then violated* is their number. *Then
    least margin* is the smallest distance to a limit, negative beyond the limit. All changes are in
    `benchmarks/results/plants`."""
)
