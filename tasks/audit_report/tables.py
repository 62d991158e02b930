"""What a report over a period says: rows of its tables, each with the number of the ledger entry that it rests on."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Literal

from tasks.data.store.records import Card
from tasks.references import Gate, HistoryRow, LedgerHead, Reference, Source


class Period(Reference):
    """Whole days, in UTC, both ends included."""

    first: date
    last: date

    @property
    def begin(self) -> str:
        """Its first moment, as the ledger writes times."""
        return f"{self.first.isoformat()}T00:00:00.000000Z"

    @property
    def end(self) -> str:
        """Its last moment, as the ledger writes times."""
        return f"{self.last.isoformat()}T23:59:59.999999Z"

    def holds(self, timestamp: str) -> bool:
        """Whether a time of the ledger lies in it."""
        return self.begin <= timestamp <= self.end


ALWAYS = Period(first=date.min, last=date.max)


class Row(Reference):
    """A row of a table, with the entry that it rests on."""

    entry: int
    time: str
    plant: str


class InForce(Row):
    """A version that was champion, or ran in shadow, from `time` on."""

    kind: Literal["champion", "shadow"]
    version: str
    composite: str
    until: str | None
    """None while it is in force."""
    ended: str
    """How, in words; empty while it is in force."""
    approver: str
    own: bool
    """Whether it is the plant's own controller, without a learned policy."""


class DecisionRow(Row):
    """What somebody, or the rule, decided."""

    what: str
    version: str
    by: str
    role: str
    why: str
    signed: str
    """By whose key, in words."""


class CertificateRow(Row):
    """The result of an attempt at certification."""

    versions: tuple[str, ...]
    composite: str
    passed: bool
    claim: str
    witnesses: str
    """Who saw to it that no seed was chosen, in words."""
    p0: float
    confidence: float
    episodes: int
    violations: int
    upper_bound: float
    attempt: int
    alpha: float
    expires: str | None
    """None where the plant has no policy, or nothing was certified."""
    state: str
    """Whether it is in force, expired or unused, in words."""
    sha256: str
    """Of the certificate's file; empty where there is none."""


class LineageRow(Reference):
    """How much of its error probability a lineage of attempts has spent by the end of the period."""

    plant: str
    phi: str
    family: str
    attempts: int
    in_period: int
    without_result: int
    spent: float
    allowed: float


class CandidateRow(Row):
    """A version that was judged."""

    version: str
    role: str
    author: str
    passed: bool
    gates: tuple[Gate, ...]


class RunRow(Row):
    """A retraining that came to a decision."""

    verdict: str
    version: str
    headline: str
    prefect: str
    """Id of its flow run."""
    run_key: str
    dataset: str
    seconds: float


class RefusalRow(Row):
    """A run that was refused before it came to a decision."""

    reason: str
    sources: tuple[str, ...]


class DriftRow(Row):
    """What came of holding newer logs against a champion's, or against what runs in shadow."""

    version: str
    dataset: str
    rows: int
    agreement: float | None = None
    """Of a shadow's proposals, as the next two."""
    support: float | None = None
    interventions: float | None = None
    model_error: float
    evidence: str
    """Log evidence of a drift beside its threshold."""
    alarms_per_year: float
    alarm: str


class IncidentRow(Row):
    """Something that went otherwise than it should."""

    what: str
    detail: str


class PolicyRow(Row):
    """A safety policy in force in the period."""

    claim: str
    """What a champion must have shown, in words."""
    approvers: str
    approval_days: int
    certificate_days: int
    by: str
    why: str


class DatasetRow(Row):
    """Logs that a candidate of the period learned from."""

    digest: str
    format: str
    rows: int
    episodes: int
    quarantined: int
    lost: str
    """Why rows were lost, in words."""
    sources: tuple[Source, ...]
    accounted: tuple[str, ...]
    notes: tuple[str, ...]
    versions: tuple[str, ...]
    faults: tuple[str, ...]
    """What validation found against it, as the ledger has it."""
    warnings: tuple[str, ...]
    card: Card | None = None
    """Where it is shown in full."""


class LoggedRow(HistoryRow):
    """An entry in a few words, with its plant and digest."""

    plant: str
    digest: str


class CheckRow(Reference):
    """What the audit found, when the report was written."""

    name: str
    passed: bool | None
    detail: str


class Told(Reference):
    """Everything that a report over a period shows."""

    period: Period
    plant: str | None
    plants: tuple[str, ...]
    written: str
    """When, in UTC."""
    over: bool
    """Whether the period had ended by then."""
    checks: tuple[CheckRow, ...]
    attention: tuple[str, ...]
    """What a reader should look at first, a sentence each."""
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
    """A report over a period, as one file."""

    path: Path
    first: date
    last: date
    plant: str | None = None
    entries: int
    """Of the ledger in the period."""
    ledger_size: int
    failed: tuple[str, ...] = ()
    """Checks of the audit that did not hold; the report says what they found."""
