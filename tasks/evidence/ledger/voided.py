"""Voided entries: entries by a replaced or revoked key of the home. They stay in the chain but have no effect."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.signing import Pin

REPLACED = " replaced"
"""End of the reason if a replaced key signed the entry; `leaves_service` looks for this end."""
VOID = "void"
"""Kind that a voided entry gets when it is read; no signed entry has this kind."""
CHANGES = ("rotation", "revocation")
"""Kinds of entries that may void other entries."""
PERMITS = ("result", "candidate", "approval", "promotion", "rollback", "shadow", "extension", "policy", "key")
"""Kinds of entries that permit something. A revocation voids no other kinds; otherwise, revoking your own key would
refund spent error probability or undo a rejection. A voided rollback restores no champion, but the champion that it
replaced stays out of service (`leaves_service`)."""


def counting(entries: Sequence[Entry], pins: Collection[Pin] = ()) -> list[Entry]:
    """Return all entries in the same order; voided entries get the kind `void` and a reason.

    `pins` may revoke more keys than the ledger does.
    """
    reasons = void(entries, pins)
    if not reasons:
        return list(entries)
    return [
        replace(e, kind=VOID, void=f"{e.kind} {reasons[e.sequence]}") if e.sequence in reasons else e for e in entries
    ]


def before_each(entries: Sequence[Entry]) -> Iterator[tuple[list[Entry], Entry]]:
    """Yield (earlier entries, entry) for each entry, with the earlier entries voided as they were at that time.

    The result equals `counting(entries[:i])` for entry i. It is computed again only after a rotation or revocation,
    because only these void other entries.
    """
    counted: list[Entry] = []
    relevant: list[Entry] = []
    for number, entry in enumerate(entries):
        yield list(counted), entry
        if entry.kind in CHANGES:
            counted = counting(entries[: number + 1])
            relevant = [entries[index] for index, e in enumerate(counted) if e.kind in CHANGES or e.kind == VOID]
            continue
        # Whether an entry counts depends on ended keys and, for a rollback, on voided entries.
        counted_entry = counting([*relevant, entry])[-1] if relevant else entry
        if counted_entry.kind == VOID:
            relevant.append(entry)
        counted.append(counted_entry)


def void(entries: Sequence[Entry], pins: Collection[Pin] = ()) -> dict[int, str]:
    """Return the voided entries: sequence number -> reason."""
    found = forged(entries)
    revoked: dict[str, str] = {}
    revocations = [texts(e, "key", "since") for e in entries if e.kind == "revocation" and e.sequence not in found]
    dates = [(each[0], each[1]) for each in revocations if each and each[1]]
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
        voided = [permits[d] for d in (texts(entry, "restores", "candidate") or ()) if d in permits]
        if voided:
            found.setdefault(entry.sequence, f"to what entry {voided[0]} permitted, which does not count")
    return found


def leaves_service(entry: Entry) -> bool:
    """Return whether an entry removes a plant's champion without naming a new champion.

    True for a withdrawal, and for a rollback voided by a key's revocation; False for a forged rollback.
    """
    if entry.kind != VOID:
        return entry.kind == "withdrawal"
    return entry.void.startswith("rollback ") and not entry.void.endswith(REPLACED)


def forged(entries: Sequence[Entry]) -> dict[int, str]:
    """Return the entries that a home's key signed after it was replaced: sequence number -> reason."""
    found: dict[int, str] = {}
    out: dict[str, int] = {}
    if not any(entry.kind == "rotation" for entry in entries):
        return found
    for entry in entries:
        if (name := entry.signer) in out:
            found[entry.sequence] = f"signed by key {name}, which entry {out[name]}{REPLACED}"
        elif entry.kind == "rotation" and (fields := texts(entry, "old", "person")) and not fields[1]:
            out[fields[0]] = entry.sequence
    return found


def texts(entry: Entry, *names: str) -> tuple[str, ...] | None:
    """Return the named text fields of an entry's body; None if one is missing, which the rules report."""
    found = tuple(text for name in names if isinstance(text := entry.body.get(name), str))
    return found if len(found) == len(names) else None
