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
from benchmarks.graph_study.cell import CELLS, SMALL, grid_of
from benchmarks.graph_study.logs import cases, loops, plant_of
from benchmarks.graph_study.speed import on_one_core
from neorl_core.networks import policy_act
from neorl_core.plants.power_grid.feeder33 import FEEDER
from neorl_core.plants.power_grid.switching.plant import topology
from neorl_core.plants.power_grid.switching.spec import seen

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
def test_a_small_cell(name: str) -> None:
    found = CELLS[name](SMALL)
    table = page.TABLES[name](json.loads(json.dumps(found)))
    assert table.count("\n") > 4


def test_what_is_timed_is_the_decision_of_policy_and_topology_whatever_is_padded() -> None:
    plant = plant_of(FEEDER)
    policy = speed.drawn(plant, {"graph": 2, "hidden": [8]})
    observation = jnp.asarray(cases(plant, loops(FEEDER)[0], 0.5, 1, 3).observation[0])
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
