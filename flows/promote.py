"""What people decide on candidates: the ledger records it, MLflow's aliases follow."""

from __future__ import annotations

from configs.home import Home
from flows.services.locks import plant_lock
from flows.services.servers import connect
from tasks import promote
from tasks.adapters.ledger.champions import champion
from tasks.adapters.ledger.ledger import Ledger
from tasks.adapters.registry.registry import Registry
from tasks.record import champion_in_force
from tasks.references import Aliases, CandidateRecord, ChampionInForce, Reference


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
    aliases: Aliases


def list_candidates(home: Home, plant: str | None = None) -> tuple[Waiting, ...]:
    """Candidates that wait for a decision, of one plant or of all."""
    if not Ledger.exists(home):
        return ()
    entries = Ledger.open(home, write=False).entries()
    found = promote.waiting(entries, plant)
    return tuple(Waiting(plant=entry.plant, record=promote.record_of(entry)) for entry in found)


def approve(home: Home, plant: str, version: str, by: str, note: str) -> Decided:
    """Approve a waiting candidate and make it champion.

    Args:
        home: of the ledger.
        plant: the plant's name.
        version: in the registry.
        by: who decides.
        note: why, for the record.

    Raises:
        BadInput: when there is no such version.
        Refused: when a gate failed, is missing or contradicts its numbers, it was rejected before, or another champion
            came meanwhile.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, plant):
        candidate = promote.find_candidate(Ledger.open(home).entries(), plant, version)
        promote.promote_candidate(home, candidate, by, note)
        return _decided(home, plant, registry)


def reject(home: Home, plant: str, version: str, by: str, note: str) -> Decided:
    """Reject a waiting candidate; the champion stays.

    Args:
        home: of the ledger.
        plant: the plant's name.
        version: in the registry.
        by: who decides.
        note: why, for the record.

    Raises:
        BadInput: when there is no such version.
        Refused: when it is champion.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, plant):
        candidate = promote.find_candidate(Ledger.open(home).entries(), plant, version)
        promote.reject_candidate(home, candidate, by, note)
        return _decided(home, plant, registry)


def _decided(home: Home, plant: str, registry: Registry) -> Decided:
    """Bring the aliases into line, and tell who is champion."""
    aliases = promote.reconcile(home, plant, registry)
    entries = Ledger.open(home).entries()
    now = champion(entries, plant)
    record = champion_in_force(now, entries) if now else None
    return Decided(
        plant=plant, champion=record.version if record else None, shadow=aliases.shadow, record=record, aliases=aliases
    )
