"""Commands that begin a project of one's own: its files, and what is still missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.home import Home
from flows.cli.console import AsJson, emit

if TYPE_CHECKING:
    from tasks.new_project.start import StartedProject


def init(
    name: Annotated[
        str | None, typer.Argument(help="The plant's name, of a to z, 0 to 9 and _; the log's when not given.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--from", help="A log of a plant without simulator: text in any dialect, Parquet or xlsx."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The project's folder; by default one of the plant's name.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Begin a project: a plant's file, its mapping, its run and its deployment, with comments; nothing is overwritten.

    In a project that has a plant already, the deployment is added to prefect.yaml, or its lines are printed.

    With --from it looks at the log instead, and writes a mapping that ingests it as it is, each guess with its reason
    beside it. What cannot be guessed is said: the line to fill in, in the file and here.

    Example: neorl init wind_turbine --from scada.csv
    """
    from tasks.new_project.start import DEPLOYMENTS, start_project

    made = start_project(name, out, log)
    lines = [f"wrote {path}" for path in made.files]
    lines += [f"  check {what}" for what in made.check]
    lines += [f"  fill in {what}" for what in made.fill_in]
    if made.deployment:
        lines += [f"  write under 'deployments' of {made.folder / DEPLOYMENTS}:", *made.deployment.splitlines()]
    emit(made.model_dump(mode="json"), as_json, [*lines, f"next: {_next(made, log)}"])


def _next(made: StartedProject, log: Path | None) -> str:
    steps = [f"fill in {made.mapping}"] if made.fill_in else []
    steps += [] if made.folder.resolve() == Path.cwd() else [f"cd {made.folder}"]
    first = f"{', '.join(steps)}, then " if steps else ""
    config = made.config.relative_to(made.folder)
    if log is None:
        return f"{first}neorl generate plants/{made.name}.py, and neorl check {config}"
    return f"{first}neorl check {config}, which says what else is missing"


def check(
    config: Annotated[
        Path | None, typer.Argument(help="The run's YAML; by default the only one in configs/.", show_default=False)
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", help="Logs, or a dataset's digest; repeat it. By default the deployment's in prefect.yaml."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a retraining still lacks, in order, each with what to write; 1 is the exit code when something does.

    Logs are read as the retraining reads them, which then finds them read.

    Example: neorl check configs/wind_turbine.yaml --data scada.csv
    """
    from flows.readiness import examine_run, only_run

    findings = []
    for found in examine_run(Home.locate(), config or only_run(Path.cwd()), data or []):
        findings.append(found)
        if not as_json:
            print(f"{'ok' if found.ok else 'missing':<9}{found.name}: {found.detail}", flush=True)
    missing = [found for found in findings if not found.ok]
    emit({"ok": not missing, "findings": [found._asdict() for found in findings]}, as_json)
    if missing:
        raise typer.Exit(1)
