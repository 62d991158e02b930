"""What people decide on candidates: the ledger records it, MLflow's aliases follow."""

from __future__ import annotations

from typing import Any

from configs.errors import Refused
from configs.home import Home
from flows.services.locks import plant_lock
from flows.services.servers import connect
from tasks import promote
from tasks.adapters.ledger.champions import champion
from tasks.adapters.ledger.ledger import Ledger
from tasks.adapters.registry.registry import Registry
from tasks.record import champion_in_force


def list_candidates(home: Home, plant: str | None = None) -> list[dict[str, Any]]:
    """Candidates that wait for a decision."""
    if not Ledger.exists(home):
        return []
    entries = Ledger.open(home, write=False).entries()
    return [
        {
            "plant": entry.plant,
            "version": entry.body["version"],
            "composite": entry.body["composite"],
            "certificate": entry.body["claim"],
            "url": entry.body["url"],
        }
        for entry in promote.waiting(entries, plant)
    ]


def approve(home: Home, plant: str, version: str, by: str, note: str) -> dict[str, Any]:
    """Approve a waiting candidate and make it champion.

    Raises:
        BadInput: when there is no such version.
        Refused: when a gate failed, it was rejected before, or another champion came meanwhile.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, plant):
        entries = Ledger.open(home).entries()
        candidate = promote.find_candidate(entries, plant, version)
        promote.decide(home, candidate, by, note)
        return _after(home, plant, registry)


def reject(home: Home, plant: str, version: str, by: str, note: str) -> dict[str, Any]:
    """Reject a waiting candidate; the champion stays.

    Raises:
        BadInput: when there is no such version.
        Refused: when it is champion.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    registry = Registry(connect(home).mlflow.url)
    with plant_lock(home, plant):
        entries = Ledger.open(home).entries()
        candidate = promote.find_candidate(entries, plant, version)
        now = champion(entries, plant)
        if now is not None and now.body.get("candidate") == candidate.digest:
            raise Refused(f"expected a candidate that waits, got version {version}, the champion: promote another one.")
        promote.turn_down(home, candidate, by, note)
        return _after(home, plant, registry)


def _after(home: Home, plant: str, registry: Registry) -> dict[str, Any]:
    """Bring the aliases into line, and tell who is champion."""
    aliases = promote.reconcile(home, plant, registry)
    entries = Ledger.open(home).entries()
    now = champion(entries, plant)
    found = champion_in_force(now, entries).model_dump(mode="json") if now else None
    return {"plant": plant, "champion": found["version"] if found else None, "aliases": aliases, "record": found}
