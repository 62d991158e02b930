"""Gates before certification: inputs of each gate, and no spent error probability after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from configs.home import Home
from tasks.certify import certify_candidate
from tasks.evidence.ledger.ledger import Ledger
from tasks.gates import BEFORE_CERTIFICATION
from tasks.judgement import check_service, screen
from tasks.references import (
    Certificate,
    Certification,
    Champion,
    Evaluation,
    Interval,
    Judgement,
    Population,
    Rollouts,
    Service,
    SimulatorErrors,
    Validation,
)
from tests.evidence import signer_at
from tests.judged import certificate, interval, signal
from tests.sample_record import sample_record
from tests.small_data import reactor_run

WORSE, BETTER, EVEN = interval(-0.2, -0.1), interval(0.1, 0.2), interval(-0.1, 0.1)


class Found(NamedTuple):
    """Return the results of the tasks before certification."""

    validation: Validation
    simulator: SimulatorErrors
    evaluation: Evaluation
    rollouts: Rollouts
    champion: Champion
    protection: Certificate


class Trained(NamedTuple):
    """A population on disk, in a home with a ledger."""

    home: Home
    found: Found
    population: Population


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    home = Home(tmp_path_factory.mktemp("judgement") / "home")
    record, _ = sample_record(home.folder("record"))
    assert record.rollouts is not None
    found = Found(
        validation=Validation(passed=True, reasons=()),
        simulator=SimulatorErrors(signals={"T": signal(0.1)}),
        evaluation=record.evaluation.model_copy(update={"difference": BETTER, "champion_difference": EVEN}),
        rollouts=versus(record.rollouts, BETTER, EVEN),
        champion=Champion(digest="c" * 64, bundle=record.population.members[0].bundle),
        protection=certificate(),
    )
    with signer_at(home):
        yield Trained(home, found, record.population)


def versus(rollouts: Rollouts, plant: Interval, champion: Interval) -> Rollouts:
    """Return these rollouts with other differences."""
    return rollouts.model_copy(update={"differences": {"plant controller": plant, "champion": champion}})


def failing(found: Found) -> dict[str, Found]:
    """Return results with one input changed so that this gate fails."""
    changed = found.evaluation.model_copy
    return {
        "data": found._replace(validation=Validation(passed=False, reasons=("too few",))),
        "simulator": found._replace(simulator=SimulatorErrors(signals={"T": signal(9.0)})),
        "ope": found._replace(evaluation=changed(update={"difference": WORSE})),
        "rollouts": found._replace(rollouts=versus(found.rollouts, EVEN, EVEN)),
        "champion": found._replace(rollouts=versus(found.rollouts, BETTER, WORSE)),
        "fallback": found._replace(protection=certificate(False)),
    }


def judged(found: Found) -> Judgement:
    return screen(reactor_run(gates={"beat_plant": True}), *found)


def names(judgement: Judgement) -> list[str]:
    """The gates that failed."""
    return [gate.name for gate in judgement.gates if gate.passed is False]


def test_good_evidence_passes_every_gate_before_certification(trained: Trained) -> None:
    judgement = judged(trained.found)
    assert [gate.name for gate in judgement.gates if gate.passed] == list(BEFORE_CERTIFICATION)
    assert names(judgement) == []


@pytest.mark.parametrize("name", BEFORE_CERTIFICATION)
def test_each_gate_is_judged_by_its_own_input(trained: Trained, name: str) -> None:
    assert set(failing(trained.found)) == set(BEFORE_CERTIFICATION)
    assert names(judged(failing(trained.found)[name])) == [name]


def test_a_candidate_that_is_champion_does_not_differ_from_it(trained: Trained) -> None:
    """Rollouts leave out the comparison of a composite with itself."""
    alone = trained.found.rollouts.model_copy(update={"differences": {"plant controller": BETTER}})
    assert names(judged(trained.found._replace(rollouts=alone))) == []


@pytest.mark.parametrize(("share", "departure"), [(0.25, 0.25), (float("nan"), None)])
def test_the_departure_is_evidence(trained: Trained, share: float, departure: float | None) -> None:
    known = trained.found.rollouts.departure
    assert known is not None
    measured = known.model_copy(update={"unlike": {**known.unlike, "candidate": share}})
    found = trained.found._replace(rollouts=trained.found.rollouts.model_copy(update={"departure": measured}))
    assert judged(found).evidence.departure == departure


def test_the_estimates_are_taken_from_their_own_fields(trained: Trained) -> None:
    found = trained.found
    by_logs = found.evaluation.model_copy(update={"champion_difference": WORSE})
    assert names(judged(found._replace(evaluation=by_logs))) == ["champion"]
    unsupported = found.evaluation.model_copy(update={"supported": False, "reason": "no finite estimate"})
    judgement = judged(found._replace(evaluation=unsupported))
    assert names(judgement) == []
    assert "no finite estimate" in next(gate.detail for gate in judgement.gates if gate.name == "ope")
    # A champion made for other limits is not compared, and a plant without one has nothing to compare with.
    alone = found.evaluation.model_copy(update={"champion_difference": None})
    for champion, said in (
        (found.champion.model_copy(update={"bundle": None}), "made for other limits"),
        (Champion(), "no trained champion"),
    ):
        given = found._replace(evaluation=alone, champion=champion, rollouts=failing(found)["champion"].rollouts)
        gate = next(gate for gate in judged(given).gates if gate.name == "champion")
        assert gate.passed
        assert said in gate.detail
    worse = found._replace(evaluation=found.evaluation.model_copy(update={"difference": WORSE}))
    assert names(screen(reactor_run(gates={"beat_plant": False}), *worse)) == []


@pytest.mark.parametrize("name", BEFORE_CERTIFICATION)
def test_no_error_probability_is_spent_after_a_failed_gate(trained: Trained, name: str) -> None:
    home, found, population = trained
    screening = judged(failing(found)[name])
    dataset = sample_record(home.folder("record"))[0].dataset
    run = reactor_run(certify={"p0": 0.3, "max_episodes": 100})
    got = certify_candidate(home, run, dataset, population, found.evaluation, screening)
    assert got == Certification()
    assert Ledger.open(home, write=False).entries() == []


def test_a_bundle_is_served_only_if_all_gates_passed(trained: Trained) -> None:
    _, found, population = trained
    # Whoever loads this one says so.
    gone = population.members[0].bundle.model_copy(update={"folder": Path("nowhere")})
    members = tuple(member.model_copy(update={"bundle": gone}) for member in population.members)
    population = population.model_copy(update={"members": members})
    passed, failed = Certification(certificate=certificate()), Certification(certificate=certificate(False))

    def served(screening: Judgement, certification: Certification) -> Service:
        return check_service(reactor_run(), population, found.evaluation, screening, certification)

    for name, changed in failing(found).items():
        assert served(judged(changed), passed) == Service(), name
    assert served(judged(found), failed) == Service()
    assert served(judged(found), Certification()) == Service()
    check = served(judged(found), passed).check
    assert check is not None
    assert not check.passed
