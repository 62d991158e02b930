"""References: what stages hand on. Small, frozen and JSON; large things are files that they name.

A reference is what its stage found, not where the flow ran: caches and graphs are keyed by its content, and a result
whose files have gone is made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from configs.run import RunConfig
from tasks.adapters.store.records import StepAccount

Verdict = Literal["promoted", "waiting", "fallback", "fallback_waiting", "refused", "unchanged"]
"""What a retraining came to."""


class Reference(BaseModel):
    """A frozen model that refuses unknown fields; its `Path` fields name files or folders that belong to it."""

    # A number that is not finite is a finding too (an estimate that does not exist), and JSON has no number for it.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def files(self) -> Iterator[Path]:
        """Every file or folder that this reference, or one inside it, names."""
        for _, value in self:
            yield from _files(value)

    @property
    def complete(self) -> bool:
        """Whether all of its files are there."""
        return all(path.exists() for path in self.files())

    @property
    def found(self) -> str:
        """What was found, in one line for a log."""
        return type(self).__name__


def _files(value: object) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Reference):
        yield from value.files()
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _files(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _files(item)


class Interval(Reference):
    """An estimate with its confidence interval."""

    value: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.value:+.4g} [{self.lower:+.4g}, {self.upper:+.4g}]"


class Source(Reference):
    """A file or folder of logs that a dataset was made of; it may be taken away once it is ingested."""

    path: str
    sha256: str


class Dataset(Reference):
    """What `ingest` makes of logs, named by the digest of its manifest."""

    digest: str
    plant: str
    format: str = "historian"
    store: Path
    """The plant's folder of datasets."""
    manifest: Path
    shards: tuple[Path, ...]
    view: Path | None = None
    card: Path | None = None
    """The dataset card as a page for readers."""
    card_record: Path | None = None
    """The dataset card as JSON."""
    rows: int
    episodes: int
    quarantined: int = 0
    quarantine: Path | None = None
    """Folder of the rows that failed."""
    quarantine_files: tuple[Path, ...] = ()
    """Files of the rows that failed, and of raw rows that do not count."""
    reasons: dict[str, int] = {}
    """Quarantined rows by reason."""
    accounts: tuple[StepAccount | None, ...] = ()
    """What became of a historian's control steps, by source; None for other sources."""
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    """A line for each thing that a reader should check."""

    @property
    def found(self) -> str:
        lost = f", {self.quarantined:,} in quarantine" if self.quarantined else ""
        return f"dataset {self.digest[:12]}: {self.rows:,} rows in {self.episodes:,} episodes{lost}"


class DriftReference(Reference):
    """The dataset that drift is measured against: of the last champion that learned from another one."""

    dataset: Dataset | None = None

    @property
    def found(self) -> str:
        return f"drift is measured against dataset {self.dataset.digest[:12]}" if self.dataset else "no earlier dataset"


class Validation(Reference):
    """Whether a dataset is fit for training and evaluation."""

    passed: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    summary: Path | None = None
    data_docs: Path | None = None

    @property
    def found(self) -> str:
        verdict = "fit for training" if self.passed else f"refused: {'; '.join(self.reasons)}"
        return f"{verdict}, {len(self.warnings)} warnings"


class Bundle(Reference):
    """A composite on disk, named by its digest."""

    digest: str
    plant: str
    folder: Path

    def files(self) -> Iterator[Path]:
        yield from (self.folder / name for name in ("composite.json", "composite.npz", "examples.npz"))


class Member(Reference):
    """One member of a population, as a composite that could ship."""

    index: int
    """Its row in the learning curves."""
    seed: int
    hyperparameters: dict[str, float] = {}
    bundle: Bundle


class Placement(Reference):
    """How the members of a population ran: in one program, or in a process each."""

    processes: bool
    reason: str


class Population(Reference):
    """What `train` makes: the members whose training stayed finite, and the learning curves of all."""

    digest: str
    folder: Path
    members: tuple[Member, ...]
    curves: Path
    updates: int
    steps_per_second: float
    placement: Placement
    rows: int

    @property
    def found(self) -> str:
        how = "in processes" if self.placement.processes else "in one program"
        rate = f", {self.steps_per_second:,.0f} updates/s" if self.steps_per_second else ""
        return f"{len(self.members)} members of {self.updates:,} updates, {how}{rate}"


