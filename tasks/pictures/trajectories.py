"""Pictures of episodes under different controllers, with limits, actuator bounds and set points.

Functions take NumPy arrays, write one PNG or SVG (by the suffix) with reproducible bytes, and return the path.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from neorl_core.panels import curve, make_panels, unit_of
from neorl_core.plants.base import rollouts
from neorl_core.types import Controller, Panel, Params, Plant, PlantSpec
from tasks.pictures.estimates import Estimate, draw_estimates
from tasks.pictures.style import DASHES, INK, PAGE, PALETTE, RED, drawn, place_of

MOST_IN_COLUMN = 9

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
    margins: np.ndarray | None = None
    """(H, K), smallest distance to each limit during each step. None: quantities that need margins are not drawn."""


class ControllerResult(NamedTuple):
    """Result of a controller over all episodes."""

    mean_return: float
    score: float
    violated: int


def plot_trajectories(
    path: Path, spec: PlantSpec, controllers: Mapping[str, Trajectory], shown: Sequence[Panel] = ()
) -> Path:
    """Plot one episode under each controller, with common disturbances, limits and set points.

    Args:
        controllers: episode by name, the candidate first.
    """
    panels = _panels(spec, controllers, shown)
    count = len(panels) + spec.action.size
    columns = 1 if count <= MOST_IN_COLUMN else 2
    with drawn(PAGE, 1.0 + 1.6 * -(-count // columns), path) as figure:
        _draw_panels(figure, spec, controllers, panels, columns)
    return path


def plot_glance(
    path: Path,
    spec: PlantSpec,
    controllers: Mapping[str, Trajectory],
    comparison: Mapping[str, Estimate],
    shown: Sequence[Panel] = (),
    *,
    verdict: str,
    reason: str,
    claim: str,
) -> Path:
    """Plot the summary of a retraining: trajectory with limits, comparison, claim.

    Args:
        controllers: episode by name, the candidate first.
        verdict: verdict in a few words.
        reason: reason of the verdict in one sentence.
        claim: claim of the certificate in one sentence.
    """
    panels = _panels(spec, controllers, shown)[:2]
    count = len(panels) + spec.action.size
    columns = 1 if count <= MOST_IN_COLUMN else 2
    height = 0.9 + 1.75 * -(-count // columns)
    with drawn(12.0, height, path) as figure:
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.55, 1.0], wspace=0.03)[0]
        _draw_panels(left, spec, controllers, panels, columns)
        words, chart = right.subfigures(2, 1, squeeze=False, height_ratios=[1.0, 1.0])[:, 0]
        top = 0.95
        for text, width, size, weight in (
            (verdict, 36, 14, "bold"),
            (reason, 54, 10.5, "normal"),
            (claim, 56, 9.5, "normal"),
        ):
            lines = textwrap.wrap(text, width)
            words.text(0.03, top, "\n".join(lines), fontsize=size, fontweight=weight, va="top", linespacing=1.4)
            # Height of a line, and gap below the paragraph, as shares of this half of the figure.
            top -= len(lines) * 1.45 * size / 72 / (height / 2) + 0.05
        panel = chart.subplots()
        draw_estimates(panel, comparison)
        panel.set_xlabel("return per episode")
    return path


def controllers_of(plant: Plant) -> dict[str, tuple[Controller, Params]]:
    """Return the tuned controller, and the best known one if any."""
    found = {"plant controller": (plant.fallback, plant.fallback_params)}
    if plant.reference is not None:
        found["best known"] = (plant.reference, plant.reference_params)
    return found


def draw_plant(
    plant: Plant, path: Path, seed: int, episodes: int, controllers: Mapping[str, tuple[Controller, Params]]
) -> dict[str, ControllerResult]:
    """Roll out controllers of a plant on the same episodes, and draw the first episode.

    Returns:
        Result of each controller.
    """
    keys = jax.random.split(jax.random.key(seed), episodes)
    low, high = plant.spec.score_range
    trajectories: dict[str, Trajectory] = {}
    found: dict[str, ControllerResult] = {}
    for who, (controller, params) in controllers.items():
        result = jax.device_get(rollouts(plant, controller, params, keys, plant.domain, trace=True))
        assert result.trajectory is not None
        length = int(result.length[0])
        first = (result.trajectory.observations, result.trajectory.actions, result.trajectory.margins)
        trajectories[who] = Trajectory(*(np.asarray(values[0][:length]) for values in first))
        mean = float(np.mean(result.ret))
        found[who] = ControllerResult(mean, 100.0 * (mean - low) / (high - low), int(np.sum(result.violated)))
    plot_trajectories(path, plant.spec, trajectories, plant.drawn)
    return found


def _panels(spec: PlantSpec, controllers: Mapping[str, Trajectory], shown: Sequence[Panel]) -> list[Panel]:
    """Return the panels that can be drawn. Panels without signals need the margins of every controller."""
    kept = all(episode.margins is not None for episode in controllers.values())
    return [panel for panel in make_panels(spec, shown) if panel.signals or kept]


def _draw_panels(
    figure: FigureBase,
    spec: PlantSpec,
    controllers: Mapping[str, Trajectory],
    shown: Sequence[Panel],
    columns: int,
) -> None:
    """Draw a panel per controlled quantity and action, with common time axis and legend."""
    count = len(shown) + spec.action.size
    rows = -(-count // columns)
    # Fill the first column, then the second.
    panels: list[Axes] = list(figure.subplots(rows, columns, sharex=True, squeeze=False).T.ravel())
    for empty in panels[count:]:
        empty.set_axis_off()
    for axes, panel in zip(panels, shown, strict=False):
        _draw_quantity(axes, spec, controllers, panel)
    for column, axes in enumerate(panels[len(shown) : count]):
        values = _draw_lines(axes, spec, {who: t.actions[:, [column]] for who, t in controllers.items()}, steps=True)
        _draw_limits(axes, spec.action.low[column], spec.action.high[column], values)
        _name(axes, spec.action.names[column], spec.action.units[column])
    for axes in (panels[rows - 1], panels[count - 1]):
        axes.set_xlabel(f"time [{spec.time_unit}]")
        axes.tick_params(labelbottom=True)
    _draw_legend(figure, panels[:count])


def _draw_quantity(axes: Axes, spec: PlantSpec, controllers: Mapping[str, Trajectory], panel: Panel) -> None:
    """Draw a controlled quantity under each controller, with set point and limit."""
    every = {who: curve(panel, spec, t.observations, t.margins) for who, t in controllers.items()}
    found = {who: numbers for who, numbers in every.items() if numbers is not None}
    values = _draw_lines(axes, spec, {who: numbers.values for who, numbers in found.items()})
    goals = {who: numbers.set_point for who, numbers in found.items() if numbers.set_point is not None}
    # Controllers may move the set point; then each has its own.
    shared = len({goal.tobytes() for goal in goals.values()}) <= 1
    for i, (who, goal) in enumerate(goals.items()):
        if shared and i:
            break
        times, colour = np.arange(len(goal)) * spec.dt, INK if shared else PALETTE[place_of(who, i)]
        label = "set point" if shared else f"set point, {who}"
        axes.step(times, goal, where="post", color=colour, linewidth=1.0, label=label, zorder=1)
        values = np.concatenate([values, goal])
    if panel.limit:
        first = next(iter(found.values()))
        _draw_limits(axes, first.low, first.high, values)
    _name(axes, panel.name, unit_of(panel, spec))


def _draw_lines(axes: Axes, spec: PlantSpec, rows: Mapping[str, np.ndarray], steps: bool = False) -> np.ndarray:
    """Draw lines of each controller (H, S); return all values for the axis limits."""
    for i, (who, row) in enumerate(rows.items()):
        place = place_of(who, i)
        lines = axes.plot(
            np.arange(len(row)) * spec.dt,
            row,
            color=PALETTE[place],
            linestyle=DASHES[place],
            drawstyle="steps-post" if steps else "default",
        )
        lines[0].set_label(who)
    axes.margins(x=0.01)
    return np.concatenate([np.asarray(row, float).ravel() for row in rows.values()])


def _draw_limits(axes: Axes, low: float, high: float, values: np.ndarray) -> None:
    """Shade the region beyond a hard limit, and keep the limits in view."""
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


def _name(axes: Axes, name: str, unit: str) -> None:
    """Put the name above the panel, where a long name fits."""
    words = name.replace("_", " ")
    axes.set_title(f"{words} [{unit}]" if unit and unit != "1" else words, fontsize=9.5, fontweight="normal", pad=3)


class Stretch(NamedTuple):
    """Consecutive steps of an episode, with the plant's and the shadow's actions."""

    title: str
    steps: npt.NDArray[np.int64]
    done: npt.NDArray[np.floating]
    """(T, A), logged actions."""
    proposed: npt.NDArray[np.floating]
    """(T, A), the shadow's actions."""
    handed_over: npt.NDArray[np.bool_]
    """(T,), whether the shadow's fallback would have acted."""


def plot_disagreements(path: Path, spec: PlantSpec, stretches: Sequence[Stretch]) -> Path:
    """Plot logged and proposed actions: a row per stretch, a column per action.

    Args:
        stretches: largest disagreements first; if empty, the picture says so.
    """
    rows, columns = max(len(stretches), 1), spec.action.size
    with drawn(max(PAGE, 3.0 * columns), 0.8 + 1.9 * rows, path) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for row, stretch in zip(axes, stretches, strict=False):
            for i, panel in enumerate(row):
                panel.plot(stretch.steps, stretch.done[:, i], color="black", label="plant's controller")
                panel.plot(stretch.steps, stretch.proposed[:, i], color=PALETTE[0], label="shadow")
                own = np.where(stretch.handed_over, stretch.proposed[:, i], np.nan)
                panel.plot(stretch.steps, own, ".", color=PALETTE[1], label="shadow's fallback")
                panel.set_title(stretch.title)
                panel.set_ylabel(f"{spec.action.names[i]} [{spec.action.units[i]}]")
        for panel in axes[-1]:
            panel.set_xlabel("step of the episode")
        if stretches:
            handles, labels = axes[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=3)
        else:
            axes[0][0].set_title("no disagreement")
    return path
