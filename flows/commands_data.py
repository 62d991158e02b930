"""Commands about plants and their logs: plants, generate, ingest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.home import Home
from flows.console import AsJson, ConfigFile, DataFiles, emit, known_plant, show_table


def plants(as_json: AsJson = False) -> None:
    """List the plants that are simulated here.

    Example: neorl plants
    """
    from neorl_core.plants import PLANTS

    table = {}
    for name, plant in PLANTS.items():
        spec = plant.spec
        table[name] = {
            "observation": dict(zip(spec.observation.names, spec.observation.units, strict=True)),
            "action": dict(zip(spec.action.names, spec.action.units, strict=True)),
            "limits": {c.name: f"{c.low:g} to {c.high:g} {c.unit}" for c in spec.constraints},
            "horizon": spec.horizon,
            "period": f"{spec.dt:g} {spec.time_unit}",
        }
    if as_json:
        emit({"plants": table}, True)
        return
    rows = [
        (
            name,
            ", ".join(p["observation"]),
            ", ".join(p["action"]),
            p["period"],
            p["horizon"],
            "; ".join(f"{limit} {text}" for limit, text in p["limits"].items()),
        )
        for name, p in table.items()
    ]
    show_table(("plant", "observed", "manipulated", "period", "steps", "limits"), rows)


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


def ingest(config: ConfigFile, data: DataFiles, as_json: AsJson = False) -> None:
    """Turn files of logs into a dataset whose name is its digest; failing rows are quarantined.

    Example: neorl ingest configs/chemical_reactor.yaml --data logs/historian.parquet
    """
    from configs.load import load_run

    run = load_run(config)
    from tasks.ingest import ingest as read
    from tasks.progress import StageProgress

    with StageProgress("ingest") as progress:
        result = read(Home.locate(), run, data, progress)
    lines = [f"dataset {result['digest']}", f"{result['rows']:,} rows in {result['episodes']} episodes"]
    if result["quarantined"]:
        lines.append(f"{result['quarantined']:,} rows in quarantine: {result['quarantine_path']}")
    lines.append(f"card: {result['card']}")
    emit(result, as_json, lines)
