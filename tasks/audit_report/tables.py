"""Rows of the audit report's tables. Most rows state the number of their ledger entry."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Literal

from tasks.data.store.records import Card
from tasks.references import Gate, HistoryRow, LedgerHead, Reference, Source


class Period(Reference):
    """Period of whole days in UTC, from `first` to `last`, both included."""

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
        return self.begin <= timestamp <= self.end


ALWAYS = Period(first=date.min, last=date.max)


class Row(Reference):
    """Base class of rows about one ledger entry: its number, its time and its plant."""

    entry: int
    time: str
    plant: str


class InForce(Row):
    """A version that was champion or shadow from `time` on."""

    kind: Literal["champion", "shadow"]
    version: str
    composite: str
    until: str | None
    """Time at which another version or no version took over; None if this version is still in force."""
    ended: str
    """Reason for the end; empty if this version is still in force."""
    approver: str
    own: bool
    """Whether the version is the plant's own controller."""


class DecisionRow(Row):
    what: str
    version: str
    by: str
    role: str
    why: str
    signed: str
    """Description of the key that signed the decision."""


class CertificateRow(Row):
    versions: tuple[str, ...]
    composite: str
    passed: bool
    claim: str
    witnesses: str
    p0: float
    confidence: float
    episodes: int
    violations: int
    upper_bound: float
    attempt: int
    alpha: float
    expires: str | None
    """Time of expiry; None without a policy, or if the certification did not pass."""
    state: str
    """Whether the certificate is valid, expired or not shown, and whether it is the champion's."""
    sha256: str
    """Digest of the certificate's file; empty if there is none."""


class LineageRow(Reference):
    """Error probability that a lineage's attempts have spent up to the end of the period."""

    plant: str
    phi: str
    family: str
    attempts: int
    in_period: int
    without_result: int
    spent: float
    allowed: float


class CandidateRow(Row):
    version: str
    role: str
    author: str
    passed: bool
    gates: tuple[Gate, ...]


class RunRow(Row):
    """A retraining that ended with a decision."""

    verdict: str
    version: str
    headline: str
    prefect: str
    """Id of the flow run in Prefect."""
    run_key: str
    dataset: str
    seconds: float


class RefusalRow(Row):
    """A run that NeoRL refused before a decision."""

    reason: str
    sources: tuple[str, ...]


class DriftRow(Row):
    """A comparison of newer logs with the training data of a champion or a shadow."""

    version: str
    dataset: str
    rows: int
    agreement: float | None = None
    """`agreement`, `support` and `interventions` exist only for shadows."""
    support: float | None = None
    interventions: float | None = None
    model_error: float
    evidence: str
    """Logarithm of the evidence of drift, and its threshold for an alarm."""
    alarms_per_year: float
    alarm: str


class IncidentRow(Row):
    """An incident, or a change of a key."""

    what: str
    detail: str


class PolicyRow(Row):
    claim: str
    """Claim that the certificate of a champion must state."""
    approvers: str
    approval_days: int
    certificate_days: int
    by: str
    why: str


class DatasetRow(Row):
    digest: str
    format: str
    rows: int
    episodes: int
    quarantined: int
    lost: str
    """Reasons why rows were lost, with the number of rows."""
    sources: tuple[Source, ...]
    accounted: tuple[str, ...]
    notes: tuple[str, ...]
    versions: tuple[str, ...]
    faults: tuple[str, ...]
    """Faults found by validation, from the ledger."""
    warnings: tuple[str, ...]
    card: Card | None = None
    """Data card with details; None if the report omits it."""


class LoggedRow(HistoryRow):
    """A ledger entry in one line, with plant and digest."""

    plant: str
    digest: str


class CheckRow(Reference):
    """Result of one check of the audit that ran when the report was written."""

    name: str
    passed: bool | None
    detail: str


class Report(Reference):
    period: Period
    plant: str | None
    plants: tuple[str, ...]
    written: str
    """Time of writing in UTC."""
    over: bool
    """Whether the period had ended when the report was written."""
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
    """A written audit report: its file, period and size."""

    path: Path
    first: date
    last: date
    plant: str | None = None
    entries: int
    """Number of ledger entries in the period."""
    ledger_size: int
    failed: tuple[str, ...] = ()
