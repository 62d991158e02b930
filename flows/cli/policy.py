"""Commands `neorl policy show`, `draft`, `sign` and `renew`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, Plant, emit, group, known_plant
from flows.cli.keys import By, KeyFile, actor_of

if TYPE_CHECKING:
    from configs.run import OpenedRun
    from configs.safety_policy import SafetyPolicy
    from tasks.models.plants.known import KnownPlant

Run = Annotated[Path | None, typer.Option(help="A run of the plant, if the plant is neither built in nor installed.")]
policy = group("Manage a plant's safety policy: required claim, approvers and validity of a champion.")


@policy.command("show")
def policy_show(plant: Plant, as_json: AsJson = False) -> None:
    """Print the safety policy in force, the file that pins this policy, and whether the champion meets the policy.

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
            f"{plant} has no safety policy yet: 'neorl retrain' drafts one, or run 'neorl policy draft {plant} "
            "--run RUN.yaml'."
        )
    check_pinned(entries, ledger.trust, plant)
    body, now = entry.read(PolicyBody), champion(entries, plant)
    until = certificate_until(entries, plant)
    standing = before_policy(entries, plant) or (
        f"version {now.body['version']} meets the policy, certificate valid until {until}" if now else "none"
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
    run: Annotated[Path | None, typer.Option(help="Run's file to draft from, if there is no champion.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; by default PLANT.policy.yaml.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a safety policy file to edit and sign: the policy in force, else a draft from a champion's or run's claim.

    Example: neorl policy draft chemical_reactor --run configs/chemical_reactor.yaml
    """
    from tasks.files.canonical import write_atomic
    from tasks.lifecycle.policy import policy_yaml

    draft, origin = _draft(plant, run)
    path = write_atomic(out or Path(f"{plant}.policy.yaml"), policy_yaml(draft))
    result = {"file": str(path), "from": origin, "policy": draft.model_dump(mode="json")}
    emit(result, as_json, [f"{path}, from {origin}", f"next: edit it, then neorl policy sign {plant} {path} --why ..."])


@policy.command("sign")
def policy_sign(
    plant: Plant,
    file: Annotated[Path, typer.Argument(help="The policy, from 'neorl policy draft'.")],
    why: Annotated[str, typer.Option(help="Reason for the change, stored in the ledger.")],
    by: By = "",
    key: KeyFile = None,
    statement: Annotated[
        list[Path] | None, typer.Option(help="File signed by another person with --statement-to; repeatable.")
    ] = None,
    statement_to: Annotated[Path | None, typer.Option(help="Sign, but only write the policy to this file.")] = None,
    run: Run = None,
    as_json: AsJson = False,
) -> None:
    """Sign a safety policy, record it in the ledger and pin it. Later promotions must meet this policy.

    If the policy in force requires persons' keys, a change needs as many signatures as an approval. The command records
    64 steps of the simulator for a later `neorl policy renew`.

    Example: neorl policy sign chemical_reactor chemical_reactor.policy.yaml --why "two approvers from 2027"
    """
    from flows.services.locks import plant_lock
    from tasks.evidence.decisions.champions import before_policy
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.people.statement import signed_elsewhere
    from tasks.evidence.policies import pinned_file
    from tasks.files.canonical import write_atomic
    from tasks.lifecycle.policy import read_policy, record_steps, sign, signed_policy

    home = Home.locate()
    policy, actor = read_policy(file, plant), actor_of(by, key)
    if policy.simulator and (known := _simulated(plant, run)) is not None:
        record_steps(Ledger.open(home, write=statement_to is None), known, policy)
    if statement_to is not None:
        if actor.signatory is None:
            raise BadInput(f"no key of {actor.name} to sign with: run 'neorl keys create --person', or pass --key.")
        write_atomic(statement_to, signed_policy(Ledger.open(home, write=False), policy, why, actor.signatory).encode())
        lines = [f"{statement_to}, {actor.signature}: not recorded yet"]
        lines.append(f"next: neorl policy sign {plant} {file} --statement {statement_to} --why ...")
        emit({"statement": str(statement_to)}, as_json, lines)
        return
    others = [signed_elsewhere(_statement(path)) for path in statement or []]
    own = [actor.signatory] if actor.signatory else []
    with plant_lock(home, plant):
        entry = sign(Ledger.open(home), policy, actor.name, why, [*own, *others])
    ledger = Ledger.open(home, write=False)
    pinned, problem = pinned_file(ledger.trust, plant), before_policy(ledger.entries(), plant)
    lines = [f"the policy of {plant} is ledger entry {entry.sequence}, pinned in {pinned}"]
    result = {"entry": entry.digest, "sequence": entry.sequence, "pinned": str(pinned), "champion": problem}
    emit(result, as_json, [*lines, actor.signature, *([problem] if problem else [])])


@policy.command("renew")
def policy_renew(
    plant: Plant,
    why: Annotated[str, typer.Option(help="Reason, stored in the ledger; without it, nothing is signed.")] = "",
    run: Run = None,
    by: By = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Renew a policy after an upgrade of jax alone: compare the simulator with recorded steps; one person signs.

    The command refuses if the simulator's source or operating domain changed, or if outputs differ by more than
    rounding (1e-5 of the largest recorded value of each output). A changed simulator needs a new policy.

    Example: neorl policy renew chemical_reactor --why "jax 0.11"
    """
    from flows.services.locks import plant_lock
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.lifecycle.renewal import renew, renewal

    home, known = Home.locate(), _simulated(plant, run)
    if known is None:
        raise BadInput(f"the code of {plant} is not installed: name a run of this plant with --run RUN.yaml.")
    with plant_lock(home, plant):
        found = renewal(Ledger.open(home, write=False), known)
        lines = [
            f"{len(found.now.inputs['keys'])} recorded steps differ by at most {found.difference:.3g} of the values",
            f"jax: {found.before.jax} -> {found.now.jax}",
            f"program: {found.before.simulator} -> {found.now.simulator}",
        ]
        result = {"difference": found.difference, "policy": found.policy.model_dump(mode="json"), "entry": None}
        if why:
            actor = actor_of(by, key)
            entry = renew(Ledger.open(home), known, actor.name, why, [actor.signatory] if actor.signatory else [])
            result["entry"] = entry.digest
            lines.append(f"the renewed policy of {plant} is ledger entry {entry.sequence}; {actor.signature}")
        else:
            lines.append(f"next: neorl policy renew {plant} --why ...")
    emit(result, as_json, lines)


def _simulated(name: str, run: Path | None) -> KnownPlant | None:
    """Return a plant; None if the plant is neither built in nor installed, and no run is given."""
    from tasks.models.plants.known import plant_named, plant_of

    if run is not None:
        return plant_of(_opened(name, run))
    try:
        return plant_named(name)
    except BadInput:
        return None


def _opened(plant: str, run: Path) -> OpenedRun:
    from flows.preflight import checked_run

    opened = checked_run(run)
    if opened.plant != plant:
        raise BadInput(f"{run} is a run of {opened.plant}, not of {plant}: name another file.")
    return opened


def _statement(path: Path) -> str:
    """Read a policy that another person signed."""
    from tasks.evidence.people.statement import read_payload

    try:
        envelope = path.read_text()
        if not isinstance(person := read_payload(envelope)["person"], str):
            raise ValueError(f"the person {str(person)[:40]} is not text")
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise BadInput(f"{path} is not a signed policy ({reason}): write one with --statement-to.") from error
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
        raise BadInput(f"{plant} has neither policy nor champion to draft from: name a run with --run RUN.yaml.")
    from tasks.models.plants.known import plant_of

    opened = _opened(plant, run)
    return draft_of_run(plant_of(opened).simulator(), opened), f"the claim of {run}"
