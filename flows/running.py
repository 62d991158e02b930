"""What surrounds a retraining: the plant's lock, the servers, the record of refusals, and how a run ends in Prefect."""

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
from flows.checks import checked_run, in_home, is_usual_log
from flows.services.locks import plant_lock, recorded_run
from flows.services.openlineage import DataLineage
from flows.services.servers import connect, reap_dead_runs
from flows.watch import arrivals
from tasks.conclusion import show_artifact
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.results import seal_result, verify_result
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
_ended: dict[str, object] = {}
"""What this process's flow runs came to, by the run's id."""

Inputs = tuple[Home, OpenedRun, tuple[Path, ...]]


def refusals_as_states(function: Callable[P, State[R]]) -> Callable[P, State[R]]:
    """End a flow that is refused in a failed state whose message is the reason, in place of a traceback in its log."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> State[R]:
        # Prefect logs the error of a task's state, and of a deployment's run that of the flow's, with their stacks.
        for name in ("prefect.task_runs", "prefect.flow_runs", "prefect.engine"):
            logging.getLogger(name).addFilter(_SENTENCES)
        try:
            state = function(*args, **kwargs)
        except NeoRLError as error:
            return failed(error)
        # Prefect puts a record of its own in the place of what the state holds now.
        _ended[str(flow_run.id)] = state.data
        return state

    return call


class _Sentences(logging.Filter):
    """A refusal is logged as its sentence: the stack that it came through would tell a user nothing more."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the stack out of a record of a refusal."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, NeoRLError):
            record.msg, record.args = str(error), ()
        if error is None or isinstance(error, NeoRLError):
            record.exc_info = record.exc_text = None
        return True


_SENTENCES = _Sentences()


def flow_run_name() -> str:
    """`retrain` and what is retrained, a site by its fleet and its name, from the flow run's parameters."""
    file, mark, site = str(flow_run.parameters["config"]).partition(MARK)
    return f"retrain {Path(file).stem}{mark}{site}"


@contextmanager
def retraining(config: Path, data: Sequence[Path]) -> Iterator[Inputs]:
    """Hold the plant for this run, and keep what is refused, and why, as part of the plant's history.

    Args:
        config: the run's YAML.
        data: files of logs; where there are none, all that came to the watched folder.

    Yields:
        The home, the checked configuration and the files.

    Raises:
        BadInput: on an unusable configuration.
        Refused: when another run holds the plant.
        ServiceMissing: when a server does not answer.
    """
    home, run = Home.locate(), checked_run(config)
    run_id = str(flow_run.id)
    # Nobody is there to start a deployment's run again: a drift, a file or a schedule would pass without a retraining.
    policy = "wait" if deployment.id else run.concurrency
    with (
        recorded_run(home, run_id, run.plant),
        plant_lock(home, run.plant, policy, flow_run.name or "", lambda text: print(text, file=sys.stderr)),
    ):
        reap_dead_runs(home)
        services = connect(home)
        tag_run(run.plant)
        lineage = DataLineage(run.plant, run_id, get_run_logger().warning)
        found = Session(
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
        with session(found):
            named = tuple(data or (arrival.path for arrival in arrivals(home, run.plant)))
            try:
                run = with_shared(home, run)
                hold_run(Ledger.open(home), run)
                named = tuple(present(home, run, path) for path in named)
                with lineage.flow(named):
                    yield home, run, named
            except (BadInput, Refused) as error:
                body = RefusalBody(reason=str(error), sources=tuple(path_content(path) for path in named))
                _keep_refusal(Ledger.open(home), run.plant, body)
                raise


def _keep_refusal(ledger: Ledger, plant: str, body: RefusalBody) -> None:
    """Log a refusal, unless the last thing said of the plant is the same one."""
    last = next((entry for entry in reversed(ledger.entries()) if entry.plant == plant), None)
    if last is None or last.kind != "refusal" or last.read(RefusalBody) != body:
        ledger.append("refusal", body, plant=plant)


def present(home: Home, run: OpenedRun, path: Path) -> Path:
    """Where a file of logs is; the usual generated log of a simulated plant is made where it is not there yet.

    So a deployment runs on a fresh clone, and no other file that is missing is ever made.

    Args:
        home: what a path that begins with `.neorl` is in.
        run: its plant.
        path: as the deployment or a person names it.
    """
    path = in_home(home, path)
    if not os.path.exists(path) and is_usual_log(home, run, path):
        from tasks.data.synthetic.usual import make_usual

        plant, own = plant_of(run), getattr(run.source, "module", "").replace(".", "/")
        with StageProgress("generate") as progress:
            make_usual(home, plant, f"{own}.py" if own else plant.name, progress)
        get_run_logger().info(f"generated {path}, for there was none: made data of the simulator, no plant's")
    return path


def without_simulator(run: OpenedRun) -> bool:
    """Whether a run is of a process that a mapping alone describes."""
    return isinstance(run.source, Described)


def proceed(validation: Validation) -> None:
    """Go on only with a dataset that is fit for training.

    Raises:
        Refused: with what was found against it.
    """
    if not validation.passed:
        raise Refused(f"expected a dataset that passes validation, got one that fails: {'; '.join(validation.reasons)}")


def run_key(
    run: OpenedRun, dataset: Dataset, population: Population, evaluation: Evaluation, champion: Champion
) -> str:
    """What a decision depends on, as 16 hexadecimal digits: the same key was decided on before, and stands.

    Args:
        run: the configuration.
        dataset: by its digest.
        population: by its digest.
        evaluation: by its selection.
        champion: by its composite's digest.
    """
    made_of = [dataset.digest, config_digest(run), population.digest, evaluation.selected, champion.digest]
    return digest_json([*made_of, sources_digest(FLOW)])[:16]


def announce(home: Home, run: OpenedRun, outcome: Outcome) -> State[Outcome]:
    """End the flow run: its state says what came of it, in a sentence, and so do its tags, its log and an artifact.

    Args:
        home: of the ledger.
        run: the configuration.
        outcome: what came of the run.

    Raises:
        Refused: when there is neither a champion nor a shadow, and nothing that waits to become one.
    """
    from prefect.states import Completed

    if outcome.champion is None and outcome.shadow is None and not outcome.waiting:
        raise Refused(f"{outcome.headline.rstrip('.')}: read {outcome.links['report']}.")
    get_run_logger().info(outcome.headline)
    tag_run(run.plant, outcome.verdict)
    if outcome.verdict == "unchanged":
        links = "\n".join(f"- {name}: {url}" for name, url in outcome.links.items())
        show_artifact(run.plant, outcome.headline, f"{outcome.headline}\n\n{links}")
    return Completed(message=outcome.headline, data=outcome)


def ending_of(state: State[R]) -> R:
    """What a flow run of this process came to.

    Where the server's answer to the last message of a run is lost, Prefect's client sends it again, and is given the
    server's copy of the state, which holds no data: then what the flow returned in this process is taken.

    Args:
        state: the one that the flow run ended in.

    Raises:
        NeoRLError: what the run was refused for.
    """
    run_id = str(state.state_details.flow_run_id)
    if state.is_completed() and state.data is None and run_id in _ended:
        return cast("R", _ended[run_id])
    return state.result()


def tag_run(*tags: str) -> None:
    """Give this flow run tags, by which Prefect's pages filter."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, tags=[*flow_run.tags, *tags])
