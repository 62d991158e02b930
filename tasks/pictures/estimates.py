"""Pictures of estimates: values with their intervals, and off-policy estimates against rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import jax.numpy as jnp
import numpy as np

from neorl_core.ope.metrics import rank_correlation
from tasks.pictures.style import BLUE, GREY, INK, PAGE, PALETTE, drawn, place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Estimate(Protocol):
    """A value with its confidence interval; infinite bounds are not drawn."""

    @property
    def value(self) -> float:
        """The point estimate."""

    @property
    def lower(self) -> float:
        """The interval's lower bound."""

    @property
    def upper(self) -> float:
        """The interval's upper bound."""


def bounds_of(estimate: Estimate) -> tuple[float, float]:
    """Return the interval to draw; the value replaces an infinite bound."""
    lower = estimate.lower if np.isfinite(estimate.lower) else estimate.value
    upper = estimate.upper if np.isfinite(estimate.upper) else estimate.value
    return lower, upper


def draw_estimates(axes: Axes, rows: Mapping[str, Estimate], zero: bool = False) -> None:
    """Draw a dot with interval per estimate, the first at the top; estimates that are not finite are left out.

    Args:
        rows: estimates by name; a controller has its own colour.
        zero: whether values are differences, drawn in one colour with a line at zero.
    """
    finite = {name: estimate for name, estimate in rows.items() if np.isfinite(estimate.value)}
    names = list(finite)
    for i, (name, estimate) in enumerate(finite.items()):
        value, (lower, upper) = estimate.value, bounds_of(estimate)
        y = len(names) - 1 - i
        colour = INK if zero else PALETTE[place_of(name, i)]
        axes.plot([lower, upper], [y, y], color=colour, linewidth=3, solid_capstyle="butt", alpha=0.6)
        axes.plot([value], [y], "o", color=colour, markersize=8)
        text = f"{value:.4g}  [{lower:.4g}, {upper:.4g}]"
        axes.annotate(text, (value, y), (0, 9), textcoords="offset points", ha="center", fontsize=9)
    if zero:
        axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(names)), names[::-1])
    axes.set_ylim(-0.6, max(len(names), 1) - 0.2)
    axes.margins(x=0.28)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="y", visible=False)


def plot_intervals(path: Path, groups: Mapping[str, Mapping[str, Estimate]], confidence: float = 0.95) -> Path:
    """Plot values with confidence intervals, one panel for each quantity, such as return or cost.

    Quantities without estimates are left out. If no quantity has an estimate, all panels are drawn empty.

    Args:
        groups: estimates by axis label and name; labels with "difference" get a line at zero.
        confidence: confidence of the intervals, for the title.
    """
    known = {label: rows for label, rows in groups.items() if any(np.isfinite(each.value) for each in rows.values())}
    known = known or dict(groups)
    heights = [len(rows) + 0.9 for rows in known.values()]
    with drawn(PAGE, 0.35 + 0.62 * sum(heights), path) as figure:
        axes = figure.subplots(len(known), 1, height_ratios=heights, squeeze=False).ravel()
        for panel, (label, rows) in zip(axes, known.items(), strict=True):
            draw_estimates(panel, rows, zero="difference" in label.lower())
            panel.set_xlabel(label)
        axes[0].set_title(f"Estimates with {100 * confidence:g} % intervals")
    return path


def plot_ope(
    path: Path,
    estimates: Sequence[Estimate],
    rollouts: Sequence[Estimate],
    selected: int,
    estimate_unit: str = "return per episode",
    rollout_unit: str = "return per episode",
) -> Path:
    """Plot off-policy estimates against rollouts; with equal units, exact estimates lie on the diagonal.

    Args:
        selected: index of the selected member; -1 if it is not among them.
        estimate_unit: quantity of the estimates.
        rollout_unit: quantity of the rollouts; if it differs, only the order is comparable.
    """
    with drawn(6.2, 5.4, path) as figure:
        axes = figure.subplots()
        for i, (estimated, measured) in enumerate(zip(estimates, rollouts, strict=True)):
            chosen = i == selected
            axes.errorbar(
                estimated.value,
                measured.value,
                xerr=_bars(estimated),
                yerr=_bars(measured),
                fmt="D" if chosen else "o",
                color=BLUE if chosen else GREY,
                markersize=9 if chosen else 6,
                linewidth=1.2,
                zorder=3 if chosen else 2,
                label="selected" if chosen else "other members",
            )
        if estimate_unit == rollout_unit:
            low = min(axes.get_xlim()[0], axes.get_ylim()[0])
            high = max(axes.get_xlim()[1], axes.get_ylim()[1])
            axes.plot([low, high], [low, high], color=INK, linewidth=1, linestyle=(0, (4, 3)), label="exact", zorder=1)
        axes.set_xlabel(f"estimated from held-out logs: {estimate_unit}")
        axes.set_ylabel(f"measured by rollouts: {rollout_unit}")
        values = (np.asarray([estimate.value for estimate in side]) for side in (estimates, rollouts))
        correlation = float(rank_correlation(*map(jnp.asarray, values)))
        ranks = f", rank correlation {correlation:.2f}" if np.isfinite(correlation) else ""
        axes.set_title(f"OPE against rollouts{ranks}")
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3)
    return path


def _bars(estimate: Estimate) -> list[list[float]]:
    lower, upper = bounds_of(estimate)
    return [[max(estimate.value - lower, 0.0)], [max(upper - estimate.value, 0.0)]]
