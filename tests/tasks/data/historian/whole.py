"""Read a small historian export at once."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from configs.mapping import HistorianMapping
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import PlantSpec
from tasks.data.historian.raw_rows import RawQuarantine
from tasks.data.historian.transitions import HistorianStream
from tasks.data.store.records import StepAccount
from tasks.data.store.schema import Rows


class HistorianLog(NamedTuple):
    """A log as transitions."""

    rows: Rows
    """Rows in order of time; `rejected` is the reason for the quarantine, or ''."""
    account: StepAccount
    """Account of control steps and samples."""


def read_historian(
    path: Path,
    mapping: HistorianMapping,
    spec: PlantSpec,
    logged: LoggedSignals | None,
    quarantine: RawQuarantine | None = None,
) -> HistorianLog:
    """Read a whole historian export.

    Returns:
        The rows, and an account of all steps: rows + rejected + gap + not_running + outside_limits = steps.
    """
    stream = HistorianStream(path, mapping, spec, logged, quarantine or RawQuarantine())
    blocks = list(stream.blocks())
    return HistorianLog({key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}, stream.account)
