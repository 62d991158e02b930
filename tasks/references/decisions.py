"""References about gates and decisions, and their records in the registry and the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from configs.run import OpenedRun
from tasks.references.base import Interval, Reference
from tasks.references.data import Dataset, Validation
from tasks.references.evidence import Certificate, Certification, Evidence
from tasks.references.learning import KNOWN, Bundle, Champion, Evaluation, Identification, Member, Population, Rollouts
from tasks.references.process import LearnedModel, ModelEstimate, ProcessEvidence, Protection

Verdict = Literal[
    "promoted", "waiting", "fallback", "fallback_waiting", "shadow", "shadow_waiting", "refused", "unchanged"
]


Role = Literal["candidate", "fallback"]
"""Kind of a proposed composite: a trained candidate, or the tuned controller."""


class Gate(Reference):
    """Verdict of one gate; `passed` is None if the gate did not run because an earlier gate failed."""

    name: str
    passed: bool | None
    detail: str


class Judgement(Reference):
    evidence: Evidence | ProcessEvidence
    gates: tuple[Gate, ...]

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)

    @property
    def failed(self) -> Gate | None:
        return next((gate for gate in self.gates if gate.passed is False), None)

    @property
    def found(self) -> str:
        marks = {True: "pass", False: "FAIL", None: "not run"}
        return ", ".join(f"{gate.name} {marks[gate.passed]}" for gate in self.gates)


class Version(Reference):
    """A candidate's version in the MLflow registry."""

    version: str
    run_id: str
    url: str
    digest: str


class Digests(Reference):
    """SHA-256 digests of everything that a version depends on."""

    composite: str
    dataset: str
    config: str
    code: str
    lock: str
    certificate: str | None = None
    """Digest of the certificate's file; None if certification was not attempted."""


class ChampionInForce(Reference):
    version: str
    url: str
    composite: str
    since: str
    approver: str
    claim: str | None


class ShadowInForce(Reference):
    version: str
    url: str
    composite: str
    since: str
    until: str
    """End of the shadow period, including extensions."""
    approver: str


class LedgerHead(Reference):
    """The ledger's head: number of entries, digest of the last entry, and Merkle root."""

    size: int
    last: str
    root: str
    signed: str
    """The head as a signed envelope, for auditors to keep."""


class HistoryRow(Reference):
    """Summary of a ledger entry for the plant's history."""

    sequence: int
    timestamp: str
    kind: str
    detail: str


class Outcome(Reference):
    """The flow's result, which `neorl retrain --json` prints."""

    run: str
    run_key: str
    plant: str
    verdict: Verdict
    decided: Verdict | None = None
    """Earlier verdict on the same inputs, if this run changed nothing."""
    headline: str
    gates: tuple[Gate, ...]
    candidate: Version | None = None
    certificate: Certificate | None = None
    score: float | None = None
    difference: Interval | None = None
    """Gain over the tuned controller in return per episode, by rollouts."""
    ope_difference: Interval | None = None
    """Gain over the logged controller, by off-policy evaluation."""
    population: str
    dataset: str
    champion: ChampionInForce | None = None
    shadow: ShadowInForce | None = None
    waiting: tuple[str, ...] = ()
    links: dict[str, str] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    reused: tuple[str, ...] = ()
    """Tasks whose cached results were reused."""


class Learned(Reference):
    """Results of a retraining before the decision, for plants with and without simulator."""

    run: OpenedRun
    run_key: str
    """Digest of data, configuration, selected member, champion and code."""
    dataset: Dataset
    validation: Validation
    population: Population
    fallback: Bundle
    champion: Champion
    evaluation: Evaluation
    judgement: Judgement

    @property
    def selected(self) -> Member:
        return self.population.members[self.evaluation.selected]

    def certificate_of(self, role: Role) -> Certificate | None:
        """Return the certificate of the candidate or the tuned controller; None for a log-only plant."""
        return None


class Findings(Learned):
    """Results of all tasks for a simulated plant."""

    identification: Identification = KNOWN
    rollouts: Rollouts
    protection: Certificate
    certification: Certification

    def certificate_of(self, role: Role) -> Certificate | None:
        return self.protection if role == "fallback" else self.certification.certificate


class ProcessFindings(Learned):
    """Results of all tasks for a log-only plant."""

    model: LearnedModel
    protection: Protection
    estimate: ModelEstimate


class ServedFile(Reference):
    """A file of a model in MLflow."""

    path: str
    """Path relative to the model's folder."""
    sha256: str


class ServedModel(Reference):
    """All files of a model in MLflow: bundle, MLmodel, and the code that loading executes."""

    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    """MLflow's id of the model, the name of its folder."""
    contents: tuple[ServedFile, ...]


class CandidateRecord(Reference):
    """Content of a candidate's ledger entry."""

    run_key: str
    composite: str
    role: Role
    version: str
    run_id: str
    url: str
    passed: bool
    gates: tuple[Gate, ...]
    evidence: Evidence | ProcessEvidence
    claim: str | None
    served: ServedModel
    dataset: Dataset
    config: str
    sources: str = ""
    """Digest of the flow's source files; empty in entries of old versions."""
    author: str = ""
    """Login of the person who ran the retraining."""
    champion: str | None
    """Digest of the promotion (log-only: shadow) in force when the gates were judged. The candidate may replace only
    this champion or shadow."""
    shadow_days: int | None = None
    """Days in shadow, for a log-only plant."""
    model: LearnedModel | None = None
    """Learned model for drift detection, for a log-only plant."""

    def at(self, root: Path) -> CandidateRecord:
        """Return the record with its files in another home; the ledger has the paths of the original home."""
        plant = self.dataset.plant
        model = self.model and self.model.at(root / "runs" / plant / "models")
        return self.model_copy(update={"dataset": self.dataset.at(root / "datasets" / plant), "model": model})


class Candidate(Reference):
    entry: str
    record: CandidateRecord
    plots: dict[str, Path]

    @property
    def found(self) -> str:
        verdict = "passed every gate" if self.record.passed else "failed a gate"
        return f"version {self.record.version}, composite {self.record.composite[:12]}, {verdict}"


class Proposal(Reference):
    """Result of the promotion rule: the proposed composite, if any, and the reason."""

    verdict: Verdict
    reason: str
    rejected: bool
    """Whether a person rejected the candidate's composite before."""
    candidate: Candidate
    proposed: Candidate | None = None

    @property
    def found(self) -> str:
        return self.reason


class Decision(Reference):
    """Result of the task `decide`: the verdict, and the promotion if the rule made one."""

    verdict: Verdict
    reason: str
    rejected: bool
    candidate: Candidate
    """Subject of the verdict: the candidate, or the tuned controller in its place."""
    promotion: str | None = None
    """Digest of the ledger entry of the promotion or shadow."""

    @property
    def found(self) -> str:
        return f"{self.verdict}: {self.reason}"


class Aliases(Reference):
    """MLflow's aliases after reconciliation with the ledger."""

    champion: str | None
    challenger: str | None
    shadow: str | None = None
    changes: tuple[str, ...]

    @property
    def found(self) -> str:
        return "; ".join(self.changes) or "aliases agree with the ledger"


class DecisionRecord(Reference):
    """Ledger entry of a finished retraining. A later run with the same key changes nothing."""

    run_key: str
    verdict: Verdict
    outcome: Outcome
