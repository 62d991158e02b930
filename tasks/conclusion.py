"""Last tasks of a retraining: register the candidate, propose a promotion, and report the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from configs.home import Home
from configs.run import OpenedRun
from tasks.evidence.bundle_signature import sign_bundle
from tasks.evidence.decisions import champions, shadows
from tasks.evidence.decisions.queue import record_of, waiting, was_rejected
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import file_sha256
from tasks.files.provenance import code_digest, lock_digest
from tasks.lifecycle.aliases import reconcile
from tasks.promote import before_run, propose, record_candidate, verdict_of
from tasks.record import Record, champion_in_force, headline, history_rows, shadow_in_force, verdict_text
from tasks.references import (
    KNOWN,
    Aliases,
    Candidate,
    ChampionInForce,
    Decision,
    DecisionRecord,
    Digests,
    Findings,
    Learned,
    LedgerHead,
    Outcome,
    ProcessFindings,
    Proposal,
    Role,
    ShadowInForce,
    Verdict,
    Version,
)
from tasks.register import conclude, register
from tasks.registry.registry import Registry
from tasks.registry.serving import listed_model
from tasks.report import describe, draw_plots, report
from tasks.stages import config_digest, current, effect


@effect(name="reconcile")
def reconcile_aliases(home: Home, run: OpenedRun, decision: Decision | None = None) -> Aliases:
    """Update MLflow's aliases and pages from the ledger, at the start of a run and after a decision."""
    return reconcile(home, run.plant, Registry(current().mlflow))


@effect(name="register")
def register_candidate(home: Home, findings: Learned) -> Candidate:
    """Register the candidate in MLflow and log it in the ledger; a repeated run adds nothing."""
    verdict: Literal["passed", "refused"] = "passed" if findings.judgement.passed else "refused"
    record = _record(home, findings, verdict, "candidate")
    plots = draw_plots(home.folder("runs", findings.run.plant, findings.run_key, "plots"), record)
    return _registered(home, findings, record, "candidate", plots)


@effect(name="propose")
def propose_promotion(home: Home, findings: Findings, candidate: Candidate) -> Proposal:
    """Apply the promotion rule. If the rule proposes the tuned controller, register that controller in MLflow."""
    plant, run = findings.run.plant, findings.run
    entries = Ledger.open(home).entries()
    # A run that is repeated after a kill must make the same proposal.
    before = before_run(entries, plant, findings.run_key)
    rejected = was_rejected(entries, plant, candidate.record.composite)
    stands = findings.protection.passed and not was_rejected(entries, plant, findings.fallback.digest)
    role, reason = propose(candidate.record, findings.fallback.digest, stands, before, rejected)
    in_force = before.composite if before else None
    verdict = verdict_of(role, candidate.record, findings.fallback.digest, in_force, run.approval == "auto")
    proposed = candidate if role == "candidate" else None
    if role == "fallback":
        # "passed" only states that the controller is certified, because the decision comes later.
        record = _record(home, findings, "passed", "fallback")
        proposed = _registered(home, findings, record, "fallback", candidate.plots)
    return Proposal(verdict=verdict, reason=reason, rejected=rejected, candidate=candidate, proposed=proposed)


@effect(name="propose")
def propose_shadow(home: Home, findings: ProcessFindings, candidate: Candidate) -> Proposal:
    """Apply the rule for log-only plants: a candidate that passed every gate may run in shadow."""
    entries, record = Ledger.open(home).entries(), candidate.record
    rejected = was_rejected(entries, findings.run.plant, record.composite)
    watched = shadows.shadow(entries, findings.run.plant)
    proposal = partial(Proposal, rejected=rejected, candidate=candidate)
    if watched is not None and watched.entry.body["candidate"] == candidate.entry:
        # A run that is repeated after a kill must make the same proposal.
        return proposal(verdict="shadow", reason="the candidate passed every gate", proposed=candidate)
    if watched is not None and watched.entry.body["composite"] == record.composite:
        runs = "already runs in shadow" if watched.runs(datetime.now(UTC)) else "was in shadow, and the period is over"
        return proposal(verdict="unchanged", reason=f"the candidate {runs}")
    if rejected or not record.passed:
        why = "a person rejected this composite" if rejected else "the candidate did not pass every gate"
        return proposal(verdict="refused", reason=f"{why}; nothing changes on the plant")
    verdict: Verdict = "shadow" if findings.run.approval == "auto" else "shadow_waiting"
    return proposal(verdict=verdict, reason="the candidate passed every gate", proposed=candidate)


@effect(name="report")
def report_outcome(home: Home, findings: Learned, decision: Decision) -> Outcome:
    """Write the report, complete the version's page in MLflow, and log the decision."""
    about, session = decision.candidate.record, current()
    version = Version(version=about.version, run_id=about.run_id, url=about.url, digest=about.composite)
    record = _record(home, findings, decision.verdict, about.role, version, decision)
    plots = decision.candidate.plots
    files = report(home, record, plots)
    conclude(record, Registry(session.mlflow), version, files)
    verdict = verdict_text(record.verdict, record.gates, record.champion)
    show_artifact(findings.run.plant, verdict, describe(record, page=files.page))
    champion, shadow, queue = _in_force(home, findings.run.plant)
    rollouts = record.rollouts
    outcome = Outcome(
        run=session.flow_run,
        run_key=findings.run_key,
        plant=findings.run.plant,
        verdict=decision.verdict,
        headline=record.headline,
        gates=findings.judgement.gates,
        candidate=version,
        certificate=findings.certificate_of(about.role),
        score=rollouts.score if rollouts else None,
        difference=rollouts.differences.get("plant controller") if rollouts else None,
        ope_difference=findings.evaluation.difference,
        population=findings.population.digest,
        dataset=findings.dataset.digest,
        champion=champion,
        shadow=shadow,
        waiting=queue,
        links={"prefect": session.url, "mlflow": about.url, "report": str(files.page)},
        seconds={name: round(seconds, 2) for name, seconds in session.seconds.items()},
        reused=tuple(session.reused),
    )
    body = DecisionRecord(run_key=findings.run_key, verdict=decision.verdict, outcome=outcome)
    Ledger.open(home).append("decision", body, plant=findings.run.plant)
    return outcome


