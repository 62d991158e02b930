"""Rules of promotion, withdrawal and rollback."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import Refused
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
    evidence_digests,
    policy_entry,
    policy_of,
    unmet_requirement,
)
from tasks.files.canonical import normalise_time

IN_FORCE = ("promotion", "rollback")
"""Kinds of entries that make a version the champion."""


class PromotionBody(Body):
    """Body of a `promotion` entry: a composite becomes the champion of a plant."""

    composite: str
    approval: str
    """Digest of the last approval's entry; the policy may require more approvals of the candidate."""
    replaces: str | None
    """Digest of the replaced champion's entry; None if there is no champion."""
    candidate: str
    version: str = ""


class WithdrawalBody(Body):
    """Body of a `withdrawal` entry: a champion is removed for ever."""

    composite: str
    promotion: str
    version: str
    by: str
    why: str
    signed: str = ""
    signature: str = ""
    """The person's signed statement. Optional, because a withdrawal is always safe."""


class RollbackBody(Body):
    """Body of a `rollback` entry: an earlier champion becomes the champion again."""

    composite: str
    candidate: str
    version: str
    restores: str
    """Digest of the earlier promotion of this version."""
    replaces: str | None
    """Digest of the replaced champion's entry; None if there is no champion."""
    leaves: str
    """Composite of the replaced champion, which only another rollback can restore. Empty if there is no champion, or
    if the plant's own controller is champion."""
    by: str
    role: str = ""
    why: str
    signed: str = ""
    signature: str = ""


def champion(history: Sequence[Entry], plant: str, at: str | None = None) -> Entry | None:
    """Return the promotion or rollback that made a plant's champion, now or at the time `at`; None without champion."""
    limit = normalise_time(at, last=True) if at is not None else None
    turns = (e for e in reversed(history) if e.plant == plant and (e.kind in IN_FORCE or leaves_service(e)))
    last = next((entry for entry in turns if limit is None or entry.timestamp <= limit), None)
    return last if last is not None and last.kind in IN_FORCE else None


def promotion_of(history: Sequence[Entry], plant: str, version: str) -> Entry | None:
    """Return the last promotion of a version; None if this version was never champion."""
    found = (e for e in reversed(history) if (e.kind, e.plant) == ("promotion", plant))
    return next((entry for entry in found if entry.body["version"] == version), None)


def check_withdrawal(history: Sequence[Entry], entry: Entry) -> None:
    """Check a withdrawal: it names the present champion, a person and a reason."""
    body, now = entry.read(WithdrawalBody), champion(history, entry.plant)
    if now is None or (now.digest, now.body["composite"]) != (body.promotion, body.composite):
        name = now.body["composite"][:12] if now else "none"
        raise Refused(
            f"the champion of {entry.plant} is composite {name}, got a withdrawal of {body.composite[:12]}: withdraw "
            "the champion"
        )
    check_version(next(e for e in history if e.digest == now.body["candidate"]), body.version)
    if not (body.by.strip() and body.why.strip()):
        raise Refused(f"a withdrawal needs a person and a reason, got {body.by!r} and {body.why!r}: give both")
    check_signed(history, entry, body.by, body.signature, withdrawal_content(body, entry.plant), required=False)
    check_signed_time(body.signature, body.signed)


def withdrawal_content(body: WithdrawalBody, plant: str) -> Content:
    about = {"composite": body.composite, "promotion": body.promotion, "version": body.version}
    return Content("withdrawal", plant, about, "withdrawn", note=body.why)


