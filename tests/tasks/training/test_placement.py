"""The choice of a placement by numbers; `test_train.py` holds both placements to the same members."""

from __future__ import annotations

import pytest

from tasks.training.placement import faster


@pytest.mark.parametrize(
    ("members", "cores", "rate", "processes"),
    # 8 members in 2 at a time are 4 rounds of 1000 s at 100 updates/s: 4010 s are less than 5000, 5010 are not.
    [(8, 2, 100.0, True), (8, 2, 80.0, False), (9, 2, 100.0, False), (8, 8, 22.0, True), (1, 1, 19.0, False)],
)
def test_the_choice_worked_by_hand(members: int, cores: int, rate: float, processes: bool) -> None:
    found = faster(members, cores, 100_000, together=5000.0, rate=rate, start=10.0)
    assert found.processes == processes
    assert f"{members} members take 5000 s in one program" in found.reason
