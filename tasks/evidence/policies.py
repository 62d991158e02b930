"""Safety policies in the ledger: which is in force, and what a promotion lacks by it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from configs.errors import BadInput, Refused
from configs.safety_policy import RULE, SafetyPolicy
from configs.strict import Approvers
from configs.yaml_files import load_yaml
from tasks.evidence.attempts import AttemptBody
from tasks.evidence.claims import Claim, DrawnConstant
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.signing import TrustRoot
from tasks.evidence.people.keyring import folded
from tasks.evidence.people.rules import check_signed, signed_by_person
from tasks.evidence.people.statement import Content
from tasks.files.canonical import digest_json
from tasks.files.times import parse_time
from tasks.references import CandidateRecord
from tasks.versions.texts import Texts
from tasks.versions.versions import current, version_of

POSTERIOR = "identified_"
"""How the parameters of a domain begin that draw a constant from a posterior."""


class PolicyBody(Body):
    """A safety policy comes into force for its plant."""

    policy: SafetyPolicy
    by: str
    why: str
    replaces: str | None
    """Digest of the policy's entry that this one replaces; none for the first."""
    signatures: tuple[str, ...] = ()
    """Statements of persons, of whom the policy in force asks for as many as for an approval where it asks for keys."""


def policy_entry(history: Sequence[Entry], plant: str) -> Entry | None:
    """The entry of the policy in force for a plant."""
    return next((e for e in reversed(history) if (e.kind, e.plant) == ("policy", plant)), None)


def policy_of(history: Sequence[Entry], plant: str) -> SafetyPolicy | None:
    """The policy in force for a plant, as the ledger has it."""
    found = policy_entry(history, plant)
    return found.read(PolicyBody).policy if found else None


