"""Record people's decisions on candidates and champions in the ledger, then update MLflow's aliases."""

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
    """Controller that takes over after a withdrawal, as text."""
    standing: str | None = None
    """Person and time of an earlier identical decision, as text. The ledger then has no second entry."""
    aliases: Aliases


def list_candidates(home: Home, plant: str | None = None) -> tuple[Waiting, ...]:
    """Return the candidates of a plant, or of all plants, that wait for a decision. Update MLflow if it answers."""
    if not Ledger.exists(home):
        return ()
    entries = Ledger.open(home, write=False).entries()
    if (address := mlflow_address(home)) is not None:
        # A command that was killed during a decision may have left MLflow out of date.
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
    """Approve a waiting candidate, and promote it if the plant's safety policy requires no further approval.

    Args:
        home: home with the ledger.
        plant: the plant's name.
        version: version in MLflow's model registry.
        by: name of the person who decides.
        note: reason, stored in the ledger.
        role: the person's role, if the safety policy requires roles.
        reviewed: record a review, which is not an approval.
        signatory: signs with the person's key; if None, the decision is recorded in the home's name.

    Raises:
        BadInput: if the version is unknown.
        Refused: if a gate's verdict is missing, negative or inconsistent with its numbers, if the candidate was
            rejected, or if the champion has changed since the retraining.
        ServiceMissing: if MLflow does not answer; nothing is recorded.
    """
    with _deciding(home, plant) as registry:
        before = Ledger.open(home).entries()
        candidate = queue.find_candidate(before, plant, version)
        entry = promote.promote_candidate(home, candidate, by, note, role=role, reviewed=reviewed, signatory=signatory)
        decided = _decided(home, plant, registry)
        missing = missing_approvals(Ledger.open(home).entries(), plant, entry) if entry.kind == "approval" else None
        return decided.model_copy(update={"missing": missing, "standing": _earlier(before, entry)})


def reject(home: Home, plant: str, version: str, by: str, note: str, signatory: Signatory | None = None) -> Decided:
    """Reject a waiting candidate. The champion does not change. The arguments are those of `approve`.

    Raises:
        BadInput: if the version is unknown.
        Refused: if the version is champion.
        ServiceMissing: if MLflow does not answer; nothing is recorded.
    """
    with _deciding(home, plant) as registry:
        before = Ledger.open(home).entries()
        candidate = queue.find_candidate(before, plant, version)
        entry = promote.reject_candidate(home, candidate, by, note, signatory)
        return _decided(home, plant, registry).model_copy(update={"standing": _earlier(before, entry)})


def withdraw(home: Home, plant: str, version: str, by: str, why: str, signatory: Signatory | None = None) -> Decided:
    """Withdraw the champion at once, even if a run has locked the plant or a server is down.

    The arguments are those of `approve`; `why` is the reason.

    Raises:
        Refused: if another version is champion, or `why` is empty.
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
    """Verify the evidence of an earlier champion, and make that version champion again.

    The arguments are those of `approve`; `why` is the reason.

    Raises:
        Refused: if the version was never champion, was withdrawn or rejected, or does not meet the safety policy. Also
            if its certificate is invalid or expired, a file was changed, or another run has locked the plant.
        ServiceMissing: if MLflow does not answer; nothing is recorded.
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
    """Return a signed decision without recording it, for a person with a key on another machine.

    The home may be a copy on the person's machine. `against` rejects the candidate; the other arguments are those of
    `approve`. The option --statement of `neorl approve` or `neorl reject` later records the decision in the home.
    """
    entries = Ledger.open(home, write=False).entries()
    candidate = queue.find_candidate(entries, plant, version)
    verdict = promote.verdict_on(candidate, signatory.person, note, role, reviewed=reviewed, against=against)
    return signatory.sign(verdict_content(entries, "rejection" if against else "approval", plant, verdict))


@contextmanager
def _deciding(home: Home, plant: str) -> Iterator[Registry]:
    """Lock the plant and yield MLflow's registry. If the decision is refused, still update MLflow from the ledger."""
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, plant):
        try:
            yield registry
        except Refused:
            reconcile(home, plant, registry)
            raise


def _earlier(before: Sequence[Entry], entry: Entry) -> str | None:
    """Return person and time of an entry's decision if `before` contains the entry, else None."""
    if entry.sequence > len(before):
        return None
    return _who_and_when(entry, entry.body["by"] if "by" in entry.body else approvers(before, entry))


def _who_and_when(entry: Entry, by: str) -> str:
    return f"{by}, {entry.timestamp}"


def _decided(home: Home, plant: str, registry: Registry) -> Decided:
    """Update MLflow's aliases, and return the plant's champion or shadow."""
    aliases = reconcile(home, plant, registry)
    entries = Ledger.open(home).entries()
    now = champion(entries, plant)
    record = champion_in_force(now, entries) if now else None
    return Decided(
        plant=plant, champion=record.version if record else None, shadow=aliases.shadow, record=record, aliases=aliases
    )
