"""Rank members by rollouts: against an independent sum, and the order by hand."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.home import Home
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import composite_controller, make_composite
from tasks.ranking import RANKING_SEED, _ranked, rank
from tasks.references import Interval, RankedMember, Ranking
from tests.small_data import PLANT, reactor_run
from tests.tasks.test_simulate import never_trusted, policy, population


def ranked(lower: float, violated: int = 0) -> RankedMember:
    gain = Interval(value=lower + 1, lower=lower, upper=lower + 2)
    return RankedMember(score=gain, gain=gain, violated=violated)


@pytest.mark.parametrize(
    ("members", "tuned", "best"),
    [
        ([ranked(0.1), ranked(0.3), ranked(0.2)], 0, 1),
        # More violations than the tuned controller are worse than any loss of score.
        ([ranked(-9.0), ranked(0.3, violated=1)], 0, 0),
        ([ranked(-9.0), ranked(0.3, violated=1)], 1, 1),
        ([ranked(math.nan), ranked(-9.0)], 0, 1),
        ([ranked(0.3, violated=3), ranked(0.1, violated=2)], 0, 0),
    ],
)
def test_the_best_member(members: list[RankedMember], tuned: int, best: int) -> None:
    found = Ranking(members=tuple(members), tuned_violated=tuned, episodes=9)
    assert found.best(range(len(members))) == best
    others = [index for index in range(len(members)) if index != best]
    assert found.best(others) in others


def test_a_member_whose_return_is_not_finite_ranks_last() -> None:
    broken = _ranked(np.array([1.0, np.inf]), np.array([0.0, 0.0]), 0, 0.95)
    worse = _ranked(np.array([-9.0, -8.0]), np.array([0.0, 0.0]), 2, 0.95)
    assert math.isnan(broken.gain.lower)
    assert worse.gain.value == pytest.approx(-8.5)
    assert Ranking(members=(broken, worse), tuned_violated=0, episodes=2).best((0, 1)) == 1


@pytest.mark.slow
def test_members_are_compared_with_the_tuned_controller_on_fresh_episodes(tmp_path: Path) -> None:
    home, run, told = Home(tmp_path), reactor_run(), list[tuple[float, float, str]]()
    plant = PLANTS[PLANT]
    member = make_composite(plant, policy(0))
    group = population(home, [member, never_trusted()])
    found = rank(home, run, group, lambda *args: told.append(args))
    assert told == [(i, 3, "controllers") for i in (1, 2, 3)]
    # The second member never acts, so it is the tuned controller.
    assert found.members[1].gain == Interval(value=0.0, lower=0.0, upper=0.0)
    keys = jax.random.split(jax.random.key(RANKING_SEED), run.evaluate.rollouts)
    ours = rollouts(plant, composite_controller(plant), member, keys, plant.domain)
    low, high = plant.spec.score_range
    points = 100 * (np.asarray(ours.ret, np.float64) - low) / (high - low)
    assert found.members[0].score.value == pytest.approx(points.mean(), rel=1e-9)
    assert found.members[0].violated == int(ours.violated.sum())
    assert found.members[0].gain.value == pytest.approx(points.mean() - found.members[1].score.value, abs=1e-9)
    assert rank(home, run.model_copy(update={"seed": 1}), group) != found
