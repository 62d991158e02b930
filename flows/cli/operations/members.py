"""A run's population trained by several machines that share a home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, ConfigFile, emit, keep_compiled


def members(
    config: ConfigFile,
    data: Annotated[
        list[Path], typer.Option("--data", help="A file of logs, or a dataset's digest; repeat it for several.")
    ],
    process: Annotated[
        int, typer.Option(help="Number of this machine, from 0.", envvar="JOB_COMPLETION_INDEX", min=0)
    ] = 0,
    processes: Annotated[int, typer.Option(help="How many machines share the members.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Train this machine's share of a run's members into the home; the retraining that follows finds them trained.

    The run's file says 'train: {members: processes}'. Of an Indexed Job in Kubernetes each pod knows its number.

    Example: neorl members configs/chemical_reactor.yaml --data historian.parquet --process 1 --processes 4
    """
    if process >= processes:
        raise BadInput(f"expected --process below {processes}, got {process}: machines are numbered from 0.")
    keep_compiled(from_the_first=True)
    from flows.checks import checked_run, logs_at
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
    lines = [f"trained {name}" for name in done] or ["fewer members than machines: nothing to train here"]
    emit({"dataset": dataset.digest, "trained": done}, as_json, lines)
