"""The study of retraining: statistics by hand and beside rliable, missing runs, and a small run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.ope_study import table as ope_table
from benchmarks.study import page, table
from benchmarks.study.cell import SMALL, one_run
from configs.home import Home

# Drawn once, normal(60, 25) with seed 7: five runs of nine tasks.
SCORES = [
    [60.0, 67.5, 53.1, 37.7, 48.6, 35.2, 61.5, 93.5, 47.7],
    [44.5, 72.2, 68.9, 62.6, 36.7, 59.3, 77.4, 26.4, 48.6],
    [12.5, 27.8, 14.0, 54.1, 28.3, 66.8, 63.9, 55.3, -2.9],
    [46.5, 58.8, 62.8, 21.7, 48.1, 35.5, 39.8, 86.5, 39.8],
    [59.2, 82.1, 45.4, 57.2, 62.8, 61.6, 29.4, 61.9, 94.0],
]


def test_interquartile_mean_and_interval_equal_those_of_rliable() -> None:
    """rliable 1.2.0: aggregate_iqm 52.78695652, 50,000 resamples 46.42597826 to 57.93478261."""
    found = table.stratified_interval(np.transpose(SCORES).tolist())
    assert found.value == pytest.approx(52.78695652, abs=1e-8)
    assert (found.lower, found.upper) == pytest.approx((46.426, 57.935), abs=0.25)


def test_no_interval_if_a_task_has_too_few_runs() -> None:
    """Resampling a single run would hide the variation between runs."""
    tasks = np.transpose(SCORES).tolist()
    tasks[3] = tasks[3][:2]
    found = table.stratified_interval(tasks)
    assert found.value == pytest.approx(table.interquartile_mean([score for task in tasks for score in task]))
    assert np.isnan([found.lower, found.upper]).all()


def member(score: float, lower: float | None, supported: bool = True, algorithm: str = "iql") -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "hyperparameters": {},
        "score": score,
        "lower": lower,
        "estimate": lower,
        "gain": None if lower is None else lower - 5.0,
        "supported": supported,
        "reason": "" if supported else "it leaves the data",
        "outside": 0.1 if supported else 0.5,
    }


def run(
    seed: int,
    gain: float,
    error: float = 1.0,
    supported: bool = True,
    claimed: tuple[float | None, float] = (-1.0, 1.0),
    expected: float | None = 0.5,
) -> dict[str, Any]:
    members = [member(80.0, 3.0, algorithm="bptt"), member(70.0 + gain, 4.0, supported), member(20.0, None, False)]
    return {
        "seed": seed,
        "seconds": 30.0 + seed,
        # The second run shared its core: by the clock it took longer than it computed.
        "cpu_seconds": 60.0 if seed % 2 == 0 else 20.0,
        "selected": 1,
        "supported": supported,
        "claimed": list(claimed),
        "expected": expected,
        "members": members,
        "scores": {"behaviour": 70.0, "controller": 90.0},
        "gains": {"behaviour": [gain, error], "controller": [gain - 20.0, error]},
        "commit": "0123456789abcdef",
    }


def cell(behaviour: str, *runs: dict[str, Any]) -> dict[str, Any]:
    return {"plant": "double_mass", "behaviour": behaviour, "runs": list(runs)}


def test_statistics_of_a_cell() -> None:
    """By hand: two runs have an interval over episodes, five have one over runs."""
    two = table.summary(cell("pid", run(0, 2.0), run(1, 4.0)))
    assert (two.runs, two.refused, two.score, two.behaviour, two.controller) == (2, 0, 73.0, 70.0, 90.0)
    half = 1.96 * np.sqrt(2) / 2
    assert two.over_behaviour == pytest.approx((3.0, 3.0 - half, 3.0 + half))
    assert two.over_controller.value == pytest.approx(-17.0)
    assert (two.regret, two.seconds) == (7.0, 30.0)
    five = table.summary(cell("medium", *(run(i, float(i)) for i in range(5))))
    # Student's t with four degrees of freedom, 2.7764, times the standard error of 0 .. 4, sqrt(2.5 / 5).
    half = 2.7764 * np.sqrt(0.5)
    assert five.over_behaviour == pytest.approx((2.0, 2.0 - half, 2.0 + half), abs=1e-3)
    # An unsupported run ships nothing and counts in no score.
    refused = table.summary(cell("pid", run(0, -50.0, supported=False), run(1, 4.0)))
    assert (refused.refused, refused.refuses, refused.over_behaviour.value, refused.score) == (1, False, 4.0, 74.0)
    # With one of five refused, the interval is still over runs.
    four = table.summary(cell("medium", *(run(i, float(i), supported=i != 2) for i in range(5))))
    assert four.over_behaviour.upper - four.over_behaviour.value > 2
    # Neither does a run without an expected gain. Every supported run has an expectation.
    gainless = table.summary(
        cell("pid", run(0, -50.0, expected=0.0), run(1, 4.0), run(2, 9.0, supported=False, expected=None))
    )
    assert (gainless.unsupported, gainless.gainless, gainless.refused, gainless.refuses) == (1, 1, 2, True)
    assert gainless.over_behaviour.value == 4.0
    assert "| pid | 3 | 1 | 1 | 70.0 |" in page.cells({("double_mass", "pid"): gainless})
    refusing = cell("pid", run(0, -50.0, expected=0.0), run(1, 4.0))
    assert "| pid | 1 | 1 | 74.0 |" in page.together([refusing])
    none = table.summary(cell("pid", run(0, -50.0, supported=False)))
    assert none.refuses
    assert np.isnan(none.over_behaviour.value)
    assert np.isnan(none.regret)


def test_page_counts_proven_gains_that_are_true() -> None:
    """A run with a lower bound above 0 counts if it is not refused."""
    some = (0.1, 2.0)
    runs = (
        run(0, 5.0, claimed=some),
        run(1, -5.0, claimed=some),
        run(2, 5.0),
        run(3, 5.0, supported=False, claimed=some),
    )
    found = table.summary(cell("medium", *runs, run(4, 5.0, claimed=(None, 1.0))))
    assert (found.shown, found.shown_rightly) == (2, 1)
    assert "2 runs pass; 1 of them score above" in " ".join(page.page([cell("medium", *runs)]).split())


def test_selection_is_that_of_the_pipeline() -> None:
    members = run(0, 1.0)["members"]
    assert table.select(members)["lower"] == 4.0
    assert table.select(members[2:]) == members[2]
    # Members with a proven gain come first; among them the highest value wins.
    sure = [member(1.0, 2.0) | {"gain": 0.5, "estimate": value} for value in (2.1, 2.9)]
    assert table.select([*members, *sure]) is sure[1]
    assert table.select([*members, member(1.0, 3.0) | {"gain": -0.5}])["gain"] == -0.5
    # A member without a number never comes first.
    unknown = member(1.0, 9.0) | {"gain": None}
    for pair in ([unknown, members[1]], [members[1], unknown]):
        assert table.select(pair) is members[1]
    unsupported = [member(1.0, None, False) | {"outside": share} for share in (0.6, 0.3)]
    assert table.select(unsupported)["outside"] == 0.3
    assert table.model_free(run(0, 1.0))["algorithm"] == "iql"


def test_criteria_are_open_until_every_run_exists() -> None:
    text = page.page([cell("medium", *(run(i, -9.0 + 0.1 * i) for i in range(5)))])
    assert "| no cell is below the logged controller | open | double_mass medium |" in text
    assert "| double_mass | medium | 5 | 0 | 0 | 70.0 | 90.0 | 61.2 | -8.8 [-9.0, -8.6] | -28.8" in text
    two = page.cells({("double_mass", "pid"): table.summary(cell("pid", run(0, 9.0), run(1, 9.0)))})
    assert "] | 1.0 | 30 |" in two
    every = [
        {"plant": plant, "behaviour": behaviour, "runs": [run(i, 30.0) for i in range(table.RUNS[behaviour])]}
        for plant in page.PLANTS
        for behaviour in page.BEHAVIOURS
    ]
    whole = page.page(every)
    assert "| open |" not in whole
    assert "| at most 4 cells refuse most of their runs | yes | none |" in whole
    assert "| medium logs: above the tuned controller on five plants | yes | chemical_reactor, hvac" in whole
    shown = page.page([cell("official", *(run(1000 + i, 21.0) for i in range(10)))])
    assert "| selected member | 91.0 to 91.0 | above 90 | 10 of 10 runs |" in shown
    assert "above 76 | 10 of 10 runs" in shown
    refused = [run(i, 30.0, supported=False) for i in range(10)]
    assert "above 90 | 0 of 10" in page.page([cell("official", *refused)])
    nothing = page.page([cell("medium", *refused[:5])])
    assert "| mean regret at most 5 points, largest at most 15 | open | nan and nan |" in nothing
    assert "| double_mass | medium | 5 | 5 | 0 | – | – | – |" in nothing


def test_missing_runs_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    (tmp_path / "double_mass-pid.json").write_text(json.dumps(cell("pid", run(0, 1.0))))
    plants = ("double_mass", "hvac_control")
    found = []
    # Like the study, write each run before asking for the next.
    for plant, behaviour, seed in table.missing(plants, ["pid"]):
        found.append((plant, seed))
        runs = [*table.runs_of(plant, behaviour), run(seed, 1.0)]
        table.path_of(plant, behaviour).write_text(json.dumps({"plant": plant, "behaviour": behaviour, "runs": runs}))
    later = table.seed_of("double_mass", "pid", 1)
    assert found == [("hvac_control", 0), ("double_mass", later), ("hvac_control", 1)]
    seeds = [
        table.seed_of(plant, behaviour, number)
        for plant in table.OTHERS
        for behaviour in table.BEHAVIOURS
        for number in range(table.RUNS[behaviour])
    ]
    assert len(set(seeds)) == len(seeds)
    others = [ope_table.seed_of(plant, behaviour) for plant in table.OTHERS for behaviour in table.BEHAVIOURS]
    assert min(seeds) > max(others)


@pytest.mark.slow
def test_small_run_from_episodes_to_scores(tmp_path: Path) -> None:
    found = one_run("chemical_reactor", "medium", 3, Home(tmp_path / "home"), SMALL)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [one["algorithm"] for one in found["members"]] == ["iql", "td3_bc"]
    assert table.select(found["members"]) is found["members"][found["selected"]]
    assert 30 < found["scores"]["behaviour"] < 55
    score = found["members"][found["selected"]]["score"]
    # Means over the same episodes.
    assert found["gains"]["controller"][0] == pytest.approx(score - found["scores"]["controller"])
    assert found["gains"]["behaviour"][0] == pytest.approx(score - found["scores"]["behaviour"])
