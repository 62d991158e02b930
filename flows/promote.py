"""What people decide on candidates: the ledger records it, MLflow's aliases follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from configs.errors import Refused
from configs.home import Home
from flows.services.locks import plant_lock
from flows.services.servers import connect, mlflow_address
from tasks import promote
from tasks.evidence.decisions import queue
from tasks.evidence.decisions.approvals import approvers
from tasks.evidence.decisions.champions import champion
from tasks.evidence.decisions.verdicts import missing_approvals, verdict_content
from tasks.evidence.ledger.ledger import Entry, Ledger
from tasks.evidence.people.statement import Signatory
from tasks.lifecycle.aliases import reconcile
from tasks.lifecycle.rollback import roll_back
from tasks.lifecycle.withdrawal import withdraw_champion
from tasks.record import champion_in_force
from tasks.references import Aliases, CandidateRecord, ChampionInForce, Reference
from tasks.registry.registry import Registry


class Waiting(Reference):
    """A candidate that waits for a decision."""

    plant: str
    record: CandidateRecord


class Decided(Reference):
    """What a person's decision came to."""

    plant: str
    champion: str | None
    """Version in the registry."""
    shadow: str | None = None
    """Version that runs beside a process without a simulator."""
    record: ChampionInForce | None
    missing: str | None = None
    """Approvals that the plant's policy asks for besides, in words."""
    takes_over: str | None = None
    """Who is in force after a withdrawal, in words."""
    standing: str | None = None
    """Who had decided so before, and when, where this decision was not added."""
    aliases: Aliases


def list_candidates(home: Home, plant: str | None = None) -> tuple[Waiting, ...]:
    """Candidates that wait for a decision, of one plant or of all; where MLflow answers its pages are put right."""
    if not Ledger.exists(home):
        return ()
    entries = Ledger.open(home, write=False).entries()
    if (address := mlflow_address(home)) is not None:
        # What a decision that was killed left undone is done by whatever looks next.
        for each in sorted({entry.plant for entry in entries if entry.kind == "candidate"}):
            reconcile(home, each, Registry(address))
    found = queue.waiting(entries, plant)
    return tuple(Waiting(plant=entry.plant, record=queue.record_of(entry)) for entry in found)


def approve(
    home: Home,
    plant: str,
    version: str,
    by: str,
    note: str,
    role: str = "",
    *,
    reviewed: bool = False,
    signatory: Signatory | None = None,
) -> Decided:
    """Approve a waiting candidate and make it champion, once the plant's policy asks for no other approval.

    Args:
        home: of the ledger.
        plant: the plant's name.
        version: in the registry.
        by: who decides.
        note: why, for the record.
        role: as what they decide.
        reviewed: say only that it was reviewed, which is no approval by itself.
        signatory: the person with their key; in the home's name without one.

    Raises:
        BadInput: when there is no such version.
        Refused: when a gate failed, is missing or contradicts its numbers, it was rejected before, or another champion
            came meanwhile.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    with _deciding(home, plant) as registry:
        before = Ledger.open(home).entries()
        candidate = queue.find_candidate(before, plant, version)
        made = promote.promote_candidate(home, candidate, by, note, role=role, reviewed=reviewed, signatory=signatory)
        decided = _decided(home, plant, registry)
        missing = missing_approvals(Ledger.open(home).entries(), plant, made) if made.kind == "approval" else None
        return decided.model_copy(update={"missing": missing, "standing": _standing(before, made)})


def reject(home: Home, plant: str, version: str, by: str, note: str, signatory: Signatory | None = None) -> Decided:
    """Reject a waiting candidate; the champion stays.

    Args:
        home: of the ledger.
        plant: the plant's name.
        version: in the registry.
        by: who decides.
        note: why, for the record.
        signatory: the person with their key; in the home's name without one.

    Raises:
        BadInput: when there is no such version.
        Refused: when it is champion.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    with _deciding(home, plant) as registry:
        before = Ledger.open(home).entries()
        candidate = queue.find_candidate(before, plant, version)
        made = promote.reject_candidate(home, candidate, by, note, signatory)
        return _decided(home, plant, registry).model_copy(update={"standing": _standing(before, made)})


