"""How far the distribution of a signal has moved from that of older data."""

from __future__ import annotations

import numpy as np

from tasks.data.store.statistics import Floats, Statistics

BINS = 10


def mean_shift(new: Statistics, old: Statistics, name: str) -> float:
    """How far a signal's mean moved, in deviations of the older data."""
    a, b = new.signals[name], old.signals[name]
    gap = abs(a.mean - b.mean)
    return gap / b.deviation if b.deviation > 0 else float(gap > 0) * 1e9


def stability_index(new: Floats, old: Floats) -> float:
    """Population stability index over the older data's deciles: `sum (p - q) ln(p / q)`.

    Empty bins count as half a value. By the usual rule of credit scoring below .1 is stable and above .25 is drift
    (Siddiqi 2006, Credit Risk Scorecards).

    Args:
        new: (n,) values.
        old: (m,) values.
    """
    edges = np.unique(np.quantile(old, np.linspace(0, 1, BINS + 1)[1:-1]))
    counts = [np.bincount(np.searchsorted(edges, x, side="right"), minlength=len(edges) + 1) for x in (new, old)]
    p, q = np.maximum(counts[0], 0.5) / len(new), np.maximum(counts[1], 0.5) / len(old)
    return float(np.sum((p - q) * np.log(p / q)))
