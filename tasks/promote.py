"""Promotion: what the rule proposes, what people decide, and MLflow's aliases as a projection of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import RunConfig
from tasks.adapters.ledger import champions, shadows
from tasks.adapters.ledger.ledger import Entry, Ledger, artefact, folder_artefacts
from tasks.adapters.ledger.rules import check_record
from tasks.adapters.models.bundle import is_current
from tasks.adapters.plants.known import plant_of
from tasks.adapters.registry.registry import Registry
from tasks.references import (
    Aliases,
    Bundle,
    Candidate,
    CandidateRecord,
    Champion,
    Dataset,
    Decision,
    DriftReference,
    Evidence,
    Learned,
    Population,
    ProcessEvidence,
    ProcessFindings,
    Proposal,
    Role,
    Verdict,
    Version,
)
from tasks.stages import config_digest, effect

RULE = "rule: auto"
"""Who approves where no person is asked."""


@effect()
def drift_reference(home: Home, run: RunConfig, dataset: Dataset) -> DriftReference:
    """The dataset of the last champion or shadow that learned from another one: what drift is measured against."""
    entries = Ledger.open(home).entries()
    by_digest = {entry.digest: entry for entry in entries}
    found = champions.champion(entries, run.plant) or shadows.last_shadow(entries, run.plant)
    while found is not None:
        earlier = record_of(by_digest[found.body["candidate"]]).dataset
        if earlier.digest != dataset.digest:
            return DriftReference(dataset=earlier)
        found = by_digest.get(found.body["replaces"] or "")
    return DriftReference()


@effect()
def incumbent(home: Home, run: RunConfig, population: Population, fallback: Bundle) -> Champion:
    """The champion to compare with: the one in force before any of the run's own composites.

    A run that is repeated after it promoted its candidate compares with the same champion as before, so that its
    results stay the same.
    """
    own = {member.bundle.digest for member in population.members} | {fallback.digest}
    entries = Ledger.open(home).entries()
    by_digest = {entry.digest: entry for entry in entries}
    found = champions.champion(entries, run.plant)
    while found is not None and found.body["composite"] in own:
        found = by_digest.get(found.body["replaces"] or "")
    if found is None:
        return Champion()
    digest = found.body["composite"]
    folder = home.folder("bundles", run.plant) / digest[:24]
    # One of other limits is replaced without a comparison: it could not be run on this simulator.
    comparable = is_current(folder, plant_of(run))
    return Champion(digest=digest, bundle=Bundle(digest=digest, plant=run.plant, folder=folder) if comparable else None)


def record_of(entry: Entry) -> CandidateRecord:
    """What a candidate's ledger entry says."""
    return CandidateRecord.model_validate(entry.body)


def _in_force(entries: Sequence[Entry], plant: str, evidence: Evidence | ProcessEvidence) -> Entry | None:
    """What a candidate would replace: the promotion in force, or of a process without a simulator its last shadow."""
    find = shadows.last_shadow if isinstance(evidence, ProcessEvidence) else champions.champion
    return find(entries, plant)


def record_candidate(
    home: Home, findings: Learned, version: Version, bundles: Sequence[Path], role: Role, plots: dict[str, Path]
) -> Candidate:
    """Log a candidate with the files it consists of; the same run key and composite again find the entry.

    Args:
        home: of the ledger.
        findings: what the stages found.
        version: its place in MLflow.
        bundles: folders of its copies.
        role: the trained candidate, or the plant's own controller.
        plots: pictures of the retraining, by name.
    """
    ledger = Ledger.open(home)
    plant, dataset = findings.run.plant, findings.dataset
    known = _candidate(ledger.entries("candidate", plant), run_key=findings.run_key, composite=version.digest)
    if known is not None:
        return Candidate(entry=known.digest, record=record_of(known), plots=plots)
    alone, certificate = role == "fallback", findings.certificate_of(role)
    judgement = findings.judgement
    gates = tuple(gate for gate in judgement.gates if gate.name == "fallback") if alone else judgement.gates
    current = _in_force(ledger.entries(), plant, judgement.evidence)
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
        dataset=dataset,
        config=config_digest(findings.run),
        champion=current.digest if current else None,
        shadow_days=findings.run.shadow.days if isinstance(findings, ProcessFindings) else None,
        model=findings.model if isinstance(findings, ProcessFindings) else None,
    )
    files = [file for bundle in bundles for file in folder_artefacts(home, bundle, "bundle")]
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
    """Who is proposed for promotion by the rule, and why.

    A candidate that passed every gate and that nobody rejected is proposed. Otherwise the plant's own controller is,
    where it is certified and there is no champion; where it is champion already it stays.

    Args:
        candidate: the selected policy's record.
        fallback: digest of the plant controller's composite.
        fallback_stands: whether that composite is certified, and nobody rejected it.
        current: the champion's record.
        rejected: whether a person rejected the candidate's composite.

    Returns:
        The role proposed, or None, and the reason in one sentence.
    """
    if candidate.passed and not rejected:
        if current is not None and current.composite == candidate.composite:
            return None, "the candidate is the champion already"
        return "candidate", "the candidate passed every gate"
    why = "a person rejected this composite" if candidate.passed else "the candidate did not pass every gate"
    if current is None and fallback_stands:
        return "fallback", f"{why}, and the plant's own controller, certified, stands in for it"
    if current is None:
        return None, f"{why}, and the plant's own controller is not certified, or a person rejected it"
    keeps = "the plant's own controller" if current.composite == fallback else f"version {current.version}"
    return None, f"{why}, and {keeps} stays champion"


