"""Decisions of people on candidates and champions: recorded in the ledger, then copied to MLflow's aliases."""

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
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Signatory
from tasks.lifecycle.aliases import reconcile
from tasks.lifecycle.champions import roll_back, withdraw_champion
from tasks.record import champion_in_force
from tasks.references import Aliases, CandidateRecord, ChampionInForce, Reference
from tasks.registry.registry import Registry


class Waiting(Reference):
    """A candidate that waits for a decision."""

    plant: str
    record: CandidateRecord


class Decided(Reference):
    """State of a plant after a decision."""

    plant: str
    champion: str | None
    shadow: str | None = None
    record: ChampionInForce | None
    missing: str | None = None
    """Approvals that the plant's policy still requires, as text."""
    takes_over: str | None = None
    """Controller in force after a withdrawal, as text."""
    standing: str | None = None
    """Person and time of an identical earlier decision; this decision was then not appended."""
    aliases: Aliases


def list_candidates(home: Home, plant: str | None = None) -> tuple[Waiting, ...]:
    """List the candidates that wait for a decision, of one plant or of all; update MLflow's pages if it answers."""
    if not Ledger.exists(home):
        return ()
    entries = Ledger.open(home, write=False).entries()
    if (address := mlflow_address(home)) is not None:
        # A killed decision may have left MLflow behind the ledger.
        for each in sorted({entry.plant for entry in entries if entry.kind == "candidate"}):
            reconcile(home, each, Registry(address))
    return tuple(Waiting(plant=e.plant, record=queue.record_of(e)) for e in queue.waiting(entries, plant))


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
    """Approve a waiting candidate; make it champion if the plant's policy requires no further approval.

    Args:
        home: folder of the ledger.
        plant: the plant's name.
        version: version in the registry.
        by: person who decides.
        note: reason, for the record.
        role: role in which they decide.
        reviewed: record a review only, which is not an approval.
        signatory: the person with their key; None decides in the home's name.

    Raises:
        BadInput: if the version is unknown.
        Refused: if a gate failed, is missing or contradicts the numbers, the candidate was rejected, or the champion
            changed in the meantime.
        ServiceMissing: if MLflow does not answer. Nothing is recorded then.
    """
    with _deciding(home, plant) as registry:
        before = Ledger.open(home).entries()
        candidate = queue.find_candidate(before, plant, version)
        entry = promote.promote_candidate(home, candidate, by, note, role=role, reviewed=reviewed, signatory=signatory)
        decided = _decided(home, plant, registry)
        missing = missing_approvals(Ledger.open(home).entries(), plant, entry) if entry.kind == "approval" else None
        return decided.model_copy(update={"missing": missing, "standing": _earlier(before, entry)})


def reject(home: Home, plant: str, version: str, by: str, note: str, signatory: Signatory | None = None) -> Decided:
    """Reject a waiting candidate. The champion stays. Arguments as for `approve`.

    Raises:
        BadInput: if the version is unknown.
        Refused: if the version is champion.
        ServiceMissing: if MLflow does not answer. Nothing is recorded then.
    """
    with _deciding(home, plant) as registry:
        before = Ledger.open(home).entries()
        candidate = queue.find_candidate(before, plant, version)
        entry = promote.reject_candidate(home, candidate, by, note, signatory)
        return _decided(home, plant, registry).model_copy(update={"standing": _earlier(before, entry)})


def withdraw(home: Home, plant: str, version: str, by: str, why: str, signatory: Signatory | None = None) -> Decided:
    """Withdraw the champion at once, even if a run has locked the plant or a server is down.

    Arguments as for `approve`; `why` is the reason.

    Raises:
        Refused: if another version is champion, or no reason is given.
    """
    done = withdraw_champion(home, plant, version, by, why, signatory)
    standing = _who_and_when(done.entry, done.entry.body["by"]) if done.before else None
    address = mlflow_address(home)
    if address is not None:
        decided = _decided(home, plant, Registry(address))
        return decided.model_copy(update={"takes_over": done.takes_over, "standing": standing})
    now = champion(Ledger.open(home).entries(), plant)
    pending = "MLflow does not answer: the aliases will be updated later"
    return Decided(
        plant=plant,
        champion=now.body["version"] if now else None,
        record=None,
        aliases=Aliases(champion=None, challenger=None, changes=(pending,)),
        takes_over=done.takes_over,
        standing=standing,
    )


def rollback(
    home: Home, plant: str, version: str, by: str, why: str, signatory: Signatory | None = None, *, role: str = ""
) -> Decided:
    """Return an earlier champion to service, after verifying the evidence again.

    Arguments as for `approve`; `why` is the reason.

    Raises:
        Refused: if the version was never champion or was ruled out, the certificate is invalid or expired, one of the
            files was changed, the plant's policy requires more, or another run has locked the plant.
        ServiceMissing: if MLflow does not answer. Nothing is recorded then.
    """
    with _deciding(home, plant) as registry:
        before = Ledger.open(home).entries()
        entry = roll_back(home, registry, plant, version, by, why, signatory, role=role)
        return _decided(home, plant, registry).model_copy(update={"standing": _earlier(before, entry)})


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
    """Sign a decision without recording it, on a machine where the person keeps their key.

    Arguments as for `approve`; the home may be a copy, and `against` rejects the candidate. The returned envelope is
    for `approve` or `reject` on the home's machine.
    """
    entries = Ledger.open(home, write=False).entries()
    candidate = queue.find_candidate(entries, plant, version)
    verdict = promote.verdict_on(candidate, signatory.person, note, role, reviewed=reviewed, against=against)
    return signatory.sign(verdict_content(entries, "rejection" if against else "approval", plant, verdict))


@contextmanager
def _deciding(home: Home, plant: str) -> Iterator[Registry]:
    """Lock the plant; after a refused decision, MLflow is still updated from the ledger."""
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, plant):
        try:
            yield registry
        except Refused:
            reconcile(home, plant, registry)
            raise


def _earlier(before: Sequence[Entry], entry: Entry) -> str | None:
    """Return person and time of the decision if the entry existed before."""
    if entry.sequence > len(before):
        return None
    return _who_and_when(entry, entry.body["by"] if "by" in entry.body else approvers(before, entry))


def _who_and_when(entry: Entry, by: str) -> str:
    return f"{by}, {entry.timestamp}"


def _decided(home: Home, plant: str, registry: Registry) -> Decided:
    """Update the aliases and return the plant's state."""
    aliases = reconcile(home, plant, registry)
    entries = Ledger.open(home).entries()
    now = champion(entries, plant)
    record = champion_in_force(now, entries) if now else None
    return Decided(
        plant=plant, champion=record.version if record else None, shadow=aliases.shadow, record=record, aliases=aliases
    )
