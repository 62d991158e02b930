"""Prefect's automations that every home has: runs whose process is gone are ended, and people are told of failures.

`neorl up` installs them by Prefect's API, once: one that a person switched off stays off, and one whose definition here
is another than when it was installed is put right. Triggers of deployments are in prefect.yaml.
"""

from __future__ import annotations

from typing import NamedTuple

from flows.services.events import DRIFTED, WORSENED
from flows.services.state import Services
from tasks.adapters.files.canonical import digest_json

SILENCE = 300
"""Seconds without a heartbeat after which a run counts as gone: ten heartbeats, for a busy machine skips some."""
BLOCK = "neorl"
"""Name of the notification block that a person makes."""
ENDS = ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Paused", "Suspended", "AwaitingRetry")
"""States of a run that sends no more heartbeats, or of one that another automation looks after."""

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
        {
            "type": "event",
            "posture": "Proactive",
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.heartbeat", *(f"prefect.flow-run.{state}" for state in ENDS)],
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": SILENCE,
        },
        {
            "type": "change-flow-run-state",
            "state": "CRASHED",
            "message": f"no heartbeat of its process for {SILENCE} seconds: run it again, it goes on where it was",
        },
    )
    if block is None:
        return (lost,)
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
    return (lost, told)


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
