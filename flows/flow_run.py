"""Begin and end a flow run: plant lock, servers, run record, refusals and the final state in Prefect."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from prefect import get_run_logger
from prefect.runtime import deployment, flow_run

from configs.code import Described
from configs.errors import BadInput, NeoRLError, Refused
from configs.home import Home
from configs.run import OpenedRun
from configs.strict import MARK
from flows.preflight import checked_run, in_home, is_default_log
from flows.services.locks import plant_lock, recorded_run
from flows.services.openlineage import LineageEvents
from flows.services.servers import connect, reap_dead_runs
from flows.services.watched_folder import arrivals
from tasks.conclusion import show_artifact
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.seals import seal_result, verify_result
from tasks.evidence.rules import RefusalBody
from tasks.files.canonical import digest_json
from tasks.files.provenance import sources_digest
from tasks.fleet.shared import with_shared
from tasks.lifecycle.policy import hold_run
from tasks.models.plants.known import plant_of
from tasks.progress import StageProgress
from tasks.promote import FLOW
from tasks.references import Champion, Dataset, Evaluation, Outcome, Population, Validation
from tasks.registry.learning import LearningRuns
from tasks.registry.registry import Registry
from tasks.stages import Session, config_digest, failed, path_content, session

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

P = ParamSpec("P")
R = TypeVar("R")
_results: dict[str, object] = {}

Inputs = tuple[Home, OpenedRun, tuple[Path, ...]]


def refusals_as_states(function: Callable[P, State[R]]) -> Callable[P, State[R]]:
    """Decorate a flow: a NeoRLError ends the flow in a failed state with the error's message, without a traceback."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> State[R]:
        # Prefect logs the errors of task runs and of deployed flow runs with their tracebacks.
        for name in ("prefect.task_runs", "prefect.flow_runs", "prefect.engine"):
            logging.getLogger(name).addFilter(_WITHOUT_TRACEBACK)
        try:
            state = function(*args, **kwargs)
        except NeoRLError as error:
            return failed(error)
        # Prefect replaces the state's data, so `result_of` may need this copy.
        _results[str(flow_run.id)] = state.data
        return state

    return call


class _WithoutTraceback(logging.Filter):
    """Removes the traceback from log records of a NeoRLError."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, NeoRLError):
            record.msg, record.args = str(error), ()
        if error is None or isinstance(error, NeoRLError):
            record.exc_info = record.exc_text = None
        return True


_WITHOUT_TRACEBACK = _WithoutTraceback()


def retrain_run_name() -> str:
    """Return the name of this flow run in Prefect: `retrain PLANT`, or `retrain FLEET#SITE` for a site."""
    file, mark, site = str(flow_run.parameters["config"]).partition(MARK)
    return f"retrain {Path(file).stem}{mark}{site}"


def run_name_by_config() -> str:
    """Return the name of this flow run in Prefect: flow and run's file, such as `monitor chemical_reactor`."""
    return f"{flow_run.flow_name} {Path(flow_run.parameters['config']).stem}"


@contextmanager
def retraining(config: Path, data: Sequence[Path]) -> Iterator[Inputs]:
    """Lock the plant, connect to the servers and find the logs of a retraining. Append a refusal to the ledger.

    Args:
        config: the run's file.
        data: log files; if empty, all files of the plant in the watched folder.

    Yields:
        The home, the checked configuration and the log files.

    Raises:
        BadInput: if the configuration is invalid.
        Refused: if another run has locked the plant.
        ServiceMissing: if a server does not answer.
    """
    home, run = Home.locate(), checked_run(config)
    run_id = str(flow_run.id)
    # A deployed run waits for the lock, because no person would repeat a refused run.
    policy = "wait" if deployment.id else run.concurrency
    with (
        recorded_run(home, run_id, run.plant),
        plant_lock(home, run.plant, policy, flow_run.name or "", lambda text: print(text, file=sys.stderr)),
    ):
        reap_dead_runs(home)
        services = connect(home)
        tag_run(run.plant)
        lineage = LineageEvents(run.plant, run_id, get_run_logger().warning)
        context = Session(
            probe=lambda: connect(home),
            seal=functools.partial(seal_result, home),
            sealed=functools.partial(verify_result, home),
            progress=StageProgress,
            learning=functools.partial(LearningRuns, Registry(services.mlflow.url)),
            mlflow=services.mlflow.url,
            flow_run=run_id,
            url=f"{services.prefect.url}/runs/flow-run/{run_id}",
            follow=lineage.stage,
        )
        with session(context):
            logs = tuple(data or (arrival.path for arrival in arrivals(home, run.plant)))
            try:
                run = with_shared(home, run)
                hold_run(Ledger.open(home), run)
                logs = tuple(present(home, run, path) for path in logs)
                with lineage.flow(logs):
                    yield home, run, logs
            except (BadInput, Refused) as error:
                body = RefusalBody(reason=str(error), sources=tuple(path_content(path) for path in logs))
                _append_refusal(Ledger.open(home), run.plant, body)
                raise


