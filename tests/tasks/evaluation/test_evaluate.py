"""Selection by held-out logs alone: equal members are equal, a proven gain comes first, and NaN never does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.home import Home
from neorl_core.networks import Normaliser, Policy, actor_init
from neorl_core.online.learner import observe
from neorl_core.ope.agreement import WIDE, Estimate
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from neorl_core.training.preparation import prepare
from neorl_core.types import Transition
from tasks.data.store import reader
from tasks.data.store.episodes import Logs, read_logs
from tasks.data.store.histories import NO_HISTORY
from tasks.evaluation.cluster import cluster
from tasks.evaluation.estimators import (
    GUESSED_STEPS,
    GUESSING,
    Episodes,
    decisions,
    episodes_of,
    estimates_by_workers,
    fit_estimators,
)
from tasks.evaluation.evaluate import CORRECTS, NEEDLESS, Ask, chosen, evaluate
from tasks.evaluation.model_based import lasting, windows
from tasks.models.bundles.bundle import load_bundle
from tasks.references import Bundle, Champion, Dataset, Interval, MemberEvaluation, RankedMember, Ranking
from tasks.training.train import keep_bundle
from tests.servers import dask
from tests.small_data import PLANT, reactor_dataset, reactor_run, untrained


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


def test_episodes_are_cut_into_windows_of_a_horizon() -> None:
    episode, starts = np.repeat([0, 1], [5, 2]), np.array([0, 5])
    followed = np.array([True, True, True, True, False, True, False])
    nothing = np.zeros(7)
    logs = Logs(Transition(*[nothing] * 6), episode, starts, followed)
    cut = windows(logs, 2)
    assert cut.episode.tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert cut.starts.tolist() == [0, 2, 4, 5]
    # The action after a window's last row was logged all the same.
    assert cut.followed.tolist() == followed.tolist()


def test_what_is_estimated_is_the_return_of_as_many_steps_as_half_of_the_windows_last() -> None:
    """Worked by hand: a long episode and its rest, episodes shorter than the plant's, and one that terminated."""

    def logs(*lengths: int, terminated: int | None = None) -> Logs:
        rows, starts = sum(lengths), np.cumsum((0, *lengths[:-1]))
        ended = np.zeros(rows)
        if terminated is not None:
            ended[starts[terminated] + lengths[terminated] - 1] = 1.0
        nothing = np.zeros(rows)
        every = Transition(*[nothing] * 6)._replace(terminated=ended)
        return Logs(every, np.repeat(np.arange(len(lengths)), lengths), starts, nothing > 0)

    assert lasting(logs(25), 10) == 10
    assert lasting(logs(8, 7, 6), 10) == 7
    assert lasting(logs(8, 8, 2, 2), 10) == 8
    assert lasting(logs(2, 9, 3, terminated=0), 10) == 9
    assert lasting(logs(3, 3, 9, terminated=0), 10) == 9
    # One that terminated says nothing of how long others are watched: of three that survived two last 7.
    assert lasting(logs(8, 7, 6, 1, terminated=3), 10) == 7
    assert lasting(logs(4, terminated=0), 10) == 10
    # Of twenty that terminated and one that a gap cut soon, nineteen were watched for longer than that.
    many = logs(*[4] * 20, 2)
    ends = many.starts[:20] + 3
    many.transitions.terminated[ends] = 1.0
    assert lasting(many, 10) == 10


def test_rewards_allow_as_many_steps_as_are_estimated_however_short_the_logs_are() -> None:
    # Worked by hand: windows of two steps with rewards from -4 to -2, and three steps that are estimated, the second
    # and the third of which count .95 and .9025.
    reward, nothing = np.float32([-2.0, -3.0, -4.0, -3.0]), np.zeros(4, np.float32)
    rows = Transition(nothing[:, None], nothing[:, None], reward, nothing, nothing[:, None], nothing)
    one = Normaliser(jnp.zeros(1), jnp.ones(1), jnp.zeros(1), jnp.ones(1))

    def allowed(terminated: np.ndarray) -> tuple[float, float]:
        logs = Logs(rows._replace(terminated=terminated), np.repeat([0, 1], 2), np.array([0, 2]), nothing > 0)
        return Episodes(reactor_run(), logs, 3, one, None).allowed

    assert allowed(nothing) == pytest.approx((-4 * 2.8525, -2 * 2.8525))
    # Who ends at once pays once.
    assert allowed(np.float32([0, 1, 0, 0])) == pytest.approx((-4 * 2.8525, -2.0))


