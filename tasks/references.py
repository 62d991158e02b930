"""References: what stages hand on. Small, frozen and JSON; large things are files that they name.

A reference is what its stage found, not where the flow ran: caches and graphs are keyed by its content, and a result
whose files have gone is made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict


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


class Account(Reference):
    """What became of a historian's control steps: rows + the others = steps."""

    counts: dict[str, int] = {}


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
    rows: int
    episodes: int
    quarantined: int = 0
    quarantine: Path | None = None
    """Folder of the rows that failed."""
    reasons: dict[str, int] = {}
    accounts: tuple[Account | None, ...] = ()
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    """A line for each thing that a reader should check."""


class Validation(Reference):
    """Whether a dataset is fit for training and evaluation."""

    passed: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    summary: Path | None = None
    data_docs: Path | None = None


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


class SignalError(Reference):
    """Root mean square one-step errors of the simulator for one signal, in its unit."""

    logs: float
    domain: float
    spread: float
    """Standard deviation of the signal in the logs."""


class SimulatorErrors(Reference):
    """How well the simulator predicts held-out logs, beside what its operating domain explains."""

    signals: dict[str, SignalError]


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


GateName = Literal["data", "simulator", "ope", "rollouts", "champion", "fallback", "statistical", "servability"]


class Gate(Reference):
    """One verdict; `passed` is None where an earlier gate made this one pointless."""

    name: GateName
    passed: bool | None
    detail: str


class Version(Reference):
    """A candidate's place in the MLflow registry."""

    version: str
    run_id: str
    url: str
    digest: str
    """Of its composite."""


Verdict = Literal["promoted", "waiting", "fallback", "fallback_waiting", "refused", "unchanged"]
