"""What an audit looks at of witnesses: who took part in each attempt, and how far the ledger is countersigned."""

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
    """Whether no entry is of the future: one that is would date all that follow it.

    Args:
        entries: of the ledger, each of which is not before the one before.
        now: the time here.
    """
    first = next((entry for entry in entries if datetime.fromisoformat(entry.timestamp) > now + TOLERANCE), None)
    if first is None:
        return Check("time", True, "no entry is of the future")
    return Check(
        "time", False, f"ledger entry {first.sequence}: {first.timestamp} is later than now, {now:%Y-%m-%d %H:%M}"
    )


def check_witnesses(home: Home, ledger: Ledger, entries: Sequence[Entry]) -> list[Check]:
    """Hold attempts and the newest countersigned head against the witnesses that are pinned.

    That nonces and heads hold by themselves is what the rules of writing say, which are replayed.

    Args:
        home: of the ledger.
        ledger: its trust root says where witnesses are pinned.
        entries: of the ledger, those that hold.
    """
    try:
        witnesses = pinned(home, ledger.trust)
    except NeoRLError as error:
        return [Check("witnesses", False, str(error))]
    seeds = _bodies(entries, "seed", SeedBody)
    if witnesses is None:
        used = sorted({name for _, body in seeds for name in (key.partition("+")[0] for key in body.witnesses)})
        told = f"though attempts name {' and '.join(used)}" if used else "that nothing was left out is its owner's word"
        said = f"none are pinned in {pinned_file(home, ledger.trust)}: {told}"
        # The signer goes on without that file no more than this.
        return [Check("witnesses", False if used else None, said)]
    where = pinned_file(home, ledger.trust).parent
    checks = [*_attempts(witnesses, seeds, _heads(entries)), *_head(home, entries, witnesses)]
    return [*checks, *_stamps(where, entries, witnesses)]


def _attempts(witnesses: Witnesses, seeds: Sequence[tuple[Entry, SeedBody]], heads: Mapping[str, str]) -> list[Check]:
    """Every commitment names enough of the pinned witnesses; those of before the first that does are only told."""
    faults = [
        (entry, witness_fault(witnesses, body.witnesses) or ledger_fault(witnesses, heads.get(body.attempt, "")))
        for entry, body in seeds
    ]
    own = all(witness.verifier.name.startswith(LOCAL) for witness in witnesses.witnesses)
    # With a witness of its own a home may have none yet; one of others must have seen something.
    first = next((number for number, (_, fault) in enumerate(faults) if fault is None), len(faults) if own else 0)
    late = [f"ledger entry {entry.sequence}: {fault}" for entry, fault in faults[first:] if fault]
    checks = [Check("witnesses", False, said) for said in late]
    if first:
        said = f"{first} attempts of before {_names(witnesses)} took part: {faults[0][1]}"
        checks.append(Check("witnesses", None, said))
    if not late:
        second = " (one machine is no second party)" if own else ""
        said = f"{len(faults) - first} attempts, as {_names(witnesses)} saw them{second}"
        checks.append(Check("witnesses", True, said))
    return checks


def _heads(entries: Sequence[Entry]) -> dict[str, str]:
    """The countersigned head of each attempt that has its nonces."""
    return {body.attempt: body.head for _, body in _bodies(entries, "nonce", NonceBody)}


def _names(witnesses: Witnesses) -> str:
    return " and ".join(witness.verifier.name for witness in witnesses.witnesses)


def _head(home: Home, entries: Sequence[Entry], witnesses: Witnesses) -> list[Check]:
    """The newest countersigned head is one that this ledger has had."""
    path = home.root / COUNTERSIGNED
    if not path.exists():
        return [Check("countersigned", None, f"no countersigned head in {path}")]
    text = path.read_text(errors="replace")
    try:
        note = Note.parse(text)
        by = [w.key for w in witnesses.witnesses if note.countersigned_by(w.verifier) is not None]
        if len(by) < witnesses.required:
            said = f"expected countersignatures of {witnesses.required} witnesses in {path}, got {len(by)}"
            return [Check("countersigned", False, said)]
        when, size = countersigned_at(entries, text, by), Checkpoint.parse(note.text).size
    except NeoRLError as error:
        return [Check("countersigned", False, f"{path}: {error}")]
    said = f"{size} of {len(entries)} entries at {when:%Y-%m-%d %H:%M:%SZ} by {' and '.join(witness_names(by))}"
    return [Check("countersigned", True, said)]


def _stamps(folder: Path, entries: Sequence[Entry], witnesses: Witnesses) -> list[Check]:
    """The heads of attempts are stamped by the pinned authority, from the first that is."""
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
                raise Refused(f"ledger entry {entry.sequence}: a head with entries later than its time stamp")
    except (NeoRLError, ValidationError, ValueError) as error:
        return [Check("stamps", False, str(error))]
    return [Check("stamps", True, f"{len(given) - stamped} heads of attempts, stamped by {witnesses.timestamps.url}")]


def _bodies(entries: Sequence[Entry], kind: str, model: type[AnyBody]) -> list[tuple[Entry, AnyBody]]:
    """The entries of a kind and what they say, but for malformed ones, which the rules have named."""
    found = []
    for entry in entries:
        if entry.kind == kind:
            with suppress(ValidationError):
                found.append((entry, entry.read(model)))
    return found
