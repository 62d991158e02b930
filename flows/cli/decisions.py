"""Commands for decisions: `neorl candidates`, `approve`, `reject`, `withdraw` and `rollback`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, Plant, emit, known_plant
from flows.cli.keys import Actor, KeyFile, actor_of

if TYPE_CHECKING:
    from flows.decisions import Decided
    from tasks.evidence.people.statement import Signatory
    from tasks.evidence.people.statement import Statement as Signed

Version = Annotated[str, typer.Argument(help="The version in MLflow's model registry, such as 3.")]
Who = Annotated[str, typer.Option("--by", help="Your name; by default NEORL_PERSON or the user name.")]
Role = Annotated[str, typer.Option(help="Your role, if the safety policy requires roles.")]
Note = Annotated[str, typer.Option("--note", help="Reason, stored in the ledger.")]
Why = Annotated[str, typer.Option(help="Reason, stored in the ledger.")]
Statement = Annotated[Path | None, typer.Option(help="Record the decision in this file, which --statement-to wrote.")]
StatementTo = Annotated[Path | None, typer.Option(help="Sign, but only write the decision to this file.")]


def candidates(
    plant: Annotated[str | None, typer.Argument(help="Only this plant.")] = None, as_json: AsJson = False
) -> None:
    """List the candidates that wait for a decision.

    Example: neorl candidates chemical_reactor
    """
    from flows.decisions import list_candidates
    from tasks.references import NO_CLAIM

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
    lines = []
    for row in rows:
        lines.append(f"{row['plant']} version {row['version']}, composite {row['composite'][:12]}")
        lines += [f"  {line}" for line in (row["certificate"] or NO_CLAIM).splitlines()]
        lines += [f"  page: {row['url']}", f"  next: neorl approve {row['plant']} {row['version']}, or neorl reject"]
    emit({"candidates": rows}, as_json, lines or ["no candidate waits for a decision"])


def approve(
    plant: Plant,
    version: Version,
    by: Who = "",
    role: Role = "",
    note: Note = "",
    reviewed: Annotated[bool, typer.Option("--reviewed", help="Record a review, which is not an approval.")] = False,
    key: KeyFile = None,
    statement: Statement = None,
    statement_to: StatementTo = None,
    as_json: AsJson = False,
) -> None:
    """Approve a waiting candidate, and promote it if the plant's safety policy requires no further approval.

    Your key ('neorl keys create') signs the decision. Without a key, the decision is recorded in the home's name.

    Example: neorl approve chemical_reactor 3 --note "compared trajectories"
    """
    from flows.decisions import approve as decide

    home = Home.locate()
    known_plant(plant)
    if statement is not None:
        signed, signatory = _read_statement(statement, "approval", version)
        actor, note, role = Actor(signed.person, signatory), signed.note, signed.role
        reviewed = signed.meaning == "reviewed"
    else:
        actor = actor_of(by, key)
    if statement_to is not None:
        _write_statement(statement_to, plant, version, actor, note, as_json, role=role, reviewed=reviewed)
        return
    result = decide(home, plant, version, actor.name, note, role, reviewed=reviewed, signatory=actor.signatory)
    verb = "reviewed" if reviewed else "approved"
    missing = f", and waits: {result.missing}" if result.missing else ""
    lines = [f"version {version} of {plant} is {verb}{missing}; {_in_force(result)}", _signature(result, actor)]
    emit(result, as_json, lines)


def reject(
    plant: Plant,
    version: Version,
    by: Who = "",
    note: Note = "",
    key: KeyFile = None,
    statement: Statement = None,
    statement_to: StatementTo = None,
    as_json: AsJson = False,
) -> None:
    """Reject a waiting candidate. The champion does not change.

    Example: neorl reject chemical_reactor 3 --note "too nervous on the valve"
    """
    from flows.decisions import reject as decide

    known_plant(plant)
    if statement is not None:
        signed, signatory = _read_statement(statement, "rejection", version)
        actor, note = Actor(signed.person, signatory), signed.note
    else:
        actor = actor_of(by, key)
    if statement_to is not None:
        _write_statement(statement_to, plant, version, actor, note, as_json, against=True)
        return
    result = decide(Home.locate(), plant, version, actor.name, note, actor.signatory)
    lines = [f"version {version} of {plant} is rejected; {_in_force(result)}", _signature(result, actor)]
    emit(result, as_json, lines)


def withdraw(
    plant: Plant, version: Version, why: Why, by: Who = "", key: KeyFile = None, as_json: AsJson = False
) -> None:
    """Withdraw the champion at once. The plant's own controller takes over.

    NeoRL cannot stop a program at the plant that has loaded the champion's bundle: stop that program at the plant.

    Example: neorl withdraw chemical_reactor 3 --why "the valve was replaced"
    """
    from flows.decisions import withdraw as decide

    actor = actor_of(by, key)
    result = decide(Home.locate(), known_plant(plant), version, actor.name, why, actor.signatory)
    lines = [f"version {version} of {plant} is withdrawn; in force: {result.takes_over}", _signature(result, actor)]
    emit(result, as_json, [*lines, *result.aliases.changes])


def rollback(
    plant: Plant,
    to: Annotated[str, typer.Option("--to", help="An earlier champion's version.")],
    why: Why,
    by: Who = "",
    role: Role = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make an earlier champion the champion again, if the evidence for that version is still valid.

    The command verifies the ledger, the certificate (signature, statistics, age) and MLflow's files. It also loads the
    bundle and compares the actions with recorded actions. The replaced version is never promoted again automatically;
    only a rollback can make it champion again.

    Example: neorl rollback chemical_reactor --to 3 --why "version 4 is nervous on the valve"
    """
    from flows.decisions import rollback as decide

    actor = actor_of(by, key)
    result = decide(Home.locate(), known_plant(plant), to, actor.name, why, actor.signatory, role=role)
    lines = [f"version {to} of {plant} is champion again", _signature(result, actor), *result.aliases.changes]
    emit(result, as_json, lines)


