"""Commands about newer logs: hold them against a champion's or a shadow's, and let a shadow run on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.home import Home
from flows.cli.console import AsJson, emit, known_plant
from flows.cli.keys import KeyFile, hand_of
from flows.cli.models import Who

Plant = Annotated[str, typer.Argument(help="The plant's name: a process without a simulator.")]


Newer = Annotated[list[Path], typer.Option("--data", help="Newer logs, or a dataset's digest; repeat it.")]
RunFile = Annotated[Path | None, typer.Option("--config", help="The run's YAML; configs/PLANT.yaml when not given.")]


def monitor(
    plant: Annotated[str, typer.Argument(help="The plant's name.")],
    data: Newer,
    config: RunFile = None,
    alarms_per_year: Annotated[
        float | None, typer.Option(help="False alarms in a year that are put up with; the run's own when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold newer logs against those of a plant's champion, or of a shadow, and tell of drift and of worse data.

    Example: neorl monitor chemical_reactor --data logs/february.parquet
    """
    from flows.monitor import in_words, monitor_plant

    found = monitor_plant(Home.locate(), _run_file(plant, config), data, alarms_per_year)
    lines = [f"version {found.version} of {plant}: {found.url}", *in_words(found.finding)]
    lines += [f"worse than the champion's data: {rise}" for rise in found.worse]
    emit(found, as_json, lines)


def shadow(plant: Plant, data: Newer, config: RunFile = None, as_json: AsJson = False) -> None:
    """Lay a shadow's proposals beside what the plant did, and watch for drift.

    Example: neorl shadow buffer_vessel --data logs/february.csv
    """
    from flows.shadow import compare_shadow, in_words

    found = compare_shadow(Home.locate(), _run_file(plant, config), data)
    told = in_words(found.comparison).replace("**", "").replace("`", "").splitlines()
    first = f"version {found.version} of {plant}, in shadow until {found.until}"
    emit(found, as_json, [first, *told, f"picture: {found.picture}"])


def extend(
    plant: Plant,
    days: Annotated[int, typer.Option(help="From its end on, or from now where it has ended.", min=1)] = 30,
    by: Who = "",
    note: Annotated[str, typer.Option("--note", help="Why, for the record.")] = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Let the shadow of a process run on.

    Example: neorl extend buffer_vessel --days 30 --note "the summer is still to come"
    """
    from flows.shadow import extend as decide

    hand = hand_of(by, key)
    found = decide(Home.locate(), known_plant(plant), days, hand.name, note, hand.signatory)
    emit(found, as_json, [f"version {found.version} of {plant} runs in shadow until {found.until}"])


def _run_file(plant: str, config: Path | None) -> Path:
    """The run's file of a plant.

    Raises:
        BadInput: when there is no such plant, or the file is of another.
    """
    from configs.errors import BadInput
    from flows.checks import checked_run

    path = config or Path("configs") / f"{known_plant(plant)}.yaml"
    if checked_run(path).plant != plant:
        raise BadInput(f"expected a run of {plant} in {path}, got one of another plant: name it with --config.")
    return path
