"""Who runs in shadow: a policy without a certificate, beside a process and never on it, for a stated time."""

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
from tasks.files.times import parse_time
from tasks.references import ShadowComparison

LONGEST = 366
"""Days of one period: a shadow that nobody looks at again ends within a year."""


class ShadowBody(Body):
    """A candidate of a process without a simulator runs in shadow."""

    composite: str
    approval: str
    """Digest of the approval's entry."""
    candidate: str
    """Digest of the candidate's entry."""
    replaces: str | None
    """Digest of the shadow that this one replaces; none for the first."""
    days: int
    version: str = ""


class ExtensionBody(Body):
    """A person lets a shadow run on."""

    shadow: str
    """Digest of the shadow's entry."""
    days: int
    """From its end on, or from now where it has ended."""
    by: str
    note: str = ""
    signed: str = ""
    signature: str = ""
    """Envelope of the person's statement."""


class ShadowInForce(NamedTuple):
    """A shadow of a process, and when its period ends."""

    entry: Entry
    until: datetime
    ended: Entry | None = None
    """Its rejection, or the next shadow, whether its period had ended by then or not."""

    def runs(self, at: datetime) -> bool:
        """Whether its period has not ended."""
        return at < self.until


def last_shadow(history: Sequence[Entry], plant: str) -> Entry | None:
    """The entry of the shadow that a plant had last, whether its period has ended or not."""
    return next((entry for entry in reversed(history) if (entry.kind, entry.plant) == ("shadow", plant)), None)


def shadow(history: Sequence[Entry], plant: str) -> ShadowInForce | None:
    """The last shadow of a plant with its end, unless a person has rejected it since.

    Args:
        history: verified entries, from `Ledger.entries()`.
        plant: the plant's name.
    """
    found = last_shadow(history, plant)
    if found is None:
        return None
    told = course(history, found)
    return told if told.ended is None else None


def course(history: Sequence[Entry], begun: Entry) -> ShadowInForce:
    """How long a shadow's days are, and what ended it if anything did.

    Args:
        history: verified entries of all plants or of the shadow's.
        begun: the shadow's entry, among them.
    """
    until = parse_time(begun.timestamp) + timedelta(days=begun.body["days"])
    for later in history:
        if later.sequence <= begun.sequence or later.plant != begun.plant:
            continue
        rejected = later.kind == "rejection" and later.body["composite"] == begun.body["composite"]
        if rejected or later.kind == "shadow":
            return ShadowInForce(begun, until, later)
        # An extension counts from now on where the days were over by then.
        if later.kind == "extension" and later.body["shadow"] == begun.digest:
            until = max(until, parse_time(later.timestamp)) + timedelta(days=later.body["days"])
    return ShadowInForce(begun, until)