def rated(lower: float, value: float, gain: float, reason: str = "", outside: float = 0.05) -> MemberEvaluation:
    nothing = Interval(value=0.0, lower=0.0, upper=0.0)
    return MemberEvaluation(
        index=0,
        ope=Interval(value=value, lower=lower, upper=value),
        cost_ope=nothing,
        gain=nothing.model_copy(update={"lower": gain}),
        supported=not reason,
        reason=reason,
        outside=outside,
        disagreement=0.0,
        effective_rows=1.0,
    )


def test_members_whose_gain_is_bounded_above_nothing_are_ranked_by_value_and_others_by_that_bound() -> None:
    still, bold, bolder = rated(-3.0, -3.0, 0.4), rated(-5.0, -2.0, 0.1), rated(-6.0, -1.0, -0.1)
    assert chosen([still, bold, bolder]) == 1
    # A proven gain comes before a higher lower bound and a higher value.
    assert chosen([rated(-1.0, -0.5, -0.2), rated(-9.0, -8.0, 0.1)]) == 1
    # Where no gain has a lower bound above 0, these decide, and not those of the values.
    assert chosen([rated(-4.0, -0.5, -0.5), bolder]) == 1
    away, further = (rated(np.nan, np.nan, np.nan, "too many", share) for share in (0.3, 0.6))
    assert chosen([further, away]) == 1
    assert chosen([further, rated(-9.0, -9.0, -9.0)]) == 1
    broken = rated(np.nan, np.nan, np.nan, "no finite estimate", 0.0)
    assert chosen([broken, further]) == 1


def told(width: float, gain: float = 1.0) -> Estimate:
    """An estimate with one draw, whose interval is as wide."""
    draws = np.full((1, 1), gain)
    each = {"guessed": np.full((2, 1), gain), "modelled": np.full(2, gain)}
    each |= {"pessimistic": draws - width / 2, "optimistic": draws + width / 2, "cost_draws": 0 * draws}
    return Estimate(**each, allowed=(-10.0, 10.0), cost=0.0, reason="", outside=0.0, disagreement=0.0, effective_rows=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selects", "claims", "member", "claim"), [(9, 9, "", ""), (11, 9, WIDE, WIDE), (9, 11, "", WIDE)]
)
def test_neither_selection_nor_claim_goes_by_an_interval_that_holds_almost_anything(
    home: Home,
    reference: Dataset,
    sound: list[Bundle],
    monkeypatch: pytest.MonkeyPatch,
    selects: float,
    claims: float,
    member: str,
    claim: str,
) -> None:
    """Rewards allow from -10 to 10, half of which is 10; what episodes say of the member is made by hand."""

    @contextmanager
    def asking(later: Episodes, _: object) -> Iterator[Ask]:
        yield lambda episodes, _: (told(0.0, 0.0), [told(claims if episodes is later else selects)])

    monkeypatch.setattr("tasks.evaluation.evaluate._asking", asking)
    # Each case is a stage of its own, by its seed.
    run = reactor_run().model_copy(update={"seed": int(100 + 20 * selects + claims)})
    found = evaluate(home, run, reference, untrained([sound[2]], sound[2].folder), Champion())
    assert (found.members[0].reason, found.reason) == (member, claim)
    assert (found.members[0].supported, found.supported) == (not member, not claim)
    assert np.isfinite(found.members[0].gain.lower) == (not member)
    assert np.isfinite(found.difference.lower) == (not claim)


