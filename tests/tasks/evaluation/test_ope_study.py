"""The study of off-policy evaluation: what a cell comes to by hand, cells that are missing, and a small cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.ope_study import page, policies, table
from benchmarks.ope_study.cell import SMALL, cell
from configs.home import Home


def row(truth: float, lower: float, upper: float, supported: bool = True) -> dict[str, Any]:
    return {
        "value": (lower + upper) / 2,
        "lower": lower,
        "upper": upper,
        "truth": truth,
        "truth_error": 0.0,
        "supported": supported,
    }


RESULT: dict[str, Any] = {
    "plant": "double_mass",
    "behaviour": "pid",
    "cpu_seconds": 61.4,
    "commit": "0123456789abcdef",
    # Worked by hand: of four supported policies three are covered, one lower bound is above the truth, and the best
    # by estimate is worth 8 where the best of all, which has no support, is worth 10.
    "policies": [
        row(0.0, -1.0, 1.0),
        row(4.0, 4.5, 5.5),
        row(6.0, 5.0, 7.0),
        row(8.0, 7.0, 11.0),
        row(10.0, 0.0, 0.0, supported=False),
    ],
}


def test_what_a_cell_comes_to() -> None:
    assert table.summary(RESULT) == {
        "policies": 5,
        "supported": 0.8,
        "clone": 1.0,
        "coverage": 0.75,
        "above": 0.25,
        "width": pytest.approx(0.2),
        "own width": pytest.approx(0.25),
        "regret": pytest.approx(0.2),
        "rank": pytest.approx(1.0),
    }
    assert "| double_mass | pid | 5 | 0.80 | yes | 0.75 | 0.25 | 0.20 | 0.25 | 1.00 | 0.20 | 61 |" in page.cells(
        [RESULT]
    )


def test_a_cell_without_support_has_no_numbers() -> None:
    nothing = {**RESULT, "policies": [{**one, "supported": False} for one in RESULT["policies"]]}
    assert table.summary(nothing) == {"policies": 5, "supported": 0.0, "clone": 0.0}
    assert "| 0.00 | no | – | – | – | – | – | – |" in page.cells([nothing])
    assert table.by_plant([nothing])["double_mass"]["supported"] == 0.0


def test_what_a_plant_comes_to_counts_policies_and_not_cells() -> None:
    # By hand: the second cell has one policy, covered and wider than all of its plant's four in the first.
    alone = {**RESULT, "behaviour": "mixed", "policies": [row(0.0, -10.0, 10.0), row(10.0, 0.0, 0.0, supported=False)]}
    found = table.by_plant([RESULT, alone])
    assert found == {
        "double_mass": {
            "cells": 2,
            "supported": pytest.approx(5 / 7),
            "clone": 1.0,
            "coverage": 0.8,
            "above": 1.0,
            "estimates": 5,
            "width": pytest.approx(0.2),
        }
    }
    said = page.bars([RESULT, alone])
    assert "| intervals of 95 % cover at least 90 % on eight plants | open | 0 of 1 plants |" in said
    whole = [{**RESULT, "plant": plant} for plant in table.DEVELOPMENT + table.OTHERS for _ in table.BEHAVIOURS]
    assert "| at most 5 % of lower bounds above the truth | no | 25.0% |" in page.bars(whole)
    assert "| at least 40 % of policies supported on eight plants | yes | 9 of 9 plants |" in page.bars(whole)
    # No plant may be wide.
    wide = [{**one, "policies": [row(0.0, -90.0, 90.0), *RESULT["policies"][1:2]]} for one in whole]
    asked = "| median width at most half the spread of true values |"
    for number, met in ((0, "yes | 9 of 9"), (3, "no | 8 of 9")):
        assert f"{asked} {met} plants, 0.20 over all estimates |" in page.bars([*wide[:number], *whole[number:]])


def test_peers_are_held_to_the_same_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    (tmp_path / "peers").mkdir()
    theirs = {"values": [9.0, 4.0, 3.0, 2.0, 1.0]}
    (tmp_path / "peers" / "double_mass-pid.json").write_text(json.dumps(theirs))
    said = page.beside_peers([RESULT])
    # By hand: ours has the order of the truth but for the last, whose estimate of 0 ties with the first; theirs is the
    # reverse, so that its best is the worst.
    assert "| double_mass | pid | supported 4 | 1.00 | -1.00 | 0.20 | 1.00 |" in said
    assert "| double_mass | pid | all 5 |" in said


def test_plants_of_the_study_have_seeds_of_their_own() -> None:
    plants, behaviours = table.DEVELOPMENT + table.OTHERS, table.BEHAVIOURS
    seeds = {(plant, behaviour): table.seed_of(plant, behaviour) for plant in plants for behaviour in behaviours}
    fresh = [seed for (plant, _), seed in seeds.items() if plant in table.OTHERS]
    assert len(set(fresh)) == len(fresh) == 18
    assert 0 not in fresh


def test_a_study_goes_on_with_the_cells_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    table.path_of("double_mass", "pid").write_text(json.dumps(RESULT))
    left = list(table.missing(["double_mass", "power_grid"], ["pid", "mixed"]))
    assert left == [("power_grid", "pid"), ("double_mass", "mixed"), ("power_grid", "mixed")]
    assert "26 of 27 cells are not run yet." in page.page()


@pytest.mark.slow
def test_a_small_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cell("chemical_reactor", "pid", Home(tmp_path), SMALL, peers=tmp_path / "peers" / "logs.npz")
    names = [one["policy"] for one in found["policies"]]
    assert len(names) >= 20
    assert len(set(names)) == len(names)
    assert names[0] == "bc"
    # Every number is one or null: what is kept can be read by any JSON reader.
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert table.summary(found)["policies"] == len(names)
    # Another study of the same episodes trains nothing, and comes to the same numbers.
    monkeypatch.setattr(policies, "candidates", None)
    again = cell("chemical_reactor", "pid", Home(tmp_path), SMALL)
    assert again["policies"] == found["policies"]
    # What peers are given: a policy is its actions on the logs, in the order of the names.
    logs = np.load(tmp_path / "peers" / "logs.npz")
    assert logs["next_action"].shape == (len(names), len(logs["reward"]), 1)
    assert logs["initial_action"].shape == (len(names), len(logs["starts"]), 1)
    assert np.abs(logs["next_action"]).max() <= 1