def earlier_outcome(home: Home, run: OpenedRun, key: str) -> Outcome | None:
    """Return the outcome of an earlier run with the same inputs, or None if this run must decide."""
    entries = Ledger.open(home).entries("decision", run.plant)
    found = next((entry for entry in reversed(entries) if entry.body["run_key"] == key), None)
    if found is None or (run.approval == "auto" and found.body["verdict"].endswith("waiting")):
        return None
    earlier, session = found.read(DecisionRecord).outcome, current()
    champion, shadow, queue = _in_force(home, run.plant)
    changes = {
        "run": session.flow_run,
        "verdict": "unchanged",
        "decided": earlier.verdict,
        "headline": f"Nothing new to promote: the same inputs were decided at {found.timestamp}.",
        "links": {**earlier.links, "prefect": session.url},
        "champion": champion,
        "shadow": shadow,
        "waiting": queue,
        "seconds": {name: round(seconds, 2) for name, seconds in session.seconds.items()},
        "reused": tuple(session.reused),
    }
    return earlier.model_copy(update=changes)


def show_artifact(plant: str, headline: str, text: str, flow: str = "retrain") -> None:
    """Publish a Markdown artifact of the flow run in Prefect.

    Args:
        plant: name of the plant, part of the artifact's key.
        headline: result of the run in one sentence.
        text: Markdown without pictures, which Prefect's pages cannot load.
        flow: kind of run, part of the artifact's key.
    """
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(text, key=f"{flow}-{plant.replace('_', '-')}", description=headline)


def _registered(home: Home, findings: Learned, record: Record, role: Role, plots: dict[str, Path]) -> Candidate:
    plant, registry = findings.run.plant, Registry(current().mlflow)
    bundle = findings.fallback if role == "fallback" else findings.selected.bundle
    signature = sign_bundle(home, bundle.plant, bundle.digest)
    version = register(record, registry, bundle, plots, signature)
    # The ledger's record lists every file of the MLflow model, because loading the model executes code in these files.
    served = listed_model(home, registry, plant, version.version)
    return record_candidate(home, findings, version, bundle.folder, served, role, plots, signature)


def _record(
    home: Home,
    findings: Learned,
    verdict: Verdict | Literal["passed"],
    role: Role,
    version: Version | None = None,
    decision: Decision | None = None,
) -> Record:
    """Collect the results of the retraining so far, for the registry and the report."""
    run, session, ledger = findings.run, current(), Ledger.open(home)
    entries = ledger.entries()
    certificate = findings.certificate_of(role)
    bundle = findings.fallback if role == "fallback" else findings.selected.bundle
    links = {"Prefect run": session.url}
    if version is not None:
        links["MLflow version"] = version.url
    if findings.validation.data_docs:
        links["Data Docs"] = findings.validation.data_docs.as_uri()
    simulated = findings if isinstance(findings, Findings) else None
    process = findings if isinstance(findings, ProcessFindings) else None
    why = headline(findings.judgement.gates, simulated.rollouts if simulated else None)
    if decision is not None and decision.rejected:
        why = f"A person rejected this composite before. {why}"
    return Record(
        run=run,
        run_key=findings.run_key,
        verdict=verdict,
        headline=why,
        dataset=findings.dataset,
        validation=findings.validation,
        identification=simulated.identification if simulated else KNOWN,
        population=findings.population,
        evaluation=findings.evaluation,
        rollouts=simulated.rollouts if simulated else None,
        fallback=findings.certificate_of("fallback"),
        certificate=findings.certificate_of("candidate"),
        model=process.model if process else None,
        protection=process.protection if process else None,
        estimate=process.estimate if process else None,
        gates=findings.judgement.gates,
        digests=Digests(
            composite=bundle.digest,
            dataset=findings.dataset.digest,
            config=config_digest(run),
            code=code_digest(),
            lock=lock_digest(),
            certificate=file_sha256(certificate.path) if certificate else None,
        ),
        candidate=version,
        champion=_champion(entries, run.plant),
        shadow=_shadow(entries, run.plant),
        links=links,
        ledger=LedgerHead(**ledger.head()._asdict(), signed=ledger.signed_head()),
        history=history_rows(entries, run.plant),
        seconds=dict(session.seconds),
    )


def _in_force(home: Home, plant: str) -> tuple[ChampionInForce | None, ShadowInForce | None, tuple[str, ...]]:
    """Return the plant's champion, its shadow, and the versions that wait for approval."""
    entries = Ledger.open(home).entries()
    queue = tuple(record_of(entry).version for entry in waiting(entries, plant))
    return _champion(entries, plant), _shadow(entries, plant), queue


def _shadow(entries: Sequence[Entry], plant: str) -> ShadowInForce | None:
    now = shadows.shadow(entries, plant)
    return shadow_in_force(now, entries) if now is not None and now.runs(datetime.now(UTC)) else None


def _champion(entries: Sequence[Entry], plant: str) -> ChampionInForce | None:
    now = champions.champion(entries, plant)
    return None if now is None else champion_in_force(now, entries)
