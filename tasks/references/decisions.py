"""What is decided, and what the registry and the ledger say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from configs.run import OpenedRun
from tasks.references.base import Interval, Reference
from tasks.references.data import Dataset, Validation
from tasks.references.evidence import Certificate, Certification, Evidence
from tasks.references.identification import KNOWN, Identification
from tasks.references.judgement import Gate, Judgement
from tasks.references.learning import Bundle, Champion, Evaluation, Member, Population, Rollouts
from tasks.references.process import LearnedModel, ModelEstimate, ProcessEvidence, Protection

Verdict = Literal[
    "promoted", "waiting", "fallback", "fallback_waiting", "shadow", "shadow_waiting", "refused", "unchanged"
]
"""What a retraining came to."""


Role = Literal["candidate", "fallback"]
"""What is proposed: a trained candidate, or the plant's own controller."""


class Version(Reference):
    """A candidate's place in the MLflow registry."""

    version: str
    run_id: str
    url: str
    digest: str
    """SHA-256 digest of its composite."""


class Digests(Reference):
    """SHA-256 digests of everything that a version rests on."""

    composite: str
    dataset: str
    config: str
    code: str
    lock: str
    certificate: str | None = None
    """Digest of the certificate's file; none where certification was not attempted."""


class ChampionInForce(Reference):
    """The champion that the ledger names, with who approved it and what is claimed of it."""

    version: str
    url: str
    composite: str
    since: str
    approver: str
    claim: str | None


class ShadowInForce(Reference):
    """The version that the ledger lets run in shadow: beside the plant, never on it."""

    version: str
    url: str
    composite: str
    since: str
    until: str
    """When its period ends, extensions included."""
    approver: str


class LedgerHead(Reference):
    """The ledger's head: how many entries there are, the last one's digest and the Merkle root of all."""

    size: int
    last: str
    root: str
    signed: str
    """The head as a signed envelope, for an auditor to keep."""


class HistoryRow(Reference):
    """A ledger entry in a few words."""

    sequence: int
    timestamp: str
    kind: str
    detail: str


class Outcome(Reference):
    """What a retraining ends with: the flow's result, and what `neorl retrain --json` prints."""

    run: str
    """The flow run's id in Prefect."""
    run_key: str
    plant: str
    verdict: Verdict
    decided: Verdict | None = None
    """The earlier verdict on the same inputs, where this run changed nothing."""
    headline: str
    gates: tuple[Gate, ...]
    candidate: Version | None = None
    certificate: Certificate | None = None
    """The certificate of the composite that was proposed."""
    score: float | None = None
    difference: Interval | None = None
    """Gain over the plant's own controller in return per episode, by rollouts on the simulator."""
    ope_difference: Interval | None = None
    """Gain over the logged controller, by off-policy evaluation on held-out logs."""
    population: str
    dataset: str
    champion: ChampionInForce | None = None
    shadow: ShadowInForce | None = None
    waiting: tuple[str, ...] = ()
    """Versions that wait for approval."""
    links: dict[str, str] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    reused: tuple[str, ...] = ()
    """Stages whose cached results were used."""


class Learned(Reference):
    """What the stages of any retraining found before anything was decided."""

    run: OpenedRun
    run_key: str
    """Names the retraining by content: data, configuration, what was selected, what it is compared with, and code."""
    dataset: Dataset
    validation: Validation
    population: Population
    fallback: Bundle
    champion: Champion
    evaluation: Evaluation
    judgement: Judgement

    @property
    def selected(self) -> Member:
        """The member that off-policy evaluation selected."""
        return self.population.members[self.evaluation.selected]

    def certificate_of(self, role: Role) -> Certificate | None:
        """The certificate of the candidate, or of the plant's own controller; a process has none."""
        return None


class Findings(Learned):
    """Everything that the stages found of a plant that is simulated."""

    identification: Identification = KNOWN
    rollouts: Rollouts
    protection: Certificate
    """The fallback's own certificate."""
    certification: Certification

    def certificate_of(self, role: Role) -> Certificate | None:
        """The certificate of the candidate, or of the plant's own controller."""
        return self.protection if role == "fallback" else self.certification.certificate


class ProcessFindings(Learned):
    """Everything that the stages found of a process without a simulator."""

    model: LearnedModel
    protection: Protection
    estimate: ModelEstimate


class ServedFile(Reference):
    """A file of a model in MLflow."""

    path: str
    """From the model's folder."""
    sha256: str


class ServedModel(Reference):
    """Every file of a model in MLflow: its code and MLmodel, which loading executes, as well as its bundle."""

    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    """Its id there, under which its files lie."""
    contents: tuple[ServedFile, ...]


class CandidateRecord(Reference):
    """What the ledger says of a candidate: what it is, the gates, and the numbers that they follow from."""

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
    """Digest of the configuration."""
    sources: str = ""
    """Digest of the source files of the flow; empty in entries from before it was recorded."""
    author: str = ""
    """Who ran the retraining: the login of the machine that it ran on."""
    champion: str | None
    """Digest of the promotion in force when it was judged, of a process of its last shadow; only that one may it
    replace."""
    shadow_days: int | None = None
    """How long it may run in shadow, of a process without a simulator."""
    model: LearnedModel | None = None
    """What the drift of such a process is watched with."""

    def at(self, root: Path) -> CandidateRecord:
        """The same record with its files in another home: the ledger names them where theirs was then."""
        plant = self.dataset.plant
        model = self.model and self.model.at(root / "runs" / plant / "models")
        return self.model_copy(update={"dataset": self.dataset.at(root / "datasets" / plant), "model": model})


class Candidate(Reference):
    """A candidate in the registry and in the ledger."""

    entry: str
    """Digest of its ledger entry."""
    record: CandidateRecord
    plots: dict[str, Path]
    """Pictures of the retraining, by name."""

    @property
    def found(self) -> str:
        verdict = "passed every gate" if self.record.passed else "failed a gate"
        return f"version {self.record.version}, composite {self.record.composite[:12]}, {verdict}"


class Proposal(Reference):
    """What the rule makes of a candidate: who is proposed for promotion, if anybody, and why."""

    verdict: Verdict
    reason: str
    rejected: bool
    """Whether a person rejected the candidate's composite before."""
    candidate: Candidate
    proposed: Candidate | None = None
    """The candidate itself, or the plant's own controller."""

    @property
    def found(self) -> str:
        return self.reason


class Decision(Reference):
    """What came of a proposal."""

    verdict: Verdict
    reason: str
    rejected: bool
    candidate: Candidate
    """What the verdict is about: the candidate, or the plant's own controller that stands in for it."""
    promotion: str | None = None
    """Digest of the promotion's ledger entry, or of the shadow's."""

    @property
    def found(self) -> str:
        return f"{self.verdict}: {self.reason}"


class Aliases(Reference):
    """What MLflow's aliases say after they were brought into line with the ledger."""

    champion: str | None
    challenger: str | None
    shadow: str | None = None
    changes: tuple[str, ...]

    @property
    def found(self) -> str:
        return "; ".join(self.changes) or "aliases agree with the ledger"


class DecisionRecord(Reference):
    """What the ledger says of a retraining that was concluded: the same key again changes nothing."""

    run_key: str
    verdict: Verdict
    outcome: Outcome
