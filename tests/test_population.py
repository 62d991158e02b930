"""A population in processes is the population of one program, and what was found faster is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.home import Home
from tasks import population
from tasks.adapters.bundle import load_bundle
from tasks.train import train
from tests.small_data import reactor_dataset, reactor_run

BC = {"algorithm": "bc", "hyperparameters": {"hidden": [8]}, "checkpoint_every": 10}


def test_members_in_processes_are_those_of_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To 1e-5 after 40 updates. Here any trial pays and any time of processes is the better one."""
    reference = reactor_dataset(Home(tmp_path / "home"), tmp_path, 0.1)
    together = train(Home(tmp_path / "one"), reactor_run(train=BC), reference)
    assert together["way"] == {"processes": False, "reason": together["way"]["reason"]}
    assert "too few to try" in together["way"]["reason"]
    monkeypatch.setattr(population, "TRIAL_PAYS", 0.0)
    monkeypatch.setattr(population, "TRIAL_SECONDS", 0.1)
    monkeypatch.setattr(population, "MARGIN", 0.0)
    monkeypatch.setattr(population, "cores", lambda: population.os.sched_getaffinity(0) and [0, 1])
    told: list[int] = []
    apart = train(Home(tmp_path / "several"), reactor_run(train=BC), reference, lambda done, *_: told.append(done))
    assert apart["way"]["processes"]
    assert "2 members take" in apart["way"]["reason"]
    assert "in processes on 2 cores" in apart["way"]["reason"]
    with np.load(together["curves_path"]) as one, np.load(apart["curves_path"]) as other:
        for name in one:
            np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)
    for a, b in zip(together["members"], apart["members"], strict=True):
        assert (a["seed"], a["hyperparameters"]) == (b["seed"], b["hyperparameters"])
        _close(load_bundle(Path(a["path"]), a["digest"])[1].policy, load_bundle(Path(b["path"]), b["digest"])[1].policy)
    # Once more: the way was written down, and nothing is left to do.
    monkeypatch.setattr(population, "_measured", None)
    again = train(Home(tmp_path / "several"), reactor_run(train=BC), reference)
    assert (again["digest"], again["way"]) == (apart["digest"], apart["way"])
    found = list((tmp_path / "several" / "checkpoints").rglob("way.json"))
    assert json.loads(found[0].read_text()) == apart["way"]


def _close(one: Any, other: Any) -> None:
    import jax

    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