def check_policy(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a policy that replaces another than the one in force, is of another plant, or is nobody's.

    Args:
        history: all entries before the policy.
        entry: the policy.

    Raises:
        Refused: naming what is wrong.
    """
    body = entry.read(PolicyBody)
    last = policy_entry(history, entry.plant)
    if body.replaces != (last.digest if last else None):
        raise Refused(f"expected a policy that replaces the one in force for {entry.plant}, got one of another.")
    if body.policy.plant != entry.plant:
        raise Refused(f"expected a policy of {entry.plant}, got one of {body.policy.plant}: correct its plant.")
    if not (body.by.strip() and body.why.strip()):
        raise Refused("expected who changes a policy, and why, got nothing: say both.")
    known = version_of(entry.rules).gate_names
    if unknown := sorted(set(body.policy.gates) - set(known)):
        raise Refused(f"gates must be among {', '.join(known)}, got {unknown[0][:40]!r}: correct the policy.")
    wanted = body.policy.approvers
    if (wanted.keys or wanted.not_author or wanted.reviewers) and not wanted.count:
        raise Refused("expected at least one approver where the policy asks for keys, reviewers or another than the "
                      "author, got 0: give 'approvers' a count.")  # fmt: skip
    _check_who_signs(history, entry, body, last)


def _check_who_signs(history: Sequence[Entry], entry: Entry, body: PolicyBody, last: Entry | None) -> None:
    """Where the policy in force asks for persons' keys, as many persons sign its change as sign an approval."""
    approvers = last.read(PolicyBody).policy.approvers if last else Approvers()
    content = policy_content(body)
    people = set()
    for signature in body.signatures:
        signer = signed_by_person(history, signature)[0].person
        check_signed(history, entry, signer, signature, content, required=True)
        people.add(folded(signer))
    if people and folded(body.by) not in people:
        raise Refused(f"expected {body.by} among those who sign the policy, got others: sign it, or name one of them.")
    if not people:
        check_signed(history, entry, body.by, "", content, required=approvers.keys)
    if approvers.keys and len(people) < approvers.count:
        raise Refused(
            f"expected signatures of {approvers.count} persons on a change of the policy of {entry.plant}, got "
            f"{len(people)}: 'neorl policy sign --statement-to FILE' makes one, '--statement FILE' takes it."
        )


def policy_content(body: PolicyBody) -> Content:
    """What each person signs who changes a policy."""
    about = {"policy": digest_json(body.policy.model_dump(mode="json")), "replaces": body.replaces}
    return Content("policy", body.policy.plant, about, note=body.why)


def lacking(policy: SafetyPolicy, claim: Claim) -> str | None:
    """What a claim lacks of what a policy asks, or None.

    Strength is compared where domain, horizon and limits are equal: a claim under others is another claim, and it takes
    a signed change of the policy to call it enough.

    Args:
        policy: in force.
        claim: that was shown, or is to be.
    """
    drawn = [f"{c.name}[{c.entry}]" if c.entry is not None else c.name for c in _drawn(claim)]
    for name, wanted, found in (
        ("the plant", policy.plant, claim.plant),
        ("the limits", policy.limits, claim.phi),
        ("the horizon", policy.horizon, claim.horizon),
        ("the family of domains", policy.family, claim.family),
    ):
        if wanted != found:
            return f"expected {name} {wanted} of the policy, got {found}"
    # What a posterior adds is bounded by which constants may be drawn, below.
    own = {name: value for name, value in claim.domain.items() if not (drawn and name.startswith(POSTERIOR))}
    for name in sorted({*own, *policy.domain}):
        if own.get(name) != policy.domain.get(name):
            return f"expected the policy's {name} = {policy.domain.get(name)} in the domain, got {own.get(name)}"
    if extra := sorted(set(drawn) - set(policy.identified)):
        return f"expected no constant but {', '.join(policy.identified) or 'none'} to be identified, got {extra[0]}"
    if claim.p0 > policy.p0:
        return f"expected a p0 of at most {policy.p0:g}, got {claim.p0:g}"
    if claim.confidence < policy.confidence:
        return f"expected a confidence of at least {policy.confidence:.12g}, got {claim.confidence:.12g}"
    return None


def _drawn(claim: Claim) -> tuple[DrawnConstant, ...]:
    return claim.identified.constants if claim.identified else ()


def certified_claims(history: Sequence[Entry], plant: str, composite: str) -> list[tuple[Entry, Claim]]:
    """The passed results of a composite on a plant, with the claim that each attempt was made for."""
    attempts = {entry.digest: entry for entry in history if entry.kind == "attempt"}
    return [
        (entry, attempts[entry.body["attempt"]].read(AttemptBody).scope)
        for entry in history
        if (entry.kind, entry.plant) == ("result", plant)
        and entry.body["composite"] == composite
        and entry.body["passed"] is True
    ]


def check_met(
    history: Sequence[Entry], candidate: Entry, approvals: Sequence[Entry], at: str, *, used: bool = False
) -> None:
    """Refuse a promotion that does not meet the policy in force; one before the plant's first policy is let be.

    Args:
        history: all entries before the promotion.
        candidate: its candidate's entry.
        approvals: of that candidate, which nothing has used or taken back.
        at: when it is promoted, as the ledger writes times.
        used: whether these made it champion before, so that neither their age nor a later policy ends them.

    Raises:
        Refused: naming what it lacks.
    """
    plant, entry = candidate.plant, policy_entry(history, candidate.plant)
    if entry is None:
        return
    policy, record = entry.read(PolicyBody).policy, candidate.read(CandidateRecord)
    cure = f"see `neorl policy show {plant}`"
    faults = []
    for result, claim in certified_claims(history, plant, record.composite):
        old = f"expected a certificate of at most {policy.certificate_days} days, got an older one"
        expired = expires(result, policy.certificate_days) < parse_time(at)
        faults.append(lacking(policy, claim) or (old if expired else None))
    if None not in faults:
        got = faults[-1] if faults else "expected a passed certification, got none"
        # A retraining on the inputs of an earlier one finds what that one found, an expired certificate included.
        raise Refused(f"{got}: {cure}, and retrain on newer logs or with another seed, which certifies anew.")
    if record.role == "candidate":
        passed = {gate.name for gate in record.gates if gate.passed is True}
        if missing := [name for name in policy.gates if name not in passed]:
            raise Refused(f"expected the gate {missing[0]}, which the policy requires, got none that passed: {cure}.")
        if policy.beat_plant and not getattr(record.evidence, "beat_plant", False):
            raise Refused(f"expected a candidate that had to beat the plant's own controller, got another: {cure}.")
    if fault := lacking_approvals(policy, entry, approvals, at, used=used):
        raise Refused(f"{fault}: {cure}.")


def lacking_approvals(
    policy: SafetyPolicy,
    signed: Entry,
    approvals: Sequence[Entry],
    at: str,
    texts: Texts | None = None,
    *,
    used: bool = False,
) -> str | None:
    """Name the first approval that a policy requires and that is missing; None if none is.

    Args:
        policy: in force.
        signed: its entry; an approval from before was given under another.
        approvals: of a candidate, which nothing has used or taken back.
        at: when they are to be used.
        texts: wording, the newest by default; MLflow's pages show it.
        used: whether they were used in time before.
    """
    texts, wanted, valid = texts or current().texts, policy.approvers, []
    for approval in approvals:
        fresh = approval.sequence > signed.sequence and expires(approval, policy.approval_days) >= parse_time(at)
        if used or fresh:
            valid.append(approval)
    expired = texts.expired.format(count=len(approvals) - len(valid)) if len(valid) < len(approvals) else ""
    if wanted.keys:
        valid = [entry for entry in valid if entry.body.get("signature")]
    closing = [entry for entry in valid if entry.body.get("meaning") != "reviewed"]
    if (got := len(_people(closing))) < wanted.count:
        return texts.few_approvals.format(wanted=wanted.count, got=got, expired=expired)
    reviews = [entry for entry in valid if entry.body.get("meaning") == "reviewed"]
    # Who did both may stand for either, but not for both at once.
    if (got := min(len(_people(reviews)), len(_people(valid)) - wanted.count)) < wanted.reviewers:
        return texts.few_reviews.format(wanted=wanted.reviewers, got=got, expired=expired)
    if not closing:
        return texts.stale_approval.format(days=policy.approval_days)
    missing = sorted(set(wanted.roles) - {entry.body["role"] for entry in closing})
    return texts.missing_role.format(role=missing[0]) if missing else None


def _people(approvals: Sequence[Entry]) -> set[str]:
    return {folded(entry.body["by"]) for entry in approvals if entry.body["by"] != RULE}


def expires(entry: Entry, days: int) -> datetime:
    """When an approval or a result ends to count; a person's from when it was signed."""
    return parse_time(entry.body.get("signed") or entry.timestamp) + timedelta(days=days)


def pinned_file(trust: TrustRoot, plant: str) -> Path:
    """Where the policy of a plant is pinned: beside the trust root, so that who audits has both from one hand."""
    return trust.source.parent / "policies" / f"{plant}.yaml"


def check_pinned(history: Sequence[Entry], trust: TrustRoot, plant: str) -> None:
    """Refuse a plant without a policy, or whose pinned policy is another than that of the ledger.

    Raises:
        Refused: saying which.
    """
    policy, path = policy_of(history, plant), pinned_file(trust, plant)
    if policy is None:
        raise Refused(
            f"expected a safety policy of {plant}, got none: 'neorl retrain' drafts one from its claim, or sign one "
            f"with 'neorl policy sign {plant} FILE'."
        )
    pinned = pinned_policy(trust, plant)
    if pinned != policy:
        got = "another" if pinned else "none"
        raise Refused(f"expected the policy of {plant} that the ledger has in {path}, got {got}: {_cure(plant)}.")


def pinned_policy(trust: TrustRoot, plant: str) -> SafetyPolicy | None:
    """The policy of a plant as it is pinned, if any is.

    Raises:
        Refused: when the file holds none.
    """
    path = pinned_file(trust, plant)
    try:
        return load_yaml(path, SafetyPolicy) if path.is_file() else None
    except BadInput as error:
        raise Refused(f"{str(error).removesuffix('.')}, or {_cure(plant)}.") from error


def _cure(plant: str) -> str:
    return f"restore the one that is right, or sign it with 'neorl policy sign {plant} FILE'"
