"""Rollouts: paired differences that are exactly zero where they must be; and how the simulator predicts logs."""

from __future__ import annotations

from pathlib import Path

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
from tasks.gates import judge
from tasks.references import Champion, Dataset, Evaluation, Interval, Population
from tasks.simulate import simulate, validate_simulator
from tasks.training.train import keep_bundle
from tests.judged import evidence
from tests.small_data import PLANT, altered, reactor_dataset, reactor_run, untrained


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


def population(home: Home, composites: list[Composite]) -> Population:
    return untrained([keep_bundle(home, composite, PLANT) for composite in composites], home.root)


def selecting(selected: int) -> Evaluation:
    """An evaluation that says no more than which member it selects."""
    nothing = Interval(value=0.0, lower=0.0, upper=0.0)
    return Evaluation(
        selected=selected,
        members=(),
        behaviour=nothing,
        difference=nothing,
        supported=True,
        discount=0.95,
        episodes=1,
    )


@pytest.fixture
def members() -> list[Composite]:
    """Two policies, and one that never acts."""
    return [*(make_composite(PLANTS[PLANT], policy(seed)) for seed in (0, 1)), never_trusted()]


@pytest.mark.slow
def test_a_candidate_that_is_the_plants_controller_differs_by_nothing(
    tmp_path: Path, dataset: Dataset, members: list[Composite]
) -> None:
    home, told = Home(tmp_path), []
    found = simulate(
        home,
        reactor_run(),
        dataset,
        population(home, members),
        selecting(2),
        Champion(),
        lambda *args: told.append(args),
    )
    assert found.differences == {"plant controller": Interval(value=0.0, lower=0.0, upper=0.0)}
    candidate, plant = (found.controllers[name] for name in ("candidate", "plant controller"))
    assert candidate.returns == plant.returns
    assert candidate.violated == plant.violated == 0
    assert (candidate.episodes, candidate.handovers_per_episode) == (16, 1.0)
    assert plant.handovers_per_episode == 0.0
    assert (candidate.fallback_share, plant.fallback_share) == (1.0, 0.0)
    assert found.found.endswith("; the fallback decided 100% of its steps")
    assert told == [(i, 2, "controllers") for i in (1, 2)]
    with np.load(found.trajectories) as traces:
        assert np.all(traces["candidate/handed_over"])
        np.testing.assert_array_equal(traces["candidate/observations"], traces["plant controller/observations"])


@pytest.mark.slow
def test_the_order_of_members_changes_nothing(tmp_path: Path, dataset: Dataset, members: list[Composite]) -> None:
    home, run = Home(tmp_path), reactor_run()
    forward = simulate(home, run, dataset, population(home, members), selecting(0), Champion())
    backward = simulate(home, run, dataset, population(home, members[::-1]), selecting(2), Champion())
    for name in ("controllers", "differences", "score"):
        assert getattr(backward, name) == getattr(forward, name), name
    assert forward.score == forward.controllers["candidate"].score
    assert simulate(home, run, dataset, population(home, members), selecting(0), Champion()) == forward
    with np.load(forward.trajectories) as one, np.load(backward.trajectories) as other:
        assert set(one) == set(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_the_champion_is_rolled_out_beside_its_challenger(
    tmp_path: Path, dataset: Dataset, members: list[Composite]
) -> None:
    home, run = Home(tmp_path), reactor_run()
    group = population(home, members)
    bundle = group.members[2].bundle
    champion = Champion(digest=bundle.digest, bundle=bundle)
    found = simulate(home, run, dataset, group, selecting(0), champion)
    # This champion does what the plant's controller does, so the differences from the two agree.
    assert found.differences["champion"] == found.differences["plant controller"]
    assert found.differences["champion"].value != 0
    # A candidate that is champion already is not compared with itself.
    assert "champion" not in simulate(home, run, dataset, group, selecting(2), champion).controllers
    other = bundle.model_copy(update={"digest": group.members[1].bundle.digest})
    with pytest.raises(Refused, match="is required"):
        simulate(home, run, dataset, group, selecting(0), Champion(digest=other.digest, bundle=other))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("simulator")
    return reactor_dataset(Home(folder / "home"), folder, 0.05)


def test_the_simulator_explains_logs_of_the_true_plant(dataset: Dataset, tmp_path: Path) -> None:
    found = validate_simulator(Home(tmp_path), reactor_run(), dataset)
    # The set point, which operators move, is left out.
    names = ("concentration", "temperature", "coolant_temperature")
    assert set(found.signals) == {*names, *(f"{name}, 10 steps ahead" for name in names)}
    gate = judge(evidence(simulator=found))[1]
    assert gate.passed, gate.detail


@pytest.mark.slow
def test_the_simulator_misses_logs_of_another_plant(dataset: Dataset, tmp_path: Path) -> None:
    home, run = Home(tmp_path / "home"), reactor_run()
    true = validate_simulator(home, run, dataset).signals
    hotter = altered(dataset, tmp_path / "hotter", next_observations=lambda x: np.add(x, [0.0, 3.0, 0.0, 0.0]))
    errors = validate_simulator(home, run, hotter)
    found = errors.signals
    assert found["temperature"].logs == pytest.approx(3.0, rel=0.1)
    # What the domain's plants do at the logged states and actions has nothing to do with what the log says came of it;
    # a little differs, for other digests hold out other episodes.
    assert found["temperature"].domain == pytest.approx(true["temperature"].domain, rel=0.3)
    assert found["concentration"].logs < 2 * true["concentration"].logs
    gate = judge(evidence(simulator=errors))[1]
    assert (gate.name, gate.passed) == ("simulator", False)


@pytest.mark.slow
def test_a_signal_that_holds_a_nan_is_kept(dataset: Dataset, tmp_path: Path) -> None:
    spoilt = altered(dataset, tmp_path / "spoilt", next_observations=lambda x: x * [1.0, float("nan"), 1.0, 1.0])
    found = validate_simulator(Home(tmp_path / "home"), reactor_run(), spoilt).signals["temperature"]
    assert np.isnan(found.logs)
    assert np.isnan(found.spread)
