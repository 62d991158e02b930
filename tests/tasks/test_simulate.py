"""Rollouts for the record: paired differences that are exactly zero where they must be, whatever the order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import Refused
from configs.home import Home
from neorl_core.networks import Normaliser, Policy, actor_init
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import Composite, make_composite
from neorl_core.safety.shield import default_shield
from tasks.simulate import simulate
from tasks.training.train import keep_bundle
from tests.small_data import PLANT, reactor_run


def policy(seed: int) -> Policy:
    """An untrained actor, centred where the reactor is run."""
    spec = PLANTS[PLANT].spec
    normaliser = Normaliser(
        mean=jnp.asarray([0.877, 324.5, 298.5, 0.877]),
        scale=jnp.asarray([0.01, 1.0, 1.0, 0.01]),
        action_centre=jnp.asarray([300.0]),
        action_half_range=jnp.asarray([2.0]),
    )
    return Policy(actor_init(jax.random.key(seed), spec.observation.size, spec.action.size, (8,)), normaliser)


def never_trusted() -> Composite:
    """A policy that no observation lets act: the plant's own controller in all but name."""
    plant = PLANTS[PLANT]
    nowhere = jnp.full(plant.spec.observation.size, 1e9)
    return make_composite(plant, policy(9), default_shield(plant.spec, envelope=(nowhere, nowhere + 1)))


def population(home: Home, composites: list[Composite]) -> dict[str, Any]:
    entries = [{"index": i, **keep_bundle(home, composite, PLANT)} for i, composite in enumerate(composites)]
    return {"members": entries, "digest": "/".join(entry["digest"] for entry in entries)}


@pytest.fixture
def members() -> list[Composite]:
    """Two policies, and one that never acts."""
    return [*(make_composite(PLANTS[PLANT], policy(seed)) for seed in (0, 1)), never_trusted()]


def test_a_candidate_that_is_the_plants_controller_differs_by_nothing(tmp_path: Path, members: list[Composite]) -> None:
    home, told = Home(tmp_path), []
    found = simulate(home, reactor_run(), population(home, members), 2, None, lambda *args: told.append(args))
    assert found["differences"] == {"plant controller": {"value": 0.0, "lower": 0.0, "upper": 0.0}}
    candidate, plant = (found["controllers"][name] for name in ("candidate", "plant controller"))
    assert candidate["return"] == plant["return"]
    assert candidate["violated"] == plant["violated"] == 0
    assert (candidate["episodes"], candidate["handovers_per_episode"]) == (16, 1.0)
    assert plant["handovers_per_episode"] == 0.0
    assert told == [(i, 5, "controllers") for i in range(1, 6)]
    with np.load(found["trajectories"]) as traces:
        assert np.all(traces["candidate/handed_over"])
        np.testing.assert_array_equal(traces["candidate/observations"], traces["plant controller/observations"])


def test_the_order_of_members_changes_nothing(tmp_path: Path, members: list[Composite]) -> None:
    home, run = Home(tmp_path), reactor_run()
    forward = simulate(home, run, population(home, members), 0, None)
    backward = simulate(home, run, population(home, members[::-1]), 2, None)
    assert backward["member_scores"] == forward["member_scores"][::-1]
    for name in ("controllers", "differences", "score"):
        assert backward[name] == forward[name], name
    assert forward["score"] == forward["member_scores"][0]["value"]
    assert simulate(home, run, population(home, members), 0, None) == forward
    with np.load(forward["trajectories"]) as one, np.load(backward["trajectories"]) as other:
        assert set(one) == set(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_the_champion_is_rolled_out_beside_its_challenger(tmp_path: Path, members: list[Composite]) -> None:
    home, run = Home(tmp_path), reactor_run()
    group = population(home, members)
    champion = {key: group["members"][2][key] for key in ("path", "digest")}
    found = simulate(home, run, group, 0, champion)
    # This champion does what the plant's controller does, so the differences from the two agree.
    assert found["differences"]["champion"] == found["differences"]["plant controller"]
    assert found["differences"]["champion"]["value"] != 0
    # A candidate that is champion already is not compared with itself.
    assert "champion" not in simulate(home, run, group, 2, champion)["controllers"]
    with pytest.raises(Refused, match="expected the composite"):
        simulate(home, run, group, 0, {**champion, "digest": group["members"][1]["digest"]})