class Champion(Reference):
    """The champion that candidates are compared with, found in the ledger."""

    digest: str | None = None
    """Of its composite; none where a plant has no champion yet."""
    bundle: Bundle | None = None
    """None, too, where it was made for other limits and cannot be run on this simulator."""

    @property
    def incomparable(self) -> bool:
        """Whether there is a champion that no candidate can be compared with."""
        return self.digest is not None and self.bundle is None

    @property
    def found(self) -> str:
        if self.digest is None:
            return "no champion to compare with"
        limits = ", made for other limits" if self.incomparable else ""
        return f"champion {self.digest[:12]}{limits}"


class MemberEvaluation(Reference):
    """Estimates of one member's value per episode, from held-out logs."""

    index: int
    ope: Interval
    cost_ope: Interval
    gain: Interval
    """Over the logged controller."""
    model: Interval
    """In the learned model that was fitted to the held-out episodes."""
    disagreement: float
    supported: bool
    effective_rows: float


class Evaluation(Reference):
    """Off-policy evaluation of a population on held-out episodes, and the member that it selects."""

    selected: int
    """Position among the population's members."""
    members: tuple[MemberEvaluation, ...]
    behaviour: Interval
    difference: Interval
    """Of the selected member, over the logged controller."""
    supported: bool
    """Whether the logs support the selected member's estimate."""
    champion_difference: Interval | None = None
    discount: float
    episodes: int

    @property
    def found(self) -> str:
        support = "" if self.supported else ", which the logs do not support"
        return f"member {self.selected} selected, gain over the logged controller {self.difference}{support}"


class ControllerRollouts(Reference):
    """A controller on the simulator, over the evaluation's episodes."""

    returns: Interval
    score: float
    violated: int
    """Episodes with a violation."""
    episodes: int
    handovers_per_episode: float
    least_margins: tuple[float, ...]


class Rollouts(Reference):
    """Controllers compared on the same episodes of the simulator; nothing is selected by them."""

    controllers: dict[str, ControllerRollouts]
    differences: dict[str, Interval]
    """The candidate's return minus that of another, on the same episodes."""
    member_scores: tuple[Interval, ...]
    score: float
    trajectories: Path

    @property
    def found(self) -> str:
        versus = ", ".join(f"{found} against the {name}" for name, found in self.differences.items())
        return f"return of the candidate {versus}; score {self.score:.1f}"


class SignalError(Reference):
    """Root mean square one-step errors of the simulator for one signal, in its unit."""

    logs: float
    domain: float
    spread: float
    """Standard deviation of the signal in the logs."""


class SimulatorErrors(Reference):
    """How well the simulator predicts held-out logs, beside what its operating domain explains."""

    signals: dict[str, SignalError]

    @property
    def found(self) -> str:
        return f"one-step errors of {len(self.signals)} signals, on held-out logs and in the operating domain"


class Certificate(Reference):
    """The outcome of an attempt at certification."""

    claim: str
    passed: bool
    attempt: int
    alpha: float
    episodes: int
    violations: int
    upper_bound: float
    handovers: float
    composite: str
    path: Path
    reused: bool = False

    @property
    def found(self) -> str:
        verdict = "certified" if self.passed else "not certified"
        return f"{verdict}: {self.violations} violations in {self.episodes:,} episodes, attempt {self.attempt}"


class Certification(Reference):
    """The candidate's certificate, or none where an earlier gate failed and no attempt was made."""

    certificate: Certificate | None = None

    @property
    def found(self) -> str:
        return self.certificate.found if self.certificate else "not attempted: an earlier gate failed"


class Latency(Reference):
    """Percentiles of the time that one action takes, in microseconds."""

    p50: float
    p99: float


class Servability(Reference):
    """Whether a bundle loads in a fresh process, answers as recorded and keeps its latency budget."""

    reasons: tuple[str, ...]
    answers: int
    max_error: float | None
    """Largest difference from the recorded actions, as a share of half the action range."""
    tolerance: float
    latency_us: Latency | None
    budget_us: float
    seconds_to_ready: float | None

    @property
    def passed(self) -> bool:
        """Whether nothing was found against it."""
        return not self.reasons

    @property
    def found(self) -> str:
        if self.latency_us is None:
            return "; ".join(self.reasons) or "not attempted: an earlier gate failed"
        return "; ".join(self.reasons) or f"{self.answers} answers agree, p99 {self.latency_us.p99:.0f} µs"


class Service(Reference):
    """The check of servability, or none where an earlier gate failed."""

    check: Servability | None = None

    @property
    def found(self) -> str:
        return self.check.found if self.check else "not attempted: an earlier gate failed"


