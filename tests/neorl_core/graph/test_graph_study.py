"""The study's cells at their smallest, and the tables of its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.graph_study import page
from benchmarks.graph_study.agents import interval
from benchmarks.graph_study.cell import CELLS, SMALL

ROW = {"within": 0.95, "median": 1.001, "mean": 1.01, "violations": 1}
OPTIMUM: dict[str, Any] = {
    "policies": {
        "graph, bc": {"estimate": 1.0, "seconds": 1.0, "known": ROW, "held out": ROW},
        "graph, iql": {"estimate": 0.5, "seconds": 1.0, "known": ROW | {"within": 0.1}, "held out": ROW},
        "MLP, bc": {"estimate": 0.2, "seconds": 1.0, "known": ROW, "held out": ROW | {"violations": 0}},
        "the optimum": {"known": {"violations": 0}, "held out": {"violations": 0}},
    },
    "loads": 40,
    "days": 400,
    "updates": 2_000,
}


def test_what_is_selected_is_what_is_judged() -> None:
    assert page.selected(OPTIMUM["policies"], "graph") == "graph, bc"
    text = page.optimum(OPTIMUM)
    assert "on at least 90 % of the loads: yes" in text
    assert "violates no more than the selected MLP: no" in text
    assert "| graph, bc | yes | 95% | 1.001 | 1 | 95% | 1.001 | 1 |" in text
    assert "| the optimum |  | 100% | 1.000 | 0 | 100% | 1.000 | 0 |" in text


def test_updates_until_as_good_as_from_scratch() -> None:
    scratch = [[0.0, 9.0, 1.0], [100.0, 1.3, 0.1], [200.0, 1.2, 0.1], [1000.0, 1.1, 0.0]]
    tuned = [[0.0, 1.5, 0.2], [100.0, 1.15, 0.1], [200.0, 1.09, 0.0], [1000.0, 1.05, 0.0]]
    text = page.transfer({"curves": {"from scratch": scratch, "tuned": tuned}, "loads": 4, "updates": 1_000})
    assert "after 200 updates: at most a fifth, yes" in text
    assert "| 0 | 9.000 | 1.500 |" in text
    late = [[0.0, 1.5, 0.2], [100.0, 1.5, 0.1], [200.0, 1.3, 0.0], [1000.0, 1.1, 0.0]]
    assert "after 1,000 updates: at most a fifth, no" in page.transfer(
        {"curves": {"from scratch": scratch, "tuned": late}, "loads": 4, "updates": 1_000}
    )


def _agents(gain: float, cut: float) -> dict[str, Any]:
    row = {"half_width": 1.0, "worst_day": -0.5, "days_below": 0.125, "violations": 0}
    conditions = {"all up": row | {"gain": gain}, "all cut": row | {"gain": cut}}
    return {
        "tuned": 300.0,
        "found": -200.0,
        "optimal": {"return": 310.0, "gain": 10.0, "half_width": 0.5},
        "score_range": [-700.0, 300.0],
        "learners": {"alike": conditions, "all the same": conditions, "central": {"all up": row | {"gain": 9.0}}},
        "seconds": {"logs": 60.0, "alike": 30.0},
        "rows": 9_000,
        "days": 100,
        "trials": 64,
        "seeds": 5,
        "updates": 10_000,
    }


def test_agents_are_held_to_half_of_the_way_and_to_volt_var() -> None:
    text = page.agents(_agents(6.5, 1.5))
    assert "tuned 300.0 $ a day (score 100.00), the optimal flow 310.0 $ a day (score 101.00): 10.00 ± 0.50 $" in text
    assert "sharing weights: yes." in text
    assert "never below the tuned controller on the mean: yes." in text
    assert "| all cut | +1.50 ± 1.00 | +1.50 ± 1.00 | -0.5 | 12.5% | 0 |" in text
    assert "central: +9.00 ± 1.00 $" in text
    assert text.index("| all up |") < text.index("| all cut |")
    # The intervals' lower ends count.
    assert "sharing weights: no." in page.agents(_agents(5.5, 1.5))
    assert "never below the tuned controller on the mean: no." in page.agents(_agents(6.5, 0.5))


def test_an_interval_counts_days_as_days_and_seeds_as_seeds() -> None:
    # Five seeds on the same days that all do the same are no five times as many days.
    days = np.array([1.0, 3.0, 5.0, 7.0])
    mean, half = interval(np.tile(days, (5, 1)))
    assert (mean, half) == (4.0, pytest.approx(3.182446 * (20 / 3 / 4) ** 0.5, rel=1e-6))
    # Nor are days on which seeds differ alike many seeds.
    mean, half = interval(np.tile(days[:, None], (1, 50)))
    assert (mean, half) == (4.0, pytest.approx(3.182446 * (20 / 3 / 4) ** 0.5, rel=1e-6))


def test_tables_go_between_their_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    row = {"buses": 33, "lines": 37, "median": 50.0, "p99": 60.0}
    (tmp_path / "speed.json").write_text(json.dumps({"sizes": {"case33bw": row}}))
    once = page.written("a\n<!-- speed: begin -->old<!-- speed: end -->\nz")
    assert once.startswith("a\n<!-- speed: begin -->\n\nAt most 200 µs at the median: yes.")
    assert "| case33bw | 33 | 37 | 50 | 60 |" in once
    assert once.endswith("<!-- speed: end -->\nz")
    assert page.written(once) == once


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_small_cell(name: str) -> None:
    found = CELLS[name](SMALL)
    table = page.TABLES[name](json.loads(json.dumps(found)))
    assert table.count("\n") > 4
