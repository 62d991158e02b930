"""Shadows of log-only plants: composites without a certificate that propose actions for a limited time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from configs.errors import Refused
from tasks.evidence.decisions.approvals import (
    check_all_gates,
    check_not_ruled_out,
    check_signed_time,
    check_version,
    of_process,
    open_approval,
)
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Artefact
from tasks.evidence.people.rules import check_signed
from tasks.evidence.people.statement import Content
from tasks.evidence.policies import policy_of
from tasks.files.canonical import parse_time
from tasks.references import ShadowComparison

LONGEST = 366
"""Longest period in days, so that a forgotten shadow ends after about a year."""


class ShadowBody(Body):
    """Body of a `shadow` entry: a candidate of a log-only plant runs in shadow for `days` days."""

    composite: str
    approval: str
    candidate: str
    replaces: str | None
    """Digest of the replaced shadow; None for the first."""
    days: int
    version: str = ""


class ExtensionBody(Body):
    """Body of an `extension` entry: a person extends a shadow's period."""

    shadow: str
    days: int
    """Days to add to the end of the period; if the period has ended, days from now on."""
    by: str
    note: str = ""
    signed: str = ""
    signature: str = ""


class ShadowInForce(NamedTuple):
    """A shadow and the end of its period."""

    entry: Entry
    until: datetime
    ended: Entry | None = None
    """Rejection or next shadow that ended this shadow, even after its period; None if there is none."""

    def runs(self, at: datetime) -> bool:
        """Return whether the shadow's period has not ended at a time."""
        return at < self.until


def last_shadow(history: Sequence[Entry], plant: str) -> Entry | None:
    """Return the entry of a plant's last shadow, even if its period has ended."""
    return next((entry for entry in reversed(history) if (entry.kind, entry.plant) == ("shadow", plant)), None)


def shadow(history: Sequence[Entry], plant: str) -> ShadowInForce | None:
    """Return a plant's last shadow with its period; None if there is none, or if it was rejected."""
    found = last_shadow(history, plant)
    if found is None:
        return None
    period = course(history, found)
    return period if period.ended is None else None


def course(history: Sequence[Entry], begun: Entry) -> ShadowInForce:
    """Return the period of the shadow that the entry `begun` started, and the entry that ended the shadow."""
    until = parse_time(begun.timestamp) + timedelta(days=begun.body["days"])
    for later in history:
        if later.sequence <= begun.sequence or later.plant != begun.plant:
            continue
        rejected = later.kind == "rejection" and later.body["composite"] == begun.body["composite"]
        if rejected or later.kind == "shadow":
            return ShadowInForce(begun, until, later)
        # After the end of the period, an extension counts from the time of the extension.
        if later.kind == "extension" and later.body["shadow"] == begun.digest:
            until = max(until, parse_time(later.timestamp)) + timedelta(days=later.body["days"])
    return ShadowInForce(begun, until)


def check_shadow(history: Sequence[Entry], entry: Entry) -> None:
    """Check a shadow: it is an approved candidate of a log-only plant and replaces the last shadow."""
    plant, body = entry.plant, entry.read(ShadowBody)
    _check_days(body.days)
    last = last_shadow(history, plant)
    if body.replaces != (last.digest if last else None):
        raise Refused(f"the shadow of {plant} changed meanwhile: compare version {body.version} with the new shadow")
    candidate = next((e for e in history if e.kind == "candidate" and e.digest == body.candidate), None)
    if candidate is None or (candidate.plant, candidate.body["composite"]) != (plant, body.composite):
        raise Refused(f"the ledger has no candidate {body.candidate[:12]} of {plant}: retrain {plant}")
    if not of_process(candidate):
        raise Refused(f"{plant} has a simulator, so candidates do not run in shadow: promote version {body.version}")
    check_version(candidate, body.version)
    check_all_gates(candidate, entry.rules)
    check_not_ruled_out(history, plant, body.composite)
    approval = open_approval(history, plant, body.composite)
    named = approval is not None and (approval.digest, approval.body["candidate"]) == (body.approval, body.candidate)
    if not named or (approval is not None and approval.body.get("meaning") == "reviewed"):
        raise Refused(f"composite {body.composite[:12]} of {plant} has no unused approval: have it approved first")


