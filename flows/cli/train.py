"""Command `neorl train`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, emit, keep_compiled, setting
from flows.cli.data import DatasetOrFile, HorizonOf, MappingOf, PlantOf, Root, SpecOf

if TYPE_CHECKING:
    from tasks.progress import FollowLearning


def train(
    data: DatasetOrFile,
    algorithm: Annotated[
        str | None,
        typer.Option(help="A learner's name, or your own file. Default: td3_bc, or discrete_cql for discrete actions."),
    ] = None,
    updates: Annotated[int, typer.Option(help="Gradient steps.", min=1)] = 100_000,
    seeds: Annotated[int, typer.Option(help="Number of policies to train, with seeds 0, 1, ...", min=1)] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A hyper-parameter, such as alpha=1 or hidden=[256,256]; repeatable."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Transitions per gradient step.", min=1)] = 256,
    plant: PlantOf = None,
    mapping: MappingOf = None,
    spec: SpecOf = None,
    horizon: HorizonOf = None,
    root: Root = None,
    out: Annotated[Path | None, typer.Option(help="Output folder; by default DATA-ALGORITHM.")] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log learning curves to the home's MLflow.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train on one dataset or file, without gates, certificate or servers.

    D4RL and DSRL files are read directly; other files are ingested first. Repeat an interrupted command to resume.

    Example: neorl train hopper-medium-v2.hdf5 --algorithm td3_bc --updates 100000 --set alpha=1
    """
    keep_compiled(create_home=True)
    from neorl_core.algorithms import default_algorithm
    from neorl_core.online import LEARNERS
    from tasks.data.formats.sources import SourceOptions
    from tasks.models.user_code.algorithms import algorithm_at
    from tasks.models.user_code.known import our_algorithm
    from tasks.progress import StageProgress
    from tasks.training.recording import check_overrides, fit_recording, open_recording

    overrides = dict(map(setting, settings or []))
    # Reject a wrong name before anything is read.
    named = algorithm and (our_algorithm(algorithm) or algorithm_at(algorithm, Path.cwd()))
    if named and named.algorithm.name in LEARNERS:
        raise BadInput(f"{named.algorithm.name} learns in a simulator, not from a dataset: use 'neorl learn'")
    if named:
        check_overrides(named.algorithm, overrides)
    learning = _curves_in_mlflow(Home.locate()) if mlflow else None
    with StageProgress("read") as progress:
        log = open_recording(Home.locate(), data, SourceOptions(plant, mapping, horizon, spec), root, progress)
    if not as_json:
        print(log, flush=True)
    known = named or our_algorithm(default_algorithm(log.spec))
    assert known is not None
    folder = out or Path(f"{log.about.name}-{known.algorithm.name}")
    with StageProgress("train") as progress:
        result = fit_recording(
            log,
            folder,
            known,
            updates=updates,
            seeds=seeds,
            overrides=overrides,
            batch_size=batch_size,
            progress=progress,
            learning=learning,
        )
    emit(asdict(result), as_json, [str(result)])


def _curves_in_mlflow(home: Home) -> FollowLearning:
    """Return a function that starts a record of learning curves in the home's MLflow."""
    from flows.services.servers import connect
    from tasks.registry.learning import LearningRuns
    from tasks.registry.registry import Registry

    return partial(LearningRuns, Registry(connect(home).mlflow.url))
