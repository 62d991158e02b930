"""Odd files end in a dataset that accounts for all rows, or in an error message; never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nasty.cases import all_cases
from benchmarks.nasty.run import MOST_SECONDS, run
from benchmarks.nasty.tables import Case

CASES = all_cases()
EVERY = 4


def test_at_least_sixty_cases_with_unique_names() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda case: case.name)
def test_every_fourth_case(tmp_path: Path, case: Case) -> None:
    outcome = run(case, tmp_path)
    # Only `make nasty` checks seconds, because other tests run beside this one.
    assert [fault for fault in outcome.faults if f"exceed {MOST_SECONDS} s" not in fault] == []
