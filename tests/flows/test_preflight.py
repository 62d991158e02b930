"""Refused runs: useless keys, unfit data, and no champion."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from flows.flow_run import conclude, proceed
from flows.preflight import checked_run
from tasks.references import Outcome, Validation
from tests import small_process
from tests.small_data import reactor_run


@pytest.mark.parametrize(
    ("key", "text"),
    [("fallback", "{kind: hold}"), ("support", "{quantile: 0.9}"), ("shadow", "{days: 7}")],
)
def test_log_only_keys_are_rejected_for_simulated_plants(key: str, text: str, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("plant: chemical_reactor\n")
    assert checked_run(config).plant == "chemical_reactor"
    config.write_text(f"plant: chemical_reactor\n{key}: {text}\n")
    with pytest.raises(BadInput, match=f"'{key}' has no effect in .* has a simulator and its own controller"):
        checked_run(config)


@pytest.mark.parametrize(
    ("key", "text"), [("certify", "certify: {p0: 0.01}\n"), ("evaluate.rollouts", "evaluate: {rollouts: 256}\n")]
)
def test_simulator_keys_are_rejected_for_log_only_plants(key: str, text: str, tmp_path: Path) -> None:
    config = small_process.project(tmp_path)
    assert checked_run(config).plant == small_process.NAME
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("evaluate:")) + text)
    with pytest.raises(BadInput, match=f"'{key}' has no effect in .* has no simulator: remove the key"):
        checked_run(config)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("ships: best", "train.ships is best, which compares checkpoints by logs"),
        ("best_episodes: 0.5", "best_episodes is 0.5, which selects episodes of logs"),
        ("updates: 1", "the warm-up alone needs"),
        ("hyperparameters: {margin: 0.0}", "margin of analytic_gradient must be above 0"),
        ("grid: {margin_weight: [-1.0]}", "margin_weight of analytic_gradient must be at least 0"),
        ("hyperparameters: {episode: 9}", "unknown hyper-parameter 'episode' of analytic_gradient"),
    ],
)
def test_learners_in_the_simulator_are_checked(settings: str, said: str, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"plant: chemical_reactor\ntrain: {{algorithm: analytic_gradient, {settings}}}\n")
    with pytest.raises(BadInput, match=said):
        checked_run(config)


def test_learners_in_the_simulator_need_continuous_actions_and_a_simulator(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("plant: pumping_station\ntrain: {algorithm: analytic_gradient}\n")
    with pytest.raises(BadInput, match="cannot learn the discrete actions of pumping_station"):
        checked_run(config)
    config = small_process.project(tmp_path)
    text = re.sub(r"algorithm: \w+", "algorithm: analytic_gradient", config.read_text())
    config.write_text(text)
    with pytest.raises(BadInput, match=r"analytic_gradient learns in the simulator, but .* has no simulator"):
        checked_run(config)


def test_failed_validation_stops_the_run() -> None:
    proceed(Validation(passed=True, reasons=()))
    with pytest.raises(Refused, match="failed validation: too few; too flat"):
        proceed(Validation(passed=False, reasons=("too few", "too flat")))


def test_a_run_without_champion_is_a_refusal(tmp_path: Path) -> None:
    outcome = Outcome(
        run="1",
        run_key="k",
        plant="chemical_reactor",
        verdict="refused",
        headline="Not even the plant's own controller is certified.",
        gates=(),
        population="p",
        dataset="d",
        links={"report": "report.html"},
    )
    with pytest.raises(Refused, match=r"^Not even the plant's own controller is certified: read report.html\.$"):
        conclude(Home(tmp_path), reactor_run(), outcome)
