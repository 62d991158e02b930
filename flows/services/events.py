"""Prefect events that start runs, each emitted at most once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from flows.services.state import Services

ARRIVED, DRIFTED, WORSENED = "neorl.dataset.arrived", "neorl.drift.detected", "neorl.data.worsened"
NAMES = uuid.UUID("6e65f726-c000-5000-8000-6e656f726c00")


@dataclass(frozen=True)
class Event:
    """An event of a plant."""

    name: str
    plant: str
    about: str
    """Identity of the event, such as a digest; an event with the same identity is not emitted again."""
    payload: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Id in Prefect."""
        return str(uuid.uuid5(NAMES, f"{self.name}/{self.plant}/{self.about}"))


def resource_of(plant: str) -> str:
    """Return the resource id that triggers in prefect.yaml match.

    Example:
        >>> resource_of("chemical_reactor")
        'neorl.plant.chemical_reactor'
    """
    return f"neorl.plant.{plant}"


def announce(services: Services, event: Event) -> bool:
    """Emit an event unless Prefect has it; return whether it was emitted.

    Prefect has stored the event when this function returns, so a killed caller may repeat the call.

    Raises:
        OSError: if Prefect does not answer or rejects the event.
    """
    known = services.ask_prefect("events/filter", {"filter": {"id": {"id": [event.id]}}, "limit": 1})
    if known["events"]:
        return False
    record = {
        "id": event.id,
        "event": event.name,
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": resource_of(event.plant), "prefect.resource.name": event.plant},
        "payload": dict(event.payload),
    }
    services.ask_prefect("events", [record])
    return True
