"""Pictures of episodes: what each controller does, against limits, actuator bounds and set points.

Every function takes plain NumPy arrays, writes one PNG (or SVG, by the path's suffix) and returns its path; the same
input gives the same bytes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from neorl_core.plants.base import rollouts
from neorl_core.types import Constraint, Controller, Params, Plant, PlantSpec
from tasks.adapters.reporting.estimates import Estimate, draw_estimates
from tasks.adapters.reporting.style import DASHES, INK, PAGE, PALETTE, RED, drawn, place_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


class Trajectory(NamedTuple):
    """One episode of one controller, in physical units."""

    observations: np.ndarray
    """(H, O)."""
    actions: np.ndarray
    """(H, A)."""


class ControllerResult(NamedTuple):
    """How a controller runs a plant, over all episodes."""

    mean_return: float
    score: float
    violated: int
    """Episodes with a violation."""


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


def plot_trajectories(path: Path, spec: PlantSpec, controllers: Mapping[str, Trajectory]) -> Path:
    """One episode under each controller, same disturbances, against limits and set points.

    Args:
        path: PNG or SVG to write.
        spec: names, units, limits and control period of the plant.
        controllers: name -> its episode, the candidate first.
    """
    observed = _observed(spec)
    count = len(observed) + spec.action.size
    with drawn(PAGE, 1.0 + 1.6 * count, path) as figure:
        _draw_panels(figure, spec, controllers, observed)
    return path


def plot_glance(
    path: Path,
    spec: PlantSpec,
    controllers: Mapping[str, Trajectory],
    comparison: Mapping[str, Estimate],
    *,
    verdict: str,
    reason: str,
    claim: str,
    quantity: str = "return per episode",
) -> Path:
    """A retraining on one picture: a trajectory within its limits, the comparison, the certificate's claim.

    Args:
        path: PNG or SVG to write.
        spec: names, units, limits and control period of the plant.
        controllers: name -> its episode, the candidate first.
        comparison: controller -> estimate.
        verdict: in a few words.
        reason: of the verdict, in a sentence.
        claim: the certificate's, in a sentence.
        quantity: what is compared.
    """
    observed = _observed(spec)[:2]
    height = 0.9 + 1.75 * (len(observed) + spec.action.size)
    with drawn(12.0, height, path) as figure:
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.55, 1.0], wspace=0.03)[0]
        _draw_panels(left, spec, controllers, observed)
        words, chart = right.subfigures(2, 1, squeeze=False, height_ratios=[1.0, 1.0])[:, 0]
        top = 0.95
        for text, width, size, weight in (
            (verdict, 36, 14, "bold"),
            (reason, 54, 10.5, "normal"),
            (claim, 56, 9.5, "normal"),
        ):
            lines = textwrap.wrap(text, width)
            words.text(0.03, top, "\n".join(lines), fontsize=size, fontweight=weight, va="top", linespacing=1.4)
            # A line's share of this half figure's height, and a gap below the paragraph.
            top -= len(lines) * 1.45 * size / 72 / (height / 2) + 0.05
        panel = chart.subplots()
        draw_estimates(panel, comparison)
        panel.set_xlabel(quantity)
    return path


def controllers_of(plant: Plant) -> dict[str, tuple[Controller, Params]]:
    """The plant's own controller, and its oracle where there is one."""
    found = {"plant controller": (plant.fallback, plant.fallback_params)}
    if plant.oracle is not None:
        found["oracle"] = (plant.oracle, plant.oracle_params)
    return found


def draw_plant(plant: Plant, path: Path, seed: int, episodes: int) -> dict[str, ControllerResult]:
    """Roll out every controller of a plant on the same episodes and draw the first of them.

    Args:
        plant: what is controlled.
        path: PNG or SVG to write.
        seed: of the episodes.
        episodes: how many are counted.

    Returns:
        How each controller did.
    """
    keys = jax.random.split(jax.random.key(seed), episodes)
    low, high = plant.spec.score_range
    trajectories: dict[str, Trajectory] = {}
    found: dict[str, ControllerResult] = {}
    for who, (controller, params) in controllers_of(plant).items():
        result = jax.device_get(rollouts(plant, controller, params, keys, plant.domain, trace=True))
        assert result.trajectory is not None
        length = int(result.length[0])
        trajectories[who] = Trajectory(
            np.asarray(result.trajectory.observations[0][:length]), np.asarray(result.trajectory.actions[0][:length])
        )
        mean = float(np.mean(result.ret))
        found[who] = ControllerResult(mean, 100.0 * (mean - low) / (high - low), int(np.sum(result.violated)))
    plot_trajectories(path, plant.spec, trajectories)
    return found


