"""Propose promotions by a rule, and log the decisions of people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from configs.errors import Refused
from configs.home import Home, login
from configs.run import OpenedRun
from configs.safety_policy import RULE
from tasks.evidence.bundle_signature import NAME as OPENSSF
from tasks.evidence.decisions import approvals, champions, shadows, verdicts
from tasks.evidence.decisions.queue import VERBS, candidate_with, in_force, record_of, verdict_against
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact, folder_artefacts
from tasks.evidence.ledger.voided import VOID
from tasks.evidence.people.statement import Meaning, Signatory
from tasks.evidence.policies import check_pinned
from tasks.evidence.rules import check_record
from tasks.files.provenance import sources_digest
from tasks.models.bundles.bundle import is_current
from tasks.models.plants.known import plant_of
from tasks.references import (
    Bundle,
    Candidate,
    CandidateRecord,
    Champion,
    Dataset,
    Decision,
    DriftReference,
    Learned,
    ProcessFindings,
    Proposal,
    Role,
    ServedModel,
    Verdict,
    Version,
)
from tasks.stages import config_digest, effect
from tasks.versions.versions import version_of

FLOW = "flows.retrain"
"""Module of the retraining flow, named here because a worker may load this module under another name."""


@effect()
def drift_reference(home: Home, run: OpenedRun, dataset: Dataset) -> DriftReference:
    """Find the dataset against which drift is measured: of the newest champion or shadow trained on other logs."""
    entries = Ledger.open(home).entries()
    newest = champions.champion(entries, run.plant) or shadows.last_shadow(entries, run.plant)
    for _, candidate in _backwards(entries, newest):
        earlier = record_of(candidate).dataset
        if earlier.digest != dataset.digest:
            # The home may have been moved since the ledger recorded the dataset's path.
            return DriftReference(dataset=earlier.at(home.root / "datasets" / earlier.plant))
    return DriftReference()


def _backwards(entries: Sequence[Entry], newest: Entry | None) -> Iterator[tuple[Entry, Entry]]:
    """Yield pairs of a promotion (or shadow) and its candidate, from the newest back through all predecessors."""
    by_digest = {entry.digest: entry for entry in entries}
    while newest is not None:
        yield newest, by_digest[newest.body["candidate"]]
        newest = by_digest.get(newest.body["replaces"] or "")


@effect()
def incumbent(home: Home, run: OpenedRun, dataset: Dataset, fallback: Bundle) -> Champion:
    """Find the champion to compare the candidate with.

    The function skips champions from the same configuration, data and source code, so that a repeated run gives the
    same result. It also skips the tuned controller, which has no trained policy.
    """
    entries = Ledger.open(home).entries()
    same = (config_digest(run), dataset.digest, sources_digest(FLOW))
    for entry, candidate in _backwards(entries, champions.champion(entries, run.plant)):
        if entry.kind == VOID or entry.body["composite"] == fallback.digest:
            continue
        record = record_of(candidate)
        if (record.config, record.dataset.digest, record.sources) != same:
            digest = entry.body["composite"]
            break
    else:
        return Champion()
    folder = home.folder("bundles", run.plant) / digest[:24]
    # A champion made for other limits does not run on this simulator, so it is replaced without a comparison.
    comparable = is_current(folder, plant_of(run))
    return Champion(digest=digest, bundle=Bundle(digest=digest, plant=run.plant, folder=folder) if comparable else None)


def record_candidate(
    home: Home,
    findings: Learned,
    version: Version,
    bundle: Path,
    served: ServedModel,
    role: Role,
    plots: dict[str, Path],
    signature: Path,
) -> Candidate:
    """Log a candidate and its files in the ledger, or return the earlier entry with this run key and composite."""
    ledger = Ledger.open(home)
    plant, dataset = findings.run.plant, findings.dataset
    known = candidate_with(ledger.entries("candidate", plant), run_key=findings.run_key, composite=version.digest)
    if known is not None:
        return Candidate(entry=known.digest, record=record_of(known), plots=plots)
    alone, certificate = role == "fallback", findings.certificate_of(role)
    judgement = findings.judgement
    gates = tuple(gate for gate in judgement.gates if gate.name == "fallback") if alone else judgement.gates
    current = in_force(ledger.entries(), plant, judgement.evidence)
    record = CandidateRecord(
        run_key=findings.run_key,
        composite=version.digest,
        role=role,
        version=version.version,
        run_id=version.run_id,
        url=version.url,
        passed=all(gate.passed for gate in gates),
        gates=gates,
        evidence=judgement.evidence,
        claim=certificate.claim if certificate else None,
        served=served,
        dataset=dataset,
        config=config_digest(findings.run),
        sources=sources_digest(FLOW),
        author=login(),
        champion=current.digest if current else None,
        shadow_days=findings.run.shadow.days if isinstance(findings, ProcessFindings) else None,
        model=findings.model if isinstance(findings, ProcessFindings) else None,
    )
    files = folder_artefacts(home, bundle, "bundle") + folder_artefacts(home, signature, OPENSSF)
    files.append(artefact(home, dataset.manifest, "dataset manifest"))
    files += [artefact(home, path, "dataset shard") for path in dataset.shards]
    files += [artefact(home, dataset.view, "dataset view")] if dataset.view else []
    files += [artefact(home, certificate.path, "certificate")] if certificate else []
    if isinstance(findings, ProcessFindings):
        files += [artefact(home, path, "learned model") for path in findings.model.files()]
    entry = ledger.append("candidate", record, plant=plant, artefacts=files)
    return Candidate(entry=entry.digest, record=record, plots=plots)


def propose(
    candidate: CandidateRecord, fallback: str, fallback_stands: bool, current: CandidateRecord | None, rejected: bool
) -> tuple[Role | None, str]:
    """Apply the promotion rule.

    The rule proposes a candidate that passed every gate and was not rejected. Otherwise, if there is no champion, the
    rule proposes the tuned controller, which must be certified and not rejected.

    Args:
        fallback: digest of the tuned controller's composite.
        fallback_stands: whether the tuned controller is certified and was not rejected.
        rejected: whether a person rejected the candidate's composite.

    Returns:
        The proposed role, or None, and the reason in one sentence.
    """
    if candidate.passed and not rejected:
        if current is not None and current.composite == candidate.composite:
            return None, "the candidate is already champion"
        return "candidate", "the candidate passed every gate"
    why = "a person rejected this composite" if candidate.passed else "the candidate did not pass every gate"
    if current is None and fallback_stands:
        return "fallback", f"{why}; the certified tuned controller is proposed instead"
    if current is None:
        return None, f"{why}; the tuned controller is not certified, or a person rejected it"
    keeps = "the tuned controller" if current.composite == fallback else f"version {current.version}"
    return None, f"{why}; {keeps} stays champion"


def verdict_of(
    role: Role | None, candidate: CandidateRecord, fallback: str, current: str | None, auto: bool
) -> Verdict:
    """Return the verdict that follows from the proposed role.

    Args:
        fallback: digest of the tuned controller's composite.
        current: digest of the champion's composite.
        auto: whether the rule decides instead of a person.
    """
    if role == "candidate":
        return "promoted" if auto else "waiting"
    if role == "fallback":
        return "fallback" if auto else "fallback_waiting"
    if current == candidate.composite:
        return "unchanged"
    return "fallback" if current == fallback else "refused"


def before_run(entries: Sequence[Entry], plant: str, key: str) -> CandidateRecord | None:
    """Return the record of the plant's champion before a run, or None if there was no champion."""
    earlier = _backwards(entries, champions.champion(entries, plant))
    return next(
        (r for entry, candidate in earlier if entry.kind != VOID and (r := record_of(candidate)).run_key != key), None
    )