GateName = Literal["data", "simulator", "ope", "rollouts", "champion", "fallback", "statistical", "servability"]


class Gate(Reference):
    """One verdict; `passed` is None where an earlier gate made this one pointless."""

    name: GateName
    passed: bool | None
    detail: str


class Evidence(Reference):
    """The numbers that a candidate is judged by, without files: whoever doubts a verdict computes it from these."""

    beat_plant: bool
    """Whether lower bounds above the plant's own controller are required, or only shown."""
    data: tuple[str, ...]
    """What validation found against the dataset."""
    simulator: SimulatorErrors
    ope: Interval
    """Gain over the logged controller, by held-out logs."""
    supported: bool
    rollouts: Interval
    """Return against the plant's own controller, on the simulator."""
    champion: Interval | None = None
    """Gain over the champion, by held-out logs; none where it has no policy to compare, or there is none."""
    incomparable: bool = False
    """Whether the champion was made for other limits."""
    fallback: Certificate
    certificate: Certificate | None = None
    servability: Servability | None = None


class Judgement(Reference):
    """Every gate, with the evidence that it follows from."""

    evidence: Evidence
    gates: tuple[Gate, ...]

    @property
    def passed(self) -> bool:
        """Whether every gate passed."""
        return all(gate.passed for gate in self.gates)

    @property
    def failed(self) -> Gate | None:
        """The first gate that failed."""
        return next((gate for gate in self.gates if gate.passed is False), None)

    @property
    def found(self) -> str:
        marks = {True: "pass", False: "FAIL", None: "not run"}
        return ", ".join(f"{gate.name} {marks[gate.passed]}" for gate in self.gates)


class Version(Reference):
    """A candidate's place in the MLflow registry."""

    version: str
    run_id: str
    url: str
    digest: str
    """Of its composite."""


class Digests(Reference):
    """SHA-256 digests of everything that a version rests on."""

    composite: str
    dataset: str
    config: str
    code: str
    lock: str
    certificate: str | None = None
    """Of the certificate's file; none where certification was not attempted."""


class ChampionInForce(Reference):
    """The champion that the ledger names, with who approved it and what is claimed of it."""

    version: str
    url: str
    composite: str
    since: str
    approver: str
    claim: str | None


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
    """Of the composite that was proposed."""
    score: float | None = None
    difference: Interval | None = None
    """Gain over the plant's own controller in return per episode, by rollouts on the simulator."""
    ope_difference: Interval | None = None
    """Gain over the logged controller, by off-policy evaluation on held-out logs."""
    population: str
    dataset: str
    champion: ChampionInForce | None = None
    waiting: tuple[str, ...] = ()
    """Versions that wait for approval."""
    links: dict[str, str] = {}
    seconds: dict[str, float] = {}
    reused: tuple[str, ...] = ()
    """Stages whose cached results were used."""


class Findings(Reference):
    """Everything that the stages of one retraining found before anything was decided."""

    run: RunConfig
    run_key: str
    """Names the retraining by content: data, configuration, what was selected, what it is compared with, and code."""
    dataset: Dataset
    validation: Validation
    population: Population
    fallback: Bundle
    champion: Champion
    evaluation: Evaluation
    rollouts: Rollouts
    protection: Certificate
    """The fallback's own certificate."""
    certification: Certification
    judgement: Judgement

    @property
    def selected(self) -> Member:
        """The member that off-policy evaluation selected."""
        return self.population.members[self.evaluation.selected]


Role = Literal["candidate", "fallback"]
"""What is proposed: a trained candidate, or the plant's own controller."""


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
    evidence: Evidence
    claim: str | None
    dataset: Dataset
    config: str
    """Digest of the configuration."""
    champion: str | None
    """Digest of the promotion in force when it was judged; only that one may it replace."""


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
    """Digest of the promotion's ledger entry."""

    @property
    def found(self) -> str:
        return f"{self.verdict}: {self.reason}"


class Aliases(Reference):
    """What MLflow's aliases say after they were brought into line with the ledger."""

    champion: str | None
    challenger: str | None
    changes: tuple[str, ...]

    @property
    def found(self) -> str:
        return "; ".join(self.changes) or "aliases agree with the ledger"


class DecisionRecord(Reference):
    """What the ledger says of a retraining that was concluded: the same key again changes nothing."""

    run_key: str
    verdict: Verdict
    outcome: Outcome
