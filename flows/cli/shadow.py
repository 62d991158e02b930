"""Commands about policies in shadow: compare one with newer logs, and let it run on."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

from configs.home import Home
from flows.cli.console import AsJson, emit, known_plant

Plant = Annotated[str, typer.Argument(help="The plant's name: a process without a simulator.")]


def shadow(
    plant: Plant,
    data: Annotated[list[Path], typer.Option("--data", help="A file of newer logs; repeat it for several.")],
    config: Annotated[Path | None, typer.Option(help="The run's YAML; configs/PLANT.yaml when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Lay a shadow's proposals beside what the plant did, and watch for drift.

    Example: neorl shadow buffer_vessel --data logs/february.csv
    """
    from configs.errors import BadInput
    from configs.load import load_run
    from flows.shadow import compare_shadow, in_words

    path = config or Path("configs") / f"{known_plant(plant)}.yaml"
    if load_run(path).plant != plant:
        raise BadInput(f"expected a run of {plant} in {path}, got one of another plant: name it with --config.")
    found = compare_shadow(Home.locate(), path, data)
    told = in_words(found.comparison).replace("**", "").replace("`", "").splitlines()
    first = f"version {found.version} of {plant}, in shadow until {found.until}"
    emit(found, as_json, [first, *told, f"picture: {found.picture}"])


def extend(
    plant: Plant,
    days: Annotated[int, typer.Option(help="From its end on, or from now where it has ended.", min=1)] = 30,
    by: Annotated[str, typer.Option("--by", help="Who decides; your user name otherwise.")] = "",
    note: Annotated[str, typer.Option("--note", help="Why, for the record.")] = "",
    as_json: AsJson = False,
) -> None:
    """Let the shadow of a process run on.

    Example: neorl extend buffer_vessel --days 30 --note "the summer is still to come"
    """
    from flows.shadow import extend as decide

    found = decide(Home.locate(), known_plant(plant), days, by or getpass.getuser(), note)
    emit(found, as_json, [f"version {found.version} of {plant} runs in shadow until {found.until}"])
