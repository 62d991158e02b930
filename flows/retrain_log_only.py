"""The retraining of a log-only plant: from logs to a shadow or a refusal, without a certificate."""

from __future__ import annotations

from pathlib import Path

from configs.home import Home
from configs.run import OpenedRun
from flows.flow_run import proceed, run_key
from tasks.conclusion import earlier_outcome, propose_shadow, reconcile_aliases, register_candidate, report_outcome
from tasks.evaluation.evaluate import evaluate
from tasks.ingest import ingest
from tasks.judgement import check_service, judge_candidate, screen_process
from tasks.log_only.checks import estimate, examine
from tasks.log_only.learned_model import fit_model
from tasks.log_only.protection import protect
from tasks.promote import decide, drift_reference, incumbent
from tasks.references import Outcome, ProcessFindings
from tasks.training.train import train
from tasks.validate import validate


def retrain_log_only(home: Home, run: OpenedRun, sources: tuple[Path, ...]) -> Outcome:
    """Train a policy from logs alone, judge it by the gates for log-only plants, and start a shadow by rule.

    Raises:
        NeoRLError: if the data are unusable or fail validation.
    """
    reconcile_aliases(home, run)
    dataset = ingest(home, run.part("data"), sources)
    reference = drift_reference(home, run, dataset)
    validation = validate(home, run.part("data"), dataset, reference)
    proceed(validation)
    fallback = protect(home, run.part("fallback", "support", "shield", "data.held_out"), dataset)
    population = train(home, run.for_training(), dataset, protection=fallback)
    champion = incumbent(home, run, dataset, fallback)
    evaluation = evaluate(home, run.part("evaluate", "history", "data.held_out"), dataset, population, champion)
    model = fit_model(home, run.part("evaluate", "history", "data.held_out"), dataset)
    about = run.part("fallback", "support", "shield", "data.held_out")
    protection = examine(home, about, dataset, population, evaluation)
    estimated = estimate(home, run.part("evaluate", "history", "data.held_out"), dataset, population, evaluation, model)
    key = run_key(run, dataset, population, evaluation, champion)
    if (decided := earlier_outcome(home, run, key)) is not None:
        return decided
    screening = screen_process(run.part("gates"), validation, model, evaluation, protection)
    service = check_service(run.part(), population, evaluation, screening)
    judgement = judge_candidate(screening, service)
    findings = ProcessFindings(
        run=run,
        run_key=key,
        dataset=dataset,
        validation=validation,
        population=population,
        fallback=fallback,
        champion=champion,
        evaluation=evaluation,
        model=model,
        protection=protection,
        estimate=estimated,
        judgement=judgement,
    )
    candidate = register_candidate(home, findings)
    proposal = propose_shadow(home, findings, candidate)
    decision = decide(home, run, proposal)
    reconcile_aliases(home, run, decision)
    return report_outcome(home, findings, decision)
