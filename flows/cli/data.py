"""Commands about plants' logs: generate, ingest, validate, export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, emit

if TYPE_CHECKING:
    from tasks.references import Dataset

DatasetOrFile = Annotated[
    Path,
    typer.Argument(
        help="A dataset's digest or its first digits, the name of a plant with one dataset, or a source that "
        "'neorl ingest' takes, which is then ingested.",
        metavar="DATASET",
    ),
]
PlantOf = Annotated[
    str | None, typer.Option("--plant", help="Whose names, units and limits apply to a source: a name or a file.")
]
MappingOf = Annotated[
    Path | None, typer.Option("--mapping", help="What the tags of a historian's export mean, in YAML.")
]
SpecOf = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="YAML with names, units, limits and costs (docs/how-to/import-datasets.md).",
    ),
]
HorizonOf = Annotated[
    int | None,
    typer.Option("--horizon", help="Steps of a time limit, for a file that does not tell where episodes end.", min=1),
]
Root = Annotated[
    Path | None, typer.Option("--root", help="The folder of a dataset that was generated outside of the home.")
]


def generate(
    plant: Annotated[
        str, typer.Argument(help="The plant that is simulated: a name, or a file such as plants/tank.py.")
    ],
    behaviour: Annotated[
        str | None,
        typer.Option(
            help="Who acts: random, pid, medium, expert or mixed; historian writes the plant's history with its faults."
            " By default the plant's history, or where it has none its own controller with noise (pid), as a file."
        ),
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="How many; 1000 with --behaviour.", min=1)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the dataset or of the export; a name in .hdf5 makes one file in D4RL's layout. Without "
            "--behaviour it is in the home's generated/PLANT, where the deployments look."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed writes the same bytes.", min=0)] = 0,
    weeks: Annotated[float | None, typer.Option(help="Length of a history; 3 by default.", min=0.0)] = None,
    as_json: AsJson = False,
) -> None:
    """Make data: episodes of one quality as a dataset, or a historian's export as the plant would have kept it.

    Example: neorl generate double_mass --behaviour medium --episodes 1000 --seed 1
    """
    from tasks.data.synthetic.usual import usual_log
    from tasks.models.plants.known import plant_at
    from tasks.progress import StageProgress

    known = plant_at(plant)
    if behaviour is None:
        behaviour, out, episodes = usual_log(Home.locate(), known, episodes, weeks, out)
    if behaviour != "historian":
        if weeks is not None:
            raise BadInput(f"expected --weeks for a history alone, got it with {behaviour}: give --episodes instead.")
        from tasks.data.synthetic.episodes import generate as play

        folder = out or Home.locate().folder("datasets", known.name)
        with StageProgress("generate") as progress:
            made = play(plant, behaviour, episodes or 1000, seed, folder, progress)
        emit(made.model_dump(mode="json", exclude_none=True), as_json, made.lines())
        return
    if episodes is not None or out is None:
        raise BadInput(
            "expected --out and no --episodes for a history, got it otherwise: name its folder by --out, or give "
            "--behaviour for episodes."
        )
    from tasks.data.synthetic.plant_log import generate as write

    with StageProgress("generate") as progress:
        log = write(known.name, out, seed=seed, weeks=3.0 if weeks is None else weeks, progress=progress)
    emit(log.model_dump(mode="json"), as_json, [f"{log.rows:,} rows in {log.path}"])


def ingest(
    source: Annotated[
        Path, typer.Argument(help="A file or a Minari folder of any known format, or a run's YAML with --data.")
    ],
    data: Annotated[
        list[Path] | None, typer.Option("--data", help="A file of logs or a dataset's digest, with a YAML; repeat it.")
    ] = None,
    plant: PlantOf = None,
    mapping: MappingOf = None,
    spec: SpecOf = None,
    horizon: HorizonOf = None,
    max_quarantined: Annotated[
        float | None, typer.Option(help="Share of rows that may fail; 0.05 when not given.", min=0.0, max=0.99)
    ] = None,
    max_gaps: Annotated[
        float | None, typer.Option(help="Share of steps that may lack a signal; 0.25 when not given.", min=0.0, max=1.0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn logs into a dataset whose name is its digest; failing rows are quarantined.

    The format is recognised: D4RL, DSRL, Minari, d3rlpy, NeoRL, NeoRL-2, this store's own files, or a historian's by
    --mapping. Actions may be discrete.

    Example: neorl ingest hopper-medium-v2.hdf5 --spec hopper.yaml
    """
    from tasks.progress import StageProgress

    if source.suffix in (".yaml", ".yml"):
        result = _ingest_run(source, data, [plant, mapping, spec, horizon, max_quarantined, max_gaps])
    elif data:
        raise BadInput(f"expected --data only with a run's YAML, got it with {source.name}: name one source a time.")
    else:
        from configs.run import Data
        from tasks.data.formats.options import SourceOptions
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
    held_out: Annotated[float, typer.Option(help="Share of episodes kept from training.", min=0.01, max=0.99)] = 0.2,
    plant: PlantOf = None,
    mapping: MappingOf = None,
    spec: SpecOf = None,
    horizon: HorizonOf = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a dataset is fit for training, and why not; 1 where it is not.

    Example: neorl validate 33fc22638d80
    """
    from configs.run import Data
    from tasks.data.formats.options import SourceOptions
    from tasks.ingest import find_dataset
    from tasks.progress import StageProgress
    from tasks.validate import validate_dataset

    with StageProgress("ingest") as progress:
        found_dataset = find_dataset(
            Home.locate(), dataset, SourceOptions(plant, mapping, horizon, spec), root, progress
        )
    held = found_dataset.held
    with StageProgress("validate") as progress:
        found = validate_dataset(
            Home.locate(), held, held.spec, Data(held_out=held_out), held.spec.name, progress=progress
        )
    lines = list(found_dataset.made.notes) if found_dataset.made else []
    lines += [f"dataset {held.digest}: {'fit for training' if found.passed else 'refused'}"]
    lines += [
        f"  {kind}: {said}"
        for kind, all_said in (("reason", found.reasons), ("warning", found.warnings))
        for said in all_said
    ]
    lines += [f"data docs: {found.data_docs}", *(line for source in held.sources for line in source.lines())]
    emit(found.model_dump(mode="json"), as_json, lines)
    if not found.passed:
        raise typer.Exit(1)


def _ingest_run(config: Path, data: list[Path] | None, others: Sequence[object]) -> Dataset:
    from tasks.models.plants.opening import open_run

    run = open_run(config)
    if not data or any(other is not None for other in others):
        raise BadInput(f"expected --data FILE alone with {config.name}, which says the rest: name the logs by --data.")
    from flows.checks import logs_at
    from tasks.ingest import ingest as read
    from tasks.progress import StageProgress

    home = Home.locate()
    logs = logs_at(home, run, data)
    with StageProgress("ingest") as progress:
        return read(home, run, logs, progress)


def export(
    dataset: DatasetOrFile,
    to: Annotated[str, typer.Option(help="d4rl, dsrl, minari, neorl or neorl2.")],
    out: Annotated[Path, typer.Option(help="The file; for minari the folder, named as its id, such as plant-v0.")],
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Write a dataset as other libraries read it, and say what the format leaves out.

    Example: neorl export 33fc22638d80 --to minari --out exports/double_mass-v0
    """
    from tasks.data.formats.exports import export as write
    from tasks.ingest import find_dataset
    from tasks.progress import StageProgress

    held = find_dataset(Home.locate(), dataset, folder=root).held
    with StageProgress("export") as progress:
        made = write(held, to, out, progress)
    lines = [f"{made.rows:,} rows in {made.episodes:,} episodes as {to} in {made.path}"]
    emit(made.model_dump(mode="json"), as_json, [*lines, *(f"  left out: {what}" for what in made.left_out)])
