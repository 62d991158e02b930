"""Judge a candidate of a log-only plant: first gates, servability check, and all gates."""

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
    """Judge the gates before the servability check.

    Args:
        model: learned model with its prediction errors.
        protection: checks of bounds, support and fallback.
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
    """Load the selected bundle in a fresh process, if every earlier gate passed."""
    if not may_serve(screening.gates):
        return Service()
    bundle = population.members[evaluation.selected].bundle
    return Service(check=serve_check(bundle.folder, bundle.digest))


@effect(name="judge_candidate")
def judge_process(screening: Judgement, service: Service) -> Judgement:
    """Judge all gates of a log-only plant's candidate."""
    evidence = screening.evidence.model_copy(update={"servability": service.check})
    return Judgement(evidence=evidence, gates=judge(evidence))
