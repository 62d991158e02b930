"""Roles of columns without informative names."""

from __future__ import annotations

import numpy as np
import polars as pl

from tasks.data.historian.guess.columns import guess_tags, look_at


def test_signals_with_an_analysers_rhythm_are_not_actions() -> None:
    draw = np.random.default_rng(0)
    # As in files of Tennessee Eastman: five compositions every fifth row, then manipulated variables.
    slow = {f"row_{i}": np.repeat(draw.normal(size=40), 5) for i in range(5)}
    fast = {f"row_{i}": draw.normal(size=200) for i in range(5, 9)}
    held = {"row_9": np.repeat(draw.normal(size=20), 10)}
    after = {"row_10": draw.normal(size=200)}

    def moved(table: dict[str, np.ndarray]) -> list[str]:
        columns = [look_at(name, pl.Series(values)) for name, values in table.items()]
        return [tag.name for tag in guess_tags(columns, wide=True) if tag.role == "action"]

    assert moved(fast | slow) == moved(slow | fast) == ["row_8"]
    assert moved(slow | fast | held | after) == ["row_9"]
