"""Constants estimated in a run: names that are none, a small log, and a domain rebuilt from its certificate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.plants import PLANTS
from tasks.certify import certify
from tasks.data.store.reader import StoredDataset
from tasks.evaluation.claims import claim_of, claimed_simulator, simulator_digest
from tasks.evaluation.relowering import lowered_apart
from tasks.evaluation.repetition import materials_here, repeat_with
from tasks.evidence.certificate import read_certificate, verify_certificate
from tasks.evidence.claims import Claim
from tasks.evidence.ledger.ledger import Ledger
from tasks.identify import MOST_ROWS, _chosen, _episodes, identify, settled_fields, simulator_of, unknowns_of
from tasks.models.plants.known import plant_named
from tasks.references import KNOWN, Dataset, Identification, IdentifiedConstant
from tasks.simulate import validate_simulator
from tasks.training.train import fallback_composite
from tasks.versions.versions import current
from tests.neorl_core.identify.small_models import UNKNOWNS, posterior_of
from tests.small_data import PLANT, reactor_dataset, reactor_run

REACTOR = PLANTS[PLANT]
BOTH = {"reaction_rate": {"deviation": 0.03}, "cooling_rate": {"deviation": 0.03, "law": "normal"}}


def constant(name: str, law: Any, estimate: float, entry: int | None = None) -> IdentifiedConstant:
    told = {"estimate": estimate, "lower": 0.9 * estimate, "upper": 1.1 * estimate, "prior": estimate}
    return IdentifiedConstant(name=name, entry=entry, law=law, deviation=0.03, share=0.1, identified=True, **told)


FOUND = Identification(
    dataset="5" * 64,
    episodes=9,
    constants=(constant("reaction_rate", "log-normal", 7.3e10), constant("cooling_rate", "normal", 2.1)),
    domain={
        "identified_reaction_rate": 7.3e10,
        "identified_reaction_rate_1": 0.002,
        "identified_cooling_rate": 2.1,
        "identified_cooling_rate_1": 0.003,
        "identified_cooling_rate_2": 0.004,
    },
)


@pytest.mark.parametrize(
    ("plant", "settings", "message"),
    [
        (
            PLANT,
            {"constants": {"reaction_rat": {"deviation": 0.1}}},
            "names 'reaction_rat', which is not a constant of chemical_reactor: did you mean 'reaction_rate'",
        ),
        (
            PLANT,
            {"constants": {"cooling_rate[1]": {"deviation": 0.1}}},
            "names cooling_rate[1], which is not a single number of cooling_rate: write cooling_rate",
        ),
        (
            PLANT,
            {"constants": {"feed_sd": {"deviation": 0.1}}},
            "feed_sd is 0, so a relative deviation under law log-normal is undefined",
        ),
        (
            PLANT,
            {"constants": BOTH, "inputs": ["weather"]},
            "identify.inputs names 'weather', which is not a signal of chemical_reactor",
        ),
        (
            PLANT,
            {"constants": BOTH, "starts": {"level": {"deviation": 1.0}}},
            "identify.starts names 'level', which is not a signal",
        ),
        (
            "water_treatment",
            {"constants": {"pump": {"deviation": 0.1}}},
            "names pump, which is not a single number of pump: write pump[0] to pump[1]",
        ),
        (
            "water_treatment",
            {"constants": {"pump[2]": {"deviation": 0.1}}},
            "names pump[2], which is not a single number of pump: write pump[0] to pump[1]",
        ),
    ],
)
def test_what_the_plant_does_not_have_is_named_in_one_sentence(plant: str, settings: Any, message: str) -> None:
    run = OpenedRun(plant=plant, identify=settings)
    with pytest.raises(BadInput, match=re.escape(message)):
        unknowns_of(run, PLANTS[plant])


def test_priors_are_shares_of_the_values_in_the_plants_file() -> None:
    first, second = unknowns_of(reactor_run(identify={"constants": BOTH}), REACTOR)
    assert (first.name, first.spread, first.law) == ("reaction_rate", 0.03, "log-normal")
    assert (second.name, second.law) == ("cooling_rate", "normal")
    assert second.spread == pytest.approx(0.03 * 5e4 / 23900)
    tanks = OpenedRun(plant="water_treatment", identify={"constants": {"pump[1]": {"deviation": 0.1}}})  # type: ignore[arg-type]
    assert unknowns_of(tanks, PLANTS["water_treatment"])[0].entry == 1


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("identified")
    return reactor_dataset(Home(folder / "home"), folder, 0.05)


@pytest.mark.slow
def test_a_small_log_identifies_the_reactor(dataset: Dataset, tmp_path: Path) -> None:
    home, run = Home(tmp_path), reactor_run(identify={"constants": BOTH})
    found = identify(home, run, dataset)
    assert (found.dataset, [one.label for one in found.constants]) == (dataset.digest, list(BOTH))
    # The log's reactor is drawn within 1 % of the nominal one, of which the prior knew 3 %.
    for one in found.constants:
        assert one.identified, one
        assert abs(one.estimate / one.prior - 1) < 0.015, one
        assert one.lower < one.estimate < one.upper, one
    assert len(found.found.splitlines()) == 2
    assert identify(home, run, dataset) == found
    assert identify(home, reactor_run(), dataset) == KNOWN
    # A cooling rate that is 5 % too high misses the held-out logs.
    wrong = dict(found.domain) | {"identified_cooling_rate": 1.05 * found.domain["identified_cooling_rate"]}
    errors = [
        validate_simulator(home, run, dataset, known).signals["temperature, 10 steps ahead"]
        for known in (found, found.model_copy(update={"domain": wrong}))
    ]
    assert errors[1].logs > 1.5 * errors[0].logs


@pytest.mark.slow
def test_what_the_logs_leave_open_is_told_with_the_step_that_would_identify_it(
    dataset: Dataset, tmp_path: Path
) -> None:
    # A deviation that is far below what the logs can tell.
    run = reactor_run(identify={"constants": {"cooling_rate": {"deviation": 1e-5}}})
    (one,) = identify(Home(tmp_path), run, dataset).constants
    assert not one.identified
    assert re.search(r"not identified: moving coolant_temperature by \S+ K and holding it for \d+ steps", str(one))


@pytest.mark.parametrize(
    ("lengths", "count", "most"),
    [
        ([100] * 50, 50, 400),
        # 166 episodes of 120 steps are 19,920.
        ([120] * 400, 166, 120),
        # Two whole ones would be all that fit, and from fewer than four no covariance follows.
        ([10_000] * 20, 10, 2_000),
        ([10_000] * 6, 6, 3_333),
        # One long episode does not make all others as long: of those 39.98 steps on average 500 are taken.
        ([20] * 500 + [20_000] + [20] * 500, 500, 40),
    ],
)
def test_episodes_are_many_and_even_and_bounded_when_they_are_filled_up(
    lengths: list[int], count: int, most: int
) -> None:
    episodes, steps = _chosen(np.arange(len(lengths)), np.asarray(lengths))
    assert (len(episodes), steps) == (count, most)
    assert count * most <= MOST_ROWS
    assert (episodes[0], episodes[-1]) == (0, len(lengths) - 1)


def test_the_first_steps_of_an_episode_are_read_where_it_is_longer(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StoredDataset.open(dataset.store, dataset.digest)
    whole, numbers = store.arrays(), np.flatnonzero(np.diff(store.episodes) > 5)[::2][:3]
    monkeypatch.setattr("tasks.identify.MOST_ROWS", 15)
    found = _episodes(store, numbers)
    assert found.actions.shape[:2] == (3, 5)
    for i, first in enumerate(store.episodes[numbers]):
        np.testing.assert_array_equal(found.observations[i, 0], whole["observations"][first])
        np.testing.assert_array_equal(found.observations[i, 1:], whole["next_observations"][first : first + 5])
        np.testing.assert_array_equal(found.actions[i], whole["actions"][first : first + 5])


@pytest.mark.parametrize("value", [-1.0, 0.0, np.nan, np.inf])
def test_an_estimate_that_does_not_settle_is_refused_as_such(value: float) -> None:
    sound = posterior_of([0.0, 0.0], [[0.2, 0.0], [0.0, 0.2]])
    assert settled_fields(UNKNOWNS, sound)
    broken = posterior_of([0.0, 0.0], [[value, 0.0], [0.0, 0.2]])
    diverged = np.asarray(False)
    for one in (broken, broken._replace(converged=diverged), sound._replace(converged=diverged)):
        with pytest.raises(Refused, match="the estimate of reaction_rate, cooling_rate does not converge"):
            settled_fields(UNKNOWNS, one)


def test_a_claim_says_what_was_identified_and_its_domain_is_rebuilt_to_the_bit() -> None:
    run = reactor_run(certify={"domain": {"noise_sd": 0.2}})
    claim = claim_of(REACTOR, run, FOUND)
    assert re.fullmatch(
        r"domain chemical_reactor/custom-[0-9a-f]{8} identified from dataset 555555555555", claim.domain_name
    )
    assert f"under {claim.domain_name} violates" in claim.lines("c" * 64, "s" * 64, True, [], current().texts)
    again = Claim.model_validate_json(claim.model_dump_json())
    plant, domain = claimed_simulator(REACTOR, again)
    known = simulator_of(plant_named(PLANT), FOUND)
    assert plant == known
    assert domain == known.domain._replace(noise_sd=0.2)
    keys = jax.random.split(jax.random.key(3), 40)
    one, other = (
        jax.vmap(which.sample_params, (0, None))(keys, its)
        for which, its in ((known, known.domain._replace(noise_sd=0.2)), (plant, domain))
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert float(np.std(one.cooling_rate)) == pytest.approx(0.005, rel=0.5)
    known = plant_named(PLANT)
    assert simulator_digest(known, simulator_of(known, FOUND)) != simulator_digest(known, simulator_of(known, KNOWN))
    # Where nothing was identified, a certificate has the fields that it always had.
    assert "identified" not in claim_of(REACTOR, run).model_dump()
    assert claimed_simulator(REACTOR, claim_of(REACTOR, run))[0] is REACTOR


@pytest.mark.parametrize(
    "spoil",
    [
        lambda claim: claim.model_copy(update={"identified": None}),
        lambda claim: claim.model_copy(update={"domain": {k: v for k, v in claim.domain.items() if "rate_2" not in k}}),
        lambda claim: claim.model_copy(update={"domain": {k: v for k, v in claim.domain.items() if k != "noise_sd"}}),
    ],
)
def test_a_domain_that_does_not_fit_what_was_identified_is_refused(spoil: Any) -> None:
    with pytest.raises(
        Refused,
        match=r"use the version of the plant that the certificate is for",
    ):
        claimed_simulator(REACTOR, spoil(claim_of(REACTOR, reactor_run(), FOUND)))


def test_a_posterior_is_not_overridden() -> None:
    run = reactor_run(certify={"domain": {"identified_cooling_rate": 2.0}})
    with pytest.raises(BadInput, match="unknown name 'identified_cooling_rate'"):
        claim_of(REACTOR, run, FOUND)


def test_a_spread_that_the_posterior_takes_the_place_of_is_not_overridden() -> None:
    for name in ("reaction_spread", "cooling_spread"):
        run = reactor_run(certify={"domain": {name: 0.2}})
        assert claim_of(REACTOR, run).domain[name] == 0.2
        with pytest.raises(BadInput, match=rf"sets '{name}', but the posterior of reaction_rate, cooling_rate"):
            claim_of(REACTOR, run, FOUND)


@pytest.mark.slow
def test_a_certificate_over_a_posterior_holds_when_it_is_run_again(tmp_path: Path) -> None:
    home, run = Home(tmp_path), reactor_run(certify={"p0": 0.3})
    fallback = fallback_composite(home, run, FOUND)
    assert fallback.digest != fallback_composite(home, run).digest
    found = certify(home, run, fallback, identification=FOUND)
    assert "identified from dataset 555555555555" in found.claim
    ledger = Ledger.open(home, write=False)
    stated = read_certificate(found.path, ledger.trust).predicate
    assert stated.materials.dataset == FOUND.dataset
    assert stated.scope.identified is not None
    assert stated.scope.identified.dataset == FOUND.dataset
    lowered = lowered_apart(fallback.folder, None, stated.scope)
    checks = verify_certificate(
        found.path,
        ledger.trust,
        artefacts=materials_here(fallback.folder, lowered),
        ledger=ledger,
        repeat=repeat_with(fallback.folder, lowered, found.path),
        rerun=True,
        challenge=b"another",
    )
    assert [check for check in checks if check.passed is False] == []
    # The claim is of the same lineage as one of the plant's file: attempts at either spend the same error.
    assert certify(home, run, fallback).attempt == 2
