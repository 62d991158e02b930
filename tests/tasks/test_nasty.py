"""Files as plants have them end in a dataset that accounts for all rows, or in a sentence; never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nasty.cases import all_cases
from benchmarks.nasty.run import MOST_SECONDS, run
from benchmarks.nasty.tables import Case

CASES = all_cases()
EVERY = 4


def test_there_are_as_many_cases_as_promised_and_each_has_a_name() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda case: case.name)
def test_a_part_of_them(tmp_path: Path, case: Case) -> None:
    told = run(case, tmp_path)
    # Seconds are for `make nasty`: other tests run beside this one.
    assert [fault for fault in told.faults if f"expected {MOST_SECONDS} s" not in fault] == []