def withdraw(home: Home, plant: str, version: str, by: str, why: str, signatory: Signatory | None = None) -> Decided:
    """Take the champion out of service, at once: neither a run that holds the plant nor a server that is gone stops it.

    Args:
        home: of the ledger.
        plant: the plant's name.
        version: of the champion.
        by: who decides.
        why: for the record.
        signatory: the person with their key; in the home's name without one.

    Raises:
        Refused: when another version is champion, or no reason is given.
    """
    done = withdraw_champion(home, plant, version, by, why, signatory)
    standing = _of_before(done.entry, done.entry.body["by"]) if done.before else None
    address = mlflow_address(home)
    if address is not None:
        told = {"takes_over": done.takes_over, "standing": standing}
        return _decided(home, plant, Registry(address)).model_copy(update=told)
    now = champion(Ledger.open(home).entries(), plant)
    aliases = Aliases(champion=None, challenger=None, changes=("MLflow does not answer: its aliases follow later",))
    return Decided(
        plant=plant,
        champion=now.body["version"] if now else None,
        record=None,
        aliases=aliases,
        takes_over=done.takes_over,
        standing=standing,
    )


def rollback(
    home: Home, plant: str, version: str, by: str, why: str, signatory: Signatory | None = None, *, role: str = ""
) -> Decided:
    """Bring an earlier champion back into service, once all that it rests on has been verified again.

    Args:
        home: of the ledger.
        plant: the plant's name.
        version: that was champion before.
        by: who decides.
        why: for the record.
        signatory: the person with their key; in the home's name without one.
        role: as what they decide.

    Raises:
        Refused: when the version never was champion, was ruled out, its certificate does not hold or has expired, a
            file of it is another, the plant's policy asks for more, or another run holds the plant.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    with _deciding(home, plant) as registry:
        before = Ledger.open(home).entries()
        made = roll_back(home, registry, plant, version, by, why, signatory, role=role)
        return _decided(home, plant, registry).model_copy(update={"standing": _standing(before, made)})


def statement(
    home: Home,
    plant: str,
    version: str,
    note: str,
    signatory: Signatory,
    *,
    role: str = "",
    reviewed: bool = False,
    against: bool = False,
) -> str:
    """The statement of a decision, signed but not logged: for a person whose key never comes to the home's machine.

    Args:
        home: of the ledger, which is only read: a copy will do.
        plant: the plant's name.
        version: in the registry.
        note: why, for the record.
        signatory: the person with their key.
        role: as what they decide.
        reviewed: say only that it was reviewed.
        against: reject it.

    Returns:
        The envelope, which `approve` and `reject` take on the home's machine.
    """
    history = Ledger.open(home, write=False).entries()
    candidate = queue.find_candidate(history, plant, version)
    said = promote.verdict_on(candidate, signatory.person, note, role, reviewed=reviewed, against=against)
    return signatory.sign(verdict_content(history, "rejection" if against else "approval", plant, said))


@contextmanager
def _deciding(home: Home, plant: str) -> Iterator[Registry]:
    """Hold the plant; a decision that is refused still leaves MLflow as the ledger is."""
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, plant):
        try:
            yield registry
        except Refused:
            reconcile(home, plant, registry)
            raise


def _standing(before: Sequence[Entry], made: Entry) -> str | None:
    """Who had decided so and when, where the entry that a decision came to had been there before it."""
    if made.sequence > len(before):
        return None
    return _of_before(made, made.body["by"] if "by" in made.body else approvers(before, made))


def _of_before(made: Entry, by: str) -> str:
    return f"{by}, {made.timestamp}"


def _decided(home: Home, plant: str, registry: Registry) -> Decided:
    """Bring the aliases into line, and tell who is champion."""
    aliases = reconcile(home, plant, registry)
    entries = Ledger.open(home).entries()
    now = champion(entries, plant)
    record = champion_in_force(now, entries) if now else None
    return Decided(
        plant=plant, champion=record.version if record else None, shadow=aliases.shadow, record=record, aliases=aliases
    )
