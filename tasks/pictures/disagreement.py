"""Pictures of disagreements between a shadow and the plant's controller."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.types import PlantSpec
from tasks.pictures.style import PAGE, PALETTE, drawn


class Stretch(NamedTuple):
    """A stretch of steps of an episode."""

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
