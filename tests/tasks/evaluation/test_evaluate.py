"""Selection by held-out logs alone: equal members are equal, the best lower bound wins, and NaN never does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.home import Home
from neorl_core.networks import Policy, actor_init
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from neorl_core.training.population import prepare
from tasks.adapters.store import reader
from tasks.adapters.store.episodes import read_logs
from tasks.evaluation.evaluate import evaluate
from tasks.references import Bundle, Champion, Dataset, Interval, Member, Placement, Population
from tasks.training.train import keep_bundle
from tests.small_data import PLANT, reactor_dataset, reactor_run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("evaluate") / "home")


@pytest.fixture(scope="module")
def reference(home: Home) -> Dataset:
    """A dataset of seventeen hours of the reactor's log."""
    return reactor_dataset(home, home.root.parent, 0.1)


@pytest.fixture(scope="module")
def sound(home: Home, reference: Dataset) -> list[Bundle]:
    """Bundles of untrained actors, the last of which always asks for the same action."""
    return [_bundle(home, reference, seed) for seed in (0, 1, 2)] + [_bundle(home, reference, 3, 0.0)]


def _bundle(home: Home, reference: Dataset, seed: int, scale: float = 1.0) -> Bundle:
    spec = PLANTS[PLANT].spec
    store = reader.StoredDataset.open(reference.store, reference.digest)
    normaliser, _ = prepare(read_logs(store, store.split(0.3)[0]).transitions, spec)
    actor = actor_init(jax.random.key(seed), spec.observation.size, spec.action.size, (8,))
    policy = Policy(jax.tree.map(lambda x: jnp.asarray(scale) * x, actor), normaliser)
    return keep_bundle(home, make_composite(PLANTS[PLANT], policy), PLANT)


def _population(*bundles: Bundle) -> Population:
    members = tuple(Member(index=i, seed=i, bundle=bundle) for i, bundle in enumerate(bundles))
    return Population(
        digest="/".join(bundle.digest for bundle in bundles),
        folder=bundles[0].folder,
        members=members,
        curves=bundles[0].folder,
        updates=0,
        steps_per_second=0.0,
        placement=Placement(processes=False, reason="untrained"),
        rows=0,
    )


@pytest.mark.slow
def test_equal_members_get_equal_estimates(home: Home, reference: Dataset, sound: list[Bundle]) -> None:
    run = reactor_run()
    found = evaluate(
        home,
        run,
        reference,
        _population(sound[0], sound[1], sound[0]),
        Champion(digest=sound[0].digest, bundle=sound[0]),
    )
    first, second, third = (m.model_copy(update={"index": 0}) for m in found.members)
    assert first == third != second
    # The champion is the same policy too: no difference where it is the one selected.
    if found.selected != 1:
        assert found.champion_difference == Interval(value=0.0, lower=0.0, upper=0.0)
    assert found.discount == 0.95
    again = evaluate(
        home,
        run,
        reference,
        _population(sound[0], sound[1], sound[0]),
        Champion(digest=sound[0].digest, bundle=sound[0]),
    )
    assert again == found


@pytest.mark.slow
def test_the_best_lower_bound_among_the_supported_is_selected(
    home: Home, reference: Dataset, sound: list[Bundle]
) -> None:
    told: list[tuple[int, int, str]] = []
    found = evaluate(home, reactor_run(), reference, _population(*sound), Champion(), lambda *args: told.append(args))
    members = found.members
    assert [m.index for m in members] == [0, 1, 2, 3]
    assert len({m.model.lower for m in members}) == 4
    for m in members:
        for estimate in (m.gain, m.model):
            assert estimate.lower <= estimate.value <= estimate.upper
    eligible = [m for m in members if m.supported] or members
    best = max(eligible, key=lambda m: m.model.lower)
    assert found.selected == best.index
    assert (found.difference, found.supported) == (best.gain, best.supported)
    assert found.champion_difference is None
    assert (told[0], told[-1]) == ((0, 40, "updates"), (40, 40, "updates of the learned model"))
    assert (40, 40, "updates") in told
    # The order in which members stand does not matter.
    backward = evaluate(home, reactor_run(), reference, _population(*sound[::-1]), Champion())
    assert backward.selected == 3 - found.selected
    assert backward.difference == found.difference


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1])
def test_a_member_without_a_finite_estimate_is_never_selected(
    home: Home, reference: Dataset, sound: list[Bundle], place: int
) -> None:
    broken = _bundle(home, reference, 0, np.nan)
    bundles = [sound[0]]
    bundles.insert(place, broken)
    found = evaluate(home, reactor_run(), reference, _population(*bundles), Champion())
    assert np.isnan(found.members[place].gain.lower)
    assert np.isnan(found.members[place].model.lower)
    assert not found.members[place].supported
    assert found.selected == 1 - place
    assert np.isfinite(found.difference.lower)
