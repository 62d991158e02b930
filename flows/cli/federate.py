"""Commands `neorl federate ...`: coordinator, sites, simulation, and their keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, emit, group, keep_compiled, say, show_table

if TYPE_CHECKING:
    from configs.federation import Federation, Site
    from tasks.federation.coordinator import Result
    from tasks.federation.site import Participant
    from tasks.federation.transport.network import Transport

federate = group("Train one policy on the data of several sites, without moving the data (federated learning).")

FederationFile = Annotated[Path, typer.Argument(help="The coordinator's YAML (docs/how-to/federation.md).")]


@federate.command("run")
def federate_run(file: FederationFile, as_json: AsJson = False) -> None:
    """Run a federation's coordinator: wait for the sites, train in rounds, and record each round in the ledger.

    Repeat an interrupted command to resume after the last recorded round. Needs Flower ('make federation').

    Example: neorl federate run federation.yaml
    """
    from tasks.federation.transport.network import flower_transport

    federation, home = _federation(file), Home.locate()
    keep_compiled(create_home=True)
    with flower_transport(federation, home.folder("federations", "superlink"), file.resolve().parent) as transport:
        say(f"listens on {federation.network.address}, waits for {', '.join(sorted(federation.sites))}")
        _emit_result(_run(federation, transport, home), as_json)


@federate.command("join")
def federate_join(
    file: Annotated[Path, typer.Argument(help="The site's YAML (docs/how-to/federation.md).")],
) -> None:
    """Take part in a federation as a site, until interrupted. The site's data stay in this home.

    Needs Flower ('make federation').

    Example: neorl federate join site.yaml
    """
    from tasks.federation.serving import serve

    site, home = read_site(file), Home.locate()
    keep_compiled(create_home=True)
    participant = participant_of(site, home)
    say(f"{site.site} joins {site.coordinator.address}")
    try:
        serve(site, file.resolve().parent, home.folder("federations", "supernode"), participant.answer, say)
    except KeyboardInterrupt:
        say("stopped")


@federate.command("simulate")
def federate_simulate(
    file: FederationFile,
    sites: Annotated[list[Path], typer.Argument(help="One YAML file per site; all datasets must be in this home.")],
    as_json: AsJson = False,
) -> None:
    """Run coordinator and sites in this process, without a network, for studies.

    Example: neorl federate simulate federation.yaml north.yaml south.yaml
    """
    from tasks.federation.transport.network import InProcess

    federation, home = _federation(file), Home.locate()
    keep_compiled(create_home=True)
    found = [read_site(path) for path in sites]
    names, wanted = sorted(site.site for site in found), sorted(federation.sites)
    if names != wanted:
        raise BadInput(f"the federation needs sites {', '.join(wanted)}, got {', '.join(names)}: name a file per site.")
    participants = {site.site: participant_of(site, home).answer for site in found}
    _emit_result(_run(federation, InProcess(participants), home), as_json)


@federate.command("show")
def federate_show(
    plant: Annotated[str, typer.Argument(help="Only federations of this plant.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print the federations in the ledger, and for each round the sites that took part.

    Example: neorl federate show chemical_reactor
    """
    from tasks.evidence.federations import rounds_of
    from tasks.evidence.ledger.ledger import Ledger

    history = Ledger.open(Home.locate(), write=False).entries()
    opened = [e for e in history if e.kind == "federation" and plant in ("", e.plant)]
    result = {e.digest: [one.model_dump() for one in rounds_of(history, e.digest)] for e in opened}
    if as_json:
        emit(result, True)
        return
    if not opened:
        print(f"the ledger has no federation{f' of {plant}' if plant else ''}")
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
    path: Annotated[Path, typer.Argument(help="File of the site's private key; created if absent.")],
    as_json: AsJson = False,
) -> None:
    """Print a site's public key, which the coordinator's YAML must contain.

    Example: neorl federate key keys/north
    """
    from tasks.federation.transport.credentials import make_key

    key = make_key(path)
    emit({"key": key}, as_json, [key])


@federate.command("certificate")
def federate_certificate(
    folder: Annotated[Path, typer.Argument(help="Output folder.")],
    host: Annotated[list[str], typer.Option(help="Host name or address of the coordinator; repeatable.")],
    as_json: AsJson = False,
) -> None:
    """Create the coordinator's TLS certificate, and authority.pem, with which the sites verify the certificate.

    Example: neorl federate certificate tls --host coordinator.example
    """
    from tasks.federation.transport.credentials import AUTHORITY, make_certificate

    make_certificate(folder, host)
    emit({"authority": str(folder / AUTHORITY)}, as_json, [f"next: copy {folder / AUTHORITY} to every site"])


def _federation(file: Path) -> Federation:
    from configs.federation import Federation
    from configs.yaml_files import load_yaml

    return load_yaml(file, Federation)


def read_site(file: Path) -> Site:
    """Read a site's YAML."""
    from configs.federation import Site
    from configs.yaml_files import load_yaml

    return load_yaml(file, Site)


def _run(federation: Federation, transport: Transport, home: Home) -> Result:
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.federation.coordinator import run_federation
    from tasks.files.canonical import exclusive

    with exclusive(home.folder("federations") / f"{federation.plant}.lock"):
        return run_federation(federation, transport, home, Ledger.open(home), say)


def _emit_result(result: Result, as_json: bool) -> None:
    spent = "" if result.epsilon is None else f", epsilon {result.epsilon:.4g}"
    lines = [f"policy {result.digest[:12]} after {result.rounds} rounds{spent}: {result.policy}"]
    emit({**result._asdict(), "policy": str(result.policy)}, as_json, lines)


def participant_of(site: Site, home: Home) -> Participant:
    """Return a site as a participant that trains on the site's dataset in this home."""
    from tasks.data.store.reader import StoredDataset, dataset_of, newest_first
    from tasks.federation.site import Participant

    folder = home.root / "datasets" / site.plant
    if site.dataset:
        store = dataset_of([folder], site.dataset)
    elif found := newest_first(folder):
        store = StoredDataset.open(folder, found[0].stem)
    else:
        raise BadInput(f"{folder} has no dataset of {site.plant}: run 'neorl ingest' first.")
    folder = home.folder("federations", "site", site.site)
    return Participant(site, store, folder, lambda line: say(f"{site.site}: {line}"))
