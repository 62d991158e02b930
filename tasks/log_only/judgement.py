"""Judging a candidate of a process: the gates before it is served, that of servability, and all together."""

from __future__ import annotations

from configs.run import OpenedRun
from tasks.evaluation.servability import serve_check
from tasks.gates import judge, may_serve
from tasks.references import (
    Evaluation,
    Judgement,
    LearnedModel,
    Population,
    ProcessEvidence,
    Protection,
    Service,
    Validation,
)
from tasks.stages import effect


@effect(name="screen")
def screen_process(
    run: OpenedRun, validation: Validation, model: LearnedModel, evaluation: Evaluation, protection: Protection
) -> Judgement:
    """Judge a process's candidate by all that is known before it is served.

    Args:
        run: its `gates`.
        validation: of the dataset.
        model: its errors on held-out episodes.
        evaluation: off-policy.
        protection: bounds, support and fallback.
    """
    evidence = ProcessEvidence(
        beat_plant=run.gates.beat_plant,
        data=validation.reasons,
        model=model.prediction,
        ope=evaluation.difference,
        supported=evaluation.supported,
        reason=evaluation.reason,
        unweighed=evaluation.unweighed,
        bounds=protection.bounds,
        support=protection.support,
        fallback=protection.fallback,
    )
    return Judgement(evidence=evidence, gates=judge(evidence))


@effect(name="check_service")
def check_process_service(population: Population, evaluation: Evaluation, screening: Judgement) -> Service:
    """Load the selected bundle of a process in a fresh process, where every gate so far passed.

    Args:
        population: the members.
        evaluation: which of them was selected.
        screening: the gates so far.
    """
    if not may_serve(screening.gates):
        return Service()
    bundle = population.members[evaluation.selected].bundle
    return Service(check=serve_check(bundle.folder, bundle.digest))


@effect(name="judge_candidate")
def judge_process(screening: Judgement, service: Service) -> Judgement:
    """Judge a process's candidate by all of the evidence."""
    evidence = screening.evidence.model_copy(update={"servability": service.check})
    return Judgement(evidence=evidence, gates=judge(evidence))
