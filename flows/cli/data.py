"""Commands for data: `neorl generate`, `ingest`, `validate` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, Logs, emit

if TYPE_CHECKING:
    from tasks.references import Dataset

DatasetOrFile = Annotated[
    Path,
    typer.Argument(
        help="Digest of a dataset (or its first digits), a plant with only one dataset, or a file to ingest.",
        metavar="DATASET",
    ),
]
PlantOf = Annotated[
    str | None, typer.Option("--plant", help="Plant (name or file) that defines names, units and limits.")
]
MappingOf = Annotated[Path | None, typer.Option("--mapping", help="YAML file with the mapping of a historian's tags.")]
SpecOf = Annotated[
    Path | None, typer.Option("--spec", help="YAML file with names, units and limits (docs/how-to/import-datasets.md).")
]
HorizonOf = Annotated[
    int | None,
    typer.Option("--horizon", help="Steps of an episode, if the file does not mark the ends of episodes.", min=1),
]
Root = Annotated[Path | None, typer.Option("--root", help="Folder of a dataset outside the home.")]


def generate(
    plant: Annotated[str, typer.Argument(help="A name from 'neorl plants', or a plant's file such as plants/tank.py.")],
    behaviour: Annotated[
        str | None,
        typer.Option(
            help="Logged controller: random, pid (the plant's controller with noise), medium, expert or mixed; or "
            "historian for a historian's export with faults. Default: historian if the plant has an export, else pid."
        ),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Number of episodes. The default with --behaviour is 1000.", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output folder, or a .hdf5 file in D4RL's layout. Without --behaviour the default is generated/PLANT "
            "in the home, which the deployments read."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed writes the same bytes.", min=0)] = 0,
    weeks: Annotated[float | None, typer.Option(help="Weeks of a historian's export; default 3.", min=0.0)] = None,
    as_json: AsJson = False,
) -> None:
    """Generate logs by simulation: a dataset of episodes, or a historian's export.

    Example: neorl generate double_mass --behaviour medium --episodes 1000 --seed 1
    """
    from tasks.data.synthetic.default_log import default_log
    from tasks.models.plants.known import plant_at
    from tasks.progress import StageProgress

    known = plant_at(plant)
    if behaviour is None:
        behaviour, out, episodes = default_log(Home.locate(), known, episodes, weeks, out)
    if behaviour != "historian":
        if weeks is not None:
            raise BadInput(f"--weeks {weeks:g} needs --behaviour historian, got {behaviour}: use --episodes.")
        from tasks.data.synthetic.episodes import generate as play

        folder = out or Home.locate().folder("datasets", known.name)
        with StageProgress("generate") as progress:
            made = play(plant, behaviour, episodes or 1000, seed, folder, progress)
        emit(made.model_dump(mode="json", exclude_none=True), as_json, made.lines())
        return
    if episodes is not None:
        raise BadInput(f"--episodes {episodes} does not apply to a historian's export: use --weeks.")
    if out is None:
        raise BadInput("--behaviour historian needs a folder for the export: name it with --out.")
    from tasks.data.synthetic.reactor_history import generate as write

    with StageProgress("generate") as progress:
        log = write(known.name, out, seed=seed, weeks=3.0 if weeks is None else weeks, progress=progress)
    emit(log.model_dump(mode="json"), as_json, [f"{log.rows:,} rows in {log.path}"])


def ingest(
    source: Annotated[Path, typer.Argument(help="A file or Minari folder; or a run's file, with the logs in --data.")],
    data: Logs = None,
    plant: PlantOf = None,
    mapping: MappingOf = None,
    spec: SpecOf = None,
    horizon: HorizonOf = None,
    max_quarantined: Annotated[
        float | None, typer.Option(help="Allowed share of rejected rows; default 0.05.", min=0.0, max=0.99)
    ] = None,
    max_gaps: Annotated[
        float | None, typer.Option(help="Allowed share of steps without a signal; default 0.25.", min=0.0, max=1.0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ingest logs as a dataset, and print the digest that names the dataset. Rejected rows go to quarantine.

    Recognised formats are D4RL, DSRL, Minari, d3rlpy, the benchmarks NeoRL and NeoRL-2, this program's own files, and
    with --mapping a historian's export. Actions may be discrete.

    Example: neorl ingest hopper-medium-v2.hdf5 --spec hopper.yaml
    """
    from tasks.progress import StageProgress

    if source.suffix in (".yaml", ".yml"):
        result = _ingest_run(source, data, [plant, mapping, spec, horizon, max_quarantined, max_gaps])
    elif data:
        raise BadInput(f"--data needs a run's file as argument, got {source.name}: omit --data to ingest this file.")
    else:
        from configs.run import Data
        from tasks.data.formats.sources import SourceOptions
        from tasks.ingest import ingest_file

        given = {"max_quarantined": max_quarantined, "max_gaps": max_gaps}
        allowed = Data.model_validate({name: share for name, share in given.items() if share is not None})
        with StageProgress("ingest") as progress:
            result = ingest_file(Home.locate(), source, SourceOptions(plant, mapping, horizon, spec), allowed, progress)
    lines = [*result.notes, f"dataset {result.digest}", f"{result.rows:,} rows in {result.episodes:,} episodes"]
    if result.quarantine:
        lines.append(f"quarantine: {result.quarantine}")
    lines += [f"card: {result.card}", *result.accounted]
    emit(result.model_dump(mode="json"), as_json, lines)