def verdict_of(
    role: Role | None, candidate: CandidateRecord, fallback: str, current: str | None, auto: bool
) -> Verdict:
    """The verdict of a proposal.

    Args:
        role: who is proposed.
        candidate: the selected policy's record.
        fallback: digest of the plant controller's composite.
        current: digest of the champion's composite.
        auto: whether the rule decides, rather than a person.
    """
    if role == "candidate":
        return "promoted" if auto else "waiting"
    if role == "fallback":
        return "fallback" if auto else "fallback_waiting"
    if current == candidate.composite:
        return "unchanged"
    return "fallback" if current == fallback else "refused"


def before_run(entries: Sequence[Entry], plant: str, key: str) -> CandidateRecord | None:
    """The record of the champion in force before a run promoted anything.

    Args:
        entries: the ledger's.
        plant: the plant's name.
        key: the run's.
    """
    by_digest = {entry.digest: entry for entry in entries}
    found = champions.champion(entries, plant)
    while found is not None:
        record = record_of(by_digest[found.body["candidate"]])
        if record.run_key != key:
            return record
        found = by_digest.get(found.body["replaces"] or "")
    return None


def was_rejected(entries: Sequence[Entry], plant: str, composite: str) -> bool:
    """Whether a person rejected this composite."""
    return any(e.kind == "rejection" and e.plant == plant and e.body["composite"] == composite for e in entries)


@effect()
def decide(home: Home, run: RunConfig, proposal: Proposal) -> Decision:
    """Promote what is proposed where the rule decides; else it waits for a person."""
    about = proposal.proposed or proposal.candidate
    promotion = None
    if proposal.proposed is not None and run.approval == "auto":
        entry = Ledger.open(home).entry(proposal.proposed.entry)
        promotion = promote_candidate(home, entry, RULE, proposal.reason).digest
    return Decision(
        verdict=proposal.verdict,
        reason=proposal.reason,
        rejected=proposal.rejected,
        candidate=about,
        promotion=promotion,
    )


