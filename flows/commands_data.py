"""Commands about plants' logs: generate, ingest, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.console import AsJson, emit, known_plant


def generate(
    plant: Annotated[str, typer.Argument(help="The plant whose history is written.")],
    out: Annotated[Path, typer.Option(help="Folder for the export and the true trajectory.")],
    seed: Annotated[int, typer.Option(help="The same seed writes the same bytes.", min=0)] = 0,
    weeks: Annotated[float, typer.Option(help="Length of the record.", min=0.0)] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Write a historian export as the plant would have kept it, with the faults that such logs have.

    Example: neorl generate chemical_reactor --out logs --seed 1 --weeks 3
    """
    name = known_plant(plant)
    from tasks.adapters.plant_log import generate as write
    from tasks.progress import StageProgress

    with StageProgress("generate") as progress:
        result = write(name, out, seed=seed, weeks=weeks, progress=progress)
    emit(result, as_json, [f"{result['rows']:,} rows in {result['path']}"])


def ingest(
    source: Annotated[
        Path, typer.Argument(help="A file or a Minari folder of any known format, or a run's YAML with --data.")
    ],
    data: Annotated[list[Path] | None, typer.Option("--data", help="A file of logs, with a YAML; repeat it.")] = None,
    plant: Annotated[str | None, typer.Option(help="Whose names, units and limits apply.")] = None,
    mapping: Annotated[Path | None, typer.Option(help="What the tags of a historian's export mean, in YAML.")] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Steps of a time limit, for a file that does not tell where episodes end.")
    ] = None,
    max_quarantined: Annotated[float, typer.Option(help="Share of rows that may fail.", min=0.0, max=0.99)] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Turn logs into a dataset whose name is its digest; failing rows are quarantined.

    The format is recognised: D4RL, DSRL, Minari, NeoRL, NeoRL-2, this store's own files, or a historian's by --mapping.

    Example: neorl ingest DMSD-high-100000-train.npz --plant double_mass
    """
    from tasks.progress import StageProgress

    if source.suffix in (".yaml", ".yml"):
        result = _ingest_run(source, data, [plant, mapping, horizon])
    elif data:
        raise BadInput(f"expected --data only with a run's YAML, got it with {source.name}: name one source a time.")
    else:
        from tasks.ingest import ingest_file

        name = known_plant(plant) if plant else None
        with StageProgress("ingest") as progress:
            result = ingest_file(Home.locate(), source, name, mapping, horizon, max_quarantined, progress)
    lines = [*result.get("words", ()), f"dataset {result['digest']}"]
    lines.append(f"{result['rows']:,} rows in {result['episodes']:,} episodes")
    if result["quarantined"]:
        lines.append(f"{result['quarantined']:,} rows in quarantine: {result['quarantine_path']}")
    emit(result, as_json, lines)


def _ingest_run(config: Path, data: list[Path] | None, others: list[Any]) -> dict[str, Any]:
    from configs.load import load_run

    run = load_run(config)
    if not data or any(other is not None for other in others):
        raise BadInput(f"expected --data FILE alone with {config.name}, which says the rest: name the logs by --data.")
    known_plant(run.plant)
    from tasks.ingest import ingest as read
    from tasks.progress import StageProgress

    with StageProgress("ingest") as progress:
        return read(Home.locate(), run, data, progress)


def export(
    digest: Annotated[str, typer.Argument(help="The dataset's digest, or its first digits.")],
    to: Annotated[str, typer.Option(help="d4rl, dsrl, minari, neorl or neorl2.")],
    out: Annotated[Path, typer.Option(help="The file; for minari the folder, named as its id, such as plant-v0.")],
    root: Annotated[
        Path | None, typer.Option(help="The folder of a dataset that was generated outside of the home.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a dataset as other libraries read it, and say what the format leaves out.

    Example: neorl export 33fc22638d80 --to minari --out exports/double_mass-v0
    """
    from tasks.adapters.dataset import find_dataset
    from tasks.adapters.exports import export as write
    from tasks.progress import StageProgress

    datasets = Home.locate().root / "datasets"
    folders = [root] if root else sorted(datasets.iterdir()) if datasets.is_dir() else []
    with StageProgress("export") as progress:
        result = write(find_dataset(folders, digest), to, out, progress)
    lines = [f"{result['rows']:,} rows in {result['episodes']:,} episodes as {to} in {result['path']}"]
    emit(result, as_json, [*lines, *(f"  left out: {what}" for what in result["left_out"])])
