"""Pictures of learning curves, and of prediction errors of the learned model and baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.pictures.style import BLUE, DASHES, PAGE, PALETTE, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tasks.references import PredictionErrors


def plot_curves(
    path: Path,
    steps: np.ndarray,
    curves: Mapping[str, np.ndarray],
    selected: int | None = None,
    labels: Sequence[str] = (),
    title: str = "",
) -> Path:
    """Plot learning curves: a panel per metric, a line per member.

    Args:
        steps: (L,) updates at which metrics were logged.
        curves: (P, L) values by metric.
        selected: index of the selected member, the only line in colour. Default: every line has its own colour.
        labels: names of the members, used if `selected` is None.
    """
    from matplotlib.ticker import EngFormatter

    columns = min(len(curves), 2)
    rows = -(-len(curves) // columns)
    with drawn(PAGE, 0.9 + 2.1 * rows, path) as figure:
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for i, (name, values) in enumerate(curves.items()):
            panel, values = axes[i], np.atleast_2d(np.asarray(values, float))
            if selected is None:
                _draw_named(panel, steps, values, labels)
            else:
                _draw_selected(panel, steps, values, selected)
            if _spans_decades(values):
                panel.set_yscale("log")
            panel.set_title(name.replace("_", " "))
            if i + columns >= len(curves):
                panel.set_xlabel("updates")
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.margins(x=0.01)
        for panel in axes[len(curves) :]:
            panel.set_axis_off()
        handles = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
        if selected is not None:
            figure.legend(list(handles.values()), list(handles), loc="outside upper right", ncols=2)
        elif len(handles) > 1:
            figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=5)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return path


def _draw_selected(panel: Axes, steps: np.ndarray, values: np.ndarray, selected: int) -> None:
    for member in [*(m for m in range(len(values)) if m != selected), selected]:
        chosen = member == selected
        panel.plot(
            steps,
            values[member],
            color=BLUE if chosen else "#C3C7CD",
            linewidth=1.9 if chosen else 1.0,
            label="selected member" if chosen else "other members",
        )


def _draw_named(panel: Axes, steps: np.ndarray, values: np.ndarray, labels: Sequence[str]) -> None:
    """Draw each member's metric faintly, with its moving mean over a fortieth of the run."""
    window = 2 * (len(steps) // 80) + 1
    for member, row in enumerate(values):
        colour, half = PALETTE[member % len(PALETTE)], window // 2
        ends = np.pad(row, half, mode="edge")
        panel.plot(steps, row, linewidth=0.9, alpha=0.3, color=colour)
        dash = DASHES[member // len(PALETTE) % len(DASHES)]
        smooth = np.convolve(ends, np.ones(window) / window, mode="valid")
        label = labels[member] if labels else f"member {member}"
        panel.plot(steps, smooth, linewidth=1.6, linestyle=dash, label=label, color=colour)


def _spans_decades(values: np.ndarray) -> bool:
    """Return whether values need a logarithmic axis."""
    seen = values[np.isfinite(values)]
    return bool(seen.size and seen.min() > 0 and seen.max() > 30 * seen.min())


def plot_prediction(path: Path, found: PredictionErrors) -> Path:
    """Plot errors of free-running predictions against the horizon, a line per predictor."""
    with drawn(6.4, 3.2, path) as figure:
        axes = figure.subplots()
        for i, (name, errors) in enumerate(found.errors.items()):
            axes.plot(found.horizons, errors, marker="o", color=PALETTE[i], linestyle=DASHES[i], label=name)
        axes.set_xscale("log")
        axes.set_xticks(found.horizons, [str(horizon) for horizon in found.horizons])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("steps predicted")
        axes.set_ylabel("error, standard deviations of the signals")
        axes.legend()
    return path
