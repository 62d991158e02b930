"""Audit of witnesses: their part in attempts, the countersigned head, time stamps, and dates in the future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.evidence.certificate import Check
from tasks.evidence.claims import LOCAL
from tasks.evidence.ledger.entry import AnyBody, Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import from_base64
from tasks.evidence.witness.client import COUNTERSIGNED
from tasks.evidence.witness.notes import Checkpoint, Note
from tasks.evidence.witness.pinned import Witnesses, ledger_fault, pinned, pinned_file, witness_fault
from tasks.evidence.witness.seeds import NonceBody, SeedBody, countersigned_at, witness_names
from tasks.evidence.witness.timestamps import read_authority_certificate, verify_stamp
from tasks.evidence.witness.witness import TOLERANCE


def check_clock(entries: Sequence[Entry], now: datetime) -> Check:
    """Check that no entry has a future date. Timestamps never decrease, so a wrong date would spoil all later ones."""
    first = next((entry for entry in entries if datetime.fromisoformat(entry.timestamp) > now + TOLERANCE), None)
    if first is None:
        return Check("time", True, "no entry is of the future")
    return Check(
        "time", False, f"ledger entry {first.sequence}: {first.timestamp} is later than now, {now:%Y-%m-%d %H:%M}"
    )


def check_witnesses(home: Home, ledger: Ledger, entries: Sequence[Entry]) -> list[Check]:
    """Check that pinned witnesses took part in the attempts and countersigned the newest head.

    The rules verify the nonces and heads of attempts (`tasks.evidence.rules`).
    """
    try:
        witnesses = pinned(home, ledger.trust)
    except NeoRLError as error:
        return [Check("witnesses", False, str(error))]
    seeds = _bodies(entries, "seed", SeedBody)
    if witnesses is None:
        used = sorted({name for _, body in seeds for name in (key.partition("+")[0] for key in body.witnesses)})
        reason = f"but attempts name {' and '.join(used)}" if used else "completeness is the owner's word"
        detail = f"none are pinned in {pinned_file(home, ledger.trust)}: {reason}"
        # The signer also refuses to work if attempts name witnesses and no file pins them.
        return [Check("witnesses", False if used else None, detail)]
    where = pinned_file(home, ledger.trust).parent
    checks = [*_attempts(witnesses, seeds, _heads(entries)), *_head(home, entries, witnesses)]
    return [*checks, *_stamps(where, entries, witnesses)]


def _attempts(witnesses: Witnesses, seeds: Sequence[tuple[Entry, SeedBody]], heads: Mapping[str, str]) -> list[Check]:
    """Check that attempts name enough pinned witnesses; attempts before the first witnessed one are only reported."""
    faults = [
        (entry, witness_fault(witnesses, body.witnesses) or ledger_fault(witnesses, heads.get(body.attempt, "")))
        for entry, body in seeds
    ]
    own = all(witness.verifier.name.startswith(LOCAL) for witness in witnesses.witnesses)
    # The home's own witness may have witnessed no attempt yet; an external witness must have witnessed one.
    first = next((number for number, (_, fault) in enumerate(faults) if fault is None), len(faults) if own else 0)
    late = [f"ledger entry {entry.sequence}: {fault}" for entry, fault in faults[first:] if fault]
    checks = [Check("witnesses", False, detail) for detail in late]
    if first:
        detail = f"{first} attempts precede the first one with {_names(witnesses)}: {faults[0][1]}"
        checks.append(Check("witnesses", None, detail))
    if not late:
        second = " (on the same machine, so not independent)" if own else ""
        detail = f"{len(faults) - first} attempts witnessed by {_names(witnesses)}{second}"
        checks.append(Check("witnesses", True, detail))
    return checks


def _heads(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the countersigned head of each attempt that has nonces, keyed by the attempt's digest."""
    return {body.attempt: body.head for _, body in _bodies(entries, "nonce", NonceBody)}


def _names(witnesses: Witnesses) -> str:
    return " and ".join(witness.verifier.name for witness in witnesses.witnesses)


def _head(home: Home, entries: Sequence[Entry], witnesses: Witnesses) -> list[Check]:
    path = home.root / COUNTERSIGNED
    if not path.exists():
        return [Check("countersigned", None, f"no countersigned head in {path}")]
    text = path.read_text(errors="replace")
    try:
        note = Note.parse(text)
        by = [w.key for w in witnesses.witnesses if note.countersigned_by(w.verifier) is not None]
        if len(by) < witnesses.required:
            detail = f"{path} is countersigned by {len(by)} witnesses, {witnesses.required} are required"
            return [Check("countersigned", False, detail)]
        when, size = countersigned_at(entries, text, by), Checkpoint.parse(note.text).size
    except NeoRLError as error:
        return [Check("countersigned", False, f"{path}: {error}")]
    detail = f"{size} of {len(entries)} entries at {when:%Y-%m-%d %H:%M:%SZ} by {' and '.join(witness_names(by))}"
    return [Check("countersigned", True, detail)]


def _stamps(folder: Path, entries: Sequence[Entry], witnesses: Witnesses) -> list[Check]:
    """Verify the time stamps of the attempts' heads; attempts before the first time stamp need none."""
    if witnesses.timestamps is None:
        return []
    given = [entry for entry in entries if entry.kind == "nonce"]
    stamped = next((number for number, entry in enumerate(given) if entry.body.get("stamp")), len(given))
    try:
        certificate = read_authority_certificate(folder / witnesses.timestamps.certificate)
        for entry in given[stamped:]:
            body = entry.read(NonceBody)
            text = Note.parse(body.head).text
            when = verify_stamp(from_base64(body.stamp), text.encode(), certificate)
            if datetime.fromisoformat(Checkpoint.parse(text).time) > when + TOLERANCE:
                raise Refused(
                    f"ledger entry {entry.sequence}: the head has entries later than the time stamp of {when}"
                )
    except (NeoRLError, ValidationError, ValueError) as error:
        return [Check("stamps", False, str(error))]
    return [Check("stamps", True, f"{len(given) - stamped} heads of attempts, stamped by {witnesses.timestamps.url}")]


def _bodies(entries: Sequence[Entry], kind: str, model: type[AnyBody]) -> list[tuple[Entry, AnyBody]]:
    """Return entries of a kind with their bodies. Malformed bodies are skipped, because the rules report them."""
    found = []
    for entry in entries:
        if entry.kind == kind:
            with suppress(ValidationError):
                found.append((entry, entry.read(model)))
    return found
