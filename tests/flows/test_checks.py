"""A run's file is refused where it says what its plant has no use for."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import BadInput
from flows.checks import checked_run
from tests import small_process


@pytest.mark.parametrize(
    ("key", "text"),
    [("fallback", "{kind: hold}"), ("support", "{quantile: 0.9}"), ("shadow", "{days: 7}")],
)
def test_a_simulated_plant_has_no_use_for_the_keys_of_a_process(key: str, text: str, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("plant: chemical_reactor\n")
    assert checked_run(config).plant == "chemical_reactor"
    config.write_text(f"plant: chemical_reactor\n{key}: {text}\n")
    with pytest.raises(BadInput, match=f"expected no '{key}' in .*, which has a simulator and its own controller"):
        checked_run(config)


@pytest.mark.parametrize(
    ("key", "text"), [("certify", "certify: {p0: 0.01}\n"), ("evaluate.rollouts", "evaluate: {rollouts: 256}\n")]
)
def test_a_process_has_no_use_for_the_keys_of_a_simulator(key: str, text: str, tmp_path: Path) -> None:
    config = small_process.project(tmp_path)
    assert checked_run(config).plant == small_process.NAME
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("evaluate:")) + text)
    with pytest.raises(BadInput, match=f"expected no '{key}' in .*, which has no simulator: leave it out"):
        checked_run(config)
