"""Judge a candidate in three tasks: judge the early gates, check servability, judge all gates."""

from __future__ import annotations

import math

from configs.run import OpenedRun
from tasks.evaluation.servability import serve_check
from tasks.gates import judge, may_certify, may_serve
from tasks.references import (
    Certificate,
    Certification,
    Champion,
    Evaluation,
    Evidence,
    Interval,
    Judgement,
    LearnedModel,
    Population,
    ProcessEvidence,
    Protection,
    Rollouts,
    Service,
    SimulatorErrors,
    Validation,
)
from tasks.stages import effect

SAME = Interval(value=0.0, lower=0.0, upper=0.0)


@effect()
def screen(
    run: OpenedRun,
    validation: Validation,
    simulator: SimulatorErrors,
    evaluation: Evaluation,
    rollouts: Rollouts,
    champion: Champion,
    protection: Certificate,
) -> Judgement:
    """Judge the gates before certification, because a candidate that fails here gets no certification attempt."""
    evidence = Evidence(
        beat_plant=run.gates.beat_plant,
        data=validation.reasons,
        simulator=simulator,
        ope=evaluation.difference,
        supported=evaluation.supported,
        reason=evaluation.reason,
        unweighed=evaluation.unweighed,
        rollouts=rollouts.differences["plant controller"],
        rollout_violations=rollouts.controllers["candidate"].violated,
        rollout_episodes=rollouts.controllers["candidate"].episodes,
        fallback_share=rollouts.controllers["candidate"].fallback_share,
        departure=_departure(rollouts),
        champion=evaluation.champion_difference,
        champion_unsupported=evaluation.champion_unsupported,
        # The champion itself has no difference in rollouts.
        champion_rollouts=rollouts.differences.get("champion", SAME) if evaluation.champion_difference else None,
        incomparable=champion.incomparable,
        fallback=protection,
    )
    return Judgement(evidence=evidence, gates=judge(evidence))


def _departure(rollouts: Rollouts) -> float | None:
    """Return the share of the candidate's steps that are unlike the logs; None if too few steps were held out."""
    share = rollouts.departure.unlike["candidate"] if rollouts.departure else math.nan
    return share if math.isfinite(share) else None


@effect(name="screen")
def screen_process(
    run: OpenedRun, validation: Validation, model: LearnedModel, evaluation: Evaluation, protection: Protection
) -> Judgement:
    """Judge a log-only plant's candidate by the gates before the servability check.

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


@effect()
def check_service(
    run: OpenedRun,
    population: Population,
    evaluation: Evaluation,
    screening: Judgement,
    certification: Certification | None = None,
) -> Service:
    """Check in a new process that the candidate's bundle loads and answers, if every earlier gate passed.

    Args:
        certification: result of certification; None for a log-only plant, which is not certified.
    """
    if certification is None:
        ready = may_serve(screening.gates)
    else:
        certificate = certification.certificate
        ready = certificate is not None and certificate.passed and may_certify(screening.gates)
    if not ready:
        return Service()
    bundle = population.members[evaluation.selected].bundle
    return Service(check=serve_check(bundle.folder, bundle.digest, run.source))


@effect()
def judge_candidate(screening: Judgement, service: Service, certification: Certification | None = None) -> Judgement:
    """Judge all gates by screening, servability check and certification; a log-only plant has no certification."""
    found = {"certificate": certification.certificate} if certification else {}
    evidence = screening.evidence.model_copy(update={**found, "servability": service.check})
    return Judgement(evidence=evidence, gates=judge(evidence))
