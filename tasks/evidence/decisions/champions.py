"""Who is champion of a plant, and what a promotion needs: the rules, applied when writing and again by the audit."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import Refused
from tasks.evidence.attempts import certificate_file
from tasks.evidence.decisions.approvals import (
    check_all_gates,
    check_not_ruled_out,
    check_signed_time,
    check_version,
    of_process,
    open_approval,
    open_approvals,
    ruled_out,
    why_ruled_out,
)
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Artefact
from tasks.evidence.ledger.voided import leaves_service
from tasks.evidence.people.keyring import counts, folded, keyring
from tasks.evidence.people.rules import check_signed
from tasks.evidence.people.statement import Content
from tasks.evidence.policies import (
    PolicyBody,
    certified_claims,
    check_met,
    lacking,
    policy_entry,
    policy_of,
)
from tasks.files.times import normalise_time

IN_FORCE = ("promotion", "rollback")
"""Kinds of entries that put a version into force."""


class PromotionBody(Body):
    """A composite becomes the champion of its plant."""

    composite: str
    approval: str
    """Digest of the last approval's entry; the policy may ask for more of the same candidate."""
    replaces: str | None
    """Digest of the promotion that this one replaces; none for the first."""
    candidate: str
    """Digest of the candidate's entry, the one that was approved."""
    version: str = ""
    """Version in the registry."""


class WithdrawalBody(Body):
    """A champion is taken out of service."""

    composite: str
    promotion: str
    """Digest of the promotion's entry."""
    version: str
    by: str
    why: str
    signed: str = ""
    signature: str = ""
    """Envelope of the person's statement. A withdrawal waits for nobody's: it is the safe direction."""


class RollbackBody(Body):
    """An earlier champion comes back into service."""

    composite: str
    candidate: str
    """Digest of the candidate's entry."""
    version: str
    restores: str
    """Digest of the promotion by which it was champion."""
    replaces: str | None
    """Digest of the entry that put the champion into force whose place it takes; none where nobody is."""
    leaves: str
    """Composite of that champion, which only a rollback brings back; empty for none and for the plant's own."""
    by: str
    role: str = ""
    why: str
    signed: str = ""
    signature: str = ""
    """Envelope of the person's statement."""


def champion(history: Sequence[Entry], plant: str, at: str | None = None) -> Entry | None:
    """The promotion or rollback in force for a plant, now or at a date or time: the last by then, unless withdrawn.

    Args:
        history: verified entries, from `Ledger.entries()`.
    """
    limit = normalise_time(at, last=True) if at is not None else None
    turns = (e for e in reversed(history) if e.plant == plant and (e.kind in IN_FORCE or leaves_service(e)))
    last = next((entry for entry in turns if limit is None or entry.timestamp <= limit), None)
    return last if last is not None and last.kind in IN_FORCE else None


def promotion_of(history: Sequence[Entry], plant: str, version: str) -> Entry | None:
    """The last promotion by which a version became champion of a plant, or None where it never was."""
    found = (e for e in reversed(history) if (e.kind, e.plant) == ("promotion", plant))
    return next((entry for entry in found if entry.body["version"] == version), None)


