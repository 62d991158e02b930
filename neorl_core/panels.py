"""Panels of episode plots: each panel shows a controlled quantity with its set point and limit in one unit.

A plant may define its panels (`Plant.drawn`). Otherwise `make_panels` derives them from names of signals and limits.
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
    """Values to plot in a panel over H steps, all in the unit of the panel."""

    values: Float[np.ndarray, "H S"]
    """(H, S) values of S quantities that share a limit."""
    set_point: Float[np.ndarray, " H"] | None
    low: float
    high: float


def set_points(spec: PlantSpec) -> dict[str, str]:
    """Return the name of the set point of each controlled signal: `x_setpoint` of `x`, `target_1` of `position_1`."""
    names, units = spec.observation.names, spec.observation.units
    goals = {}
    for goal in names:
        if goal.endswith("_setpoint") and goal.removesuffix("_setpoint") in names:
            goals[goal.removesuffix("_setpoint")] = goal
        elif goal.startswith("target_"):
            number, unit = goal.removeprefix("target_"), units[names.index(goal)]
            same = [
                n for n, u in zip(names, units, strict=True) if u == unit and n.endswith(f"_{number}") and n != goal
            ]
            if same:
                goals[same[0]] = goal
    return goals


def limited_signals(spec: PlantSpec) -> dict[str, Constraint]:
    """Return the limit of each limited signal, found by equal units and similar names."""
    names, units = spec.observation.names, spec.observation.units
    goals = set(set_points(spec).values())
    limits: dict[str, Constraint] = {}
    for constraint in spec.constraints:
        words = set(re.split(r"[^a-z0-9]+", constraint.name.lower()))
        scores = {}
        for name, unit in zip(names, units, strict=True):
            parts = set(name.lower().split("_"))
            if unit == constraint.unit and name not in goals and words & parts:
                scores[name] = (len(words & parts), -len(parts - words))
        if scores:
            limits[max(scores, key=lambda name: scores[name])] = constraint
    return limits


def measured_limits(spec: PlantSpec, drawn: Sequence[Panel] = ()) -> tuple[tuple[int, int, float, float], ...]:
    """Return the observations that limits are about: (observation, limit, low, high) in the observation's unit.

    The panels of `make_panels` name the observations. A limit without an observation is left out.
    """
    found = []
    for panel in make_panels(spec, drawn):
        limit = _limit(panel, spec)
        for name in panel.signals if panel.limit else ():
            column = spec.observation.names.index(name)
            shift = _offset(limit.unit, spec.observation.units[column])
            found.append((column, spec.constraints.index(limit), limit.low + shift, limit.high + shift))
    return tuple(found)


def unmeasured_limits(spec: PlantSpec, drawn: Sequence[Panel] = ()) -> tuple[str, ...]:
    """Return the names of the limits that no observation shows, so that only the plant's own margins are about them."""
    measured = {limit for _, limit, _, _ in measured_limits(spec, drawn)}
    return tuple(limit.name for i, limit in enumerate(spec.constraints) if i not in measured)


def make_panels(spec: PlantSpec, drawn: Sequence[Panel] = ()) -> tuple[Panel, ...]:
    """Return the plant's own panels or, if the plant has none, panels of all limits and set points.

    A panel shows the margin of a limit if the limited quantity is not measured. Without limits and set points, the
    panels show the first four signals.

    Raises:
        ValueError: if a panel names an unknown signal or limit, or combines units that cannot be converted.
    """
    if drawn:
        for panel in drawn:
            _check(panel, spec)
        return tuple(drawn)
    goals, measured = set_points(spec), {limit.name: name for name, limit in limited_signals(spec).items()}
    panels = [
        Panel(limit.name, limit=limit.name)
        if (name := measured.get(limit.name)) is None
        else Panel(name, (name,), goals.get(name, ""), limit.name)
        for limit in spec.constraints
    ]
    taken = {*measured.values()}
    panels += [Panel(name, (name,), goal) for name, goal in goals.items() if name not in taken]
    others = [name for name in spec.observation.names if name not in goals.values()][:4]
    return tuple(panels or [Panel(name, (name,)) for name in others])


def unit_of(panel: Panel, spec: PlantSpec) -> str:
    """Return the unit of a panel: its own unit, else the unit of its first signal, else the unit of its limit."""
    own = [spec.observation.units[spec.observation.names.index(name)] for name in panel.signals]
    return panel.unit or (own[0] if own else _limit(panel, spec).unit)


def curve(
    panel: Panel,
    spec: PlantSpec,
    observations: Float[np.ndarray, "H O"],
    margins: Float[np.ndarray, "H K"] | None,
) -> Curve | None:
    """Return the values to plot in a panel, or None if the panel shows a margin and `margins` is None.

    A limit outside the sensor's range is omitted. If a limited quantity is not measured, its value is computed from
    limit and margin. This is impossible for a two-sided limit; its margin is shown instead, with a limit at 0.

    Args:
        observations: (H, O) before each step, in the units of the spec.
        margins: (H, K) distance to each limit during each step, positive within the limit.
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
            f"panel '{panel.name}' must show signals or limits of {spec.name}, got {unknown or 'an empty panel'}: "
            f"choose from {', '.join((*known, *limits))}"
        )
    unit = unit_of(panel, spec)
    for given in (*(spec.observation.units[known.index(name)] for name in wanted), _limit(panel, spec).unit or unit):
        _offset(given, unit)


def _offset(given: str, wanted: str) -> float:
    """Return the offset between two units; only kelvin and degrees Celsius convert."""
    if given == wanted or (given in CELSIUS and wanted in CELSIUS):
        return 0.0
    if given == "K" and wanted in CELSIUS:
        return -ZERO_CELSIUS
    if given in CELSIUS and wanted == "K":
        return ZERO_CELSIUS
    raise ValueError(f"a panel must have one unit, got {given} and {wanted}: use two panels")