def promote_candidate(
    home: Home, candidate: Entry, by: str, note: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Entry:
    """Approve a candidate whose gates all passed, and make it champion; that of a process only runs in shadow.

    Args:
        home: of the ledger.
        candidate: its entry.
        by: who decides.
        note: why, for the record.
        clock: tells the time in UTC.

    Returns:
        The promotion or the shadow; the existing one when it was promoted before.

    Raises:
        Refused: when a gate failed, is missing or contradicts its numbers, it was rejected, its days in shadow are
            over, or another champion came meanwhile.
    """
    ledger = Ledger.open(home)
    plant, record = candidate.plant, record_of(candidate)
    check_record(record, plant)
    if not record.passed:
        failed = ", ".join(gate.name for gate in record.gates if not gate.passed)
        raise Refused(
            f"expected a candidate that passed every gate, got version {record.version} of {plant}, which failed "
            f"{failed}: retrain it, no approval can skip a gate."
        )
    entries = ledger.entries()
    current = _in_force(entries, plant, record.evidence)
    rejected = next(
        (e for e in entries if (e.kind, e.plant) == ("rejection", plant) and e.body["composite"] == record.composite),
        None,
    )
    same = current is not None and current.body["composite"] == record.composite
    # It is champion or shadow already, whichever run proposed it; but a rejection has ended a shadow.
    if current is not None and same and (rejected is None or current.kind == "promotion"):
        if current.kind == "shadow":
            shadows.check_runs(entries, plant, clock())
        return current
    if rejected is not None:
        raise Refused(
            f"expected a candidate that was not rejected, got version {record.version} of {plant}, which "
            f"{rejected.body['by']} rejected: retrain on other data or with another configuration."
        )
    if (current.digest if current else None) != record.champion:
        raise Refused(
            f"expected the champion of {plant} that version {record.version} was compared with, got another one "
            "meanwhile: retrain, so that the two are compared."
        )
    if record.shadow_days is not None:
        approval = champions.approve(ledger, plant, _verdict(record, candidate, by, note))
        watched = shadows.ShadowBody(
            composite=record.composite,
            approval=approval.digest,
            candidate=candidate.digest,
            replaces=record.champion,
            days=record.shadow_days,
            version=record.version,
        )
        return shadows.begin(ledger, plant, watched, candidate.artefacts)
    # Before an approval is logged, so that none is left that nothing can use.
    champions.check_certified(entries, plant, record.composite)
    approval = champions.approve(ledger, plant, _verdict(record, candidate, by, note))
    promotion = champions.PromotionBody(
        composite=record.composite,
        approval=approval.digest,
        replaces=record.champion,
        version=record.version,
        candidate=candidate.digest,
    )
    return champions.promote(ledger, plant, promotion, candidate.artefacts)


def _verdict(record: CandidateRecord, candidate: Entry, by: str, note: str) -> champions.VerdictBody:
    return champions.VerdictBody(
        composite=record.composite, by=by, note=note, version=record.version, candidate=candidate.digest
    )


def reject_candidate(home: Home, candidate: Entry, by: str, note: str) -> Entry:
    """Log that a candidate was rejected, once.

    Args:
        home: of the ledger.
        candidate: its entry.
        by: who decides.
        note: why, for the record.

    Raises:
        Refused: when it is champion.
    """
    ledger = Ledger.open(home)
    record = record_of(candidate)
    now = champions.champion(ledger.entries(), candidate.plant)
    if now is not None and now.body.get("candidate") == candidate.digest:
        raise Refused(
            f"expected a candidate that waits, got version {record.version}, the champion: promote another one."
        )
    for entry in ledger.entries("rejection", candidate.plant):
        if entry.body.get("candidate") == candidate.digest:
            return entry
    return champions.reject(ledger, candidate.plant, _verdict(record, candidate, by, note))


def waiting(entries: Sequence[Entry], plant: str | None = None) -> list[Entry]:
    """Candidates that passed every gate and have been neither promoted nor rejected, nor overtaken by another one.

    What a candidate was compared with is the champion, or of a process the shadow.
    """
    promoted = {e.body.get("candidate") for e in entries if e.kind in ("promotion", "shadow")}
    rejected = {e.body["composite"] for e in entries if e.kind == "rejection"}
    found = []
    for entry in entries:
        if entry.kind != "candidate" or plant not in (None, entry.plant) or entry.digest in promoted:
            continue
        record = record_of(entry)
        current = _in_force(entries, entry.plant, record.evidence)
        in_force = current.digest if current else None
        if record.passed and record.composite not in rejected and record.champion == in_force:
            found.append(entry)
    return found


def find_candidate(entries: Sequence[Entry], plant: str, version: str) -> Entry:
    """The candidate of a registry version.

    Raises:
        BadInput: when the ledger knows none.
    """
    found = _candidate([e for e in entries if e.kind == "candidate" and e.plant == plant], version=version)
    if found is None:
        known = ", ".join(e.body["version"] for e in entries if e.kind == "candidate" and e.plant == plant) or "none"
        raise BadInput(f"expected a version of {plant} that the ledger knows ({known}), got '{version}': correct it.")
    return found


def reconcile(home: Home, plant: str, registry: Registry) -> Aliases:
    """Make MLflow's aliases and status tags say what the ledger says: mends a kill between the two."""
    entries = Ledger.open(home).entries()
    current = champions.champion(entries, plant)
    queue = waiting(entries, plant)
    champion = str(current.body["version"]) if current else None
    challenger = str(queue[-1].body["version"]) if queue else None
    watched = shadows.shadow(entries, plant)
    runs = watched is not None and watched.runs(datetime.now(UTC))
    shadow = str(watched.entry.body["version"]) if watched is not None and runs else None
    changes = registry.reconcile(plant, champion, challenger, shadow)
    promotions = [entry for entry in entries if entry.kind == "promotion" and entry.plant == plant]
    # Only the newest can have changed since the last time, and the newest statement about a version comes last.
    for entry in promotions[-2:]:
        status = "champion" if entry is current else "was champion"
        registry.annotate(plant, str(entry.body["version"]), {"neorl.status": status})
    for entry in [entry for entry in entries if entry.kind == "shadow" and entry.plant == plant][-2:]:
        last = watched is not None and entry is watched.entry
        status = "in shadow" if last and runs else "shadow expired" if last else "was in shadow"
        registry.annotate(plant, str(entry.body["version"]), {"neorl.status": status})
    if challenger:
        registry.annotate(plant, challenger, {"neorl.status": "waits for approval"})
    rejections = [entry for entry in entries if entry.kind == "rejection" and entry.plant == plant]
    if rejections:
        registry.annotate(plant, str(rejections[-1].body["version"]), {"neorl.status": "rejected"})
    return Aliases(champion=champion, challenger=challenger, shadow=shadow, changes=tuple(changes))


def _candidate(entries: Sequence[Entry], **wanted: str) -> Entry | None:
    matching = (e for e in reversed(entries) if all(str(e.body[k]) == v for k, v in wanted.items()))
    return next(matching, None)
