"""Prefect's automations that every home has: they put right what a killed process leaves, and tell people of failures.

`neorl up` installs them by Prefect's API, once: one that a person switched off stays off, and one whose definition here
is another than when it was installed is put right. Triggers of deployments are in prefect.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flows.services.events import DRIFTED, WORSENED
from flows.services.state import Services
from tasks.files.canonical import digest_json

SILENCE = 300
"""Seconds without a heartbeat after which a run counts as gone: ten heartbeats, for a busy machine skips some."""
UNBEGUN = 600
"""Seconds after which a run that a worker took and did not begin goes back: a pod starts in minutes."""
BLOCK = "neorl"
"""Name of the notification block that a person makes."""
ENDS = ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Paused", "Suspended", "AwaitingRetry")
"""States of a run that sends no more heartbeats, or of one that another automation looks after."""
BEGUN = ("Running", "heartbeat", "Scheduled", "AwaitingConcurrencySlot", "Late", "Retrying")
"""Events of a run that has begun, or waits for a worker."""

Json = dict[str, "str | int | bool | list[str] | dict[str, str] | dict[str, list[str]] | None"]


class Automation(NamedTuple):
    """An automation of ours, as Prefect's API takes it."""

    name: str
    about: str
    trigger: Json
    action: Json

    @property
    def description(self) -> str:
        """What it is for, with a mark by which another definition is told from this one."""
        return f"{self.about} (installed by 'neorl up', {digest_json([self.trigger, self.action])[:8]})"


def wanted(block: str | None) -> tuple[Automation, ...]:
    """The automations of a home.

    Args:
        block: id of the notification block; None where a person made none.
    """
    lost = Automation(
        "neorl: end runs whose process is gone",
        f"A run that sent a heartbeat and none for {SILENCE} seconds, nor an end, has crashed",
        _silence(("heartbeat",), ("heartbeat", *ENDS), SILENCE),
        {
            "type": "change-flow-run-state",
            "state": "CRASHED",
            "message": f"no heartbeat of its process for {SILENCE} seconds: run it again, it goes on where it was",
        },
    )
    unbegun = Automation(
        "neorl: begin anew what a worker took and did not begin",
        f"A run that is pending for {UNBEGUN} seconds keeps its deployment's slot: its worker is gone",
        _silence(("Pending", "Submitting"), (*BEGUN, *ENDS), UNBEGUN),
        {
            "type": "change-flow-run-state",
            "state": "SCHEDULED",
            "message": f"no worker began it within {UNBEGUN} seconds",
        },
    )
    if block is None:
        return (lost, unbegun)
    told = Automation(
        "neorl: tell of failed runs and drift",
        "A message by the notification block 'neorl'",
        {
            "type": "event",
            "posture": "Reactive",
            "expect": ["prefect.flow-run.Failed", "prefect.flow-run.Crashed", DRIFTED, WORSENED],
            "match": {"prefect.resource.id": ["prefect.flow-run.*", "neorl.plant.*"]},
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": 0,
        },
        {
            "type": "send-notification",
            "block_document_id": block,
            "subject": "{{ event.event }}: {{ event.resource.name }}",
            "body": "{{ event.payload.found or event.resource.get('prefect.state-message') or event.event }}",
        },
    )
    return (lost, unbegun, told)


def _silence(after: Sequence[str], expect: Sequence[str], within: int) -> Json:
    """The trigger of a flow run of which one event is heard and none of others within so many seconds."""
    return {
        "type": "event",
        "posture": "Proactive",
        "after": [f"prefect.flow-run.{name}" for name in after],
        "expect": [f"prefect.flow-run.{name}" for name in expect],
        "match": {"prefect.resource.id": "prefect.flow-run.*"},
        "for_each": ["prefect.resource.id"],
        "threshold": 1,
        "within": within,
    }


def notification_block(services: Services) -> str | None:
    """Id of the notification block named 'neorl', of whatever type; None where a person made none."""
    found = services.ask_prefect(
        "block_documents/filter",
        {"block_documents": {"name": {"any_": [BLOCK]}}, "block_schemas": {"block_capabilities": {"all_": ["notify"]}}},
    )
    return str(found[0]["id"]) if found else None


def install(services: Services, block: str | None) -> list[str]:
    """Make Prefect's automations what a home wants; returns the names of those that were made, changed or removed.

    Args:
        services: whose Prefect server.
        block: from `notification_block`.
    """
    all_of_ours = {each.name for each in wanted("any")}
    query = {"automations": {"name": {"any_": sorted(all_of_ours)}}}
    known = {each["name"]: each for each in services.ask_prefect("automations/filter", query)}
    changed = []
    for each in wanted(block):
        now = known.pop(each.name, None)
        if now is not None and now["description"] == each.description:
            continue
        body = {
            "name": each.name,
            "description": each.description,
            "enabled": now["enabled"] if now else True,
            "trigger": each.trigger,
            "actions": [each.action],
        }
        path, method = ("automations/", "POST") if now is None else (f"automations/{now['id']}", "PUT")
        services.ask_prefect(path, body, method=method)
        changed.append(each.name)
    for gone in known.values():
        services.ask_prefect(f"automations/{gone['id']}", method="DELETE")
        changed.append(gone["name"])
    return changed
