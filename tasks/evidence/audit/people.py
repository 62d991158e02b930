"""The audit of keys: who decided without one, which entries do not count, and what rests on a key that was revoked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pydantic import ValidationError

from configs.safety_policy import RULE
from tasks.evidence.certificate import Check
from tasks.evidence.decisions.champions import IN_FORCE, approvals_of, champion, restored
from tasks.evidence.ledger.ledger import Entry
from tasks.evidence.ledger.signing import TrustRoot, keyid_of
from tasks.evidence.ledger.voided import VOID, counting, forged, void
from tasks.evidence.people.keyring import check_pins, counts, keyring

NAME = "people"


def check_people(entries: Sequence[Entry], trust: TrustRoot) -> list[Check]:
    """What is to be said of keys and of those who decided.

    Args:
        entries: verified, as they were signed.
        trust: the trust root in force.
    """
    with suppress(ValidationError, ValueError, KeyError):
        failures = [Check(NAME, False, fault) for fault in check_pins(counting(entries, trust.pins), trust)]
        failures += [Check(NAME, False, fault) for fault in _resting(counting(entries, trust.pins))]
        return [*failures, *_void(entries, trust), *_summary(entries, bool(failures))]
    return [Check(NAME, False, "the entries about keys cannot be read, as is said of each above")]


def _void(entries: Sequence[Entry], trust: TrustRoot) -> Iterator[Check]:
    """Entries that do not count; it fails where a replaced key made them, or where the trust root alone says so.

    Else whoever may write that file would bring an earlier champion back by one line in it.
    """
    late, logged = forged(entries), void(entries)
    for number, reason in void(entries, trust.pins).items():
        alone = "" if number in logged else f", as {trust.source} alone says: 'neorl keys revoke' makes an entry of it"
        failed = number in late or number not in logged
        yield Check(NAME, False if failed else None, f"ledger entry {number} does not count: {reason}{alone}")


def _summary(entries: Sequence[Entry], failed: bool) -> Iterator[Check]:
    kinds = ("approval", "rejection", "withdrawal", "rollback", "extension")
    decided = [e for e in entries if e.kind in kinds and e.body.get("by") != RULE]
    signed = sum(bool(entry.body.get("signature")) for entry in decided)
    if not failed:
        yield Check(NAME, True, f"{signed} decisions signed by persons' keys, each as the trust root pins it")
    if len(decided) > signed:
        yield Check(
            NAME, None, f"{len(decided) - signed} decisions are in the home's name: no person's key signed them"
        )


def _resting(entries: Sequence[Entry]) -> Iterator[str]:
    """Champions whose candidate does not count any more, or not all their approvals, after a key was revoked."""
    keys, by_digest = keyring(entries), {entry.digest: entry for entry in entries}
    for plant in sorted({entry.plant for entry in entries if entry.kind in IN_FORCE}):
        now = champion(entries, plant)
        if now is None:
            continue
        version = now.body["version"]
        cure = f"look at it anew, or 'neorl withdraw {plant} {version}'"
        if (candidate := by_digest[now.body["candidate"]]).kind == VOID:
            yield (
                f"version {version} of {plant} serves on entry {candidate.sequence}, which does not count: "
                f"{candidate.void}: {cure}"
            )
        own = [now] if now.kind == "rollback" else []
        for approval in [*approvals_of(entries, restored(entries, now)), *own]:
            if not counts(keys, approval):
                key = keys[keyid_of(approval.body["signature"].encode())]
                yield (
                    f"version {version} of {plant} serves on {approval.body['by']}'s approval (entry "
                    f"{approval.sequence}), by key {key.id}, which was revoked from {key.revoked} on: {cure}"
                )
