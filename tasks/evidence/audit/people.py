"""Audit of keys: unsigned decisions, voided entries, and champions that need an approval by a revoked key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pydantic import ValidationError

from configs.safety_policy import RULE
from tasks.evidence.certificate import Check
from tasks.evidence.decisions.champions import IN_FORCE, approvals_of, champion, restored
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.signing import TrustRoot, keyid_of
from tasks.evidence.ledger.voided import VOID, counting, forged, void
from tasks.evidence.people.keyring import check_pins, counts, keyring

NAME = "people"


def check_people(entries: Sequence[Entry], trust: TrustRoot) -> list[Check]:
    """Check that pinned keys agree with the ledger; report unsigned decisions and voided entries."""
    with suppress(ValidationError, ValueError, KeyError):
        failures = [Check(NAME, False, fault) for fault in check_pins(counting(entries, trust.pins), trust)]
        failures += [Check(NAME, False, fault) for fault in _resting(counting(entries, trust.pins))]
        return [*failures, *_void(entries, trust), *_summary(entries, bool(failures))]
    return [Check(NAME, False, "the entries about keys cannot be read: see the checks above")]


def _void(entries: Sequence[Entry], trust: TrustRoot) -> Iterator[Check]:
    """Report voided entries; fail if a replaced key signed one, or if only the file of pinned keys revokes the key.

    Otherwise anybody who can edit this file could void a promotion, and so restore an earlier champion.
    """
    late, logged = forged(entries), void(entries)
    for number, reason in void(entries, trust.pins).items():
        alone = "" if number in logged else f"; only {trust.source} says so: log it with 'neorl keys revoke'"
        failed = number in late or number not in logged
        yield Check(NAME, False if failed else None, f"ledger entry {number} does not count: {reason}{alone}")


def _summary(entries: Sequence[Entry], failed: bool) -> Iterator[Check]:
    kinds = ("approval", "rejection", "withdrawal", "rollback", "extension")
    decided = [e for e in entries if e.kind in kinds and e.body.get("by") != RULE]
    signed = sum(bool(entry.body.get("signature")) for entry in decided)
    if not failed:
        yield Check(NAME, True, f"{signed} decisions signed by persons' keys, each as the trust root pins it")
    if len(decided) > signed:
        yield Check(NAME, None, f"{len(decided) - signed} decisions are unsigned: they were made in the home's name")


def _resting(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a message for each champion that lost its candidate or an approval when a key was revoked."""
    keys, by_digest = keyring(entries), {entry.digest: entry for entry in entries}
    for plant in sorted({entry.plant for entry in entries if entry.kind in IN_FORCE}):
        now = champion(entries, plant)
        if now is None:
            continue
        version = now.body["version"]
        cure = f"review it again, or 'neorl withdraw {plant} {version}'"
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
                    f"{approval.sequence}) by key {key.id}, which was revoked from {key.revoked} on: {cure}"
                )
