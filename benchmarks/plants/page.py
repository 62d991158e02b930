"""docs/studies/plants.md, from what is kept of each part and what the plants' modules say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.plants import constants, scores, sensitivity, speed, steps, truths
from benchmarks.plants.kept import PICTURES, kept, own
from benchmarks.tuning import report
from configs.plant_scores import PATH as SCORES
from neorl_core.plants import NAMES, PLANTS
from tasks.pictures.trajectories import draw_plant

COLOURS = 32
"""Of a picture, which keeps its file small."""


def draw(name: str) -> Path:
    """The picture of a plant: an episode under its tuned and its best known controller, against its limits."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.png"
    draw_plant(PLANTS[name], path, seed=0, episodes=1)
    with Image.open(path) as picture:
        small = picture.quantize(COLOURS)
    small.save(path, optimize=True)
    return path


def page() -> str:
    """The whole page."""
    lines = [
        "# The plants",
        "",
        "Made by `make plants`. `neorl plants` lists them, `neorl plants show NAME` draws one.",
        "",
        "| plant | observed | manipulated | period | steps | hard limits |",
        "|---|---|---|---|---|---|",
    ]
    for name, plant in PLANTS.items():
        spec = plant.spec
        limits = "; ".join(f"{c.name} {c.low:g} to {c.high:g} {c.unit}".removesuffix(" 1") for c in spec.constraints)
        sizes = f"{spec.observation.size} | {spec.action.size} | {spec.dt:.4g} {spec.time_unit}"
        lines.append(f"| [{name}](#{name}) | {sizes} | {spec.horizon} | {limits} |")
    measured, searched = json.loads(SCORES.read_text()) if SCORES.exists() else {}, report.kept()
    lines += [*scores.lines_of(measured), *without_row(measured)]
    lines += [*report.table(searched), *without_row(searched)]
    lines += truths.lines_of(kept("truths") or [])
    lines += speed.lines_of(kept("speed"))
    lines += [
        "",
        "## Each plant",
        "",
        "Equations, constants and sources are those of the code's own docstrings; 'ours' is what no source was found "
        "for. Values that the operating domain draws stand as the least and the greatest of its draws. What is "
        "measured has noise where a constant says so; commands in force, set points, clocks and counted goods are "
        "known exactly, and so is what a published benchmark shows exactly.",
    ]
    for name in NAMES:
        lines += section(name)
    return "\n".join([*lines, ""])


def without_row(kept: Mapping[str, Any]) -> list[str]:
    """A sentence that names the plants of which a table has no row; nothing below a table that is left out."""
    missing = [name for name in NAMES if name not in kept]
    return ["", f"Not measured here so far: {', '.join(missing)}."] if kept and missing else []


def section(name: str) -> list[str]:
    """What the page says of one plant alone."""
    about = own(name)
    lines = ["", f"### {name}"]
    if (PICTURES / f"{name}.png").exists():
        lines += ["", f"![an episode of {name} against its limits](plants/{name}.png)"]
    lines += constants.lines_of(name)
    lines += steps.lines_of(name, about.get("steps"))
    lines += sensitivity.lines_of(name, about.get("sensitivity"))
    return lines