def check_rollback(history: Sequence[Entry], entry: Entry) -> None:
    """Check a rollback: its version was champion before and meets the present policy.

    The approvals of the earlier promotion count at any age, except approvals by revoked keys. The person who rolls
    back counts as one more approver. If the present policy requires more approvers, the rollback is refused.
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
        raise Refused(
            f"the rollback does not match the promotion of version {body.version} of {plant} (composite "
            f"{body.composite[:12]}): roll back again"
        )
    if (body.replaces, body.leaves) != wanted:
        raise Refused(
            f"the champion of {plant} changed while the rollback was prepared (before: "
            f"{(body.replaces or 'none')[:12]}, now: {(wanted[0] or 'none')[:12]}): see 'neorl history {plant}', and "
            "roll back again"
        )
    if (now := champion(history, plant)) is not None and now.body["candidate"] == body.candidate:
        raise Refused(f"version {body.version} of {plant} is already champion: choose an earlier champion")
    if not (body.by.strip() and body.why.strip()):
        raise Refused(f"a rollback needs a person and a reason, got {body.by!r} and {body.why!r}: give both")
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
    """Check that a version was champion before, and was neither rejected nor withdrawn."""
    known = dict.fromkeys(e.body["version"] for e in history if (e.kind, e.plant) == ("promotion", plant))
    if version not in known:
        raise Refused(
            f"version {version} of {plant} never was champion (earlier champions: {', '.join(known) or 'none'}): "
            f"choose an earlier champion; 'neorl candidates {plant}' lists versions that wait for approval"
        )
    if (gone := ruled_out(history, plant, composite)) is not None:
        raise Refused(
            f"version {version} of {plant} was ruled out: {why_ruled_out(gone)}; roll back to another, or retrain"
        )


def leaving(history: Sequence[Entry], plant: str) -> tuple[str | None, str]:
    """Return the digest of the champion's entry and the champion's composite, which a rollback would replace.

    The composite is empty without a champion, and for the plant's own controller, which may be promoted again.
    """
    now = champion(history, plant)
    if now is None:
        return None, ""
    candidate = next((e for e in history if e.digest == now.body["candidate"]), None)
    own = candidate is not None and candidate.body.get("role") == "fallback"
    return now.digest, "" if own else now.body["composite"]


def restored(history: Sequence[Entry], now: Entry) -> Entry:
    """Return the promotion of a champion: the entry `now` itself, or the promotion that the rollback `now` restored."""
    return {e.digest: e for e in history}[now.body["restores"]] if now.kind == "rollback" else now


def approvals_of(history: Sequence[Entry], promotion: Entry) -> list[Entry]:
    given = open_approvals(history[: promotion.sequence - 1], promotion.plant, promotion.body["composite"])
    return [entry for entry in given if entry.body["candidate"] == promotion.body["candidate"]]


def rollback_content(history: Sequence[Entry], plant: str, body: RollbackBody) -> Content:
    about = {
        **evidence_digests(history, plant, body.composite),
        "candidate": body.candidate,
        "champion": body.replaces,
        "composite": body.composite,
        "promotion": body.restores,
        "version": body.version,
    }
    return Content("rollback", plant, about, "approved for closed loop", body.role, body.why)


def check_certified(history: Sequence[Entry], plant: str, composite: str) -> None:
    if not any(
        entry.kind == "result"
        and entry.plant == plant
        and entry.body.get("composite") == composite
        and entry.body.get("passed") is True
        for entry in history
    ):
        raise Refused(f"composite {composite[:12]} of {plant} has no passed certification: certify it first")


def check_compared(history: Sequence[Entry], candidate: Entry) -> None:
    now = champion(history, candidate.plant)
    if candidate.body["champion"] != (now.digest if now else None):
        raise Refused(
            f"composite {candidate.body['composite'][:12]} of {candidate.plant} was not compared with the champion in "
            "force: retrain to compare them"
        )


def check_promotion(history: Sequence[Entry], entry: Entry) -> None:
    """Check a promotion: it replaces the present champion, and its composite is certified and approved.

    Log-only plants have no certificates and therefore no champions.
    """
    plant, body = entry.plant, entry.read(PromotionBody)
    current = champion(history, plant)
    if body.replaces != (current.digest if current else None):
        name = current.body["composite"][:12] if current else "none"
        raise Refused(
            f"the champion of {plant} changed to composite {name} after the promotion was prepared: retrain to compare "
            "the candidate with the new champion"
        )
    candidate = next((e for e in history if e.kind == "candidate" and e.digest == body.candidate), None)
    if candidate is not None and of_process(candidate):
        raise Refused(
            f"{plant} is a log-only plant, so composite {body.composite[:12]} has no certificate: it can run in shadow "
            "until there is a simulator"
        )
    check_not_ruled_out(history, plant, body.composite)
    check_certified(history, plant, body.composite)
    approval = open_approval(history, plant, body.composite)
    if approval is None or (approval.digest, approval.body["candidate"]) != (body.approval, body.candidate):
        raise Refused(f"composite {body.composite[:12]} of {plant} has no unused approval: have it approved first")
    if candidate is None:
        raise Refused(f"the ledger has no candidate {body.candidate[:12]} of {plant}: retrain {plant}")
    check_version(candidate, body.version)
    check_all_gates(candidate, entry.rules)
    check_compared(history, candidate)
    given = [e for e in open_approvals(history, plant, body.composite) if e.body["candidate"] == body.candidate]
    check_met(history, candidate, given, entry.timestamp)


def before_policy(history: Sequence[Entry], plant: str) -> str | None:
    """Return a message if the champion is older than its plant's policy and does not meet it; otherwise None.

    The champion stays in service, because a policy applies only to later promotions.
    """
    now, signed = champion(history, plant), policy_entry(history, plant)
    if now is None:
        return None
    version = f"version {now.body['version']} of {plant} was promoted before the policy"
    if signed is None:
        return f"{version}: there is no policy yet"
    if now.sequence > signed.sequence:
        return None
    policy = signed.read(PolicyBody).policy
    faults = [unmet_requirement(policy, claim) for _, claim in certified_claims(history, plant, now.body["composite"])]
    return None if None in faults else f"{version}: {faults[-1] if faults else 'it has no certificate'}"


def promote(ledger: Ledger, plant: str, promotion: PromotionBody, artefacts: Sequence[Artefact] = ()) -> Entry:
    """Log a promotion, which makes a composite the champion.

    Returns:
        The promotion's entry; the existing entry if this approval already made the champion.

    Raises:
        Refused: if the champion has changed meanwhile, or certification or approval is missing.
    """
    current = champion(ledger.entries(), plant)
    if current is not None and current.body.get("approval") == promotion.approval:
        return current
    return ledger.append("promotion", promotion, plant=plant, artefacts=artefacts)
