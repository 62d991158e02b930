"""Commands for newer logs: `neorl monitor`, `shadow` and `extend`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, Plant, emit, known_plant
from flows.cli.decisions import Note, Who
from flows.cli.keys import KeyFile, actor_of

LogOnlyPlant = Annotated[str, typer.Argument(help="The name of a log-only plant.")]
Newer = Annotated[list[Path], typer.Option("--data", help="Newer log file, or a dataset's digest; repeatable.")]
RunFile = Annotated[Path | None, typer.Option("--config", help="The run's file; by default configs/PLANT.yaml.")]


def monitor(
    plant: Plant,
    data: Newer,
    config: RunFile = None,
    alarms_per_year: Annotated[
        float | None, typer.Option(help="Accepted false alarms per year; by default as in the run's file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare newer logs with the champion's training data, and report drift and worse data quality.

    Example: neorl monitor chemical_reactor --data logs/february.parquet
    """
    from flows.monitor import drift_lines, monitor_plant

    outcome = monitor_plant(Home.locate(), _run_file(plant, config), data, alarms_per_year)
    lines = [f"version {outcome.version} of {plant}: {outcome.url}", *drift_lines(outcome.finding)]
    lines += [f"worse than the champion's data: {rise}" for rise in outcome.worse]
    emit(outcome, as_json, lines)


def shadow(plant: LogOnlyPlant, data: Newer, config: RunFile = None, as_json: AsJson = False) -> None:
    """Compare a shadow's proposals with the plant's actions in newer logs, and check for drift.

    Example: neorl shadow buffer_vessel --data logs/february.csv
    """
    from flows.shadow import compare_shadow, comparison_markdown

    outcome = compare_shadow(Home.locate(), _run_file(plant, config), data)
    first = f"version {outcome.version} of {plant}, in shadow until {outcome.until}"
    lines = comparison_markdown(outcome.comparison).replace("**", "").replace("`", "").splitlines()
    emit(outcome, as_json, [first, *lines, f"picture: {outcome.picture}"])


def extend(
    plant: LogOnlyPlant,
    days: Annotated[int, typer.Option(help="Days to add at the period's end, or from now if it ended.", min=1)] = 30,
    by: Who = "",
    note: Note = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Extend the period of a plant's shadow.

    Example: neorl extend buffer_vessel --days 30 --note "cover the summer"
    """
    from flows.shadow import extend as decide

    actor = actor_of(by, key)
    outcome = decide(Home.locate(), known_plant(plant), days, actor.name, note, actor.signatory)
    emit(outcome, as_json, [f"version {outcome.version} of {plant} runs in shadow until {outcome.until}"])


def _run_file(plant: str, config: Path | None) -> Path:
    """Return the run's file of a plant."""
    from flows.preflight import checked_run

    path = config or Path("configs") / f"{known_plant(plant)}.yaml"
    if (other := checked_run(path).plant) != plant:
        raise BadInput(f"{path} is a run of {other}, not of {plant}: name another file with --config.")
    return path
