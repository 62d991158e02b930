"""A log-only tank, and its export as long and wide tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from configs.mapping import HistorianMapping
from configs.process import described_spec
from tasks.data.historian.raw_rows import RawQuarantine
from tests.tasks.data.historian.whole import HistorianLog, read_historian

START = "2026-01-05T00:00:00Z"
STEPS = 30
MAPPING: dict[str, Any] = {
    "process": {"name": "tank", "horizon": 100},
    "period_seconds": 10,
    "tags": {
        "LI-1": {"role": "observation", "signal": "level", "unit": "cm", "to_unit": "m", "interpolation": "sloped"},
        "FI-2": {"role": "input", "signal": "inflow", "unit": "L/s", "interpolation": "sloped"},
        "FV-3": {"role": "action", "signal": "valve", "unit": "%", "to_unit": "1", "interpolation": "stepped"},
    },
    "reward": {"expression": "-next.level / quantity(1, 'm')", "unit": "1"},
    "episodes": {"max_gap_seconds": 30},
}


def mapping(**changed: Any) -> HistorianMapping:
    return HistorianMapping.model_validate(MAPPING | changed)


def read(path: Path, quarantine: RawQuarantine | None = None, **changed: Any) -> HistorianLog:
    it = mapping(**changed)
    return read_historian(path, it, described_spec(it), None, quarantine)


def wide(steps: int = STEPS) -> pl.DataFrame:
    """Return rows every 10 s: level 100, 101, ... cm, inflow 5 L/s, valve 0, 1, ... %."""
    k = np.arange(steps)
    first = np.datetime64(START.removesuffix("Z"), "ns").astype(np.int64)
    return pl.DataFrame(
        {
            "timestamp": pl.Series(first + k * 10**10).cast(pl.Datetime("ns", "UTC")),
            "LI-1": 100.0 + k,
            "FI-2": np.full(steps, 5.0),
            "FV-3": k.astype(float),
        }
    )


def long(frame: pl.DataFrame | None = None) -> pl.DataFrame:
    table = (wide() if frame is None else frame).unpivot(
        ["LI-1", "FI-2", "FV-3"], index="timestamp", variable_name="tag"
    )
    return table.with_columns(status=pl.lit(0, pl.UInt32)).sort("timestamp")
