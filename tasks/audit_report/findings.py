"""Rows of the audit report about certificates, runs, candidates, datasets and drift."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ValidationError

from configs.errors import BadInput
from configs.home import Home
from tasks.audit_report.tables import (
    CandidateRow,
    CertificateRow,
    DatasetRow,
    DriftRow,
    InForce,
    LineageRow,
    Period,
    RefusalRow,
    RunRow,
)
from tasks.data.store.cards.card import read_card
from tasks.data.store.records import Card, by_reason
from tasks.evidence.attempts import AttemptBody, ResultBody, certificate_file
from tasks.evidence.decisions.champions import IN_FORCE, champion
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.policies import expires, policy_of
from tasks.evidence.rules import RefusalBody
from tasks.files.canonical import read_json
from tasks.record import verdict_text
from tasks.references import CandidateRecord, DecisionRecord, DriftFinding, DriftRecord, ShadowComparison, Source

DIGEST = re.compile("[0-9a-f]{64}")


def certificates_in(entries: Sequence[Entry], period: Period, now: str) -> Iterator[CertificateRow]:
    """Yield certification results of a period, and passed results of the champions from before the period."""
    attempts = {e.digest: e.read(AttemptBody) for e in entries if e.kind == "attempt"}
    versions = _versions(entries)
    plants = {entry.plant for entry in entries if entry.kind == "promotion"}
    serving = {found.body["composite"] for plant in plants if (found := champion(entries, plant)) is not None}
    for entry in entries:
        if entry.kind != "result":
            continue
        body, serves = entry.read(ResultBody), entry.body["composite"] in serving
        if not (period.contains(entry.timestamp) or (serves and body.passed)):
            continue
        scope, policy = attempts[body.attempt].scope, policy_of(entries, entry.plant)
        ends = expires(entry, policy.certificate_days).isoformat() if policy and body.passed else None
        claim, _, witnesses = body.claim.partition("\n")
        file = certificate_file(entry)
        yield CertificateRow(
            entry=entry.sequence,
            time=entry.timestamp,
            plant=entry.plant,
            versions=tuple(versions.get((entry.plant, body.composite), ())),
            composite=body.composite,
            passed=body.passed,
            claim=claim,
            witnesses=witnesses,
            p0=scope.p0,
            confidence=scope.confidence,
            episodes=body.episodes,
            violations=body.violations,
            upper_bound=body.upper_bound,
            attempt=body.number,
            alpha=body.alpha,
            expires=ends,
            state=_state(body.passed, serves, ends is not None and ends < now),
            sha256=file.sha256 if file else "",
        )


def _state(passed: bool, serves: bool, expired: bool) -> str:
    if not passed:
        return "not shown"
    return f"{'expired' if expired else 'valid'}{', of the champion' if serves else ''}"


def lineages_in(entries: Sequence[Entry], period: Period) -> Iterator[LineageRow]:
    """Yield lineages with the error probability that their attempts have spent by the end of a period."""
    by_lineage: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.kind == "attempt":
            by_lineage.setdefault(entry.body["lineage"], []).append(entry)
    closed = {entry.body["attempt"] for entry in entries if entry.kind == "result"}
    for found in by_lineage.values():
        bodies = [entry.read(AttemptBody) for entry in found]
        scope = bodies[-1].scope
        yield LineageRow(
            plant=found[-1].plant,
            phi=scope.phi,
            family=scope.family,
            attempts=len(found),
            in_period=sum(period.contains(entry.timestamp) for entry in found),
            without_result=sum(entry.digest not in closed for entry in found),
            spent=sum(body.alpha for body in bodies),
            allowed=round(1.0 - scope.confidence, 12),
        )


def candidates_in(entries: Sequence[Entry], period: Period) -> Iterator[CandidateRow]:
    for entry, record in _records(entries):
        if period.contains(entry.timestamp):
            yield CandidateRow(
                entry=entry.sequence,
                time=entry.timestamp,
                plant=entry.plant,
                version=record.version,
                role="the plant's own controller" if record.role == "fallback" else "trained",
                author=record.author,
                passed=record.passed,
                gates=record.gates,
            )


def runs_in(entries: Sequence[Entry], period: Period) -> Iterator[RunRow]:
    """Yield retrainings of a period that ended with a decision. Runs without new logs have no ledger entry."""
    for entry in entries:
        if entry.kind == "decision" and period.contains(entry.timestamp):
            outcome = entry.read(DecisionRecord).outcome
            yield RunRow(
                entry=entry.sequence,
                time=entry.timestamp,
                plant=entry.plant,
                verdict=verdict_text(outcome.verdict, outcome.gates, outcome.champion),
                version=outcome.candidate.version if outcome.candidate else "",
                headline=outcome.headline,
                prefect=outcome.run,
                run_key=outcome.run_key,
                dataset=outcome.dataset,
                seconds=sum(outcome.seconds.values()),
            )


def refusals_in(entries: Sequence[Entry], period: Period) -> Iterator[RefusalRow]:
    """Yield runs of a period that NeoRL refused before any gate judged a candidate."""
    for entry in entries:
        if entry.kind == "refusal" and period.contains(entry.timestamp):
            body = entry.read(RefusalBody)
            yield RefusalRow(
                entry=entry.sequence,
                time=entry.timestamp,
                plant=entry.plant,
                reason=body.reason,
                # A run that found no logs records their path instead of a digest.
                sources=tuple(source for source in body.sources if DIGEST.fullmatch(source)),
            )


def drift_in(entries: Sequence[Entry], period: Period) -> Iterator[DriftRow]:
    """Yield comparisons of newer logs with the training data of champions and shadows, within a period."""
    versions = {e.digest: str(e.body["version"]) for e in entries if e.kind in (*IN_FORCE, "shadow")}
    for entry in entries:
        if entry.kind == "comparison" and period.contains(entry.timestamp):
            found = entry.read(ShadowComparison)
            drift = found.drift
            yield DriftRow(
                entry=entry.sequence,
                time=entry.timestamp,
                plant=entry.plant,
                version=versions.get(found.shadow, ""),
                dataset=found.dataset,
                rows=found.rows,
                agreement=found.agreement,
                support=found.support,
                interventions=found.interventions,
                model_error=found.model_error,
                evidence=_evidence(drift),
                alarms_per_year=drift.alarms_per_year,
                alarm=drift.alarm or "none",
            )
        elif entry.kind == "drift" and period.contains(entry.timestamp):
            watched = entry.read(DriftRecord)
            yield DriftRow(
                entry=entry.sequence,
                time=entry.timestamp,
                plant=entry.plant,
                version=versions.get(watched.against, ""),
                dataset=watched.dataset,
                rows=watched.rows,
                model_error=next((1.0 + s.shift for s in watched.signals if s.group == "model"), 1.0),
                evidence=_evidence(watched),
                alarms_per_year=watched.alarms_per_year,
                alarm=watched.alarm or "none",
            )


def _evidence(found: DriftFinding | DriftRecord) -> str:
    return f"{found.log_evidence:.1f} of {found.log_threshold:.1f}" if found.watched else "not monitored"


def datasets_in(
    home: Home, entries: Sequence[Entry], period: Period, in_force: Sequence[InForce]
) -> Iterator[DatasetRow]:
    """Yield datasets of candidates. Only each plant's newest dataset and the champions' datasets have a card."""
    served = {(found.plant, found.composite) for found in in_force}
    shown: dict[tuple[str, str], list[tuple[Entry, CandidateRecord]]] = {}
    for entry, record in _records(entries):
        if period.contains(entry.timestamp) or (entry.plant, record.composite) in served:
            shown.setdefault((entry.plant, record.dataset.digest), []).append((entry, record))
    newest = dict(tuple(shown))
    for (plant, digest), found in shown.items():
        entry, record = found[0]
        dataset = record.dataset
        serves = any((plant, each.composite) in served for _, each in found)
        yield DatasetRow(
            entry=entry.sequence,
            time=entry.timestamp,
            plant=plant,
            digest=digest,
            format=dataset.format,
            rows=dataset.rows,
            episodes=dataset.episodes,
            quarantined=dataset.quarantined,
            lost=by_reason(dataset.reasons).removeprefix(": "),
            # Only file names: a path is specific to the machine that read it.
            sources=tuple(Source(path=s.path.rpartition("/")[2], sha256=s.sha256) for s in dataset.sources),
            accounted=dataset.accounted,
            notes=dataset.notes,
            versions=tuple(dict.fromkeys(each.version for _, each in found)),
            faults=tuple(dict.fromkeys(fault for _, each in found for fault in each.evidence.data)),
            warnings=_warnings(home, plant, digest),
            card=_card(home, plant, digest) if serves or newest[plant] == digest else None,
        )


def _card(home: Home, plant: str, digest: str) -> Card | None:
    try:
        return read_card(home.root / "datasets" / plant, digest)
    except BadInput:
        return None


class _Summary(BaseModel):
    """Warnings of the data validation, which the report shows."""

    dataset: str
    warnings: tuple[str, ...]


def _warnings(home: Home, plant: str, digest: str) -> tuple[str, ...]:
    """Return the warnings of the data validation from files of runs, because the ledger does not contain them."""
    found: dict[str, None] = {}
    for path in sorted((home.root / "runs" / plant).glob(f"{digest[:12]}-*/summary.json")):
        try:
            summary = _Summary.model_validate(read_json(path))
        except (BadInput, ValidationError):
            continue
        if summary.dataset == digest:
            found |= dict.fromkeys(summary.warnings)
    return tuple(found)


def _versions(entries: Sequence[Entry]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for entry, record in _records(entries):
        found.setdefault((entry.plant, record.composite), []).append(record.version)
    return {key: list(dict.fromkeys(versions)) for key, versions in found.items()}


def _records(entries: Sequence[Entry]) -> Iterator[tuple[Entry, CandidateRecord]]:
    for entry in entries:
        if entry.kind == "candidate":
            yield entry, record_of(entry)
