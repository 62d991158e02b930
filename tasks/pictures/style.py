"""Common style of pictures: colours, dashes, page width, and figures without time stamp or version.

Colours are Okabe and Ito's, which colour-blind readers can distinguish; each kind of line also has its own dash.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from configs.errors import BadInput
from tasks.files.canonical import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Dash = str | tuple[int, tuple[float, ...]]

BLUE, GREEN, VERMILION, GREY, INK, RED = "#0072B2", "#009E73", "#D55E00", "#8A8F98", "#22262B", "#A1121B"
PALETTE = (BLUE, VERMILION, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
DASHES: tuple[Dash, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), "-.", (0, (3, 1, 1, 1, 1, 1)), "-")
CONTROLLERS = ("candidate", "plant controller", "champion")
PAGE = 6.5
"""Width of a picture in inches that MLflow's page shows completely."""


def place_of(name: str, position: int) -> int:
    """Return a controller's index in PALETTE and DASHES, the same in every picture.

    Args:
        position: position among the drawn controllers, used for names that are not in CONTROLLERS.
    """
    if name in CONTROLLERS:
        return CONTROLLERS.index(name)
    return (position + len(CONTROLLERS)) % len(PALETTE)


def check_picture(path: Path) -> None:
    """Check, before long work, that a picture can be written.

    Raises:
        BadInput: if the suffix is unknown, or the file cannot be written.
    """
    if path.suffix not in (".png", ".svg"):
        raise BadInput(f"a picture's name must end in .png or .svg, got '{path.name}': rename it")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise BadInput(f"cannot write {path}: name a file in an existing folder that you may write")


@contextmanager
def drawn(width: float, height: float, path: Path) -> Iterator[Figure]:
    """Provide a figure in the common style, and write it at the end of the block; bytes are reproducible.

    Args:
        width: in inches.
        height: in inches.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kind: Literal["svg", "png"] = "svg" if path.suffix == ".svg" else "png"
    with rc_context(
        {
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
    ):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        buffer = io.BytesIO()
        metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[kind]
        figure.savefig(buffer, format=kind, metadata=metadata)
    write_atomic(path, buffer.getvalue())
