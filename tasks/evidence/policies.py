"""Safety policies in the ledger: the policy in force, and whether claims and approvals meet a policy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.safety_policy import LATER, RULE, SafetyPolicy
from configs.strict import Approvers
from configs.yaml_files import load_yaml
from tasks.evidence.attempts import AttemptBody, certificate_file
from tasks.evidence.claims import Claim, DrawnConstant
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.signing import TrustRoot
from tasks.evidence.people.keyring import folded
from tasks.evidence.people.rules import check_signed, signed_by_person
from tasks.evidence.people.statement import Content
from tasks.evidence.recorded_steps import read_steps, same_arrays
from tasks.files.canonical import digest_json, parse_time
from tasks.references import CandidateRecord
from tasks.versions.texts import Texts
from tasks.versions.versions import current, version_of

POSTERIOR = "identified_"
"""Prefix of the domain parameters that describe the posterior of a constant."""


class PolicyBody(Body):
    """Body of a `policy` entry: a safety policy comes into force for a plant."""

    policy: SafetyPolicy
    by: str
    why: str
    replaces: str | None
    """Digest of the replaced policy's entry; None for the first."""
    signatures: tuple[str, ...] = ()
    """Signed statements. If the policy in force requires keys, a change needs as many persons as an approval."""
    recorded: str = ""
    """SHA-256 of recorded steps of the simulator; empty if none were recorded."""
    renewed: bool = False
    """Whether only jax or the compiler changed, so that one signature is enough."""


def policy_entry(history: Sequence[Entry], plant: str) -> Entry | None:
    """Return the entry of a plant's policy in force, or None."""
    return next((e for e in reversed(history) if (e.kind, e.plant) == ("policy", plant)), None)


def policy_of(history: Sequence[Entry], plant: str) -> SafetyPolicy | None:
    found = policy_entry(history, plant)
    return found.read(PolicyBody).policy if found else None


def check_policy(history: Sequence[Entry], entry: Entry) -> None:
    """Check a new policy: it replaces the present policy, names the right plant and known gates, and is signed."""
    body = entry.read(PolicyBody)
    last = policy_entry(history, entry.plant)
    if body.replaces != (last.digest if last else None):
        raise Refused(
            f"the policy must replace entry {last.digest[:12] if last else 'none'} of {entry.plant}, got "
            f"{(body.replaces or 'none')[:12]}: sign it again"
        )
    if body.policy.plant != entry.plant:
        raise Refused(f"the policy's plant must be {entry.plant}, got {body.policy.plant}: correct it")
    if not (body.by.strip() and body.why.strip()):
        raise Refused(f"a change of a policy needs a person and a reason, got {body.by!r} and {body.why!r}")
    known = version_of(entry.rules).gate_names
    if unknown := sorted(set(body.policy.gates) - set(known)):
        raise Refused(f"gates must be among {', '.join(known)}, got {unknown[0][:40]!r}: correct the policy")
    wanted = body.policy.approvers
    if (wanted.keys or wanted.not_author or wanted.reviewers) and not wanted.count:
        raise Refused(
            "approvers.count must be at least 1 if keys, reviewers or another person than the author are required, "
            f"got {wanted.count}: correct the policy"
        )
    if body.renewed:
        _check_renewed(body, last)
    _check_who_signs(history, entry, body, last)


def _check_renewed(body: PolicyBody, last: Entry | None) -> None:
    """Check that a renewal changes nothing but the digest of the simulator's program, and names recorded steps."""
    before, plant = last.read(PolicyBody) if last else None, body.policy.plant
    if before is None or not before.recorded or not body.recorded:
        raise Refused(f"a renewal needs recorded steps, but the policy of {plant} has none: sign a new one")
    if body.policy != renewed_policy(before.policy, body.policy.simulator):
        raise Refused(f"a renewal may change only the simulator's digest in the policy of {plant}: sign a new policy")


def renewed_policy(policy: SafetyPolicy, simulator: str) -> SafetyPolicy:
    """Return a policy that binds a new digest of the same simulator, and still accepts the earlier digests."""
    earlier = [*policy.earlier_simulators, policy.simulator]
    return policy.model_copy(update={"simulator": simulator, "earlier_simulators": earlier})


def check_recorded(home: Home, history: Sequence[Entry], entry: Entry) -> None:
    """Check the recorded steps of a renewal: equal sources, inputs and outputs, and other versions of jax."""
    body, last = entry.read(PolicyBody), policy_entry(history, entry.plant)
    if not body.renewed or last is None:
        return
    before = last.read(PolicyBody)
    old = read_steps(home, entry.plant, before.policy.simulator, before.recorded)
    new = read_steps(home, entry.plant, body.policy.simulator, body.recorded)
    equal = same_arrays(old.inputs, new.inputs) and same_arrays(old.outputs, new.outputs)
    if not equal or old.sources != new.sources or old.jax == new.jax:
        raise Refused(f"the recorded steps of {entry.plant} do not support a renewal: sign a new policy")


