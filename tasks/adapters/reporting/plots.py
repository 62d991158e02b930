"""Pictures that a reviewer decides from: trajectories against limits, intervals, OPE against rollouts.

Every function takes plain NumPy arrays, writes one PNG (or SVG, by the path's suffix) and returns its path. The same
input gives the same bytes. Colours are Okabe and Ito's, told apart by colour-blind readers; each kind of line also has
its own dash.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from neorl_core.ope.metrics import rank_correlation
from neorl_core.types import Constraint, PlantSpec
from tasks.adapters.files.canonical import write_atomic

BLUE, GREEN, VERMILION, GREY, INK = "#0072B2", "#009E73", "#D55E00", "#8A8F98", "#22262B"
PALETTE = (BLUE, VERMILION, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), "-.", (0, (3, 1, 1, 1, 1, 1)), "-")
PLACES = {"candidate": 0, "plant controller": 1, "champion": 2}
"""A controller keeps its colour and dash in every picture of every run."""
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#B8BDC4",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E8EB",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.9,
    "figure.dpi": 110,
    "svg.hashsalt": "neorl",
    "svg.fonttype": "path",
}

PAGE = 6.5
"""Inches: as wide as the registry's page shows without cutting off."""

Interval = Mapping[str, Any]
"""`{"value": float, "lower": float, "upper": float}`; a bound may be absent."""


