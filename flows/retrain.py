"""The retraining flow: logs in, a decision out. Run it again after a kill, and it goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow

from flows.process import retrain_process
from flows.running import (
    announce,
    flow_run_name,
    proceed,
    refusals_as_states,
    retraining,
    run_key,
    without_simulator,
)
from tasks.certify import certify_candidate, certify_fallback
from tasks.conclusion import earlier_outcome, propose_promotion, reconcile_aliases, register_candidate, report_outcome
from tasks.evaluation.evaluate import evaluate
from tasks.identify import identify
from tasks.ingest import ingest
from tasks.judgement import check_service, judge_candidate, screen
from tasks.promote import decide, drift_reference, incumbent
from tasks.references import Findings, Outcome
from tasks.simulate import simulate, validate_simulator
from tasks.training.train import fallback_composite, train
from tasks.validate import validate

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


@flow(name="retrain", flow_run_name=flow_run_name, persist_result=False)
@refusals_as_states
def retrain(config: str = "configs/chemical_reactor.yaml", data: list[str] | None = None) -> State[Outcome]:
    """Retrain a plant's policy from its logs, certify it, and promote it by rule.

    A process without a simulator has a flow of its own, `flows.process`, for nothing can be certified there.

    Args:
        config: the run's YAML.
        data: files of logs; all that came to the watched folder when not given.

    Returns:
        What came of it, as the state's data.

    Raises:
        NeoRLError: when configuration or data are unusable, the data fail validation, or not even the plant's own
            controller is certified.
    """
    with retraining(Path(config), [Path(path) for path in data or []]) as (home, run, sources):
        if without_simulator(run):
            return announce(home, run, retrain_process(home, run, sources))
        reconcile_aliases(home, run)
        dataset = ingest(home, run.part("data"), sources)
        earlier = drift_reference(home, run, dataset)
        validation = validate(home, run.part("data"), dataset, earlier)
        proceed(validation)
        constants = identify(home, run.part("identify", "data.held_out"), dataset)
        population = train(home, run.for_training(), dataset, identification=constants)
        fallback = fallback_composite(home, run.part("shield"), identification=constants)
        champion = incumbent(home, run, dataset, fallback)
        evaluation = evaluate(home, run.part("evaluate", "history", "data.held_out"), dataset, population, champion)
        simulated = run.part("evaluate", "certify.domain", "shield")
        rollouts = simulate(home, simulated, population, evaluation, champion, identification=constants)
        simulator = validate_simulator(home, run.part("data.held_out", "certify.domain"), dataset, constants)
        key = run_key(run, dataset, population, evaluation, champion)
        if (known := earlier_outcome(home, run, key)) is not None:
            return announce(home, run, known)
        protection = certify_fallback(home, run.part("certify"), fallback, identification=constants)
        screening = screen(run.part("gates"), validation, simulator, evaluation, rollouts, champion, protection)
        certification = certify_candidate(
            home, run.part("certify"), dataset, population, evaluation, screening, identification=constants
        )
        service = check_service(run.part(), population, evaluation, screening, certification)
        judgement = judge_candidate(screening, certification, service)
        findings = Findings(
            run=run,
            run_key=key,
            dataset=dataset,
            validation=validation,
            identification=constants,
            population=population,
            fallback=fallback,
            champion=champion,
            evaluation=evaluation,
            rollouts=rollouts,
            protection=protection,
            certification=certification,
            judgement=judgement,
        )
        candidate = register_candidate(home, findings)
        proposal = propose_promotion(home, findings, candidate)
        decision = decide(home, run, proposal)
        reconcile_aliases(home, run, decision)
        return announce(home, run, report_outcome(home, findings, decision))
