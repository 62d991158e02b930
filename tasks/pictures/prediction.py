"""Picture of prediction errors of the learned model and baselines."""

from __future__ import annotations

from pathlib import Path

from tasks.pictures.style import DASHES, PALETTE, drawn
from tasks.references import PredictionErrors


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
