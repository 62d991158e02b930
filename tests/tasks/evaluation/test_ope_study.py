"""The study of off-policy evaluation: statistics by hand, missing cells, and a small cell."""

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
    # By hand: of four supported policies three are covered and one lower bound is above the true value. The highest
    # estimate belongs to a policy of value 8; the best of all has value 10 and is unsupported.
    "policies": [
        row(0.0, -1.0, 1.0),
        row(4.0, 4.5, 5.5),
        row(6.0, 5.0, 7.0),
        row(8.0, 7.0, 11.0),
        row(10.0, 0.0, 0.0, supported=False),
    ],
}


def test_statistics_of_a_cell() -> None:
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
    assert "| double_mass | pid | 0.80 | 0.75 | 0.25 | 0.20 | 1.00 | 0.20 |" in page.cells([RESULT])


def test_a_cell_without_support_has_no_numbers() -> None:
    nothing = {**RESULT, "policies": [{**one, "supported": False} for one in RESULT["policies"]]}
    assert table.summary(nothing) == {"policies": 5, "supported": 0.0, "clone": 0.0}
    assert "| 0.00 | – | – | – | – | – |" in page.cells([nothing])
    assert table.by_plant([nothing])["double_mass"]["supported"] == 0.0


def test_statistics_of_a_plant_count_policies_not_cells() -> None:
    # By hand: the second cell has one supported policy, covered and wider than the four of the first.
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
    text = page.criteria([RESULT, alone])
    assert "| 95 % intervals cover at least 90 % on eight plants | open | 0 of 1 plants |" in text
    whole = [{**RESULT, "plant": plant} for plant in table.DEVELOPMENT + table.OTHERS for _ in table.BEHAVIOURS]
    assert "| at most 5 % of lower bounds above the true value | no | 25.0% |" in page.criteria(whole)
    assert "| at least 40 % of policies supported on eight plants | yes | 9 of 9 plants |" in page.criteria(whole)
    # Every plant must have narrow intervals.
    wide = [{**one, "policies": [row(0.0, -90.0, 90.0), *RESULT["policies"][1:2]]} for one in whole]
    criterion = "| median width at most half the range of true values |"
    for number, met in ((0, "yes | 9 of 9"), (3, "no | 8 of 9")):
        assert f"{criterion} {met} plants, 0.20 over all estimates |" in page.criteria(
            [*wide[:number], *whole[number:]]
        )


def test_peers_rank_the_same_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    (tmp_path / "peers").mkdir()
    theirs = {"values": [9.0, 4.0, 3.0, 2.0, 1.0]}
    (tmp_path / "peers" / "double_mass-pid.json").write_text(json.dumps(theirs))
    text = page.beside_peers([RESULT])
    # By hand: our order is the true one, except that the last estimate ties with the first; theirs is reversed.
    assert "| double_mass | pid | supported 4 | 1.00 | -1.00 | 0.20 | 1.00 |" in text
    assert "| double_mass | pid | all 5 |" in text


def test_plants_of_the_study_have_fresh_seeds() -> None:
    plants, behaviours = table.DEVELOPMENT + table.OTHERS, table.BEHAVIOURS
    seeds = {(plant, behaviour): table.seed_of(plant, behaviour) for plant in plants for behaviour in behaviours}
    fresh = [seed for (plant, _), seed in seeds.items() if plant in table.OTHERS]
    assert len(set(fresh)) == len(fresh) == 18
    assert 0 not in fresh


def test_study_continues_with_the_missing_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    table.path_of("double_mass", "pid").write_text(json.dumps(RESULT))
    left = list(table.missing(["double_mass", "power_grid"], ["pid", "mixed"]))
    assert left == [("power_grid", "pid"), ("double_mass", "mixed"), ("power_grid", "mixed")]
    assert "26 of 27 cells are missing." in page.page()


@pytest.mark.slow
def test_small_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cell("chemical_reactor", "pid", Home(tmp_path), SMALL, peers=tmp_path / "peers" / "logs.npz")
    names = [one["policy"] for one in found["policies"]]
    assert len(names) >= 20
    assert len(set(names)) == len(names)
    assert names[0] == "bc"
    # Any JSON reader can read the result: numbers are finite or null.
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert table.summary(found)["policies"] == len(names)
    # Repeating the study on the same episodes trains nothing and gives the same numbers.
    monkeypatch.setattr(policies, "candidates", None)
    again = cell("chemical_reactor", "pid", Home(tmp_path), SMALL)
    assert again["policies"] == found["policies"]
    # The logs for peers contain the actions of every policy, in the order of the names.
    logs = np.load(tmp_path / "peers" / "logs.npz")
    assert logs["next_action"].shape == (len(names), len(logs["reward"]), 1)
    assert logs["initial_action"].shape == (len(names), len(logs["starts"]), 1)
    assert np.abs(logs["next_action"]).max() <= 1