@pytest.mark.slow
def test_equal_members_get_equal_estimates(
    home: Home, reference: Dataset, sound: list[Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = reactor_run()
    told: list[tuple[int, int, str]] = []
    found = evaluate(
        home,
        run,
        reference,
        untrained([sound[0], sound[1], sound[0]], sound[0].folder),
        Champion(digest=sound[0].digest, bundle=sound[0]),
    )
    first, second, third = (m.model_copy(update={"index": 0}) for m in found.members)
    assert first == third != second
    # The champion is the same policy too: no difference where it is the one selected.
    if found.selected != 1 and found.supported:
        assert found.champion_difference == Interval(value=0.0, lower=0.0, upper=0.0)
    assert (found.discount, found.horizon) == (0.95, PLANTS[PLANT].spec.horizon)
    # Workers of a cluster, of which none sees the home, come to the same, to the last bit.
    with dask(tmp_path / "dask", 4) as address:
        monkeypatch.setenv("NEORL_DASK_SCHEDULER", address)
        again = evaluate(
            home,
            run,
            reference,
            untrained([sound[0], sound[1], sound[0]], sound[0].folder),
            Champion(digest=sound[0].digest, bundle=sound[0]),
            lambda *args: told.append(args),
        )
    assert told[-1] == (4, 4, "estimates")
    assert again == found


@pytest.mark.slow
def test_guesses_are_of_the_rows_that_they_stand_for(reference: Dataset, sound: list[Bundle]) -> None:
    store = reader.StoredDataset.open(reference.store, reference.digest)
    policy = load_bundle(sound[0].folder, sound[0].digest)[1].policy
    fitted = fit_estimators(
        episodes_of(reactor_run(), read_logs(store, store.split(0.3)[1]), NO_HISTORY, policy.normaliser)
    )
    steps, decided = fitted.episodes.steps, decisions(fitted.episodes, policy)
    starts = steps.observation[steps.starts]
    asked = ((steps.observation, steps.action), (steps.next_observation, decided.next_action))
    for part, rows in enumerate((*asked, (starts, decided.initial_action))):
        ahead = min(GUESSED_STEPS, fitted.episodes.horizon)
        alone = fitted.learned.action_values(policy, *rows, GUESSING, ahead)
        for family, guesses in enumerate(fitted.guesses(policy, decided)):
            for member, guess in enumerate(guesses):
                np.testing.assert_allclose(guess[part][:, 0], alone[member, :, family], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_workers_come_to_what_one_process_estimates_draw_by_draw(
    reference: Dataset, sound: list[Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = reader.StoredDataset.open(reference.store, reference.digest)
    policies = [load_bundle(bundle.folder, bundle.digest)[1].policy for bundle in (sound[0], sound[3])]
    normaliser = policies[0].normaliser
    episodes = episodes_of(reactor_run(), read_logs(store, store.split(0.3)[1]), NO_HISTORY, normaliser)
    fitted = fit_estimators(episodes)
    alone = [fitted.logged(), *map(fitted.of, policies)]
    with dask(tmp_path / "dask", 4) as address:
        monkeypatch.setenv("NEORL_DASK_SCHEDULER", address)
        with cluster() as client:
            assert client is not None
            logged, values = estimates_by_workers(client, episodes, policies)
    for one, other in zip(alone, [logged, *values], strict=True):
        for field, mine, theirs in zip(one._fields, one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs, strict=True, err_msg=field)
    assert np.isfinite(alone[0].pessimistic).any()
    assert not np.array_equal(alone[1].pessimistic, alone[2].pessimistic)


@pytest.mark.slow
def test_a_member_is_selected_by_some_episodes_and_its_gain_told_by_others(
    home: Home, reference: Dataset, sound: list[Bundle]
) -> None:
    told: list[tuple[int, int, str]] = []
    found = evaluate(
        home,
        reactor_run(),
        reference,
        untrained(sound, sound[0].folder),
        Champion(),
        lambda *args: told.append(args),
    )
    members = found.members
    assert [m.index for m in members] == [0, 1, 2, 3]
    for m in members:
        assert m.supported == (m.reason == "")
        for estimate in (m.ope, m.gain, m.cost_ope):
            # What the logs do not support has no number.
            assert np.isfinite(estimate.value) == m.supported
            assert not m.supported or estimate.lower <= estimate.value <= estimate.upper
    assert found.selected == chosen(members)
    # What is claimed comes from other episodes than what selects.
    assert not found.supported or found.difference != members[found.selected].gain
    assert np.isfinite(found.difference.value) == found.supported == (found.reason == "")
    assert found.champion_difference is None
    assert (told[0], told[-1]) == ((0, 40, "updates of the learned model"), (40, 40, "updates of the learned model"))
    # The order in which members stand does not matter.
    backward = evaluate(home, reactor_run(), reference, untrained([*sound[::-1]], sound[::-1][0].folder), Champion())
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
    found = evaluate(home, reactor_run(), reference, untrained([*bundles], bundles[0].folder), Champion())
    assert np.isnan(found.members[place].gain.lower)
    assert found.members[place].reason == "no finite estimate"
    assert found.selected == 1 - place


@pytest.mark.slow
def test_a_champion_that_the_logs_say_nothing_of_is_compared_by_no_number(
    home: Home, reference: Dataset, sound: list[Bundle]
) -> None:
    broken = _bundle(home, reference, 0, np.nan)
    champion = Champion(digest=broken.digest, bundle=broken)
    found = evaluate(home, reactor_run(), reference, untrained([sound[2]], sound[2].folder), champion)
    assert found.champion_difference is not None
    assert np.isnan([found.champion_difference.lower, found.champion_difference.upper]).all()
    assert found.champion_unsupported == (found.reason or "no finite estimate")


def untouched(lower: float, violated: int = 0) -> RankedMember:
    gain = Interval(value=lower, lower=lower, upper=lower)
    return RankedMember(score=gain, gain=gain, violated=violated)


@pytest.mark.slow
def test_logs_veto_the_best_member_of_the_ranking(
    home: Home, reference: Dataset, sound: list[Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by hand: rollouts prefer member 0, then 2; the logs show that member 0 is worse than their controller."""

    @contextmanager
    def asking(later: Episodes, _: object) -> Iterator[Ask]:
        gains = [-5.0, 1.0, 0.5]
        yield lambda episodes, policies: (
            told(0.0, 0.0),
            [told(2.0, gain) for gain in (gains if len(policies) == 3 else [0.5])],
        )

    monkeypatch.setattr("tasks.evaluation.evaluate._asking", asking)
    ranking = Ranking(members=tuple(map(untouched, (0.3, 0.1, 0.2))), tuned_violated=0, episodes=9)
    run = reactor_run(seed=700)
    found = evaluate(home, run, reference, untrained(sound[:3], sound[0].folder), Champion(), ranking=ranking)
    assert found.selected == 2
    assert (found.ranking, found.supported) == (ranking, True)
    assert found.difference.value == 0.5
    # If the logs show all members to be worse, the gate refuses the best one.
    alone = Ranking(members=(untouched(0.3),) * 3, tuned_violated=0, episodes=9)
    monkeypatch.setattr("tasks.evaluation.evaluate._asking", lambda later, _: _all_worse())
    group = untrained(sound[:3], sound[0].folder)
    assert evaluate(home, reactor_run(seed=701), reference, group, Champion(), ranking=alone).selected == 0


@contextmanager
def _all_worse() -> Iterator[Ask]:
    yield lambda episodes, policies: (told(0.0, 0.0), [told(2.0, -5.0) for _ in policies])


def test_a_policy_that_corrects_the_controller_is_not_estimated(
    home: Home, reference: Dataset, sound: list[Bundle]
) -> None:
    plant = PLANTS[PLANT]
    normaliser = observe(plant, jax.random.key(0))
    actor = actor_init(jax.random.key(0), len(normaliser.mean), plant.spec.action.size, (8,))
    corrects = make_composite(plant, Policy(actor, normaliser), correction=jnp.ones(1))
    kept = keep_bundle(home, corrects, PLANT)
    ranking = Ranking(members=(untouched(0.1), untouched(0.2)), tuned_violated=0, episodes=9)
    group = untrained([sound[0], kept], sound[0].folder)
    champion = Champion(digest=sound[1].digest, bundle=sound[1])
    found = evaluate(home, reactor_run(), reference, group, champion, ranking=ranking)
    assert (found.selected, found.supported, found.reason) == (1, False, CORRECTS)
    assert [member.reason for member in found.members] == [NEEDLESS, CORRECTS]
    assert found.champion_unsupported == CORRECTS
    assert found.champion_difference is not None
    assert np.isnan(found.champion_difference.value)