@contextmanager
def drawn(width: float, height: float, path: Path) -> Iterator[Any]:
    """A figure in the house style, saved without clock or version when the block ends."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        kind = path.suffix.lstrip(".")
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format=kind, metadata={"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[kind]
        )
    write_atomic(path, buffer.getvalue())


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


def _label(name: str, unit: str) -> str:
    return f"{name.replace('_', ' ')} [{unit}]" if unit and unit != "1" else name.replace("_", " ")


def _draw_limits(axes: Any, low: float, high: float, values: np.ndarray) -> None:
    """Shade what lies beyond a hard limit, and keep the limits in view."""
    seen = values[np.isfinite(values)]
    bottom = min(seen.min(initial=np.inf), low if np.isfinite(low) else np.inf)
    top = max(seen.max(initial=-np.inf), high if np.isfinite(high) else -np.inf)
    pad = 0.09 * max(top - bottom, 1e-9)
    axes.set_ylim(bottom - pad, top + pad)
    for limit, outside in ((low, bottom - pad), (high, top + pad)):
        if np.isfinite(limit):
            axes.axhline(limit, color="#A1121B", linewidth=1.3)
            axes.axhspan(limit, outside, facecolor="#A1121B", alpha=0.09, linewidth=0)


def _panels(
    axes: Sequence[Any],
    spec: PlantSpec,
    controllers: Mapping[str, Mapping[str, np.ndarray]],
    observed: Sequence[str],
    references: Mapping[str, str],
) -> None:
    limits = limited(spec)
    first = next(iter(controllers.values()))
    for panel, name in zip(axes, [*observed, *spec.action.names], strict=True):
        is_action = name in spec.action.names and name not in observed
        space, key = (spec.action, "actions") if is_action else (spec.observation, "observations")
        column = space.names.index(name)
        values = []
        for i, (controller, arrays) in enumerate(controllers.items()):
            place = PLACES.get(controller, (i + 3) % len(PALETTE))
            y = np.asarray(arrays[key], float)[:, column]
            t = np.arange(len(y)) * spec.dt
            draw = {"color": PALETTE[place], "linestyle": DASHES[place], "label": controller}
            if is_action:
                panel.step(t, y, where="post", **draw)
            else:
                panel.plot(t, y, **draw)
            values.append(y)
        if name in references and not is_action:
            y = np.asarray(first["observations"], float)[:, spec.observation.names.index(references[name])]
            panel.step(
                np.arange(len(y)) * spec.dt, y, where="post", color=INK, linewidth=1.2, label="set point", zorder=1
            )
            values.append(y)
        if is_action:
            _draw_limits(panel, spec.action.low[column], spec.action.high[column], np.concatenate(values))
        elif name in limits:
            _draw_limits(panel, limits[name].low, limits[name].high, np.concatenate(values))
        panel.set_ylabel(_label(name, space.units[column]))
        panel.margins(x=0.01)
    axes[-1].set_xlabel(f"time [{spec.time_unit}]")


def _observed(spec: PlantSpec, references: Mapping[str, str]) -> list[str]:
    """Limited quantities first, then those with a set point; without either, whatever is measured."""
    chosen = list(dict.fromkeys([*limited(spec), *references]))
    return chosen or [name for name in spec.observation.names if name not in references.values()][:4]


def _legend(figure: Any, axes: Any, columns: int) -> None:
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    from matplotlib.patches import Patch

    handles["beyond a limit"] = Patch(facecolor="#A1121B", alpha=0.18)
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns)


def plot_trajectories(
    path: Path,
    spec: PlantSpec,
    controllers: Mapping[str, Mapping[str, np.ndarray]],
    references: Mapping[str, str] | None = None,
) -> Path:
    """One episode under each controller, same disturbances, against limits and set points.

    Args:
        path: PNG or SVG to write.
        spec: names, units, limits, control period.
        controllers: name -> {"observations": (H, O), "actions": (H, A)}, the candidate first.
        references: observation -> observation that is its set point; by default read off the names.
    """
    references = set_points(spec) if references is None else references
    observed = _observed(spec, references)
    count = len(observed) + spec.action.size
    with drawn(PAGE, 1.0 + 1.6 * count, path) as figure:
        axes = np.atleast_1d(figure.subplots(count, 1, sharex=True))
        _panels(axes, spec, controllers, observed, references)
        _legend(figure, axes, columns=3)
    return path


def _dots(axes: Any, rows: Mapping[str, Interval], zero: bool = False) -> None:
    names = list(rows)
    for i, name in enumerate(names):
        row = rows[name]
        value, lower, upper = (row.get(key, row["value"]) for key in ("value", "lower", "upper"))
        y = len(names) - 1 - i
        colour = INK if zero else PALETTE[PLACES.get(name, (i + 3) % len(PALETTE))]
        axes.plot([lower, upper], [y, y], color=colour, linewidth=3, solid_capstyle="butt", alpha=0.6)
        axes.plot([value], [y], "o", color=colour, markersize=8)
        axes.annotate(
            f"{value:.4g}  [{lower:.4g}, {upper:.4g}]", (value, y), (0, 9), textcoords="offset points", ha="center",
            fontsize=9,
        )  # fmt: skip
    if zero:
        axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(names)), names[::-1])
    axes.set_ylim(-0.6, len(names) - 0.2)
    axes.margins(x=0.28)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="y", visible=False)


def plot_intervals(path: Path, groups: Mapping[str, Mapping[str, Interval]], confidence: float = 0.95) -> Path:
    """Values with their confidence intervals, a panel for each quantity (return, cost, difference).

    Args:
        path: PNG or SVG to write.
        groups: axis label -> (name -> {"value", "lower", "upper"}); a label with "difference" gets a zero line.
        confidence: of the intervals, for the title.
    """
    heights = [max(len(rows), 1) + 0.9 for rows in groups.values()]
    with drawn(PAGE, 0.35 + 0.62 * sum(heights), path) as figure:
        axes = np.atleast_1d(figure.subplots(len(groups), 1, height_ratios=heights))
        for panel, (label, rows) in zip(axes, groups.items(), strict=True):
            _dots(panel, rows, zero="difference" in label.lower())
            panel.set_xlabel(label)
        axes[0].set_title(f"Estimates with {100 * confidence:g} % intervals")
    return path


def _bars(interval: Interval) -> list[list[float]]:
    value = float(interval["value"])
    return [[max(value - interval.get("lower", value), 0.0)], [max(interval.get("upper", value) - value, 0.0)]]


def plot_ope(
    path: Path,
    estimates: Sequence[Interval],
    rollouts: Sequence[Interval],
    selected: int,
    estimate_unit: str = "return per episode",
    rollout_unit: str = "return per episode",
) -> Path:
    """Off-policy estimates against what rollouts later measured; in one unit, the diagonal is exact.

    Args:
        path: PNG or SVG to write.
        estimates: a member's OPE interval each.
        rollouts: the same members' rollout interval each.
        selected: position of the member that OPE chose.
        estimate_unit: what OPE estimates.
        rollout_unit: what rollouts measure; where it differs, only the order can be compared.
    """
    with drawn(6.2, 5.4, path) as figure:
        axes = figure.subplots()
        for i, (ope, truth) in enumerate(zip(estimates, rollouts, strict=True)):
            chosen = i == selected
            axes.errorbar(
                float(ope["value"]),
                float(truth["value"]),
                xerr=_bars(ope),
                yerr=_bars(truth),
                fmt="D" if chosen else "o",
                color=BLUE if chosen else GREY,
                markersize=9 if chosen else 6,
                linewidth=1.2,
                zorder=3 if chosen else 2,
                label="selected by OPE" if chosen else "other members",
            )
        if estimate_unit == rollout_unit:
            low = min(axes.get_xlim()[0], axes.get_ylim()[0])
            high = max(axes.get_xlim()[1], axes.get_ylim()[1])
            axes.plot([low, high], [low, high], color=INK, linewidth=1, linestyle=(0, (4, 3)), label="exact", zorder=1)
        axes.set(
            xlabel=f"estimated from held-out logs: {estimate_unit}", ylabel=f"measured by rollouts: {rollout_unit}"
        )
        values = (np.asarray([interval["value"] for interval in side]) for side in (estimates, rollouts))
        correlation = float(rank_correlation(*map(jnp.asarray, values)))
        ranks = f", rank correlation {correlation:.2f}" if np.isfinite(correlation) else ""
        axes.set_title(f"OPE against rollouts{ranks}")
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return path


def plot_glance(
    path: Path,
    spec: PlantSpec,
    controllers: Mapping[str, Mapping[str, np.ndarray]],
    comparison: Mapping[str, Interval],
    headline: str,
    claim: str,
    quantity: str = "return per episode",
) -> Path:
    """The pipeline's result on one picture: a trajectory within its limits, the comparison, the certificate's claim.

    Args:
        path: PNG or SVG to write.
        spec: the plant's.
        controllers: as for `plot_trajectories`.
        comparison: controller -> interval.
        headline: the verdict in a few words, then its reason.
        claim: the certificate's one line.
        quantity: label of the comparison's axis.
    """
    import textwrap

    references = set_points(spec)
    observed = _observed(spec, references)[:2]
    count = len(observed) + spec.action.size
    height = 0.9 + 1.75 * count
    with drawn(12.0, height, path) as figure:
        left, right = figure.subfigures(1, 2, width_ratios=[1.55, 1.0], wspace=0.03)
        axes = np.atleast_1d(left.subplots(count, 1, sharex=True))
        _panels(axes, spec, controllers, observed, references)
        _legend(left, axes, columns=3)
        words, chart = right.subfigures(2, 1, height_ratios=[1.0, 1.0])
        verdict, _, reason = headline.partition(". ")
        top = 0.95
        for text, width, size, weight in (
            (verdict, 36, 14, "bold"),
            (reason, 54, 10.5, "normal"),
            (claim, 62, 9.5, "normal"),
        ):
            lines = textwrap.wrap(text, width)
            words.text(0.03, top, "\n".join(lines), fontsize=size, fontweight=weight, va="top", linespacing=1.4)
            # A line's share of this half figure's height, and a gap below the paragraph.
            top -= len(lines) * 1.45 * size / 72 / (height / 2) + 0.05
        panel = chart.subplots()
        _dots(panel, comparison)
        panel.set_xlabel(quantity)
    return path
