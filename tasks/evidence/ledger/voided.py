"""Entries that do not count, for the home's key that signed them was out: they stay in the chain and decide nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tasks.evidence.ledger.signing import Pin

if TYPE_CHECKING:
    from tasks.evidence.ledger.ledger import Entry

REPLACED = " replaced"
"""How the reason of an entry ends that was signed by a key of before."""
VOID = "void"
"""Kind that an entry is read as when it does not count; no entry is signed as one."""
CHANGES = ("rotation", "revocation")
"""Kinds after which others may not count."""
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


def before_each(entries: Sequence[Entry]) -> Iterator[tuple[list[Entry], Entry]]:
    """Each entry, with those before it as they counted when it was written.

    Gives what `counting` makes of the entries before each, without going through all of them again every time: until a
    key is replaced or revoked all count, and afterwards what counts of those before changes only where another one is.

    Args:
        entries: verified, from the first on.

    Yields:
        The earlier entries, a list of the caller's own, and the entry.
    """
    counted: list[Entry] = []
    telling: list[Entry] = []
    for number, entry in enumerate(entries):
        yield list(counted), entry
        if entry.kind in CHANGES:
            counted = counting(entries[: number + 1])
            telling = [entries[index] for index, e in enumerate(counted) if e.kind in CHANGES or e.kind == VOID]
            continue
        # Whether it counts depends on the keys that are out, and, if it is a rollback, on what does not count.
        seen = counting([*telling, entry])[-1] if telling else entry
        if seen.kind == VOID:
            telling.append(entry)
        counted.append(seen)


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
            since = revoked.get(name, "") if (name := entry.signer) else ""
            if since and entry.timestamp >= since and entry.kind in PERMITS:
                found.setdefault(entry.sequence, f"signed by key {name}, which was revoked from {since} on")
    if not found:
        return found
    permits = {e.digest: e.sequence for e in entries if e.sequence in found}
    for entry in entries:
        if entry.kind != "rollback":
            continue
        rests = [permits[d] for d in (texts(entry, "restores", "candidate") or ()) if d in permits]
        if rests:
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
        if (name := entry.signer) in out:
            found[entry.sequence] = f"signed by key {name}, which entry {out[name]}{REPLACED}"
        elif entry.kind == "rotation" and (told := texts(entry, "old", "person")) and not told[1]:
            out[told[0]] = entry.sequence
    return found


def texts(entry: Entry, *names: str) -> tuple[str, ...] | None:
    """These fields of a body; None of one that was forged without them, which the rules name and which says nothing."""
    found = tuple(text for name in names if isinstance(text := entry.body.get(name), str))
    return found if len(found) == len(names) else None
