"""Commands of a federation: its coordinator, its sites, a simulation of both, and what makes them known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, emit, group, keep_compiled, show_table

if TYPE_CHECKING:
    from configs.federation import Federation, Site
    from tasks.federation.coordinator import Result
    from tasks.federation.site import Participant
    from tasks.federation.transport.network import Reach

federate = group("Train over several sites whose rows stay where they are.")

FederationFile = Annotated[Path, typer.Argument(help="The coordinator's YAML (docs/how-to/federation.md).")]


@federate.command("run")
def federate_run(file: FederationFile, as_json: AsJson = False) -> None:
    """Run a federation's coordinator: wait for the sites, train round by round, and log each round in the ledger.

    One that was interrupted goes on after its last logged round. Needs Flower ('make federation').

    Example: neorl federate run federation.yaml
    """
    from tasks.federation.transport.network import over_flower

    asked, home = _asked(file), Home.locate()
    keep_compiled(from_the_first=True)
    with over_flower(asked, home.folder("federations", "superlink"), file.resolve().parent) as reach:
        _say(f"listens on {asked.network.address}, waits for {', '.join(sorted(asked.sites))}")
        _told(_run(asked, reach, home), as_json)


@federate.command("join")
def federate_join(
    file: Annotated[Path, typer.Argument(help="The site's YAML (docs/how-to/federation.md).")],
) -> None:
    """Take part in a federation as a site until interrupted: its rows stay in this home.

    Needs Flower ('make federation').

    Example: neorl federate join site.yaml
    """
    from tasks.federation.serving import serve

    terms, home = site_of(file), Home.locate()
    keep_compiled(from_the_first=True)
    participant = participant_of(terms, home)
    _say(f"{terms.site} joins {terms.coordinator.address}")
    try:
        serve(terms, file.resolve().parent, home.folder("federations", "supernode"), participant.answer, _say)
    except KeyboardInterrupt:
        _say("stopped")


@federate.command("simulate")
def federate_simulate(
    file: FederationFile,
    sites: Annotated[list[Path], typer.Argument(help="The YAML of each site, whose datasets lie in this home.")],
    as_json: AsJson = False,
) -> None:
    """Run coordinator and sites in this process, by the same code and without a network: for studies.

    Example: neorl federate simulate federation.yaml north.yaml south.yaml
    """
    from tasks.federation.transport.network import Within

    asked, home = _asked(file), Home.locate()
    keep_compiled(from_the_first=True)
    found = [site_of(path) for path in sites]
    if sorted(site.site for site in found) != sorted(asked.sites):
        raise BadInput(f"expected a file of each of {', '.join(sorted(asked.sites))}, got others: name them all once.")
    participants = {site.site: participant_of(site, home).answer for site in found}
    _told(_run(asked, Within(participants), home), as_json)


@federate.command("show")
def federate_show(
    plant: Annotated[str, typer.Argument(help="Of the federations; of all plants by default.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print the federations that the ledger knows, and who took part in their rounds.

    Example: neorl federate show chemical_reactor
    """
    from tasks.evidence.federations.bodies import rounds_of
    from tasks.evidence.ledger.ledger import Ledger

    history = Ledger.open(Home.locate(), write=False).entries()
    opened = [e for e in history if e.kind == "federation" and plant in ("", e.plant)]
    result = {e.digest: [one.model_dump() for one in rounds_of(history, e.digest)] for e in opened}
    if as_json:
        emit(result, True)
        return
    if not opened:
        print(f"the ledger knows no federation{f' of {plant}' if plant else ''}")
    for entry in opened:
        body = entry.body
        print(f"{entry.digest[:12]} {entry.plant}: {body['method']} of {body['algorithm']}, {body['aggregate']}")
        rows = [
            (
                one.number,
                "yes" if one.completed else "no",
                ", ".join(p.site for p in one.participants),
                ", ".join(f"{left.site} ({left.why})" for left in one.left_out),
                "" if one.epsilon is None else f"{one.epsilon:.4g}",
            )
            for one in rounds_of(history, entry.digest)
        ]
        show_table(("round", "completed", "sites", "left out", "epsilon"), rows)


@federate.command("key")
def federate_key(
    path: Annotated[Path, typer.Argument(help="The site's private key; made where there is none.")],
    as_json: AsJson = False,
) -> None:
    """Print a site's public key for the coordinator's file; the private one is made where there is none, and stays.

    Example: neorl federate key keys/north
    """
    from tasks.federation.transport.credentials import make_key

    key = make_key(path)
    emit({"key": key}, as_json, [key])


@federate.command("certificate")
def federate_certificate(
    folder: Annotated[Path, typer.Argument(help="Where the files are written.")],
    host: Annotated[list[str], typer.Option(help="Name or address by which sites reach it; may be repeated.")],
    as_json: AsJson = False,
) -> None:
    """Make the coordinator's certificate; its authority.pem goes to every site.

    Example: neorl federate certificate tls --host coordinator.example
    """
    from tasks.federation.transport.credentials import AUTHORITY, make_certificate

    make_certificate(folder, host)
    emit({"authority": str(folder / AUTHORITY)}, as_json, [f"give {folder / AUTHORITY} to every site"])


def _asked(file: Path) -> Federation:
    from configs.federation import Federation
    from configs.yaml_files import load_yaml

    return load_yaml(file, Federation)


def site_of(file: Path) -> Site:
    """A site's file.

    Raises:
        BadInput: when it is none.
    """
    from configs.federation import Site
    from configs.yaml_files import load_yaml

    return load_yaml(file, Site)


def _run(asked: Federation, reach: Reach, home: Home) -> Result:
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.federation.coordinator import run_federation
    from tasks.files.locks import exclusive

    with exclusive(home.folder("federations") / f"{asked.plant}.lock"):
        return run_federation(asked, reach, home, Ledger.open(home), _say)


def _told(result: Result, as_json: bool) -> None:
    told = {**result._asdict(), "policy": str(result.policy)}
    spent = "" if result.epsilon is None else f", epsilon {result.epsilon:.4g}"
    emit(told, as_json, [f"policy {result.digest[:12]} after {result.rounds} rounds{spent}: {result.policy}"])


def participant_of(terms: Site, home: Home) -> Participant:
    """A site with its dataset of this home.

    Raises:
        BadInput: when there is no such dataset.
    """
    from tasks.data.store.reader import StoredDataset, dataset_of, newest_first
    from tasks.federation.site import Participant

    folder = home.root / "datasets" / terms.plant
    if terms.dataset:
        store = dataset_of([folder], terms.dataset)
    elif found := newest_first(folder):
        store = StoredDataset.open(folder, found[0].stem)
    else:
        raise BadInput(f"expected a dataset of {terms.plant} in {folder}, got none: run 'neorl ingest' first.")
    folder = home.folder("federations", "site", terms.site)
    return Participant(terms, store, folder, lambda line: _say(f"{terms.site}: {line}"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
