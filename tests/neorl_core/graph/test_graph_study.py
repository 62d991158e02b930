"""Small cells of the study of graph policies, and the sections of its page."""

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
from neorl_core.plants.power_grid.switching import split_observation, topology

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


def test_criteria_are_about_the_selected_policies() -> None:
    assert page.selected(OPTIMUM["policies"], "graph") == "graph, bc"
    text = page.optimum(OPTIMUM)
    words = " ".join(text.split())
    assert "on at least 90 % of the loads (yes)" in words
    assert "no more violations than the selected MLP (no)" in words
    assert "| graph, bc | yes | 95% | 1.001 | 1 | 95% | 1.001 | 1 |" in text
    assert "| the optimum |  | 100% | 1.000 | 0 | 100% | 1.000 | 0 |" in text


def test_updates_until_as_good_as_from_scratch() -> None:
    def row(updates: int, *loss: float, rate: float = 1e-3) -> dict[str, Any]:
        return {"updates": updates, "rate": rate, "loss": list(loss), "violations": [0.1, 0.2]}

    found = {"loads": 4, "updates": 1_000, "days": 9}
    # The criterion uses the median seed and the better of two rates.
    scratch = [row(200, 1.0, 1.0, 1.0), row(1_000, 1.1, 1.1, 9.0), row(1_000, 1.3, 1.3, 1.3, rate=3e-3)]
    tuned = [row(0, 1.5), row(100, 1.2, 1.2, 1.0), row(200, 1.05, 1.1, 1.12)]
    text = page.transfer(found | {"rows": {"tuned": tuned, "from scratch": scratch}})
    assert "need 200 updates to reach the median loss of training from scratch with 1,000" in " ".join(text.split())
    assert "(yes)" in text
    assert "| on 33 buses | 200 | 0.001 | 1.090 | 1.100 | 1.120 | 15% |" in text
    late = {"tuned": [row(200, 1.05, 1.2, 1.2), row(500, 1.0, 1.0)], "from scratch": scratch}
    text = page.transfer(found | {"rows": late})
    assert "need 500 updates" in " ".join(text.split())
    assert "(no)" in text
    never = page.transfer(found | {"rows": {"tuned": [row(0, 1.5)], "from scratch": scratch}})
    assert "never reach the median loss" in " ".join(never.split())
    assert "(no)" in never


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


def test_criteria_of_agents_use_the_lower_bounds() -> None:
    text = " ".join(page.agents(_agents(6.5, 1.5)).split())
    assert "controller 300.0 $ (score 100.00) and the optimal flow 310.0 $ (score 101.00)." in text
    assert "the last two, 10.00 ±" in text
    assert "half of the optimal gain (yes)" in text
    assert "at least as much as the tuned controller (yes)" in text
    assert "| all cut | +1.50 ± 1.00 | +1.50 ± 1.00 | -0.5 | 12.5% | 0 |" in text
    assert "central gains +9.00 ± 1.00 $" in text
    assert text.index("| all up |") < text.index("| all cut |")
    assert "optimal gain (no)" in " ".join(page.agents(_agents(5.5, 1.5)).split())
    assert "tuned controller (no)" in " ".join(page.agents(_agents(6.5, 0.5)).split())


def test_interval_separates_days_and_seeds() -> None:
    # Five equal seeds on the same days do not count as five times as many days.
    days = np.array([1.0, 3.0, 5.0, 7.0])
    mean, half = interval(np.tile(days, (5, 1)))
    assert (mean, half) == (4.0, pytest.approx(3.182446 * (20 / 3 / 4) ** 0.5, rel=1e-6))
    # Equal days do not count as many seeds.
    mean, half = interval(np.tile(days[:, None], (1, 50)))
    assert (mean, half) == (4.0, pytest.approx(3.182446 * (20 / 3 / 4) ** 0.5, rel=1e-6))


def test_page_has_a_section_for_each_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    once = page.page()
    assert "median of at most 200 µs (yes)" in " ".join(once.split())
    assert once.count("Not measured yet.") == 3
    assert "| case33bw | 33 | 37 | 50 | 60 | 150 | 900 |" in once
    assert "| case69 (nothing to switch) | 69 | 68 | 40 | 41 |  |  |" in once
    slow = page.speed(found | {"sizes": {"case33bw": row | {"median": 200.4}}, "pinned": False})
    assert "decisions on all cores" in " ".join(slow.split())
    assert "200 µs (no)" in " ".join(slow.split())


def test_committed_page_equals_the_kept_cells() -> None:
    assert page.PAGE.read_text() == page.page()


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_small_cell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Compilation dominates a small cell, so it has three learners only.
    few = {each: LEARNERS[each] for each in ("graph, bc", "graph, td3_bc", "MLP, bc")}
    monkeypatch.setattr("benchmarks.graph_study.cell.LEARNERS", few)
    found = CELLS[name](SMALL)
    table = page.TABLES[name][1](json.loads(json.dumps(found)))
    assert table.count("\n") > 4


def test_timed_decision_equals_policy_and_topology_with_padding() -> None:
    plant = plant_of(FEEDER)
    policy = speed.drawn(plant, {"graph": 2, "hidden": [8]})
    observation = jnp.asarray(cases(plant, FEEDER, loops(FEEDER)[0], 0.5, 1, 3).observation[0])
    action, opened = jax.jit(partial(speed.decide, FEEDER, partial(policy_act, policy)))(observation)
    grid = grid_of(FEEDER, plant)
    in_service = split_observation(FEEDER, observation).in_service
    np.testing.assert_array_equal(opened, topology(grid, action, in_service).opened)
    wide, same = jax.jit(partial(speed.decide, FEEDER, partial(speed.padded_act, policy)))(observation)
    np.testing.assert_allclose(wide, action, atol=1e-6)
    np.testing.assert_array_equal(same, opened)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin a process")
def test_pinned_process_has_one_core_and_ours_keeps_all() -> None:
    ours = os.sched_getaffinity(0)
    assert on_one_core(cores) == {"cores": 1, "pinned": True}
    assert os.sched_getaffinity(0) == ours


def cores() -> dict[str, int]:
    """Return the number of cores of this process."""
    return {"cores": len(os.sched_getaffinity(0))}
