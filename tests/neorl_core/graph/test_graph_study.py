"""The study's cells at their smallest, and the tables of its page."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.graph_study import page, speed
from benchmarks.graph_study.agents import interval
from benchmarks.graph_study.cell import CELLS, LEARNERS, SMALL, grid_of
from benchmarks.graph_study.logs import cases, loops, plant_of
from benchmarks.graph_study.speed import on_one_core
from neorl_core.networks import policy_act
from neorl_core.plants.power_grid.feeder33 import FEEDER
from neorl_core.plants.power_grid.switching import seen, topology

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
    def row(updates: int, *loss: float, rate: float = 1e-3) -> dict[str, Any]:
        return {"updates": updates, "rate": rate, "loss": list(loss), "violations": [0.1, 0.2]}

    found = {"loads": 4, "updates": 1_000, "days": 9}
    # One seed that failed makes no bar of its mean, and of two rates the better one is the bar.
    scratch = [row(200, 1.0, 1.0, 1.0), row(1_000, 1.1, 1.1, 9.0), row(1_000, 1.3, 1.3, 1.3, rate=3e-3)]
    tuned = [row(0, 1.5), row(100, 1.2, 1.2, 1.0), row(200, 1.05, 1.1, 1.12)]
    text = page.transfer(found | {"rows": {"tuned": tuned, "from scratch": scratch}})
    assert (
        "as good after 200 updates as those from scratch after 1,000, by their median seeds: at most a fifth, yes"
        in text
    )
    assert "| on 33 buses | 200 | 0.001 | 1.090 | 1.100 | 1.120 | 15% |" in text
    late = {"tuned": [row(200, 1.05, 1.2, 1.2), row(500, 1.0, 1.0)], "from scratch": scratch}
    told = page.transfer(found | {"rows": late})
    assert "after 500 updates as those from scratch after 1,000, by their median seeds: at most a fifth, no" in told
    never = page.transfer(found | {"rows": {"tuned": [row(0, 1.5)], "from scratch": scratch}})
    assert (
        "as good at no number of updates as those from scratch after 1,000, by their median seeds: at most a fifth, no"
        in never
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
    row = {
        "buses": 33,
        "lines": 37,
        "ties": 5,
        "median": 50.0,
        "p99": 60.0,
        "composite_1": 150.0,
        "composite_12": 900.0,
    }
    bare = {"buses": 69, "lines": 68, "ties": 0, "median": 40.0, "p99": 41.0}
    found = {"sizes": {"case33bw": row, "case69": bare}, "decisions": 9, "pinned": True, "rounds": 5, "width": 24}
    (tmp_path / "speed.json").write_text(json.dumps(found))
    once = page.written("a\n<!-- speed: begin -->old<!-- speed: end -->\nz")
    assert once.startswith("a\n<!-- speed: begin -->\n\nAt most 200 µs at the median: yes.")
    assert "| case33bw | 33 | 37 | 50 | 60 | 150 | 900 |" in once
    assert "| case69, which has nothing to open: the network alone | 69 | 68 | 40 | 41 |  |  |" in once
    slow = page.speed(found | {"sizes": {"case33bw": row | {"median": 200.4}}, "pinned": False})
    assert slow.startswith("At most 200 µs at the median: no. Medians of 9 decisions on all cores")
    assert once.endswith("<!-- speed: end -->\nz")
    assert page.written(once) == once


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_small_cell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Most of a small cell's time goes into compiling learners: it has a clone of each kind, and one with a value.
    few = {each: LEARNERS[each] for each in ("graph, bc", "graph, td3_bc", "MLP, bc")}
    monkeypatch.setattr("benchmarks.graph_study.cell.LEARNERS", few)
    found = CELLS[name](SMALL)
    table = page.TABLES[name](json.loads(json.dumps(found)))
    assert table.count("\n") > 4


def test_what_is_timed_is_the_decision_of_policy_and_topology_whatever_is_padded() -> None:
    plant = plant_of(FEEDER)
    policy = speed.drawn(plant, {"graph": 2, "hidden": [8]})
    observation = jnp.asarray(cases(plant, FEEDER, loops(FEEDER)[0], 0.5, 1, 3).observation[0])
    action, opened = jax.jit(partial(speed.decide, FEEDER, partial(policy_act, policy)))(observation)
    grid = grid_of(FEEDER, plant)
    in_service = seen(FEEDER, observation).in_service
    np.testing.assert_array_equal(opened, topology(grid, action, in_service).opened)
    wide, same = jax.jit(partial(speed.decide, FEEDER, partial(speed.padded_act, policy)))(observation)
    np.testing.assert_allclose(wide, action, atol=1e-6)
    np.testing.assert_array_equal(same, opened)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no process")
def test_a_process_of_its_own_has_one_core_and_ours_keeps_its_own() -> None:
    ours = os.sched_getaffinity(0)
    assert on_one_core(cores) == {"cores": 1, "pinned": True}
    assert os.sched_getaffinity(0) == ours


def cores() -> dict[str, int]:
    """How many this process may use."""
    return {"cores": len(os.sched_getaffinity(0))}