@effect()
def decide(home: Home, run: OpenedRun, proposal: Proposal) -> Decision:
    """Promote the proposed composite if the run approves automatically. Otherwise the composite waits for a person."""
    about = proposal.proposed or proposal.candidate
    verdict, promotion = proposal.verdict, None
    if proposal.proposed is not None and run.approval == "auto":
        entry = Ledger.open(home).entry(proposal.proposed.entry)
        made = promote_candidate(home, entry, RULE, proposal.reason)
        if made.kind == "approval":
            # The safety policy now in force requires a person's approval.
            verdict = "waiting" if about.record.role == "candidate" else "fallback_waiting"
        else:
            promotion = made.digest
    return Decision(
        verdict=verdict,
        reason=proposal.reason,
        rejected=proposal.rejected,
        candidate=about,
        promotion=promotion,
    )


def promote_candidate(
    home: Home,
    candidate: Entry,
    by: str,
    note: str,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    role: str = "",
    *,
    reviewed: bool = False,
    signatory: Signatory | None = None,
) -> Entry:
    """Approve a candidate that passed every gate, and promote it; for a log-only plant, start its shadow.

    Args:
        reviewed: log a review, which is no approval and promotes nothing.
        signatory: the person with their key; None to sign with the home's key.

    Returns:
        The entry of the promotion or shadow, or of this approval or review if further approvals are required.

    Raises:
        Refused: if a gate failed, is missing, or does not agree with its numbers. Also if the candidate was rejected,
            its shadow period is over, or the champion has changed.
    """
    ledger = Ledger.open(home)
    plant, record = candidate.plant, record_of(candidate)
    check_record(record, plant, version_of(candidate.rules))
    if not record.passed:
        failed = ", ".join(gate.name for gate in record.gates if gate.passed is False)
        missing = ", ".join(gate.name for gate in record.gates if gate.passed is None)
        fault = "; ".join([f"failed {failed}"] * bool(failed) + [f"did not run {missing}"] * bool(missing))
        raise Refused(f"version {record.version} of {plant} {fault}: retrain, because no approval can skip a gate")
    entries = ledger.entries()
    current = in_force(entries, plant, record.evidence)
    rejected = verdict_against(entries, plant, record.composite)
    same = current is not None and current.body["composite"] == record.composite
    # The composite may be champion or shadow already, proposed by this or another run. A rejection ends a shadow.
    if current is not None and same and (rejected is None or current.kind in champions.IN_FORCE):
        if current.kind == "shadow":
            shadows.check_runs(entries, plant, clock())
        return current
    if rejected is not None:
        raise Refused(
            f"{rejected.body['by']} {VERBS[rejected.kind]} version {record.version} of {plant}: retrain on other data "
            "or with another configuration"
        )
    if (current.digest if current else None) != record.champion:
        raise Refused(
            f"version {record.version} of {plant} was compared with promotion {str(record.champion)[:12]}, but the "
            f"newest promotion is {current.digest[:12] if current else None}: retrain to compare with the new champion"
        )
    said = verdict_on(candidate, by, note, role, reviewed=reviewed)
    if record.shadow_days is not None:
        approval = verdicts.approve(ledger, plant, said, signatory)
        if reviewed:
            return approval
        watched = shadows.ShadowBody(
            composite=record.composite,
            approval=approval.digest,
            candidate=candidate.digest,
            replaces=record.champion,
            days=record.shadow_days,
            version=record.version,
        )
        return shadows.begin(ledger, plant, watched, candidate.artefacts)
    return _approved(ledger, candidate, said, signatory)


