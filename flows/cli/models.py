"""Commands about policies, candidates and champions: train, retrain, candidates, approve, reject, history."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, ConfigFile, emit, known_plant, show_table
from flows.cli.data import DatasetOrFile, HorizonOf, MappingOf, PlantOf, Root, SpecOf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from configs.run import Setting
    from flows.promote import Decided
    from tasks.adapters.ledger.ledger import Entry

Plant = Annotated[str, typer.Argument(help="The plant's name, such as chemical_reactor.")]
Version = Annotated[str, typer.Argument(help="The candidate's version in the registry.")]
Who = Annotated[str, typer.Option("--by", help="Who decides; your user name otherwise.")]
Note = Annotated[str, typer.Option("--note", help="Why, for the record.")]


def train(
    data: DatasetOrFile,
    algorithm: Annotated[str, typer.Option(help="What learns, such as td3_bc.")] = "td3_bc",
    updates: Annotated[int, typer.Option(help="Gradient steps.", min=1)] = 100_000,
    seeds: Annotated[int, typer.Option(help="Policies to train, from seeds 0, 1, ...", min=1)] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A hyper-parameter, as alpha=1 or hidden=[256,256]; repeat it.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Transitions per gradient step.", min=1)] = 256,
    plant: PlantOf = None,
    mapping: MappingOf = None,
    spec: SpecOf = None,
    horizon: HorizonOf = None,
    root: Root = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for what comes of it; the data's name and the algorithm's otherwise.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train on one dataset or file with the core alone: no server, no gates, no certificate.

    A file of D4RL or DSRL is read as it is; any other source is ingested first. A run that was interrupted goes on
    where it was when the same command is given again.

    Example: neorl train hopper-medium-v2.hdf5 --algorithm td3_bc --updates 100000 --set alpha=1
    """
    from tasks.progress import StageProgress
    from tasks.training.recorded import open_recording
    from tasks.training.recording import check_overrides, fit_recording

    overrides = dict(map(_setting, settings or []))
    check_overrides(algorithm, overrides)
    with StageProgress("read") as progress:
        log = open_recording(Home.locate(), data, plant, mapping, horizon, root, progress, spec)
    if not as_json:
        print(log, flush=True)
    folder = out or Path(f"{log.about.name}-{algorithm}")
    with StageProgress("train") as progress:
        result = fit_recording(
            log,
            folder,
            algorithm,
            updates=updates,
            seeds=seeds,
            overrides=overrides,
            batch_size=batch_size,
            progress=progress,
        )
    emit(asdict(result), as_json, [str(result)])


def _setting(text: str) -> tuple[str, Setting]:
    """`name=value`; the value is JSON where it can be, else text."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise BadInput(f"expected --set name=value, got '{text}': write for example --set alpha=1.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def retrain(
    config: ConfigFile,
    data: Annotated[
        list[Path] | None, typer.Option("--data", help="A file of logs, or a dataset's digest; repeat it for several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a policy from logs: ingest, validate, train, evaluate, certify, register, approve, promote, report.

    A run that was killed goes on where it was when the same command is given again.

    Example: neorl retrain configs/chemical_reactor.yaml --data logs/historian.parquet
    """
    from flows.cli.launch import run_retrain
    from flows.cli.summary import summary_lines

    outcome = run_retrain(config, data)
    emit(outcome, as_json, summary_lines(outcome))


def candidates(
    plant: Annotated[str | None, typer.Argument(help="Only this plant.")] = None, as_json: AsJson = False
) -> None:
    """List the versions that wait for a decision.

    Example: neorl candidates chemical_reactor
    """
    from flows.promote import list_candidates

    rows = [
        {
            "plant": found.plant,
            "version": found.record.version,
            "composite": found.record.composite,
            "certificate": found.record.claim or "",
            "url": found.record.url,
        }
        for found in list_candidates(Home.locate(), known_plant(plant) if plant else None)
    ]
    if as_json:
        emit({"candidates": rows}, True)
    elif rows:
        columns = ("plant", "version", "composite", "certificate", "url")
        show_table(columns, [[row[column][:100] for column in columns] for row in rows])
    else:
        print("no candidate waits for a decision")


def approve(plant: Plant, version: Version, by: Who = "", note: Note = "", as_json: AsJson = False) -> None:
    """Approve a waiting candidate and promote it.

    Example: neorl approve chemical_reactor 3 --note "compared trajectories"
    """
    from flows.promote import approve as decide

    result = decide(Home.locate(), known_plant(plant), version, by or getpass.getuser(), note)
    emit(result, as_json, [f"version {version} of {plant} is approved; {_in_force(result)}"])


def reject(plant: Plant, version: Version, by: Who = "", note: Note = "", as_json: AsJson = False) -> None:
    """Reject a waiting candidate; the champion stays.

    Example: neorl reject chemical_reactor 3 --note "too nervous on the valve"
    """
    from flows.promote import reject as decide

    result = decide(Home.locate(), known_plant(plant), version, by or getpass.getuser(), note)
    emit(result, as_json, [f"version {version} of {plant} is rejected; {_in_force(result)}"])


def _in_force(decided: Decided) -> str:
    return f"in shadow: {decided.shadow}" if decided.shadow else f"champion: {decided.champion}"


def history(
    plant: Plant,
    at: Annotated[str, typer.Option(help="Only who was champion then: 2026-11-20 or an ISO time.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show who was champion when, from the verified ledger.

    Example: neorl history chemical_reactor --at 2026-11-20
    """
    known_plant(plant)
    from tasks.adapters.ledger.champions import champion
    from tasks.adapters.ledger.ledger import Ledger

    ledger = Ledger.open(Home.locate(), write=False)
    entries = ledger.entries()
    if at:
        entry = champion(entries, plant, at)
        if entry is None:
            raise BadInput(f"expected a champion of {plant} at {at}, got none: the first promotion came later.")
        promotions = [entry]
    else:
        promotions = [e for e in entries if e.kind == "promotion" and e.plant == plant]
    rows = [_promotion(entry, entries) for entry in promotions]
    watched = [_promotion(entry, entries) for entry in entries if (entry.kind, entry.plant) == ("shadow", plant)]
    if as_json:
        found = {"champions": [row._asdict() for row in rows], "shadows": [row._asdict() for row in watched]}
        emit({"plant": plant, **found}, True)
    elif rows:
        show_table(Promotion._fields[:-1], [row[:-1] for row in rows])
    elif watched:
        print(f"{plant} has had no champion, for it has no simulator; in shadow were")
        show_table(Promotion._fields[:-1], [row[:-1] for row in watched])
    else:
        print(f"{plant} has had no champion yet")


class Promotion(NamedTuple):
    """A row of the history."""

    since: str
    version: str
    composite: str
    approved_by: str
    entry: str
    sequence: int


def _promotion(entry: Entry, entries: Sequence[Entry]) -> Promotion:
    approval = next((e for e in entries if e.digest == entry.body.get("approval")), None)
    return Promotion(
        since=entry.timestamp,
        version=str(entry.body.get("version", "")),
        composite=entry.body["composite"],
        approved_by=str(approval.body.get("by", "")) if approval else "",
        entry=entry.digest,
        sequence=entry.sequence,
    )
