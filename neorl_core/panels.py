"""What a picture of an episode shows: each controlled quantity with its own set point and its own limit, in one unit.

A plant may say so itself (`Plant.drawn`); otherwise it is read off the names of its signals and limits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from neorl_core.types import Constraint, Panel, PlantSpec

ZERO_CELSIUS = 273.15
CELSIUS = ("°C", "degC")


class Curve(NamedTuple):
    """The numbers of a panel over H steps, all in one unit."""

    values: Float[np.ndarray, "H S"]
    """The quantity, or several that one limit is on."""
    set_point: Float[np.ndarray, " H"] | None
    low: float
    high: float


def set_points(spec: PlantSpec) -> dict[str, str]:
    """Which observation is the set point of which, by name: `x_setpoint` of `x`, `target_1` of `position_1`."""
    names, units = spec.observation.names, spec.observation.units
    found = {}
    for goal in names:
        if goal.endswith("_setpoint") and goal.removesuffix("_setpoint") in names:
            found[goal.removesuffix("_setpoint")] = goal
        elif goal.startswith("target_"):
            number, unit = goal.removeprefix("target_"), units[names.index(goal)]
            same = [
                n for n, u in zip(names, units, strict=True) if u == unit and n.endswith(f"_{number}") and n != goal
            ]
            if same:
                found[same[0]] = goal
    return found


def limited(spec: PlantSpec) -> dict[str, Constraint]:
    """Which measured quantity each limit is on: the same unit, the most words shared, the fewest left over."""
    names, units = spec.observation.names, spec.observation.units
    goals = set(set_points(spec).values())
    found: dict[str, Constraint] = {}
    for constraint in spec.constraints:
        words = set(re.split(r"[^a-z0-9]+", constraint.name.lower()))
        scores = {}
        for name, unit in zip(names, units, strict=True):
            parts = set(name.lower().split("_"))
            if unit == constraint.unit and name not in goals and words & parts:
                scores[name] = (len(words & parts), -len(parts - words))
        if scores:
            found[max(scores, key=lambda name: scores[name])] = constraint
    return found


def panels_of(spec: PlantSpec, drawn: Sequence[Panel] = ()) -> tuple[Panel, ...]:
    """What a picture of the plant shows: what it says itself, else limited quantities, then those with a set point.

    A limit whose quantity is not measured is drawn by its margin. Without limits and set points, what is measured is
    drawn, four signals of it.

    Args:
        spec: names, units and limits.
        drawn: the plant's own word.

    Raises:
        ValueError: when the plant names a signal or a limit that it does not have, or units that do not go together.
    """
    if drawn:
        for panel in drawn:
            _check(panel, spec)
        return tuple(drawn)
    goals, measured = set_points(spec), {limit.name: name for name, limit in limited(spec).items()}
    found = [
        Panel(limit.name, limit=limit.name)
        if (name := measured.get(limit.name)) is None
        else Panel(name, (name,), goals.get(name, ""), limit.name)
        for limit in spec.constraints
    ]
    taken = {*measured.values()}
    found += [Panel(name, (name,), goal) for name, goal in goals.items() if name not in taken]
    others = [name for name in spec.observation.names if name not in goals.values()][:4]
    return tuple(found or [Panel(name, (name,)) for name in others])


def unit_of(panel: Panel, spec: PlantSpec) -> str:
    """The unit that a panel is drawn in: as it says, else its signals', else its limit's."""
    own = [spec.observation.units[spec.observation.names.index(name)] for name in panel.signals]
    return panel.unit or (own[0] if own else _limit(panel, spec).unit)


def curve(
    panel: Panel,
    spec: PlantSpec,
    observations: Float[np.ndarray, "H O"],
    margins: Float[np.ndarray, "H K"] | None,
) -> Curve | None:
    """The numbers of a panel; None where they follow from margins that nobody kept.

    A limit beyond what its sensor can show does not bind, and is left out. What is not measured is the limit less the
    margin where the limit has one side, else the margin itself, which must not become negative.

    Args:
        panel: what is drawn.
        spec: of the plant.
        observations: (H, O), before each step.
        margins: (H, K), to each limit, during each step.
    """
    unit, names = unit_of(panel, spec), spec.observation.names

    def column(name: str) -> Float[np.ndarray, " H"]:
        i = names.index(name)
        return np.asarray(observations[:, i], float) + _offset(spec.observation.units[i], unit)

    limit = _limit(panel, spec)
    shift = _offset(limit.unit, unit) if panel.limit else 0.0
    low, high = limit.low + shift, limit.high + shift
    if panel.signals:
        ends = [
            (spec.observation.low[i], spec.observation.high[i], spec.observation.units[i])
            for i in map(names.index, panel.signals)
        ]
        low = low if low > min(least + _offset(given, unit) for least, _, given in ends) else -math.inf
        high = high if high < max(most + _offset(given, unit) for _, most, given in ends) else math.inf
        goal = column(panel.set_point) if panel.set_point else None
        return Curve(np.stack([column(name) for name in panel.signals], axis=1), goal, low, high)
    if margins is None:
        return None
    left = np.asarray(margins[:, [c.name for c in spec.constraints].index(limit.name)], float)[:, None]
    if math.isinf(low) and not math.isinf(high):
        return Curve(high - left, None, low, high)
    if math.isinf(high) and not math.isinf(low):
        return Curve(low + left, None, low, high)
    return Curve(left, None, 0.0, math.inf)


def _limit(panel: Panel, spec: PlantSpec) -> Constraint:
    if not panel.limit:
        return Constraint("", "", -math.inf, math.inf)
    return next(limit for limit in spec.constraints if limit.name == panel.limit)


def _check(panel: Panel, spec: PlantSpec) -> None:
    known, limits = spec.observation.names, [limit.name for limit in spec.constraints]
    wanted = [*panel.signals, *([panel.set_point] if panel.set_point else [])]
    unknown = [name for name in wanted if name not in known]
    unknown += [panel.limit] if panel.limit and panel.limit not in limits else []
    if unknown or not (panel.signals or panel.limit):
        raise ValueError(
            f"expected signals and limits of {spec.name} in panel '{panel.name}', got {unknown or 'none'}: name some "
            f"of {', '.join((*known, *limits))}."
        )
    unit = unit_of(panel, spec)
    for given in (*(spec.observation.units[known.index(name)] for name in wanted), _limit(panel, spec).unit or unit):
        _offset(given, unit)


def _offset(given: str, wanted: str) -> float:
    """What is added to a number to have it in another unit: kelvin and degrees Celsius are the only ones."""
    if given == wanted or (given in CELSIUS and wanted in CELSIUS):
        return 0.0
    if given == "K" and wanted in CELSIUS:
        return -ZERO_CELSIUS
    if given in CELSIUS and wanted == "K":
        return ZERO_CELSIUS
    raise ValueError(f"expected one unit in a panel, got {given} and {wanted}: draw them in two.")