def validate(
    dataset: DatasetOrFile,
    held_out: Annotated[float, typer.Option(help="Share of held-out episodes.", min=0.01, max=0.99)] = 0.2,
    plant: PlantOf = None,
    mapping: MappingOf = None,
    spec: SpecOf = None,
    horizon: HorizonOf = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a dataset is fit for training. If it is not, print the reasons and exit with code 1.

    Example: neorl validate 33fc22638d80
    """
    from configs.run import Data
    from tasks.data.formats.sources import SourceOptions
    from tasks.ingest import find_dataset
    from tasks.progress import StageProgress
    from tasks.validate import validate_dataset

    with StageProgress("ingest") as progress:
        source = find_dataset(Home.locate(), dataset, SourceOptions(plant, mapping, horizon, spec), root, progress)
    stored = source.held
    with StageProgress("validate") as progress:
        found = validate_dataset(
            Home.locate(), stored, stored.spec, Data(held_out=held_out), stored.spec.name, progress=progress
        )
    lines = list(source.made.notes) if source.made else []
    lines += [f"dataset {stored.digest}: {'fit for training' if found.passed else 'refused'}"]
    lines += [
        f"  {kind}: {message}"
        for kind, messages in (("reason", found.reasons), ("warning", found.warnings))
        for message in messages
    ]
    lines += [f"data docs: {found.data_docs}", *(line for each in stored.sources for line in each.lines())]
    emit(found.model_dump(mode="json"), as_json, lines)
    if not found.passed:
        raise typer.Exit(1)


def _ingest_run(config: Path, data: list[Path] | None, others: Sequence[object]) -> Dataset:
    from tasks.models.plants.opening import open_run

    run = open_run(config)
    if not data or any(other is not None for other in others):
        raise BadInput(f"{config.name} needs --data FILE and no other option: name the logs with --data.")
    from flows.preflight import logs_at
    from tasks.ingest import ingest as read
    from tasks.progress import StageProgress

    home = Home.locate()
    logs = logs_at(home, run, data)
    with StageProgress("ingest") as progress:
        return read(home, run, logs, progress)


def export(
    dataset: DatasetOrFile,
    to: Annotated[str, typer.Option(help="Format: d4rl, dsrl, minari, neorl or neorl2.")],
    out: Annotated[
        Path, typer.Option(help="Output file; for minari a folder named like the dataset, such as plant-v0.")
    ],
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Export a dataset to a format of another library, and list the contents that the format cannot store.

    Example: neorl export 33fc22638d80 --to minari --out exports/double_mass-v0
    """
    from tasks.data.formats.exports import export as write
    from tasks.ingest import find_dataset
    from tasks.progress import StageProgress

    stored = find_dataset(Home.locate(), dataset, folder=root).held
    with StageProgress("export") as progress:
        made = write(stored, to, out, progress)
    lines = [f"{made.rows:,} rows in {made.episodes:,} episodes as {to} in {made.path}"]
    emit(made.model_dump(mode="json"), as_json, [*lines, *(f"  left out: {each}" for each in made.left_out)])