def _approved(ledger: Ledger, candidate: Entry, verdict: approvals.VerdictBody, signatory: Signatory | None) -> Entry:
    """Log an approval. If the safety policy requires no further approval, also log the promotion."""
    plant, record, entries = candidate.plant, record_of(candidate), ledger.entries()
    # These checks precede the approval, because a failed promotion must not leave an approval in the ledger.
    champions.check_certified(entries, plant, record.composite)
    check_pinned(entries, ledger.trust, plant)
    approval = verdicts.approve(ledger, plant, verdict, signatory)
    if verdicts.missing_approvals(ledger.entries(), plant, approval) is not None:
        return approval
    # If this approval was logged earlier, the last approval may be another person's.
    last = approvals.open_approval(ledger.entries(), plant, record.composite) or approval
    promotion = champions.PromotionBody(
        composite=record.composite,
        approval=last.digest,
        replaces=record.champion,
        version=record.version,
        candidate=candidate.digest,
    )
    return champions.promote(ledger, plant, promotion, candidate.artefacts)


def verdict_on(
    candidate: Entry, by: str, note: str, role: str = "", *, reviewed: bool = False, against: bool = False
) -> approvals.VerdictBody:
    """Return the unsigned content of a person's approval, review or rejection of a candidate."""
    record = record_of(candidate)
    approved: Meaning = "approved for closed loop" if record.shadow_days is None else "approved for shadow"
    return approvals.VerdictBody(
        composite=record.composite,
        by=by,
        role=role,
        note=note,
        version=record.version,
        candidate=candidate.digest,
        meaning="rejected" if against else "reviewed" if reviewed else approved,
    )


def reject_candidate(home: Home, candidate: Entry, by: str, note: str, signatory: Signatory | None = None) -> Entry:
    """Log the rejection of a candidate, or return the entry of an earlier rejection.

    Args:
        signatory: the person with their key; None to sign with the home's key.

    Raises:
        Refused: if the candidate is champion.
    """
    ledger = Ledger.open(home)
    record = record_of(candidate)
    now = champions.champion(ledger.entries(), candidate.plant)
    if now is not None and now.body["composite"] == record.composite:
        raise Refused(
            f"version {record.version} is the champion and cannot be rejected: withdraw it, or promote a different one"
        )
    for entry in ledger.entries("rejection", candidate.plant):
        if entry.body.get("candidate") == candidate.digest:
            return entry
    return verdicts.reject(ledger, candidate.plant, verdict_on(candidate, by, note, against=True), signatory)
