"""Events of ours in Prefect, which start runs there: announced once each, however often they are found."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from flows.services.state import Services

ARRIVED, DRIFTED, WORSENED = "neorl.dataset.arrived", "neorl.drift.detected", "neorl.data.worsened"
NAMES = uuid.UUID("6e65f726-c000-5000-8000-6e656f726c00")
"""The namespace of our events' ids."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a plant."""

    name: str
    plant: str
    about: str
    """What makes it one event, such as a digest: the same is not announced twice."""
    payload: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    """What the runs that it starts are given."""

    @property
    def id(self) -> str:
        """Of the event in Prefect."""
        return str(uuid.uuid5(NAMES, f"{self.name}/{self.plant}/{self.about}"))


def resource_of(plant: str) -> str:
    """What an event of a plant is about, as triggers in prefect.yaml match it.

    Example:
        >>> resource_of("chemical_reactor")
        'neorl.plant.chemical_reactor'
    """
    return f"neorl.plant.{plant}"


def announce(services: Services, event: Event) -> bool:
    """Tell Prefect of an event, unless it knows of it; returns whether it was told.

    Prefect has taken it when this returns, so that a caller who was killed before may announce it again.

    Raises:
        OSError: when Prefect does not answer, or refuses.
    """
    known = services.ask_prefect("events/filter", {"filter": {"id": {"id": [event.id]}}, "limit": 1})
    if known["events"]:
        return False
    told = {
        "id": event.id,
        "event": event.name,
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": resource_of(event.plant), "prefect.resource.name": event.plant},
        "payload": dict(event.payload),
    }
    services.ask_prefect("events", [told])
    return True