def check_shadow(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a shadow unless it is an approved candidate of a process, and replaces the last one.

    Args:
        history: all entries before the shadow.
        entry: the shadow.

    Raises:
        Refused: naming what is missing.
    """
    plant, body = entry.plant, entry.read(ShadowBody)
    _check_days(body.days)
    last = last_shadow(history, plant)
    if body.replaces != (last.digest if last else None):
        raise Refused(f"expected a shadow of {plant} that replaces the last one, got one prepared against another.")
    candidate = next((e for e in history if e.kind == "candidate" and e.digest == body.candidate), None)
    if candidate is None or (candidate.plant, candidate.body["composite"]) != (plant, body.composite):
        raise Refused(f"expected a logged candidate of {plant} as shadow, got none: retrain it.")
    if not of_process(candidate):
        raise Refused(f"expected a candidate without a simulator as shadow of {plant}, got one with: promote it.")
    check_version(candidate, body.version)
    check_all_gates(candidate, entry.rules)
    check_not_ruled_out(history, plant, body.composite)
    approval = open_approval(history, plant, body.composite)
    named = approval is not None and (approval.digest, approval.body["candidate"]) == (body.approval, body.candidate)
    if not named or (approval is not None and approval.body.get("meaning") == "reviewed"):
        raise Refused(
            f"expected an approval of composite {body.composite[:12]} for {plant} that nothing else has used, got "
            "none: have it approved first."
        )


def check_extension(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse an extension of anything but the last shadow of the plant, by nobody, or in the name of who has a key.

    Args:
        history: all entries before the extension.
        entry: the extension.
    """
    body = entry.read(ExtensionBody)
    _check_days(body.days)
    found = shadow(history, entry.plant)
    if found is None or found.entry.digest != body.shadow:
        raise Refused(f"expected an extension of the shadow of {entry.plant}, got one of another or of a rejected one.")
    if not body.by.strip():
        raise Refused("expected the name of who extends a shadow, got none: give it.")
    policy = policy_of(history, entry.plant)
    required = policy is not None and policy.approvers.keys
    content = extension_content(found.entry, body)
    check_signed(history, entry, body.by, body.signature, content, required=required)
    check_signed_time(body.signature, body.signed)


def extension_content(shadow: Entry, body: ExtensionBody) -> Content:
    """What a person signs who lets a shadow run on.

    Args:
        shadow: its entry.
        body: the extension, without its signature.
    """
    about = {"composite": shadow.body["composite"], "days": str(body.days), "shadow": body.shadow}
    return Content("extension", shadow.plant, about, note=body.note)


def check_comparison(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a comparison of no logged shadow, of shares that are none, or whose threshold or alarm is another.

    A comparison has no return of the shadow's actions: nobody took them.

    Args:
        history: all entries before the comparison.
        entry: the comparison.

    Raises:
        Refused: naming what is wrong.
    """
    # It brings NumPy, which the signer of a home without shadows needs not wait for.
    from neorl_core.safety.drift_test import YEAR, alarm_threshold

    found = entry.read(ShadowComparison)
    shadow = next((e for e in history if (e.kind, e.digest) == ("shadow", found.shadow)), None)
    if shadow is None or shadow.plant != entry.plant:
        raise Refused(f"expected a comparison of a logged shadow of {entry.plant}, got another.")
    shares = (found.agreement, found.support, found.interventions)
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise Refused(f"expected shares between 0 and 1, got {', '.join(f'{share:g}' for share in shares)}.")
    drift = found.drift
    rates = (drift.step_seconds, float(drift.block_steps), drift.alarms_per_year)
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise Refused("expected a positive step, block and number of alarms in a year, got another: compare anew.")
    threshold = math.log(alarm_threshold(YEAR / (drift.step_seconds * drift.block_steps), drift.alarms_per_year))
    if not math.isclose(drift.log_threshold, threshold, rel_tol=1e-9, abs_tol=1e-12):
        raise Refused(
            f"expected the threshold {threshold:g} that {drift.alarms_per_year:g} alarms a year come to, got "
            f"{drift.log_threshold:g}: compare anew."
        )
    if not drift.blocks and drift.log_evidence != 0.0:
        raise Refused(f"expected no evidence of a drift where no block was watched, got {drift.log_evidence:g}.")
    reached = drift.log_evidence >= drift.log_threshold
    alarmed = drift.alarm is not None
    if math.isnan(drift.log_evidence) or reached is not alarmed:
        raise Refused("expected an alarm where the evidence reached its threshold and nowhere else, got another.")


def begin(ledger: Ledger, plant: str, body: ShadowBody, artefacts: Sequence[Artefact] = ()) -> Entry:
    """Let a candidate run in shadow; one that does already by the same approval is returned.

    Raises:
        Refused: when the approval is missing or used, or another shadow came meanwhile.
    """
    last = last_shadow(ledger.entries(), plant)
    if last is not None and last.body["approval"] == body.approval:
        return last
    return ledger.append("shadow", body, plant=plant, artefacts=artefacts)


def check_runs(history: Sequence[Entry], plant: str, now: datetime) -> None:
    """Refuse to approve again a shadow whose days are over: a person extends it.

    Raises:
        Refused: naming the command.
    """
    found = shadow(history, plant)
    if found is not None and not found.runs(now):
        raise Refused(
            f"expected a candidate that waits, got version {found.entry.body['version']} of {plant}, whose days in "
            f"shadow are over: let it run on with 'neorl extend {plant} --days DAYS'."
        )


def _check_days(days: int) -> None:
    if not 1 <= days <= LONGEST:
        raise Refused(f"expected a period of 1 to {LONGEST} days, got {days}: extend it later, as often as needed.")
