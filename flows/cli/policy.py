"""Commands about a plant's safety policy: show, draft, sign."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, emit, group, known_plant
from flows.cli.keys import By, KeyFile, hand_of

if TYPE_CHECKING:
    from configs.safety_policy import SafetyPolicy

policy = group("What a champion of a plant must have shown, who approves it, and for how long.")

Plant = Annotated[str, typer.Argument(help="The plant's name, such as chemical_reactor.")]


@policy.command("show")
def policy_show(plant: Plant, as_json: AsJson = False) -> None:
    """Print the policy in force, where it is pinned, and how the champion stands to it.

    Example: neorl policy show chemical_reactor
    """
    from tasks.evidence.decisions.champions import before_policy, champion
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.policies import PolicyBody, check_pinned, pinned_file, policy_entry
    from tasks.lifecycle.policy import certificate_until, policy_yaml

    ledger = Ledger.open(Home.locate(), write=False)
    entries = ledger.entries()
    entry = policy_entry(entries, known_plant(plant))
    if entry is None:
        raise BadInput(
            f"expected a safety policy of {plant}, got none: the next 'neorl retrain' drafts one from its claim, or "
            f"write one with 'neorl policy draft {plant} --run RUN.yaml'."
        )
    check_pinned(entries, ledger.trust, plant)
    body, now = entry.read(PolicyBody), champion(entries, plant)
    until = certificate_until(entries, plant)
    standing = before_policy(entries, plant) or (
        f"version {now.body['version']}: its claim meets it, its certificate counts until {until}"
        if now
        else "there is no champion"
    )
    pinned = pinned_file(ledger.trust, plant)
    result = {
        "policy": body.policy.model_dump(mode="json"),
        "by": body.by,
        "why": body.why,
        "signed": entry.timestamp,
        "entry": entry.digest,
        "pinned": str(pinned),
        "champion": standing,
    }
    lines = [
        policy_yaml(body.policy).decode().rstrip(),
        f"signed by {body.by} at {entry.timestamp}: {body.why}",
        f"pinned in {pinned}",
        f"champion: {standing}",
    ]
    emit(result, as_json, lines)


@policy.command("draft")
def policy_draft(
    plant: Plant,
    run: Annotated[Path | None, typer.Option(help="The run whose claim is taken, where there is no champion.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; PLANT.policy.yaml otherwise.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the policy in force, or one drafted from the champion's claim or a run's, to be changed and signed.

    Example: neorl policy draft chemical_reactor --run configs/chemical_reactor.yaml
    """
    from tasks.files.canonical import write_atomic
    from tasks.lifecycle.policy import policy_yaml

    found, whence = _draft(plant, run)
    path = write_atomic(out or Path(f"{plant}.policy.yaml"), policy_yaml(found))
    result = {"file": str(path), "from": whence, "policy": found.model_dump(mode="json")}
    emit(result, as_json, [f"{path}, from {whence}: change it, then 'neorl policy sign {plant} {path} --why ...'"])


@policy.command("sign")
def policy_sign(
    plant: Plant,
    file: Annotated[Path, typer.Argument(help="The policy, from 'neorl policy draft'.")],
    why: Annotated[str, typer.Option(help="Why it changes, for the record.")],
    by: By = "",
    key: KeyFile = None,
    statement: Annotated[
        list[Path] | None, typer.Option(help="Signed by another person with --statement-to; repeat it.")
    ] = None,
    statement_to: Annotated[Path | None, typer.Option(help="Only write the signed policy there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Sign a policy into the ledger, and pin it beside the trust root: what is promoted from now on must meet it.

    Where the policy in force asks for persons' keys, as many persons sign its change as sign an approval.

    Example: neorl policy sign chemical_reactor chemical_reactor.policy.yaml --why "two approvers from 2027 on"
    """
    from flows.services.locks import plant_lock
    from tasks.evidence.decisions.champions import before_policy
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.people.statement import signed_elsewhere
    from tasks.evidence.policies import pinned_file
    from tasks.files.canonical import write_atomic
    from tasks.lifecycle.policy import read_policy, sign, signed_policy

    home = Home.locate()
    found, hand = read_policy(file, plant), hand_of(by, key)
    if statement_to is not None:
        if hand.signatory is None:
            raise BadInput(f"expected a key of {hand.name} to sign with, got none: 'neorl keys create', or --key.")
        write_atomic(statement_to, signed_policy(Ledger.open(home, write=False), found, why, hand.signatory).encode())
        emit({"statement": str(statement_to)}, as_json, [f"{statement_to}, {hand.told}: nothing has changed yet"])
        return
    others = [signed_elsewhere(_statement(path)) for path in statement or []]
    own = [hand.signatory] if hand.signatory else []
    with plant_lock(home, plant):
        entry = sign(Ledger.open(home), found, hand.name, why, [*own, *others])
    ledger = Ledger.open(home, write=False)
    pinned, standing = pinned_file(ledger.trust, plant), before_policy(ledger.entries(), plant)
    lines = [f"the policy of {plant} is entry {entry.sequence} of the ledger, pinned in {pinned}"]
    result = {"entry": entry.digest, "sequence": entry.sequence, "pinned": str(pinned), "champion": standing}
    emit(result, as_json, [*lines, hand.told, *([standing] if standing else [])])


def _statement(path: Path) -> str:
    """A statement that another person signed.

    Raises:
        BadInput: when the file cannot be read, or is no statement.
    """
    from tasks.evidence.people.statement import read_payload

    try:
        envelope = path.read_text()
        if not isinstance(read_payload(envelope)["person"], str):
            raise ValueError("nobody's name")
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = " ".join(str(error).split())[:120]
        raise BadInput(f"expected a signed policy in {path}, got '{why}': make it with --statement-to.") from error
    return envelope


def _draft(plant: str, run: Path | None) -> tuple[SafetyPolicy, str]:
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.policies import policy_of
    from tasks.lifecycle.policy import draft_of_champion, draft_of_run

    home = Home.locate()
    entries = Ledger.open(home, write=False).entries() if Ledger.exists(home) else []
    if found := policy_of(entries, plant):
        return found, "the policy in force"
    if found := draft_of_champion(entries, plant):
        return found, "the champion's claim"
    if run is None:
        raise BadInput(f"expected --run RUN.yaml, got none: {plant} has neither a policy nor a champion to draft from.")
    from flows.checks import checked_run
    from tasks.models.plants.known import plant_of

    opened = checked_run(run)
    if opened.plant != plant:
        raise BadInput(f"expected a run of {plant} in {run}, got one of {opened.plant}: name another.")
    return draft_of_run(plant_of(opened).simulator(), opened), f"the claim of {run}"