def _check_who_signs(history: Sequence[Entry], entry: Entry, body: PolicyBody, last: Entry | None) -> None:
    """Check signatures: if the policy in force requires keys, a change needs as many persons as an approval."""
    approvers = last.read(PolicyBody).policy.approvers if last else Approvers()
    needed = 1 if body.renewed else approvers.count
    content = policy_content(body)
    people = set()
    for signature in body.signatures:
        signer = signed_by_person(history, signature)[0].person
        check_signed(history, entry, signer, signature, content, required=True)
        people.add(folded(signer))
    if people and folded(body.by) not in people:
        raise Refused(f"{body.by} is not a signer ({', '.join(sorted(people))}): sign the policy, or name a signer")
    if not people:
        check_signed(history, entry, body.by, "", content, required=approvers.keys)
    if approvers.keys and len(people) < needed:
        raise Refused(
            f"a change of the policy of {entry.plant} needs {needed} persons' signatures, got {len(people)}: "
            "'neorl policy sign --statement-to FILE' makes one, '--statement FILE' adds it"
        )


def policy_content(body: PolicyBody) -> Content:
    policy = body.policy.model_dump(mode="json")
    for name in LATER:
        # Otherwise the signatures of earlier versions would not agree.
        if not policy[name]:
            del policy[name]
    about = {"policy": digest_json(policy), "replaces": body.replaces}
    if body.recorded:
        about["renewed" if body.renewed else "recorded"] = body.recorded
    return Content("policy", body.policy.plant, about, note=body.why)


def unmet_requirement(policy: SafetyPolicy, claim: Claim) -> str | None:
    """Return the first requirement of a policy that a claim does not meet, or None.

    Domain, horizon and limits must equal the policy's. A claim with other values needs another policy.
    """
    drawn = [f"{c.name}[{c.entry}]" if c.entry is not None else c.name for c in _drawn(claim)]
    for name, wanted, found in (
        ("the plant", policy.plant, claim.plant),
        ("the limits", policy.limits, claim.phi),
        ("the horizon", policy.horizon, claim.horizon),
        ("the family of domains", policy.family, claim.family),
    ):
        if wanted != found:
            return f"{name} must be {wanted} (policy), got {found}"
    if policy.simulator and claim.step not in (policy.simulator, *policy.earlier_simulators):
        return (
            f"the simulator's program must be {policy.simulator[:12]} (policy), got {claim.step[:12] or 'none'}: "
            f"if only jax changed, run 'neorl policy renew {policy.plant}', else sign a policy of the new simulator"
        )
    # Parameters of a posterior are limited by the check of identified constants below.
    own = {name: value for name, value in claim.domain.items() if not (drawn and name.startswith(POSTERIOR))}
    for name in sorted({*own, *policy.domain}):
        if own.get(name) != policy.domain.get(name):
            return f"{name} of the domain must be {policy.domain.get(name)} (policy), got {own.get(name)}"
    if extra := sorted(set(drawn) - set(policy.identified)):
        return f"only {', '.join(policy.identified) or 'no constant'} may be identified (policy), got {extra[0]}"
    if claim.p0 > policy.p0:
        return f"p0 must be at most {policy.p0:g} (policy), got {claim.p0:g}"
    if claim.confidence < policy.confidence:
        return f"the confidence must be at least {policy.confidence:.12g} (policy), got {claim.confidence:.12g}"
    return None


def evidence_digests(history: Sequence[Entry], plant: str, composite: str) -> dict[str, str | None]:
    """Return the digests of certificate and policy that a statement about a composite must contain."""
    results, policy = certified_claims(history, plant, composite), policy_entry(history, plant)
    certificate = certificate_file(results[-1][0]) if results else None
    return {
        "certificate": certificate.sha256 if certificate else None,
        "policy": policy.digest if policy else None,
    }


def _drawn(claim: Claim) -> tuple[DrawnConstant, ...]:
    return claim.identified.constants if claim.identified else ()


