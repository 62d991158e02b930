"""Draw pictures of an episode: curves of the controlled quantities and the actions, with set points and limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from neorl_core.panels import Curve, curve, make_panels, unit_of
from neorl_core.types import Panel, PlantSpec

MOST = 8
"""Largest number of panels (small diagrams) in a picture. Further actions are not drawn."""
WIDTH, HEIGHT = 640, 96
"""Size of a panel [pixels]."""
LEFT, RIGHT, TOP, BOTTOM = 64, 10, 20, 8
"""Space around the axes [pixels], for numbers and title."""
BLUE, INK, RED, SHADE, AXIS = (0, 114, 178), (34, 38, 43), (161, 18, 27), (246, 226, 227), (184, 189, 196)


class Moment(NamedTuple):
    """One step of an episode. The last entry of an episode has only an observation; its other values are NaN."""

    observation: Float[np.ndarray, " O"]
    """Observation before the step, in physical units."""
    action: Float[np.ndarray, " A"]
    """Action applied during the step, in physical units."""
    margins: Float[np.ndarray, " K"]
    """Distance to each limit during the step; negative if the limit is violated."""


def frame_of(
    spec: PlantSpec, drawn: Sequence[Panel], episode: Sequence[Moment], steps: int
) -> UInt8[np.ndarray, "Y X 3"]:
    """Return a picture (Y, X, 3) of an episode so far: the panels `drawn`, then the actions, over `steps` steps."""
    observations, actions, margins = (np.stack(rows) for rows in zip(*episode, strict=True))
    curves = [
        (panel.name, unit_of(panel, spec), numbers)
        for panel in make_panels(spec, drawn)
        if (numbers := curve(panel, spec, observations, margins)) is not None
    ]
    curves += [
        (f"action {name}", unit, Curve(actions[:, [i]], None, spec.action.low[i], spec.action.high[i]))
        for i, (name, unit) in enumerate(zip(spec.action.names, spec.action.units, strict=True))
    ]
    curves = curves[:MOST]
    image = Image.new("RGB", (WIDTH, HEIGHT * len(curves)), "white")
    canvas, font = ImageDraw.Draw(image), ImageFont.load_default(12)
    for i, (name, unit, numbers) in enumerate(curves):
        title = name.replace("_", " ") + (f" [{unit}]" if unit not in ("", "1") else "")
        _draw(canvas, font, HEIGHT * i, title, numbers, steps)
    return np.array(image)


def _draw(
    canvas: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    top: int,
    title: str,
    numbers: Curve,
    steps: int,
) -> None:
    """Draw one panel: the quantity in blue, its set point dark, its limits red, and the range beyond a limit shaded."""
    limits = [x for x in (numbers.low, numbers.high) if math.isfinite(x)]
    known = [*np.ravel(numbers.values), *np.ravel([] if numbers.set_point is None else numbers.set_point), *limits]
    seen = [x for x in known if math.isfinite(x)] or [0.0]
    pad = 0.08 * max(max(seen) - min(seen), 1e-6 * max(map(abs, seen)), 1e-9)
    least, most = min(seen) - pad, max(seen) + pad
    box = LEFT, top + TOP, WIDTH - RIGHT, top + HEIGHT - BOTTOM

    def at(step: float, value: float) -> tuple[float, float]:
        across, up = step / max(steps, 1), (value - least) / (most - least)
        return box[0] + across * (box[2] - box[0]), box[3] - up * (box[3] - box[1])

    for limit, beyond in ((numbers.low, least), (numbers.high, most)):
        if math.isfinite(limit):
            edges = sorted((at(0, limit)[1], at(0, beyond)[1]))
            canvas.rectangle((box[0], edges[0], box[2], edges[1]), fill=SHADE)
            canvas.line((*at(0, limit), *at(steps, limit)), fill=RED)
    canvas.rectangle(box, outline=AXIS)
    canvas.text((LEFT, top + 3), title, fill=INK, font=font)
    for value in (min(seen), max(seen)):
        canvas.text((LEFT - 6, at(0, value)[1]), f"{value:.4g}", fill=INK, font=font, anchor="rm")
    rows = [] if numbers.set_point is None else [(numbers.set_point, INK, 1)]
    rows += [(values, BLUE, 2) for values in numbers.values.T]
    for values, colour, width in rows:
        points = [at(step, float(value)) for step, value in enumerate(values) if math.isfinite(value)]
        if len(points) > 1:
            canvas.line(points, fill=colour, width=width)
        elif points:
            canvas.ellipse((points[0][0] - 2, points[0][1] - 2, points[0][0] + 2, points[0][1] + 2), fill=colour)
