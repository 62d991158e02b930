"""Judge a candidate: gates before certification, servability check, and all gates."""

from __future__ import annotations

from configs.run import OpenedRun
from tasks.evaluation.servability import serve_check
from tasks.gates import judge, may_certify
from tasks.references import (
    Certificate,
    Certification,
    Champion,
    Evaluation,
    Evidence,
    Judgement,
    Population,
    Rollouts,
    Service,
    SimulatorErrors,
    Validation,
)
from tasks.stages import effect


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
    """Judge the gates before certification, so that no attempt is spent on a candidate that fails one."""
    evidence = Evidence(
        beat_plant=run.gates.beat_plant,
        data=validation.reasons,
        simulator=simulator,
        ope=evaluation.difference,
        supported=evaluation.supported,
        reason=evaluation.reason,
        unweighed=evaluation.unweighed,
        rollouts=rollouts.differences["plant controller"],
        fallback_share=rollouts.controllers["candidate"].fallback_share,
        champion=evaluation.champion_difference,
        champion_unsupported=evaluation.champion_unsupported,
        champion_rollouts=rollouts.differences.get("champion") if evaluation.champion_difference else None,
        incomparable=champion.incomparable,
        fallback=protection,
    )
    return Judgement(evidence=evidence, gates=judge(evidence))


@effect()
def check_service(
    run: OpenedRun, population: Population, evaluation: Evaluation, screening: Judgement, certification: Certification
) -> Service:
    """Load the selected bundle in a fresh process, if every earlier gate passed."""
    certificate = certification.certificate
    if certificate is None or not certificate.passed or not may_certify(screening.gates):
        return Service()
    bundle = population.members[evaluation.selected].bundle
    return Service(check=serve_check(bundle.folder, bundle.digest, run.source))


@effect()
def judge_candidate(screening: Judgement, certification: Certification, service: Service) -> Judgement:
    """Judge all gates."""
    found = {"certificate": certification.certificate, "servability": service.check}
    evidence = screening.evidence.model_copy(update=found)
    return Judgement(evidence=evidence, gates=judge(evidence))
