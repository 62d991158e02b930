"""Rows of the audit report's tables, each with the number of the ledger entry."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Literal

from tasks.data.store.records import Card
from tasks.references import Gate, HistoryRow, LedgerHead, Reference, Source


class Period(Reference):
    """Whole days in UTC, both ends included."""

    first: date
    last: date

    @property
    def begin(self) -> str:
        """First moment, as the ledger writes times."""
        return f"{self.first.isoformat()}T00:00:00.000000Z"

    @property
    def end(self) -> str:
        """Last moment, as the ledger writes times."""
        return f"{self.last.isoformat()}T23:59:59.999999Z"

    def contains(self, timestamp: str) -> bool:
        """Return whether a time of the ledger is in the period."""
        return self.begin <= timestamp <= self.end


ALWAYS = Period(first=date.min, last=date.max)


class Row(Reference):
    """Row with a ledger entry."""

    entry: int
    time: str
    plant: str


class InForce(Row):
    """Version that was champion or shadow from `time` on."""

    kind: Literal["champion", "shadow"]
    version: str
    composite: str
    until: str | None
    """None while it is in force."""
    ended: str
    """How it ended; empty while it is in force."""
    approver: str
    own: bool
    """Whether it is the plant's own controller."""


class DecisionRow(Row):
    """Decision of a person or of the rule."""

    what: str
    version: str
    by: str
    role: str
    why: str
    signed: str
    """Description of the signing key."""


class CertificateRow(Row):
    """Result of a certification attempt."""

    versions: tuple[str, ...]
    composite: str
    passed: bool
    claim: str
    witnesses: str
    """Description of the witnesses."""
    p0: float
    confidence: float
    episodes: int
    violations: int
    upper_bound: float
    attempt: int
    alpha: float
    expires: str | None
    """None without a policy or a passed certification."""
    state: str
    """Valid or expired, and whether the champion's."""
    sha256: str
    """Digest of the certificate's file; empty if there is none."""


class LineageRow(Reference):
    """Error probability spent by a lineage up to the end of the period."""

    plant: str
    phi: str
    family: str
    attempts: int
    in_period: int
    without_result: int
    spent: float
    allowed: float


class CandidateRow(Row):
    """Judged version."""

    version: str
    role: str
    author: str
    passed: bool
    gates: tuple[Gate, ...]


class RunRow(Row):
    """Retraining that ended with a decision."""

    verdict: str
    version: str
    headline: str
    prefect: str
    """Id of the flow run."""
    run_key: str
    dataset: str
    seconds: float


class RefusalRow(Row):
    """Run that was refused before a decision."""

    reason: str
    sources: tuple[str, ...]


class DriftRow(Row):
    """Comparison of newer logs with the data of a champion or a shadow."""

    version: str
    dataset: str
    rows: int
    agreement: float | None = None
    """This and the next two: only for shadows."""
    support: float | None = None
    interventions: float | None = None
    model_error: float
    evidence: str
    """Log evidence of drift and the threshold."""
    alarms_per_year: float
    alarm: str


class IncidentRow(Row):
    """Incident, or change of a key."""

    what: str
    detail: str


class PolicyRow(Row):
    """Safety policy in force in the period."""

    claim: str
    """Claim that a champion must have shown."""
    approvers: str
    approval_days: int
    certificate_days: int
    by: str
    why: str


class DatasetRow(Row):
    """Training data of a candidate."""

    digest: str
    format: str
    rows: int
    episodes: int
    quarantined: int
    lost: str
    """Reasons for lost rows."""
    sources: tuple[Source, ...]
    accounted: tuple[str, ...]
    notes: tuple[str, ...]
    versions: tuple[str, ...]
    faults: tuple[str, ...]
    """Faults found by validation, from the ledger."""
    warnings: tuple[str, ...]
    card: Card | None = None
    """None if it is not shown in full."""


class LoggedRow(HistoryRow):
    """Short description of an entry with plant and digest."""

    plant: str
    digest: str


class CheckRow(Reference):
    """Result of the audit's check when the report was written."""

    name: str
    passed: bool | None
    detail: str


class Report(Reference):
    """Content of a report."""

    period: Period
    plant: str | None
    plants: tuple[str, ...]
    written: str
    """Time of writing in UTC."""
    over: bool
    """Whether the period had ended when it was written."""
    checks: tuple[CheckRow, ...]
    attention: tuple[str, ...]
    """Facts that need attention, one sentence each."""
    in_force: tuple[InForce, ...]
    decisions: tuple[DecisionRow, ...]
    policies: tuple[PolicyRow, ...]
    certificates: tuple[CertificateRow, ...]
    lineages: tuple[LineageRow, ...]
    candidates: tuple[CandidateRow, ...]
    runs: tuple[RunRow, ...]
    refusals: tuple[RefusalRow, ...]
    datasets: tuple[DatasetRow, ...]
    drift: tuple[DriftRow, ...]
    incidents: tuple[IncidentRow, ...]
    keys: tuple[IncidentRow, ...]
    entries: tuple[LoggedRow, ...]
    head: LedgerHead


class PeriodReport(Reference):
    """Written report."""

    path: Path
    first: date
    last: date
    plant: str | None = None
    entries: int
    """Entries of the period."""
    ledger_size: int
    failed: tuple[str, ...] = ()
    """Failed checks of the audit."""
