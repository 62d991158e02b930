"""The study of hidden plants: verdicts and differences by hand, and trainings against those of a run."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.transfer.cell import Simulator, Study, by_chance, refusing, verdict
from benchmarks.transfer.hidden import HIDDEN, KNOWN, Edge, difference_of, nominal
from benchmarks.transfer.page import measured, runs
from neorl_core.online import LEARNERS
from neorl_core.online.learner import Setting, without_rows
from neorl_core.plants import PLANTS
from neorl_core.safety.shield import ShieldParams, default_shield
from neorl_core.training import loop
from neorl_core.training.population import Member, init_population, policies


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"gate": "", "low": 0.1, "gain": 0.2}, "beats"),
        ({"gate": "", "low": -0.1, "gain": 0.2}, "ties"),
        ({"gate": "", "low": -1.2, "gain": -1.0}, "ties"),
        ({"gate": "", "low": -1.2, "gain": -1.1}, "worse"),
        ({"gate": "simulator", "low": 0.1, "gain": 0.2}, "refused"),
    ],
)
def test_verdicts(row: dict[str, Any], expected: str) -> None:
    assert verdict(row) == expected


def test_more_violations_by_chance() -> None:
    # P(K >= 5) for 6 tosses of a coin: (6 + 1) / 64.
    assert by_chance(5, 1) == pytest.approx(7 / 64)
    assert by_chance(0, 0) == 1.0
    assert by_chance(0, 4) == 1.0


def test_gates_on_rollouts_refuse_in_order() -> None:
    passed = {"low": 0.1, "violations": 0, "tuned_violations": 0, "episodes": 2_048}
    assert refusing(passed, 1e-3) == ""
    assert refusing(passed | {"low": 0.0}, 1e-3) == "rollouts"
    assert refusing(passed | {"low": math.nan}, 1e-3) == "rollouts"
    # At p0 = 1e-3, at least 6 violations have the probability 0.018, at least 5 have 0.057.
    assert refusing(passed | {"violations": 5}, 1e-3) == ""
    assert refusing(passed | {"violations": 6}, 1e-3) == "statistical"
    assert refusing(passed | {"violations": 6, "tuned_violations": 6}, 1e-3) == "fallback"


@pytest.mark.parametrize(
    ("hidden", "reaction", "cooling"),
    [
        ("edge A+ B-", 1.01, 0.99),
        ("edge A- B+", 0.99, 1.01),
        ("beyond A+", 1.01 * 1.1, 1.0),
        ("beyond B-", 1.0, 0.99 * 0.9),
        ("beyond A- B+", 0.99 * 0.9, 1.01 * 1.1),
        ("lag, dead band", 1.0, 1.0),
    ],
)
def test_constants_of_hidden_plants(hidden: str, reaction: float, cooling: float) -> None:
    found = difference_of(KNOWN["chemical_reactor"], hidden)
    assert float(found.factors["reaction_rate"]) == pytest.approx(reaction)
    assert float(found.factors["cooling_rate"]) == pytest.approx(cooling)
    assert float(found.lag) == (1.0 if "lag" in hidden else 0.0)
    assert float(found.dead_band) == pytest.approx(0.02 if "dead band" in hidden else 0.0)


def test_every_known_plant_learns_in_the_simulator() -> None:
    assert set(measured(runs())) == set(KNOWN)
    assert len(set(HIDDEN)) == 10


@pytest.mark.parametrize("name", KNOWN)
def test_the_ends_of_the_ranges_are_those_of_the_operating_domain(name: str) -> None:
    plant, known = PLANTS[name], KNOWN[name]
    keys = jax.random.split(jax.random.key(0), 2_000)
    for edge in known.edges:
        usual = np.asarray(getattr(plant.params, edge.name))

        def factors(key: jax.Array, domain: Any, edge: Edge = edge, usual: np.ndarray = usual) -> jax.Array:
            return jnp.asarray(getattr(plant.sample_params(key, domain), edge.name)) / usual

        drawn = jax.vmap(factors, (0, None))(keys, plant.domain)
        width = edge.high - edge.low
        assert float(drawn.min()) == pytest.approx(edge.low, abs=0.01 * width + 1e-6)
        assert float(drawn.max()) == pytest.approx(edge.high, abs=0.01 * width + 1e-6)
        fixed = jax.vmap(factors, (0, None))(keys, nominal(known, plant.domain))
        np.testing.assert_allclose(fixed, 1.0, rtol=1e-6)


@pytest.mark.slow
def test_a_training_of_the_study_equals_a_training_of_a_run() -> None:
    study = Study(runs()["chemical_reactor"], episodes=8, updates=8)
    plant, signals = study.plant, study.plant.spec.observation
    narrow = (signals.low, (1.5, 325.0, 310.0, 1.5))
    shield = default_shield(plant.spec, envelope=narrow)
    # The first training shares its updates before the shield acts with the second.
    study.train(study.standard, default_shield(plant.spec))
    found = study.train(study.standard, shield)
    setting = Setting(plant._replace(domain=study.domain), shield, study.normaliser, study.config)
    learner = LEARNERS["analytic_gradient"].bind(setting)
    fresh = init_population(learner, plant.spec, study.config, [Member(0, study.run.seed, {})])
    trained = loop.train(learner, fresh, without_rows(plant.spec), study.plan, 1, limit=math.inf)
    (policy,) = policies(learner, trained.population, study.normaliser)
    assert found.policy is not None
    for ours, theirs in zip(jax.tree.leaves(found.policy.params), jax.tree.leaves(policy.params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4)
    assert isinstance(found.shield, ShieldParams)
    np.testing.assert_array_equal(found.shield.observation_high, shield.observation_high)


@pytest.mark.slow
def test_the_identification_finds_constants_of_a_hidden_plant() -> None:
    study = Study(runs()["chemical_reactor"], episodes=8, updates=8)
    logs = study.logs("beyond A- B+")
    simulator, found = study.identified(logs.training)
    assert found["estimates"]["reaction_rate"] == pytest.approx([0.99 * 0.9], rel=0.01)
    assert found["estimates"]["cooling_rate"] == pytest.approx([1.01 * 1.1], rel=0.01)
    assert not study.explained(logs.held_out, study.standard)[0]
    assert study.explained(logs.held_out, simulator)[0]
    assert isinstance(simulator, Simulator)
