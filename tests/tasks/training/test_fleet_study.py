"""The study of a fleet: table and criteria, missing cells, and small cells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.fleet_study import page
from benchmarks.fleet_study.cell import METHODS, SETTINGS, SMALL, cell
from benchmarks.fleet_study.fleet import LEARNING, PLANT, SPREAD, UNSEEN, logs, reactors, scores
from neorl_core.federated.aggregate import Aggregate, median, trimmed_mean, weighted_mean
from neorl_core.federated.federate import federate
from neorl_core.plants import chemical_reactor as reactor
from neorl_core.types import Transition


def made(method: str, episodes: int, learning: Sequence[float]) -> dict[str, Any]:
    fleet = {"sites": list(learning), "violated": 0.25}
    known = {"seed": 0, "commit": "0123456789abcdef"}
    return {"way": method, "episodes": episodes, "learning": fleet, "unseen": fleet, "cpu_seconds": 12.0, **known}


def cells(*found: dict[str, Any]) -> Mapping[tuple[str, int], Mapping[str, Any]]:
    return {(each["way"], each["episodes"]): each for each in found}


def test_table_and_criteria() -> None:
    every = [made(method, 20, [70.0, 80.0]) for method in METHODS if method not in ("pooled", "fedavg")]
    found = cells(*every, made("pooled", 20, [79.0, 81.0]), made("fedavg", 20, [70.0, 84.0]), made("local", 2, [-5.0]))
    assert "| fedavg | 20 | 77.0 | 70.0 | 77.0 | 70.0 | 12 |" in page.table(found)
    lines = page.criteria(found).splitlines()
    assert lines[2] == "| fine-tuned at least pooled, 2 episodes | open |  |"
    assert lines[3] == "| best federated at least 95 % of pooled, 20 episodes | yes | 77.0 and 80.0 |"
    assert lines[4] == "| fine-tuned at least pooled, 20 episodes | no | 75.0 and 80.0 |"
    assert lines[5] == "| best federated at least 95 % of pooled, 200 episodes | open |  |"
    text = page.page(found)
    assert "Every number is from one run" in text
    assert "Commits: 0123456." in text


def test_missing_cells_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    page.path_of("local", 20).write_text(json.dumps(made("local", 20, [1.0])))
    assert list(page.missing(["local", "pooled"], [2, 20])) == [("pooled", 20), ("local", 2), ("pooled", 2)]
    assert list(page.kept()) == [("local", 20)]


def test_committed_page_equals_the_kept_cells() -> None:
    assert page.PAGE.read_text() == page.page(page.kept())


def test_sites_differ_within_the_spread() -> None:
    one, other = (reactors(20, fleet) for fleet in (LEARNING, UNSEEN))
    for name in ("reaction_rate", "cooling_rate"):
        ratio = np.asarray(getattr(one, name)) / float(getattr(reactor.NOMINAL, name))
        assert abs(ratio - 1).max() <= SPREAD * 1.001
        assert ratio.std() > SPREAD / 4
        assert not np.isin(getattr(other, name), getattr(one, name)).any()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "fine-tuned", "scaffold"])
def test_small_cell(method: str) -> None:
    found = cell(method, 2, SMALL)
    assert found["rows"] > 0
    for fleet in ("learning", "unseen"):
        assert len(found[fleet]["sites"]) == SMALL.sites
        assert np.isfinite(found[fleet]["sites"]).all()
    assert cell(method, 2, SMALL)["learning"] == found["learning"]


def attacked(aggregate: Aggregate) -> Aggregate:
    """Make two of twelve sites send their update times -3."""

    def aggregated(stacked: Any, weights: jax.Array) -> Any:
        return aggregate(jax.tree.map(lambda x: x.at[jnp.array([3, 8])].multiply(-3.0), stacked), weights)

    return aggregated


@pytest.mark.slow
def test_median_and_trimmed_mean_withstand_two_hostile_sites() -> None:
    constants = reactors(12, LEARNING)
    sites = logs(constants, 2, 0)

    def learned(aggregate: Aggregate) -> float:
        settings = SETTINGS | {"hidden": (32, 32)}
        found = federate(
            sites,
            PLANT.spec,
            aggregate=aggregate,
            rounds=20,
            updates=100,
            batch_size=64,
            overrides=settings,
        )
        return float(np.mean(scores([found.policy] * 12, constants, 16).sites))

    clean = learned(weighted_mean)
    assert clean > 0
    assert learned(attacked(median)) > 0.95 * clean
    assert learned(attacked(trimmed_mean(0.2))) > 0.95 * clean
    assert learned(attacked(weighted_mean)) < 0.95 * clean


def test_longer_logs_begin_with_the_shorter_ones() -> None:
    constants = reactors(1, LEARNING)
    few, more = logs(constants, 1, 0)[0], logs(constants, 3, 0)[0]
    first: Transition = jax.tree.map(lambda x: x[: len(few.reward)], more)
    np.testing.assert_array_equal(first.observation, few.observation)
    assert len(more.reward) > 2 * len(few.reward) * 0.9
