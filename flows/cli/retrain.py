"""Commands `neorl retrain` and `neorl members`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, ConfigFile, Logs, emit, keep_compiled


def retrain(config: ConfigFile, data: Logs = None, as_json: AsJson = False) -> None:
    """Make a policy from logs: ingest, validate, train, evaluate, certify, register, approve, promote, report.

    Repeat the command to resume a killed run. The exit code is 0 if the gates refuse the candidate while another
    version stays in force, so scripts must read the verdict that --json prints. It is 1 if no version is in force.

    Example: neorl retrain configs/chemical_reactor.yaml --data logs/historian.parquet
    """
    keep_compiled(create_home=True)
    from flows.cli.retrain_summary import summary_lines
    from flows.cli.run_flow import run_retrain

    outcome = run_retrain(config, data)
    emit(outcome, as_json, summary_lines(outcome))


def members(
    config: ConfigFile,
    data: Annotated[list[Path], typer.Option("--data", help="Log file, or a dataset's digest; repeatable.")],
    process: Annotated[
        int, typer.Option(help="Number of this machine, counted from 0.", envvar="JOB_COMPLETION_INDEX", min=0)
    ] = 0,
    processes: Annotated[int, typer.Option(help="Number of machines that share the members.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Train this machine's share of a population, and store the members in the shared home for 'neorl retrain'.

    The run's file needs 'train: {members: processes}'. In Kubernetes, an Indexed Job gives each pod its number.

    Example: neorl members configs/chemical_reactor.yaml --data historian.parquet --process 1 --processes 4
    """
    if process >= processes:
        raise BadInput(f"--process must be below --processes ({processes}), got {process}: numbers start at 0.")
    keep_compiled(create_home=True)
    from flows.preflight import checked_run, logs_at
    from tasks.fleet.shared import with_shared
    from tasks.ingest import ingest
    from tasks.progress import StageProgress
    from tasks.training.train import train_shares

    home = Home.locate()
    run = with_shared(home, checked_run(config))
    logs = logs_at(home, run, data)
    with StageProgress("ingest") as progress:
        dataset = ingest(home, run.part("data"), logs, progress)
    with StageProgress("train") as progress:
        done = train_shares(home, run.for_training(), dataset, process, processes, progress)
    nothing = "nothing to train here: fewer members than machines, or only learners in the simulator"
    lines = [f"trained {name}" for name in done] or [nothing]
    emit({"dataset": dataset.digest, "trained": done}, as_json, lines)
