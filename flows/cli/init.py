"""Command `neorl init`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.common import AsJson, emit

if TYPE_CHECKING:
    from tasks.new_project.start import StartedProject


def init(
    name: Annotated[
        str | None, typer.Argument(help="The plant's name, of a-z, 0-9 and _; by default the log's name.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--from", help="Log of a plant without simulator: text, Parquet or xlsx.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The project's folder; by default the plant's name.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a project: commented files for plant, mapping, run and deployment. Existing files are not overwritten.

    If prefect.yaml exists, the deployment is added to this file, or printed if the file cannot be changed. With --from,
    the mapping is guessed from the log, with a reason for each guess. The output lists the lines that you must fill in.

    Example: neorl init wind_turbine --from scada.csv
    """
    from tasks.new_project.start import DEPLOYMENTS, start_project

    made = start_project(name, out, log)
    lines = [f"wrote {path}" for path in made.files]
    lines += [f"  check {line}" for line in made.check]
    lines += [f"  fill in {line}" for line in made.fill_in]
    if made.deployment:
        lines += [f"  add under 'deployments' in {made.folder / DEPLOYMENTS}:", *made.deployment.splitlines()]
    emit(made.model_dump(mode="json"), as_json, [*lines, f"next: {_next(made, log)}"])


def _next(made: StartedProject, log: Path | None) -> str:
    steps = [f"fill in {made.mapping}"] if made.fill_in else []
    steps += [] if made.folder.resolve() == Path.cwd() else [f"cd {made.folder}"]
    steps += [f"neorl generate plants/{made.name}.py"] if log is None else []
    return ", then ".join([*steps, f"neorl check {made.config.relative_to(made.folder)}"])
