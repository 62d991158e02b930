"""Who is champion of a plant, and what a promotion needs: the rules, applied when writing and again by the audit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time

from configs.errors import BadInput, Refused
from tasks.adapters.ledger.ledger import Body, Entry, Ledger
from tasks.adapters.ledger.protocol import Artefact


class VerdictBody(Body):
    """A person, or the rule, approves or rejects a composite."""

    composite: str
    by: str
    note: str = ""
    candidate: str
    """Digest of the candidate's entry."""
    version: str = ""
    """Version in the registry."""


class PromotionBody(Body):
    """A composite becomes the champion of its plant."""

    composite: str
    approval: str
    """Digest of the approval's entry."""
    replaces: str | None
    """Digest of the promotion that this one replaces; none for the first."""
    candidate: str
    """Digest of the candidate's entry, the one that was approved."""
    version: str = ""
    """Version in the registry."""


def moment(text: str) -> str:
    """A date (its last microsecond) or an ISO time (UTC where it names no zone) as the ledger writes times.

    Raises:
        BadInput: when it is neither.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(
            f"expected a date like 2026-11-20 or a time like 2026-11-20T14:00:00Z, got {text!r}: write it so."
        ) from error
    if len(text) <= len("2026-11-20"):
        instant = datetime.combine(instant.date(), time.max)
    instant = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    return instant.isoformat(timespec="microseconds").replace("+00:00", "Z")


def champion(history: Sequence[Entry], plant: str, at: str | None = None) -> Entry | None:
    """The promotion in force for a plant, now or at a date or time: the last one by then.

    Args:
        history: verified entries, from `Ledger.entries()`.
    """
    limit = moment(at) if at is not None else None
    promotions = (entry for entry in reversed(history) if entry.kind == "promotion" and entry.plant == plant)
    return next((entry for entry in promotions if limit is None or entry.timestamp <= limit), None)


def open_approval(history: Sequence[Entry], plant: str, composite: str) -> Entry | None:
    """The approval of a composite that no promotion or shadow has used and no later rejection has taken back."""
    verdict = next(
        (
            entry
            for entry in reversed(history)
            if entry.kind in ("approval", "rejection")
            and entry.plant == plant
            and entry.body.get("composite") == composite
        ),
        None,
    )
    if verdict is None or verdict.kind == "rejection":
        return None
    used = any(
        entry.kind in ("promotion", "shadow") and entry.body.get("approval") == verdict.digest for entry in history
    )
    return None if used else verdict


def of_process(candidate: Entry) -> bool:
    """Whether a candidate's evidence is that of a process without a simulator: it may run in shadow, no more."""
    return "simulator" not in candidate.body["evidence"]


def check_certified(history: Sequence[Entry], plant: str, composite: str) -> None:
    """Refuse a composite that has not passed certification on a plant."""
    if not any(
        entry.kind == "result"
        and entry.plant == plant
        and entry.body.get("composite") == composite
        and entry.body.get("passed") is True
        for entry in history
    ):
        raise Refused(
            f"expected a passed certification of composite {composite[:12]} on {plant}, got none: certify it first."
        )


def check_approval(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse an approval of anything but a logged candidate that passed every gate.

    Args:
        history: all entries before the approval.
        entry: the approval.
    """
    body = entry.read(VerdictBody)
    candidate = next((e for e in history if e.kind == "candidate" and e.digest == body.candidate), None)
    if candidate is None or (candidate.plant, candidate.body["composite"]) != (entry.plant, body.composite):
        raise Refused(
            f"expected an approval of a logged candidate of {entry.plant} with composite {body.composite[:12]}, got "
            "none: retrain, and approve what that registers."
        )
    if candidate.body["passed"] is not True or not all(gate["passed"] is True for gate in candidate.body["gates"]):
        raise Refused(
            f"expected a candidate that passed every gate, got composite {body.composite[:12]} of {entry.plant}, which "
            "did not: retrain it, no approval can skip a gate."
        )


def check_rejection(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a rejection that names no composite or nobody.

    Args:
        history: all entries before the rejection.
        entry: the rejection.
    """
    entry.read(VerdictBody)


def check_promotion(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a promotion unless it replaces the champion in force, is certified, and has an approval of its own.

    A process without a simulator has no certificate, and so no champion.

    Args:
        history: all entries before the promotion.
        entry: the promotion.

    Raises:
        Refused: naming what is missing.
    """
    plant, body = entry.plant, entry.read(PromotionBody)
    current = champion(history, plant)
    if body.replaces != (current.digest if current else None):
        name = current.body["composite"][:12] if current else "none"
        raise Refused(
            f"expected a promotion that replaces the champion of {plant} in force ({name}), got one prepared against "
            "another: compare the candidate with the new champion first."
        )
    candidate = next((e for e in history if e.kind == "candidate" and e.digest == body.candidate), None)
    if candidate is not None and of_process(candidate):
        raise Refused(
            f"expected a candidate of {plant} that a simulator certified, got composite {body.composite[:12]} of a "
            "process without one: it may run in shadow until there is a simulator and a certificate."
        )
    check_certified(history, plant, body.composite)
    approval = open_approval(history, plant, body.composite)
    if approval is None or (approval.digest, approval.body["candidate"]) != (body.approval, body.candidate):
        raise Refused(
            f"expected an approval of composite {body.composite[:12]} for {plant} that no other promotion has used, "
            "got none: have it approved first."
        )


def approve(ledger: Ledger, plant: str, verdict: VerdictBody) -> Entry:
    """Log the approval of a composite; one that still waits for its promotion is returned, not repeated."""
    waiting = open_approval(ledger.entries(), plant, verdict.composite)
    return waiting or ledger.append("approval", verdict, plant=plant)


def reject(ledger: Ledger, plant: str, verdict: VerdictBody) -> Entry:
    """Log the rejection of a composite, which also takes back an approval not yet used."""
    return ledger.append("rejection", verdict, plant=plant)


def promote(ledger: Ledger, plant: str, promotion: PromotionBody, artefacts: Sequence[Artefact] = ()) -> Entry:
    """Make a composite the champion, by compare-and-set.

    Args:
        ledger: opened to write.
        plant: the plant's name.
        promotion: with the digests of its approval, which is good for one promotion, and of what it replaces.
        artefacts: the candidate's files.

    Returns:
        The promotion's entry; the existing one when this approval has already made the champion.

    Raises:
        Refused: when the champion has changed meanwhile, or certification or approval is missing.
    """
    current = champion(ledger.entries(), plant)
    if current is not None and current.body["approval"] == promotion.approval:
        return current
    return ledger.append("promotion", promotion, plant=plant, artefacts=artefacts)
