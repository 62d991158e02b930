"""Entries that do not count, for the home's key that signed them was out: they stay in the chain and decide nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tasks.adapters.ledger.signing import Pin, keyid_of

if TYPE_CHECKING:
    from tasks.adapters.ledger.ledger import Entry

REPLACED = " replaced"
"""How the reason of an entry ends that was signed by a key of before."""
VOID = "void"
"""Kind that an entry is read as when it does not count; no entry is signed as one."""
PERMITS = ("result", "candidate", "approval", "promotion", "rollback", "shadow", "extension", "policy", "key")
"""What allows something. Attempts, rejections and withdrawals of a time that is doubtful later go on to count: else who
revokes a key of their own would get error probability, or what was rejected, back. For the same reason a rollback that
does not count brings nothing back, but what it left stays out of service (`leaves_service`)."""


def counting(entries: Sequence[Entry], pins: Collection[Pin] = ()) -> list[Entry]:
    """The same entries, those that do not count as void ones, so that every position stays what it is.

    A void one's body stays as it was signed, for a champion in force may rest on it.

    Args:
        entries: verified, from the first on.
        pins: of the trust root in force, whose dates hold besides the ledger's.
    """
    reasons = void(entries, pins)
    if not reasons:
        return list(entries)
    return [
        replace(e, kind=VOID, void=f"{e.kind} {reasons[e.sequence]}") if e.sequence in reasons else e for e in entries
    ]


def void(entries: Sequence[Entry], pins: Collection[Pin] = ()) -> dict[int, str]:
    """Which entries do not count, and why: sequence -> reason.

    Args:
        entries: verified, from the first on.
        pins: of the trust root in force.
    """
    found = forged(entries)
    revoked: dict[str, str] = {}
    told = [texts(e, "key", "since") for e in entries if e.kind == "revocation" and e.sequence not in found]
    dates = [(each[0], each[1]) for each in told if each and each[1]]
    dates += [(pin.id, pin.revoked) for pin in pins if pin.revoked and not pin.person]
    for key, since in dates:
        revoked[key] = min(since, revoked.get(key, since))
    if revoked:
        for entry in entries:
            since = revoked.get(name, "") if (name := _key(entry)) else ""
            if since and entry.timestamp >= since and entry.kind in PERMITS:
                found.setdefault(entry.sequence, f"signed by key {name}, which was revoked from {since} on")
    permits = {e.digest: e.sequence for e in entries if e.sequence in found}
    for entry in entries:
        rests = [permits[d] for d in (texts(entry, "restores", "candidate") or ()) if d in permits]
        if entry.kind == "rollback" and rests:
            found.setdefault(entry.sequence, f"to what entry {rests[0]} permitted, which does not count")
    return found


def leaves_service(entry: Entry) -> bool:
    """Whether an entry as it counts takes a champion out of service without another one: a withdrawal, or a rollback
    that does not count because its key was revoked or because of what it rests on. One that was forged does nothing.
    """
    if entry.kind != VOID:
        return entry.kind == "withdrawal"
    return entry.void.startswith("rollback ") and not entry.void.endswith(REPLACED)


def forged(entries: Sequence[Entry]) -> dict[int, str]:
    """Entries signed by a key of the home after another one had taken its place, and why they do not count."""
    found: dict[int, str] = {}
    out: dict[str, int] = {}
    if not any(entry.kind == "rotation" for entry in entries):
        return found
    for entry in entries:
        if (name := _key(entry)) in out:
            found[entry.sequence] = f"signed by key {name}, which entry {out[name]}{REPLACED}"
        elif entry.kind == "rotation" and (told := texts(entry, "old", "person")) and not told[1]:
            out[told[0]] = entry.sequence
    return found


def texts(entry: Entry, *names: str) -> tuple[str, ...] | None:
    """These fields of a body; None of one that was forged without them, which the rules name and which says nothing."""
    found = tuple(text for name in names if isinstance(text := entry.body.get(name), str))
    return found if len(found) == len(names) else None


def _key(entry: Entry) -> str:
    return keyid_of(entry.envelope) if entry.envelope else ""
