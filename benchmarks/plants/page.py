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
from tasks.pictures.trajectories import draw_plant

COLOURS = 32
"""Number of colours of a picture; few colours make small files."""


def draw(name: str) -> Path:
    """Draw an episode of a plant with the tuned and the best known controller, and the limits."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.png"
    draw_plant(PLANTS[name], path, seed=0, episodes=1)
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


QUESTION = """Do the simulated plants agree with published values and other simulators, and how good and how fast are
the tuned controllers and the simulators?"""
COMMAND = """`make plants` (an hour) and `make tune` (half an hour) measure; `python -m benchmarks.plants page` only
writes this page. Signals and limits of each plant are in the [reference](../reference/plants.md)."""
OUTSIDE = """Values that the plants' tests compare with sources outside this project. Every single value is in
`benchmarks/results/plants-truths.json`."""
CONTROLLERS = wrap(
    """Scores, the tuned controller's mean return with a 95 % interval, and the episodes of each controller that violate
    a limit, of 1,000 (planners: 100). The controller as found plays the `pid` logs; the tuned controller is the
    shield's fallback and the reference of gates. The [reference](../reference/plants.md) describes them; a better
    controller than the best known may exist."""
)
SEARCH = wrap(
    f"""`make tune` starts from 1,000 uniform draws of the controller's own parameters, then uses successive halving on
    paired episodes and the cross-entropy method. Fresh episodes compare the result with the controllers as found and
    as tuned. A controller counts as tuned if the search gains at most {report.BAR:g} points; a violation in 0.01 % of
    the episodes costs one point. *Violated* is for as found, tuned and searched."""
)
STEPS = wrap(
    """Errors with each plant's own number of substeps, against eight times as many: four episodes with the same actions
    in double precision. Plants without a row are discrete-time by definition, or
    were not measured."""
)
SENSITIVITY = wrap(
    """Each constant without an outside source was changed by a fifth in both directions (the end of a range by a fifth
    of the range), with the tuned controller unchanged. The table shows violated episodes with nominal constants and
    after the worst change. All changes are in `benchmarks/results/plants`."""
)
