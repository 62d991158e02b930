"""Prefect automations that end or restart runs of killed processes, and that notify people of failures.

`neorl up` installs these automations, and updates an automation if the definition here has changed. An automation that
a person disabled stays disabled. The triggers that start deployments are in prefect.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flows.services.events import DRIFTED, WORSENED
from flows.services.state import Services
from tasks.files.canonical import digest_json

SILENCE = 300
"""A run without a heartbeat for this many seconds has crashed. A busy machine may skip several heartbeats of 30 s."""
UNBEGUN = 600
"""A run that is pending for this many seconds is rescheduled. A pod may need minutes to start."""
BLOCK = "neorl"
ENDS = ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Paused", "Suspended", "AwaitingRetry")
"""States in which a run sends no heartbeats, or which another automation handles."""
BEGUN = ("Running", "heartbeat", "Scheduled", "AwaitingConcurrencySlot", "Late", "Retrying")
"""Events which show that a run has started, or waits for a worker."""
FORMER_NAMES = {
    "neorl: end runs whose process is gone": "neorl: end runs of killed processes",
    "neorl: begin anew what a worker took and did not begin": "neorl: restart pending runs of killed workers",
    "neorl: tell of failed runs and drift": "neorl: notify of failed runs and drift",
}
"""Names of automations in Prefect databases of earlier versions, with the names now."""

Json = dict[str, "str | int | bool | list[str] | dict[str, str] | dict[str, list[str]] | None"]


class Automation(NamedTuple):
    """An automation, in the form of Prefect's API."""

    name: str
    about: str
    trigger: Json
    action: Json

    @property
    def description(self) -> str:
        """Purpose, and a digest of the definition. The digest shows `install` which automations are outdated."""
        return f"{self.about} (installed by 'neorl up', {digest_json([self.trigger, self.action])[:8]})"


def wanted(block: str | None) -> tuple[Automation, ...]:
    """Return the automations of a home. `block` is the id of a notification block, or None."""
    lost = Automation(
        "neorl: end runs of killed processes",
        f"A running flow without a heartbeat for {SILENCE} seconds has crashed",
        _silence(("heartbeat",), ("heartbeat", *ENDS), SILENCE),
        {
            "type": "change-flow-run-state",
            "state": "CRASHED",
            "message": f"no heartbeat for {SILENCE} seconds: start the run again, it resumes",
        },
    )
    unbegun = Automation(
        "neorl: restart pending runs of killed workers",
        f"A run pending for {UNBEGUN} seconds has lost the worker, and blocks the deployment",
        _silence(("Pending", "Submitting"), (*BEGUN, *ENDS), UNBEGUN),
        {
            "type": "change-flow-run-state",
            "state": "SCHEDULED",
            "message": f"no worker started the run within {UNBEGUN} seconds",
        },
    )
    if block is None:
        return (lost, unbegun)
    notification = Automation(
        "neorl: notify of failed runs and drift",
        "Sends a message through the notification block 'neorl'",
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
    return (lost, unbegun, notification)


def _silence(after: Sequence[str], expect: Sequence[str], within: int) -> Json:
    """Return a trigger that fires if no event in `expect` follows an event in `after` for `within` seconds."""
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
    """Return the id of the notification block named 'neorl', or None if Prefect has no such block."""
    blocks = services.ask_prefect(
        "block_documents/filter",
        {"block_documents": {"name": {"any_": [BLOCK]}}, "block_schemas": {"block_capabilities": {"all_": ["notify"]}}},
    )
    return str(blocks[0]["id"]) if blocks else None


def install(services: Services, block: str | None) -> list[str]:
    """Create, update or remove automations; return the names of those that changed."""
    names = sorted({*FORMER_NAMES, *FORMER_NAMES.values()})
    installed = services.ask_prefect("automations/filter", {"automations": {"name": {"any_": names}}})
    known = {FORMER_NAMES.get(each["name"], each["name"]): each for each in installed}
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