def _observed(spec: PlantSpec) -> list[str]:
    """Limited quantities first, then those with a set point; without either, whatever is measured."""
    references = set_points(spec)
    chosen = list(dict.fromkeys([*limited(spec), *references]))
    return chosen or [name for name in spec.observation.names if name not in references.values()][:4]


def _draw_panels(
    figure: FigureBase, spec: PlantSpec, controllers: Mapping[str, Trajectory], observed: Sequence[str]
) -> None:
    """A panel for each observed quantity and each action, with a common time axis and legend."""
    count = len(observed) + spec.action.size
    panels: list[Axes] = list(figure.subplots(count, 1, sharex=True, squeeze=False).ravel())
    limits, references = limited(spec), set_points(spec)
    for panel, name in zip(panels, observed, strict=False):
        column = spec.observation.names.index(name)
        values = _draw_lines(panel, spec, {who: t.observations[:, column] for who, t in controllers.items()})
        if name in references:
            first = next(iter(controllers.values()))
            goal = first.observations[:, spec.observation.names.index(references[name])].astype(float)
            times = np.arange(len(goal)) * spec.dt
            panel.step(times, goal, where="post", color=INK, linewidth=1.2, label="set point", zorder=1)
            values = np.concatenate([values, goal])
        if name in limits:
            _draw_limits(panel, limits[name].low, limits[name].high, values)
        panel.set_ylabel(_label(name, spec.observation.units[column]))
    for column, panel in enumerate(panels[len(observed) :]):
        values = _draw_lines(panel, spec, {who: t.actions[:, column] for who, t in controllers.items()}, steps=True)
        _draw_limits(panel, spec.action.low[column], spec.action.high[column], values)
        panel.set_ylabel(_label(spec.action.names[column], spec.action.units[column]))
    panels[-1].set_xlabel(f"time [{spec.time_unit}]")
    _draw_legend(figure, panels)


def _draw_lines(axes: Axes, spec: PlantSpec, rows: Mapping[str, np.ndarray], steps: bool = False) -> np.ndarray:
    """A line for each controller; returns all values, so that the axis can be fitted to them."""
    for i, (who, row) in enumerate(rows.items()):
        place = place_of(who, i)
        axes.plot(
            np.arange(len(row)) * spec.dt,
            row,
            color=PALETTE[place],
            linestyle=DASHES[place],
            drawstyle="steps-post" if steps else "default",
            label=who,
        )
    axes.margins(x=0.01)
    return np.concatenate([np.asarray(row, float) for row in rows.values()])


def _draw_limits(axes: Axes, low: float, high: float, values: np.ndarray) -> None:
    """Shade what lies beyond a hard limit, and keep the limits in view."""
    seen = values[np.isfinite(values)]
    bottom = min(seen.min(initial=np.inf), low if np.isfinite(low) else np.inf)
    top = max(seen.max(initial=-np.inf), high if np.isfinite(high) else -np.inf)
    pad = 0.09 * max(top - bottom, 1e-9)
    axes.set_ylim(bottom - pad, top + pad)
    for limit, outside in ((low, bottom - pad), (high, top + pad)):
        if np.isfinite(limit):
            axes.axhline(limit, color=RED, linewidth=1.3)
            axes.axhspan(limit, outside, facecolor=RED, alpha=0.09, linewidth=0)


def _draw_legend(figure: FigureBase, panels: Sequence[Axes]) -> None:
    from matplotlib.patches import Patch

    handles: dict[str, Artist] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    handles["beyond a limit"] = Patch(facecolor=RED, alpha=0.18)
    figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=3)


def _label(name: str, unit: str) -> str:
    words = name.replace("_", " ")
    return f"{words} [{unit}]" if unit and unit != "1" else words
