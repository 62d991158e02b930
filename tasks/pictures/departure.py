"""Picture of how far controllers leave the logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neorl_core.types import PlantSpec
from tasks.pictures.style import PAGE, PALETTE, drawn, place_of

COLUMNS = 3
LOGS = "#D5D9DE"


def plot_departure(path: Path, spec: PlantSpec, histograms: Mapping[str, npt.NDArray[np.floating]]) -> Path:
    """Plot the distribution of each signal and action in the logs and in the rollouts of each controller.

    Args:
        histograms: 'edges' (D, B + 1); 'logs' and a controller's name -> share of steps in each bin, (D, B).
    """
    names = (*spec.observation.names, *(f"action {name}" for name in spec.action.names))
    units = (*spec.observation.units, *spec.action.units)
    rows = -(-len(names) // COLUMNS)
    with drawn(PAGE, 0.6 + 1.9 * rows, path) as figure:
        panels = np.atleast_1d(figure.subplots(rows, COLUMNS)).ravel()
        for i, axes in enumerate(panels):
            if i >= len(names):
                axes.set_visible(False)
                continue
            edges = histograms["edges"][i]
            axes.stairs(histograms["logs"][i], edges, fill=True, color=LOGS, label="training episodes")
            for name, shares in histograms.items():
                if name not in ("edges", "logs"):
                    axes.stairs(shares[i], edges, color=PALETTE[place_of(name, 0)], linewidth=1.4, label=name)
            unit = "" if units[i] in ("", "1") else f" [{units[i]}]"
            axes.set_title(f"{names[i].replace('_', ' ')}{unit}", fontsize=8)
            axes.set_yticks([])
            axes.locator_params(axis="x", nbins=4)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return path