@contextmanager
def operation(config: Path) -> Iterator[tuple[Home, str]]:
    """Record a flow run that is not a retraining. After a kill, the record lets a later command report the crash.

    Yields:
        The home, and the name of the plant in the run's file.
    """
    home, plant = Home.locate(), checked_run(config).plant
    with recorded_run(home, str(flow_run.id), plant):
        reap_dead_runs(home)
        tag_run(plant)
        yield home, plant


def _append_refusal(ledger: Ledger, plant: str, body: RefusalBody) -> None:
    """Append a refusal to the ledger, unless the plant's last entry is an equal refusal."""
    last = next((entry for entry in reversed(ledger.entries()) if entry.plant == plant), None)
    if last is None or last.kind != "refusal" or last.read(RefusalBody) != body:
        ledger.append("refusal", body, plant=plant)


def present(home: Home, run: OpenedRun, path: Path) -> Path:
    """Return the path of a log file. If the path is a simulated plant's synthetic log and is missing, generate it.

    A deployment therefore runs on a fresh clone. Other missing files are never generated.
    """
    path = in_home(home, path)
    if not os.path.exists(path) and is_default_log(home, run, path):
        from tasks.data.synthetic.default_log import make_default_log

        plant, own = plant_of(run), getattr(run.source, "module", "").replace(".", "/")
        with StageProgress("generate") as progress:
            make_default_log(home, plant, f"{own}.py" if own else plant.name, progress)
        get_run_logger().info(f"generated the missing log {path} by simulation: these are not data of a real plant")
    return path


def is_log_only(run: OpenedRun) -> bool:
    """Return whether the plant has no simulator, only a mapping."""
    return isinstance(run.source, Described)


def proceed(validation: Validation) -> None:
    """Stop the run if the dataset failed validation.

    Raises:
        Refused: if the dataset failed; the message has the reasons.
    """
    if not validation.passed:
        raise Refused(f"the dataset failed validation: {'; '.join(validation.reasons)}")


def run_key(
    run: OpenedRun, dataset: Dataset, population: Population, evaluation: Evaluation, champion: Champion
) -> str:
    """Return 16 hexadecimal digits of SHA-256 over all inputs of a decision. Runs with equal keys share a decision."""
    inputs = [dataset.digest, config_digest(run), population.digest, evaluation.selected, champion.digest]
    return digest_json([*inputs, sources_digest(FLOW)])[:16]


def conclude(home: Home, run: OpenedRun, outcome: Outcome) -> State[Outcome]:
    """End a retraining: tag the flow run, log the outcome's headline, and return the final Prefect state.

    Raises:
        Refused: if there is no champion, no shadow and no candidate waiting for approval.
    """
    if outcome.champion is None and outcome.shadow is None and not outcome.waiting:
        raise Refused(f"{outcome.headline.rstrip('.')}: read {outcome.links['report']}.")
    tag_run(run.plant, outcome.verdict)
    if outcome.verdict == "unchanged":
        links = "\n".join(f"- {name}: {url}" for name, url in outcome.links.items())
        show_artifact(run.plant, outcome.headline, f"{outcome.headline}\n\n{links}")
    return completed(outcome.headline, outcome)


def completed(headline: str, result: R) -> State[R]:
    """Log the headline, and return a completed Prefect state: the headline is the message, the result the data."""
    from prefect.states import Completed

    get_run_logger().info(headline)
    return Completed(message=headline, data=result)


def result_of(state: State[R]) -> R:
    """Return the result of a flow run that this process executed.

    If the server's last answer is lost, Prefect's client asks again and receives the state without data. The result
    then comes from the copy that `refusals_as_states` kept.

    Raises:
        NeoRLError: if the run was refused.
    """
    run_id = str(state.state_details.flow_run_id)
    if state.is_completed() and state.data is None and run_id in _results:
        return cast("R", _results[run_id])
    return state.result()


def tag_run(*tags: str) -> None:
    """Add tags to this flow run. Prefect's pages can filter runs by tag."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, tags=[*flow_run.tags, *tags])
