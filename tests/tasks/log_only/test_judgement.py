"""What each gate of a process is judged by, and that no bundle is served where one of them failed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tasks.gates import REQUIRED_LOG_ONLY
from tasks.judgement import check_service, screen_process
from tasks.references import (
    Evaluation,
    Judgement,
    LearnedModel,
    Protection,
    Service,
    Validation,
)
from tests.judged import interval, process_evidence
from tests.sample_record import sample_record
from tests.small_data import reactor_run

SCREENED = REQUIRED_LOG_ONLY[:-1]
NUMBERS = process_evidence()


class Found(NamedTuple):
    """What the stages before it is served hand on."""

    validation: Validation
    model: LearnedModel
    evaluation: Evaluation
    protection: Protection


def found(evaluation: Evaluation) -> Found:
    """What passes every gate."""
    return Found(
        validation=Validation(passed=True, reasons=()),
        model=LearnedModel(
            digest="m" * 64, weights=Path("weights"), residuals=Path("residuals"), prediction=NUMBERS.model
        ),
        evaluation=evaluation.model_copy(update={"difference": interval(0.1, 0.2)}),
        protection=Protection(fallback=NUMBERS.fallback, bounds=NUMBERS.bounds, support=NUMBERS.support),
    )


def failing(good: Found) -> dict[str, Found]:
    """What was found, with one input changed so that this gate fails."""
    no_better = NUMBERS.model.model_copy(update={"ratios": {}})

    def protected(**changes: object) -> Found:
        return good._replace(protection=good.protection.model_copy(update=changes))

    return {
        "data": good._replace(validation=Validation(passed=False, reasons=("too few",))),
        "learned_model": good._replace(model=good.model.model_copy(update={"prediction": no_better})),
        "ope": good._replace(evaluation=good.evaluation.model_copy(update={"difference": interval(-0.1, 0.1)})),
        "bounds": protected(bounds=NUMBERS.bounds.model_copy(update={"beyond_bounds": 0.1})),
        "shield": protected(support=NUMBERS.support.model_copy(update={"outside": 0.5})),
        "fallback": protected(fallback=NUMBERS.fallback.model_copy(update={"unsound": 1})),
    }


def judged(given: Found) -> Judgement:
    return screen_process(reactor_run(gates={"beat_plant": True}), *given)


def test_each_gate_is_judged_by_its_own_input_and_stops_service(tmp_path: Path) -> None:
    record, _ = sample_record(tmp_path)
    # Whoever loads this bundle says so.
    gone = record.population.members[0].bundle.model_copy(update={"folder": tmp_path / "nowhere"})
    members = tuple(member.model_copy(update={"bundle": gone}) for member in record.population.members)
    population = record.population.model_copy(update={"members": members})
    good = found(record.evaluation)
    assert [gate.name for gate in judged(good).gates if gate.passed] == list(SCREENED)
    check = check_service(reactor_run(), population, good.evaluation, judged(good)).check
    assert check is not None
    assert not check.passed
    assert tuple(failing(good)) == SCREENED
    for name, changed in failing(good).items():
        judgement = judged(changed)
        assert [gate.name for gate in judgement.gates if gate.passed is False] == [name]
        assert check_service(reactor_run(), population, good.evaluation, judgement) == Service(), name


def test_an_estimate_that_the_logs_do_not_support_fails_with_its_reason(tmp_path: Path) -> None:
    good = found(sample_record(tmp_path)[0].evaluation)
    unsupported = good.evaluation.model_copy(update={"supported": False, "reason": "no finite estimate"})
    judgement = judged(good._replace(evaluation=unsupported))
    assert judgement.failed is not None
    assert judgement.failed.name == "ope"
    assert "no finite estimate" in judgement.failed.detail
    worse = good._replace(evaluation=good.evaluation.model_copy(update={"difference": interval(-0.2, -0.1)}))
    assert screen_process(reactor_run(gates={"beat_plant": False}), *worse).failed is None