def certified_claims(history: Sequence[Entry], plant: str, composite: str) -> list[tuple[Entry, Claim]]:
    """Return the passed certifications of a composite: each result's entry with the claim of its attempt."""
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
    """Check that a candidate and its approvals meet the policy in force; without a policy every candidate does.

    Args:
        approvals: unused approvals of the candidate.
        at: time of the promotion, as in the ledger.
        used: True for a rollback: these approvals made the candidate champion before, and do not expire any more.
    """
    plant, entry = candidate.plant, policy_entry(history, candidate.plant)
    if entry is None:
        return
    policy, record = entry.read(PolicyBody).policy, candidate.read(CandidateRecord)
    cure = f"see `neorl policy show {plant}`"
    faults = []
    for result, claim in certified_claims(history, plant, record.composite):
        old = f"the certificate is older than {policy.certificate_days} days (policy)"
        expired = expires(result, policy.certificate_days) < parse_time(at)
        faults.append(unmet_requirement(policy, claim) or (old if expired else None))
    if None not in faults:
        got = faults[-1] if faults else "there is no passed certification"
        # A retraining on the same inputs would reuse the same, possibly expired, certificate.
        raise Refused(f"{got}: {cure}, and retrain on newer logs or with another seed to certify again")
    if record.role == "candidate":
        passed = {gate.name for gate in record.gates if gate.passed is True}
        if missing := [name for name in policy.gates if name not in passed]:
            raise Refused(f"the policy requires the gate {missing[0]}, which the candidate did not pass: {cure}")
        if policy.beat_plant and not getattr(record.evidence, "beat_plant", False):
            raise Refused(
                f"the policy requires beat_plant, but the candidate did not have to beat the tuned controller: {cure}"
            )
        departure = getattr(record.evidence, "departure", None)
        if policy.most_unlike is not None and (departure is None or not departure <= policy.most_unlike):
            got = "was not compared with the logs" if departure is None else f"has {departure:.1%}"
            raise Refused(
                f"the policy allows {policy.most_unlike:.1%} of steps unlike the logs, but the candidate {got}: {cure}"
            )
    if fault := unmet_approval(policy, entry, approvals, at, used=used):
        raise Refused(f"{fault}: {cure}")


def unmet_approval(
    policy: SafetyPolicy,
    signed: Entry,
    approvals: Sequence[Entry],
    at: str,
    texts: Texts | None = None,
    *,
    used: bool = False,
) -> str | None:
    """Describe the first approval that a policy requires and that is missing; None if none is missing.

    Args:
        texts: wording of the result; defaults to the newest wording.
        used: see `check_met`.
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
    # A person who did both counts as approver or as reviewer, but not as both.
    if (got := min(len(_people(reviews)), len(_people(valid)) - wanted.count)) < wanted.reviewers:
        return texts.few_reviews.format(wanted=wanted.reviewers, got=got, expired=expired)
    if not closing:
        return texts.stale_approval.format(days=policy.approval_days)
    missing = sorted(set(wanted.roles) - {entry.body["role"] for entry in closing})
    return texts.missing_role.format(role=missing[0]) if missing else None


def _people(approvals: Sequence[Entry]) -> set[str]:
    return {folded(entry.body["by"]) for entry in approvals if entry.body["by"] != RULE}


def expires(entry: Entry, days: int) -> datetime:
    """Return when an approval or result expires: `days` after the person signed, else `days` after the entry."""
    return parse_time(entry.body.get("signed") or entry.timestamp) + timedelta(days=days)


def pinned_file(trust: TrustRoot, plant: str) -> Path:
    """Return the path of a plant's pinned policy, beside the trust root."""
    return trust.source.parent / "policies" / f"{plant}.yaml"


def check_pinned(history: Sequence[Entry], trust: TrustRoot, plant: str) -> None:
    """Raise Refused if a plant has no policy, or if its pinned policy differs from the ledger's policy."""
    policy, path = policy_of(history, plant), pinned_file(trust, plant)
    if policy is None:
        raise Refused(
            f"{plant} has no safety policy yet: 'neorl retrain' drafts one from the claim, or sign one with 'neorl "
            f"policy sign {plant} FILE'"
        )
    pinned = pinned_policy(trust, plant)
    if pinned != policy:
        got = "differs from the ledger's policy" if pinned else "does not exist"
        raise Refused(f"the pinned policy {path} of {plant} {got}: {_cure(plant)}")


def pinned_policy(trust: TrustRoot, plant: str) -> SafetyPolicy | None:
    """Read a plant's pinned policy; return None if there is no file."""
    path = pinned_file(trust, plant)
    try:
        return load_yaml(path, SafetyPolicy) if path.is_file() else None
    except BadInput as error:
        raise Refused(f"{str(error).removesuffix('.')}, or {_cure(plant)}") from error


def _cure(plant: str) -> str:
    return f"restore the right file, or sign the policy with 'neorl policy sign {plant} FILE'"
