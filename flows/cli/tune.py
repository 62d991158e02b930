"""Command `neorl tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.home import Home
from flows.cli.common import MOST_SEED, AsJson, emit, show_table


def tune(
    plant: Annotated[str, typer.Argument(help="The plant's file, such as plants/tank.py.")],
    seed: Annotated[
        int, typer.Option(help="Random seed of the search and of the comparison.", min=0, max=MOST_SEED)
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="File for the picture; by default in the home.")] = None,
    as_json: AsJson = False,
) -> None:
    """Search for better parameters of your plant's controller in the simulator, before anything is learned.

    The plant's file declares ranges: TUNABLE = {"kp": (0.3, 7.5), "ki": (0.004, 0.1)}. The search simulates thousands
    of episodes of the plant's own operating domain. New episodes then compare the tuned with the present parameters.
    The command changes no file.

    Example: neorl tune plants/tank.py
    """
    from tasks.models.plants.known import plant_at
    from tasks.pictures.style import check_picture
    from tasks.progress import StageProgress
    from tasks.tuning import as_written, draw_tuned
    from tasks.tuning import tune as search

    known = plant_at(plant)
    picture = out or Home.locate().folder("plants") / f"{known.name}-tuned.png"
    check_picture(picture)
    with StageProgress("tune") as progress:
        found = search(known, seed, progress)
    gain = found.gain
    if as_json:
        about = found._asdict() | {"gain": gain._asdict(), "params": as_written(found.params), "better": found.better}
        emit({**about, "parameters": [each._asdict() for each in found.parameters], "picture": str(picture)}, True)
        draw_tuned(known, found, picture, seed)
        return
    rows = [(p.name, f"{p.low:g} to {p.high:g}", f"{p.now:g}", f"{p.tuned:g}", p.remark) for p in found.parameters]
    show_table(("parameter", "range", "now", "tuned", ""), rows)
    print()
    both = zip(("now", "tuned"), found.scores, found.violations, strict=True)
    columns = ("parameters", "score", f"episodes of {found.episodes:,} beyond a limit")
    show_table(columns, [(name, f"{score:.2f}", count) for name, score, count in both])
    print(f"\ngain: {gain.value:+.2f} points [{gain.lower:+.2f}, {gain.upper:+.2f}], 95 % interval")
    if found.better:
        print(f"next: in {plant}, set fallback_params={as_written(found.params)}")
        plant_now = known.simulator()
        if plant_now.found_params is None:
            present = as_written(plant_now.fallback_params)
            print(f"and found_params={present}, if the present controller made the logs")
    else:
        print("next: keep the present parameters, or declare other ranges")
    draw_tuned(known, found, picture, seed)
    print(f"picture: {picture}")
