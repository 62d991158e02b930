"""A population in processes is the population of one program, and what was found faster is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs.home import Home
from tasks.adapters.bundle import load_bundle
from tasks.population import faster
from tasks.train import train
from tests.small_data import reactor_dataset, reactor_run

BC = {"algorithm": "bc", "hyperparameters": {"hidden": [8]}, "checkpoint_every": 10}


def test_members_in_processes_are_those_of_one_program(tmp_path: Path) -> None:
    """To 1e-5 after 40 updates."""
    reference = reactor_dataset(Home(tmp_path / "home"), tmp_path, 0.1)
    together = train(Home(tmp_path / "one"), reactor_run(train=BC), reference)
    assert not together["way"]["processes"]
    assert "too few to try" in together["way"]["reason"]
    home, settings = Home(tmp_path / "several"), BC | {"members": "processes"}
    apart = train(home, reactor_run(train=settings), reference)
    assert apart["way"] == {"processes": True, "reason": "the run's configuration says so"}
    with np.load(together["curves_path"]) as one, np.load(apart["curves_path"]) as other:
        for name in one:
            np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)
    for a, b in zip(together["members"], apart["members"], strict=True):
        assert (a["seed"], a["hyperparameters"]) == (b["seed"], b["hyperparameters"])
        _close(load_bundle(Path(a["path"]), a["digest"])[1].policy, load_bundle(Path(b["path"]), b["digest"])[1].policy)
    # Both know of the same population, whatever the way.
    assert Path(apart["path"]).name == Path(together["path"]).name


@pytest.mark.parametrize(
    ("members", "cores", "rate", "processes"),
    # 8 members in 2 at a time are 4 rounds of 1000 s at 100 updates/s: 4010 s are less than 5000, 5010 are not.
    [(8, 2, 100.0, True), (8, 2, 80.0, False), (9, 2, 100.0, False), (8, 8, 22.0, True), (1, 1, 19.0, False)],
)
def test_the_choice_worked_by_hand(members: int, cores: int, rate: float, processes: bool) -> None:
    way = faster(members, cores, 100_000, together=5000.0, rate=rate, start=10.0)
    assert way.processes == processes
    assert f"{members} members take 5000 s in one program" in way.reason


def _close(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
