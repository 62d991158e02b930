"""The retraining flow: from logs to a promotion decision. To resume a killed run, start the flow again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow

from flows.flow_run import conclude, is_log_only, proceed, refusals_as_states, retrain_run_name, retraining, run_key
from flows.retrain_log_only import retrain_log_only
from tasks.certify import certify_candidate, certify_fallback
from tasks.conclusion import earlier_outcome, propose_promotion, reconcile_aliases, register_candidate, report_outcome
from tasks.evaluation.evaluate import evaluate
from tasks.evaluation.relowering import lowerings_ahead
from tasks.identify import identify
from tasks.ingest import ingest
from tasks.judgement import check_service, judge_candidate, screen
from tasks.promote import decide, drift_reference, incumbent
from tasks.ranking import rank
from tasks.references import Findings, Outcome
from tasks.simulate import simulate, validate_simulator
from tasks.training.train import fallback_composite, train
from tasks.validate import validate

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


@flow(name="retrain", flow_run_name=retrain_run_name, persist_result=False)
@refusals_as_states
def retrain(config: str = "configs/chemical_reactor.yaml", data: list[str] | None = None) -> State[Outcome]:
    """Train a policy from a plant's logs, certify it, and decide by rule whether to promote it.

    Log-only plants follow `flows.retrain_log_only` instead, because certification needs a simulator.

    Args:
        config: the run's file.
        data: log files; by default all files of the plant in the watched folder.

    Returns:
        The final Prefect state, with the outcome as data.

    Raises:
        NeoRLError: if configuration or data are unusable, the data fail validation, or not even the plant's own
            controller is certified.
    """
    with retraining(Path(config), [Path(path) for path in data or []]) as (home, run, sources), ExitStack() as stack:
        if is_log_only(run):
            return conclude(home, run, retrain_log_only(home, run, sources))
        reconcile_aliases(home, run)
        dataset = ingest(home, run.part("data"), sources)
        reference = drift_reference(home, run, dataset)
        validation = validate(home, run.part("data"), dataset, reference)
        proceed(validation)
        constants = identify(home, run.part("identify", "data.held_out"), dataset)
        simulator = validate_simulator(home, run.part("data.held_out", "certify.domain"), dataset, constants)
        population = train(home, run.for_training(), dataset, identification=constants, simulator=simulator)
        fallback = fallback_composite(home, run.part("shield"), identification=constants)
        champion = incumbent(home, run, dataset, fallback)
        stack.enter_context(lowerings_ahead())
        simulated = run.part("evaluate", "certify.domain", "shield", "data.held_out")
        ranking = rank(home, simulated, population, identification=constants)
        evaluation = evaluate(
            home, run.part("evaluate", "history", "data.held_out"), dataset, population, champion, ranking=ranking
        )
        rollouts = simulate(home, simulated, dataset, population, evaluation, champion, identification=constants)
        key = run_key(run, dataset, population, evaluation, champion)
        if (decided := earlier_outcome(home, run, key)) is not None:
            return conclude(home, run, decided)
        protection = certify_fallback(home, run.part("certify"), fallback, identification=constants)
        screening = screen(run.part("gates"), validation, simulator, evaluation, rollouts, champion, protection)
        certification = certify_candidate(
            home, run.part("certify"), dataset, population, evaluation, screening, identification=constants
        )
        service = check_service(run.part(), population, evaluation, screening, certification)
        judgement = judge_candidate(screening, service, certification)
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
        return conclude(home, run, report_outcome(home, findings, decision))