def check_extension(history: Sequence[Entry], entry: Entry) -> None:
    """Check an extension: it names the last shadow and a person, and is signed if this person has a key."""
    body = entry.read(ExtensionBody)
    _check_days(body.days)
    found = shadow(history, entry.plant)
    if found is None or found.entry.digest != body.shadow:
        raise Refused(f"{body.shadow[:12]} is not the present shadow of {entry.plant}: extend the present shadow")
    if not body.by.strip():
        raise Refused(f"an extension needs a person's name, got {body.by!r}: give --by, or set NEORL_PERSON")
    policy = policy_of(history, entry.plant)
    required = policy is not None and policy.approvers.keys
    content = extension_content(found.entry, body)
    check_signed(history, entry, body.by, body.signature, content, required=required)
    check_signed_time(body.signature, body.signed)


def extension_content(shadow: Entry, body: ExtensionBody) -> Content:
    about = {"composite": shadow.body["composite"], "days": str(body.days), "shadow": body.shadow}
    return Content("extension", shadow.plant, about, note=body.note)


def check_comparison(history: Sequence[Entry], entry: Entry) -> None:
    """Check a comparison of a shadow with newer logs: shares from 0 to 1, and the right drift threshold and alarm."""
    # Imported late: most signers do not need NumPy.
    from neorl_core.safety.drift_detection import YEAR, alarm_threshold

    found = entry.read(ShadowComparison)
    shadow = next((e for e in history if (e.kind, e.digest) == ("shadow", found.shadow)), None)
    if shadow is None or shadow.plant != entry.plant:
        raise Refused(f"the ledger has no shadow {found.shadow[:12]} of {entry.plant}: compare again")
    shares = (found.agreement, found.support, found.interventions)
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise Refused(
            "agreement, support and interventions must be between 0 and 1, got "
            f"{', '.join(f'{share:g}' for share in shares)}: compare again"
        )
    drift = found.drift
    rates = (drift.step_seconds, float(drift.block_steps), drift.alarms_per_year)
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise Refused(
            "step (s), block (steps) and alarms per year must be positive, got "
            f"{', '.join(f'{rate:g}' for rate in rates)}: compare again"
        )
    threshold = math.log(alarm_threshold(YEAR / (drift.step_seconds * drift.block_steps), drift.alarms_per_year))
    if not math.isclose(drift.log_threshold, threshold, rel_tol=1e-9, abs_tol=1e-12):
        raise Refused(
            f"the threshold for {drift.alarms_per_year:g} alarms per year is {threshold:g}, got "
            f"{drift.log_threshold:g}: compare again"
        )
    if not drift.blocks and drift.log_evidence != 0.0:
        raise Refused(f"without blocks the evidence of drift must be 0, got {drift.log_evidence:g}: compare again")
    reached = drift.log_evidence >= drift.log_threshold
    alarmed = drift.alarm is not None
    if math.isnan(drift.log_evidence) or reached is not alarmed:
        raise Refused(
            f"an alarm must be stated if and only if the evidence of drift ({drift.log_evidence:g}) reaches the "
            f"threshold ({drift.log_threshold:g}), got {drift.alarm}: compare again"
        )


def begin(ledger: Ledger, plant: str, body: ShadowBody, artefacts: Sequence[Artefact] = ()) -> Entry:
    """Log that a candidate runs in shadow; if this approval already started the last shadow, return its entry."""
    last = last_shadow(ledger.entries(), plant)
    if last is not None and last.body["approval"] == body.approval:
        return last
    return ledger.append("shadow", body, plant=plant, artefacts=artefacts)


def check_runs(history: Sequence[Entry], plant: str, now: datetime) -> None:
    """Raise Refused if the period of a plant's shadow has ended, because it must be extended then."""
    found = shadow(history, plant)
    if found is not None and not found.runs(now):
        raise Refused(
            f"the shadow period of version {found.entry.body['version']} of {plant} has ended: extend it with 'neorl "
            f"extend {plant} --days DAYS'"
        )


def _check_days(days: int) -> None:
    if not 1 <= days <= LONGEST:
        raise Refused(f"a period must be 1 to {LONGEST} days, got {days}: extend it later, as often as needed")