def _read_statement(path: Path, act: str, version: str) -> tuple[Signed, Signatory]:
    """Read a signed decision from a file. The signature is checked when the decision is recorded."""
    from tasks.evidence.people.statement import Statement as Read
    from tasks.evidence.people.statement import read_payload, signed_elsewhere

    try:
        envelope = path.read_text()
        signed = Read.model_validate(read_payload(envelope))
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = type(error).__name__
        raise BadInput(f"{path} is not a signed decision ({reason}): write one with --statement-to.") from error
    about = signed.about.get("version")
    if (signed.act, about) != (act, version):
        raise BadInput(f"{path} is the {signed.act} of version {about}, not the {act} of {version}: name another file.")
    return signed, signed_elsewhere(envelope)


def _write_statement(
    path: Path,
    plant: str,
    version: str,
    actor: Actor,
    note: str,
    as_json: bool,
    *,
    role: str = "",
    reviewed: bool = False,
    against: bool = False,
) -> None:
    from flows.decisions import statement
    from tasks.files.canonical import write_atomic

    if actor.signatory is None:
        raise BadInput(f"no key of {actor.name} to sign with: run 'neorl keys create --person', or pass --key.")
    signed = statement(
        Home.locate(), plant, version, note, actor.signatory, role=role, reviewed=reviewed, against=against
    )
    write_atomic(path, signed.encode())
    command = "reject" if against else "approve"
    lines = [
        f"{path}, {actor.signature}: not recorded yet",
        f"next: neorl {command} {plant} {version} --statement {path}",
    ]
    emit({"statement": str(path), "person": actor.name}, as_json, lines)


def _in_force(decided: Decided) -> str:
    return f"in shadow: {decided.shadow}" if decided.shadow else f"champion: {decided.champion}"


def _signature(decided: Decided, actor: Actor) -> str:
    """Return a line that says who signed the decision, or who had made the same decision before."""
    if decided.standing:
        return f"already decided by {decided.standing}: nothing was added to the ledger"
    return actor.signature