def check_withdrawal(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a withdrawal of anything but the champion in force, or by nobody, or for no reason.

    Args:
        history: all entries before the withdrawal.
        entry: the withdrawal.

    Raises:
        Refused: naming what is wrong.
    """
    body, now = entry.read(WithdrawalBody), champion(history, entry.plant)
    if now is None or (now.digest, now.body["composite"]) != (body.promotion, body.composite):
        raise Refused(f"expected a withdrawal of the champion of {entry.plant} in force, got one of another.")
    check_version(next(e for e in history if e.digest == now.body["candidate"]), body.version)
    if not (body.by.strip() and body.why.strip()):
        raise Refused("expected who withdraws a champion, and why, got nothing: say both.")
    check_signed(history, entry, body.by, body.signature, withdrawal_content(body, entry.plant), required=False)
    check_signed_time(body.signature, body.signed)


def withdrawal_content(body: WithdrawalBody, plant: str) -> Content:
    """What a person signs who withdraws a champion."""
    about = {"composite": body.composite, "promotion": body.promotion, "version": body.version}
    return Content("withdrawal", plant, about, "withdrawn", note=body.why)


def check_rollback(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a rollback to anything but an earlier champion that may be champion by the policy of now.

    The approvals of its promotion count on, whatever their age but for those by a key that was revoked since, and who
    rolls back approves it, too: where the policy has come to ask for more than these, the rollback is refused.

    Args:
        history: all entries before the rollback.
        entry: the rollback.

    Raises:
        Refused: naming what is wrong or missing.
    """
    plant, body = entry.plant, entry.read(RollbackBody)
    check_allowed(history, plant, body.version, body.composite)
    promotion = promotion_of(history, plant, body.version)
    wanted = leaving(history, plant)
    if promotion is None or (promotion.digest, promotion.body["composite"], promotion.body["candidate"]) != (
        body.restores,
        body.composite,
        body.candidate,
    ):
        raise Refused(f"expected a rollback to version {body.version} of {plant} as it was champion, got another.")
    if (body.replaces, body.leaves) != wanted:
        raise Refused(
            f"expected a rollback that takes the place of the champion of {plant} in force, got one prepared against "
            "another: look at 'neorl history', and roll back again."
        )
    if (now := champion(history, plant)) is not None and now.body["candidate"] == body.candidate:
        raise Refused(f"expected an earlier champion of {plant}, got version {body.version}, which is in force.")
    if not (body.by.strip() and body.why.strip()):
        raise Refused("expected who rolls back, and why, got nothing: say both.")
    candidate = {e.digest: e for e in history}[body.candidate]
    policy = policy_of(history, plant)
    required = policy is not None and policy.approvers.keys
    content = rollback_content(history, plant, body)
    check_signed(history, entry, body.by, body.signature, content, required=required)
    check_signed_time(body.signature, body.signed)
    keys = keyring(history)
    given = [*(approval for approval in approvals_of(history, promotion) if counts(keys, approval)), entry]
    if policy is not None and policy.approvers.not_author:
        author = folded(str(candidate.body.get("author", "")))
        given = [approval for approval in given if folded(approval.body["by"]) != author]
    check_met(history, candidate, given, entry.timestamp, used=True)


def check_allowed(history: Sequence[Entry], plant: str, version: str, composite: str) -> None:
    """Refuse a version as champion that never was, or that a person has ruled out for good.

    Args:
        history: all entries before the rollback.
        plant: the plant's name.
        version: in the registry.
        composite: digest of what it holds.
    """
    known = dict.fromkeys(e.body["version"] for e in history if (e.kind, e.plant) == ("promotion", plant))
    if version not in known:
        raise Refused(
            f"expected a version of {plant} that was champion before ({', '.join(known) or 'there is none'}), got "
            f"{version}: 'neorl approve' makes champion what never was."
        )
    if (gone := ruled_out(history, plant, composite)) is not None:
        raise Refused(
            f"expected an earlier champion of {plant} that nobody has ruled out, got version {version}, which "
            f"{why_ruled_out(gone)}: go back to another one, or retrain."
        )


def leaving(history: Sequence[Entry], plant: str) -> tuple[str | None, str]:
    """The entry in force that a rollback takes the place of, and the composite that it leaves behind.

    The plant's own controller is not left behind: it takes over again when the next champion is withdrawn.
    """
    now = champion(history, plant)
    if now is None:
        return None, ""
    candidate = next((e for e in history if e.digest == now.body["candidate"]), None)
    own = candidate is not None and candidate.body.get("role") == "fallback"
    return now.digest, "" if own else now.body["composite"]


def restored(history: Sequence[Entry], now: Entry) -> Entry:
    """The promotion that made champion what is in force: of a rollback the one that it restores."""
    return {e.digest: e for e in history}[now.body["restores"]] if now.kind == "rollback" else now


def approvals_of(history: Sequence[Entry], promotion: Entry) -> list[Entry]:
    """The approvals that a promotion rested on."""
    given = open_approvals(history[: promotion.sequence - 1], promotion.plant, promotion.body["composite"])
    return [entry for entry in given if entry.body["candidate"] == promotion.body["candidate"]]


def rollback_content(history: Sequence[Entry], plant: str, body: RollbackBody) -> Content:
    """What a person signs who rolls back: all that the version rests on, as the ledger has it now.

    Args:
        history: all entries before the rollback.
        plant: the plant's name.
        body: the rollback, without its signature.
    """
    results = certified_claims(history, plant, body.composite)
    certificate = certificate_file(results[-1][0]) if results else None
    policy = policy_entry(history, plant)
    about = {
        "candidate": body.candidate,
        "certificate": certificate.sha256 if certificate else None,
        "champion": body.replaces,
        "composite": body.composite,
        "policy": policy.digest if policy else None,
        "promotion": body.restores,
        "version": body.version,
    }
    return Content("rollback", plant, about, "approved for closed loop", body.role, body.why)


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


def check_compared(history: Sequence[Entry], candidate: Entry) -> None:
    """Refuse a candidate that was compared with another champion than the one in force."""
    now = champion(history, candidate.plant)
    if candidate.body["champion"] != (now.digest if now else None):
        raise Refused(
            f"expected a candidate of {candidate.plant} that was compared with the champion in force, got composite "
            f"{candidate.body['composite'][:12]}, which was not: retrain, so that the two are compared."
        )


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
    check_not_ruled_out(history, plant, body.composite)
    check_certified(history, plant, body.composite)
    approval = open_approval(history, plant, body.composite)
    if approval is None or (approval.digest, approval.body["candidate"]) != (body.approval, body.candidate):
        raise Refused(
            f"expected an approval of composite {body.composite[:12]} for {plant} that no other promotion has used, "
            "got none: have it approved first."
        )
    if candidate is None:
        raise Refused(f"expected a logged candidate of {plant} to promote, got none: retrain it.")
    check_version(candidate, body.version)
    check_all_gates(candidate, entry.rules)
    check_compared(history, candidate)
    given = [e for e in open_approvals(history, plant, body.composite) if e.body["candidate"] == body.candidate]
    check_met(history, candidate, given, entry.timestamp)


def before_policy(history: Sequence[Entry], plant: str) -> str | None:
    """In words, that the champion is from before the policy in force, which its claim does not meet; else None.

    It serves on: who signs a policy decides on what comes after it, and so its approvals are not held against it.

    Args:
        history: verified entries.
        plant: the plant's name.
    """
    now, signed = champion(history, plant), policy_entry(history, plant)
    if now is None:
        return None
    version = f"version {now.body['version']} of {plant} serves from before its policy"
    if signed is None:
        return f"{version}: there is none yet"
    if now.sequence > signed.sequence:
        return None
    policy = signed.read(PolicyBody).policy
    faults = [lacking(policy, claim) for _, claim in certified_claims(history, plant, now.body["composite"])]
    return None if None in faults else f"{version}: {faults[-1] if faults else 'it has no certificate'}"


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
    if current is not None and current.body.get("approval") == promotion.approval:
        return current
    return ledger.append("promotion", promotion, plant=plant, artefacts=artefacts)
