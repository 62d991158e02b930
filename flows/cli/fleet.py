"""Commands `neorl fleet retrain`, `status` and `generate`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from configs.home import Home
from flows.cli.common import AsJson, emit, group, keep_compiled, show_table

fleet = group("Retrain and compare the sites of a fleet.")
FleetFile = Annotated[Path, typer.Argument(help="The fleet's YAML, such as fleet.yaml.")]


@fleet.command("retrain")
def fleet_retrain(
    config: FleetFile,
    site: Annotated[list[str] | None, typer.Option("--site", help="Only this site; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Retrain the sites of a fleet in parallel, and write a report that compares them.

    If a site is refused or crashes, the other sites continue, and the exit code is 1. Repeat the command to resume a
    killed run. Without new logs nothing changes.

    Example: neorl fleet retrain fleet.yaml
    """
    keep_compiled(create_home=True)
    from flows.cli.run_flow import run_fleet

    outcome = run_fleet(config, site)
    lines = ["", f"{outcome.fleet}: {outcome.headline}"]
    lines += [f"  {each.found}" for each in outcome.sites]
    lines += [f"  outlier      {line}" for line in outcome.outliers]
    emit(outcome, as_json, [*lines, f"  report       {outcome.page}"])
    if any(each.outcome is None for each in outcome.sites):
        raise typer.Exit(1)


@fleet.command("status")
def fleet_status(config: FleetFile, as_json: AsJson = False) -> None:
    """Rank the sites of a fleet from the ledger's entries, and write the report again. No server is needed.

    Example: neorl fleet status fleet.yaml
    """
    from configs.load import load_fleet
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.fleet.compare import MEASURES, ranked, shown
    from tasks.fleet.report import in_force, verdict, write_page
    from tasks.fleet.standing import standings

    home, name = Home.locate(), load_fleet(config).fleet
    found = standings(config, Ledger.open(home, write=False).entries() if Ledger.exists(home) else [])
    page, sites = write_page(home, name, found, datetime.now(UTC)), ranked(found)
    if as_json:
        result = {"fleet": name, "headline": page.headline, "outliers": page.outliers, "page": str(page.path)}
        emit({**result, "sites": [json.loads(each.model_dump_json()) for each in sites]}, True)
        return
    head = ("rank", "site", "last retraining", "in force", *(measure.title for measure in MEASURES))
    rows = []
    for each in sites:
        values = [each.compared.get(measure.name) for measure in MEASURES]
        texts = [
            "–" if value is None else shown(measure, value.value) + (" !" if value.outlier else "")
            for measure, value in zip(MEASURES, values, strict=True)
        ]
        rows.append([each.rank or "–", each.standing.site, verdict(each.standing), in_force(each.standing), *texts])
    show_table(head, rows)
    print(f"\n{name}: {page.headline}")
    for line in page.outliers:
        print(f"outlier: {line}")
    print(f"report: {page.path}")


@fleet.command("generate")
def fleet_generate(
    folder: Annotated[Path, typer.Argument(help="Output folder; the name becomes the fleet's.")],
    like: Annotated[Path, typer.Option(help="Run's file that gives all sites plant and settings.")] = Path(
        "configs/chemical_reactor.yaml"
    ),
    sites: Annotated[int, typer.Option(help="Number of sites.", min=1, max=1000)] = 20,
    spread: Annotated[float, typer.Option(help="Largest relative change of a constant.", min=0.0, max=0.5)] = 0.03,
    broken: Annotated[int, typer.Option(help="Number of sites with a truncated log.", min=0)] = 0,
    constant: Annotated[
        list[str] | None,
        typer.Option(help="A constant that differs between sites; repeatable. Default: all of the operating domain."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed; equal seeds write equal bytes.", min=0)] = 0,
    weeks: Annotated[float, typer.Option(help="Weeks per log, for plants with a historian's export.", min=0.0)] = 0.5,
    episodes: Annotated[int, typer.Option(help="Episodes per site, for other plants.", min=1)] = 60,
    as_json: AsJson = False,
) -> None:
    """Generate a fleet for trials: fleet.yaml, and logs of sites that simulate one plant with different constants.

    Example: neorl fleet generate fleets/reactors --sites 20 --spread 0.03 --broken 1
    """
    from tasks.data.synthetic.fleet import make_fleet
    from tasks.progress import StageProgress

    with StageProgress("generate") as progress:
        made = make_fleet(
            folder,
            like,
            sites,
            spread=spread,
            broken=broken,
            constants=tuple(constant or ()),
            seed=seed,
            weeks=weeks,
            episodes=episodes,
            progress=progress,
        )
    lines = [f"{made.path}: {len(made.sites)} sites of {made.plant} that differ in {', '.join(made.constants)}"]
    lines += [f"the log of {', '.join(made.broken)} is truncated"] if made.broken else []
    emit(made.model_dump(mode="json"), as_json, [*lines, f"next: neorl fleet retrain {made.path}"])
