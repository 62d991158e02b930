"""State of each site of a fleet, from the verified ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from configs.errors import NeoRLError
from configs.fleet import Fleet
from configs.load import load_fleet
from configs.strict import MARK
from tasks.evidence.decisions import shadows
from tasks.evidence.decisions.champions import champion
from tasks.evidence.decisions.queue import record_of, waiting
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.policies import policy_of
from tasks.evidence.rules import RefusalBody
from tasks.fleet.records import Standing
from tasks.record import champion_in_force, shadow_in_force
from tasks.references import CandidateRecord, DecisionRecord, Evidence, Outcome
from tasks.versions.verdicts import simulator_excess


def standings(path: Path, entries: Sequence[Entry]) -> tuple[Standing, ...]:
    """Return the state of every site, in the order of the fleet's file.

    Args:
        path: fleet file.
        entries: verified ledger entries; empty if there is no ledger yet.

    Raises:
        BadInput: if the file is invalid.
    """
    fleet = load_fleet(path)
    return tuple(_standing(path, fleet, site, entries) for site in fleet.sites)


def _standing(path: Path, fleet: Fleet, site: str, entries: Sequence[Entry]) -> Standing:
    plant = fleet.plant_name(site)
    own = [entry for entry in entries if entry.plant == plant]
    decision = next((entry for entry in reversed(own) if entry.kind == "decision"), None)
    refusal = next((entry for entry in reversed(own) if entry.kind == "refusal"), None)
    last = max((entry for entry in (decision, refusal) if entry), key=lambda entry: entry.sequence, default=None)
    outcome = decision.read(DecisionRecord).outcome if decision else None
    record = _candidate(own, outcome)
    now, current_shadow, policy = champion(entries, plant), shadows.shadow(entries, plant), policy_of(entries, plant)
    in_force = None if now is None else champion_in_force(now, entries)
    refused = last is refusal
    return Standing(
        site=site,
        plant=plant,
        kind=_kind(path, site),
        state="new" if last is None else "refused" if refused else "decided",
        since=last.timestamp if last else "",
        verdict=None if refused or outcome is None else outcome.verdict,
        headline=refusal.read(RefusalBody).reason if refused and refusal else outcome.headline if outcome else "",
        failed=tuple(gate.name for gate in outcome.gates if gate.passed is False) if outcome else (),
        champion=in_force,
        shadow=shadow_in_force(current_shadow, entries)
        if current_shadow and current_shadow.runs(datetime.now(UTC))
        else None,
        own=now is not None and _role(own, now) == "fallback",
        waiting=tuple(record_of(entry).version for entry in waiting(entries, plant)),
        approvers="" if policy is None else _approvers(policy.approvers.count, policy.approvers.roles),
        certificate=(in_force.claim or "") if in_force else "",
        report=Path(outcome.links["report"]) if outcome and "report" in outcome.links else None,
        links={name: url for name, url in outcome.links.items() if name != "report"} if outcome else {},
        measures=dict(_measures(outcome, record)),
    )


def _kind(path: Path, site: str) -> str:
    """Return the plant's name of a site, or the plant's name in the fleet file if the plant cannot be opened."""
    from configs.load import load_run
    from tasks.models.plants.opening import kind_of, open_run

    reference = Path(f"{path}{MARK}{site}")
    try:
        return kind_of(open_run(reference))
    except NeoRLError:
        return load_run(reference).plant


def _approvers(count: int, roles: Sequence[str]) -> str:
    if not count:
        return "the rule"
    return f"{count} person{'s' if count > 1 else ''}" + (f", as {', '.join(roles)}" if roles else "")


def _candidate(own: Sequence[Entry], outcome: Outcome | None) -> CandidateRecord | None:
    """Return the trained candidate that an outcome judged."""
    if outcome is None:
        return None
    records = (record_of(entry) for entry in reversed(own) if entry.kind == "candidate")
    return next((r for r in records if r.run_key == outcome.run_key and r.role == "candidate"), None)


def _role(own: Sequence[Entry], promotion: Entry) -> str:
    candidate = next((entry for entry in own if entry.digest == promotion.body.get("candidate")), None)
    return record_of(candidate).role if candidate else ""


def _measures(outcome: Outcome | None, record: CandidateRecord | None) -> Iterator[tuple[str, float]]:
    """Yield the values of `compare.MEASURES` that a decision contains."""
    if outcome is None:
        return
    gain = outcome.difference or outcome.ope_difference
    if gain is not None and math.isfinite(gain.value):
        yield "gain", gain.value
    if record is None:
        return
    evidence, dataset = record.evidence, record.dataset
    if isinstance(evidence, Evidence):
        yield "simulator", max(map(simulator_excess, evidence.simulator.signals.values()), default=math.nan)
        yield "fallback", evidence.fallback_share
        if evidence.certificate is not None:
            yield "handovers", evidence.certificate.handovers
    yield "lost", dataset.quarantined / max(dataset.rows + dataset.quarantined, 1)
