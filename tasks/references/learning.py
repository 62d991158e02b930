"""What is handed on about policies: bundles, populations, their evaluation, and rollouts on the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field

from tasks.references.base import Interval, Reference


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
    """Its position among all that were trained, whatever became of the others."""
    learner: int
    """Which of the population's learners trained it."""
    row: int
    """Its row in that learner's curves."""
    algorithm: str
    seed: int
    hyperparameters: dict[str, float] = Field(default_factory=dict)
    bundle: Bundle


def member_name(algorithm: str, seed: int, hyperparameters: Mapping[str, float]) -> str:
    """What a member is called where people read of it.

    Example:
        >>> member_name("bptt", 0, {"support": 0.3})
        'bptt seed 0 support 0.3'
    """
    return f"{algorithm} seed {seed}" + "".join(f" {name} {value:g}" for name, value in hyperparameters.items())


class Placement(Reference):
    """How the members of a population ran: in one program, or in a process each."""

    processes: bool
    reason: str


class LearningMember(Reference):
    """A member that is about to learn, as a record of its curves names it."""

    name: str
    params: dict[str, str]
    """Its own settings, by their dotted names."""


class Learning(Reference):
    """A learner's training, as a record of its curves names it."""

    plant: str
    key: str
    """Of the training, by content: a training that is gone on with has the same."""
    dataset: str
    """Digest of the dataset."""
    members: tuple[LearningMember, ...]


class RatedMember(Reference):
    """What off-policy evaluation says of a member."""

    key: str
    """Of its training."""
    row: int
    """Its row in that training's curves."""
    composite: str
    metrics: dict[str, float]


class TrainedLearner(Reference):
    """How one algorithm's members were trained."""

    algorithm: str
    key: str = ""
    """Of the training, by content."""
    place: int = 0
    """Which of the run's learners it is, counted from 0."""
    updates: int
    curves: Path
    """Learning curves of all its members, those that diverged included."""
    steps_per_second: float
    placement: Placement

    def __str__(self) -> str:
        how = "in processes" if self.placement.processes else "in one program"
        rate = f", {self.steps_per_second:,.0f} updates/s" if self.steps_per_second else ""
        return f"{self.algorithm} {self.updates:,} updates, {how}{rate}"


class Population(Reference):
    """What `train` makes: the members whose training stayed finite, and the learning curves of all."""

    digest: str
    folder: Path
    learners: tuple[TrainedLearner, ...]
    members: tuple[Member, ...]
    diverged: tuple[str, ...] = ()
    """Why a learner has no member here, where none of its training stayed finite."""
    rows: int

    @property
    def found(self) -> str:
        lost = f"; {len(self.diverged)} learner(s) diverged" if self.diverged else ""
        return f"{len(self.members)} members of {'; '.join(map(str, self.learners))}{lost}"


class Champion(Reference):
    """The champion that candidates are compared with, found in the ledger."""

    digest: str | None = None
    """SHA-256 digest of its composite; none where a plant has no champion yet."""
    bundle: Bundle | None = None
    """Its files; none where there is no champion, or it was made for other limits and cannot be compared here."""

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
    """Estimates of one member's value per episode, by the episodes that select; NaN where the logs support none."""

    index: int
    ope: Interval
    cost_ope: Interval
    gain: Interval
    """Gain over the logged controller."""
    supported: bool
    """Whether the logs support the estimate and the gain; where they do not, all of these are NaN."""
    reason: str = ""
    """Why they do not; empty where they do."""
    outside: float
    """Discounted share of the steps it would visit that lie outside the logged ones."""
    disagreement: float
    """How far the models' values lie apart, in deviations of the logged returns."""
    effective_rows: float


class Evaluation(Reference):
    """Off-policy evaluation: half of the held-out episodes select a member, and the other half says what it gains."""

    selected: int
    """Position among the population's members."""
    members: tuple[MemberEvaluation, ...]
    behaviour: Interval
    difference: Interval
    """Gain of the selected member over the logged controller."""
    supported: bool
    """Whether the logs support the selected member's estimate and gain; where they do not, the differences are NaN."""
    reason: str = ""
    """Why they do not; empty where they do."""
    champion_difference: Interval | None = None
    """Gain over the champion; NaN where the logs do not support the estimate of either."""
    champion_unsupported: str = ""
    """Why they do not; empty where they do."""
    discount: float
    horizon: int = 0
    """Steps whose return is estimated: an episode's, or what half of the logged ones last; 0 if it is not recorded."""
    episodes: int

    @property
    def unweighed(self) -> str:
        """That the discount weighs few of these steps, `1 / (1 - discount)`; empty of a tenth or more."""
        if self.horizon * (1.0 - self.discount) <= 10.0 + 1e-9:
            return ""
        weighed = round(1.0 / (1.0 - self.discount))
        return (
            f"a discount of {self.discount:g} weighs the next {weighed:,} of {self.horizon:,} steps: of what a policy "
            "comes to later this says little"
        )

    @property
    def unsupported(self) -> str:
        """That the logs do not support the estimate, and why, where that was recorded."""
        return "not supported by the logs" + (f": {self.reason}" if self.reason else "")

    @property
    def found(self) -> str:
        gain = f"gain over the logged controller {self.difference}" if self.supported else self.unsupported
        return f"member {self.selected} selected, {gain}"


MOSTLY = 0.5
"""Share of steps above which it is said that the fallback, and not the policy, ran the plant."""


class ControllerRollouts(Reference):
    """A controller on the simulator, over the evaluation's episodes."""

    returns: Interval
    score: float
    violated: int
    """Episodes with a violation."""
    episodes: int
    handovers_per_episode: float
    fallback_share: float
    """Share of all steps that the fallback decided."""
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
        share = self.controllers["candidate"].fallback_share
        mostly = f"; the fallback decided {share:.0%} of its steps" if share > MOSTLY else ""
        return f"return of the candidate {versus}; score {self.score:.1f}{mostly}"


class SignalError(Reference):
    """Root mean square prediction errors of the simulator for one signal, in its unit."""

    logs: float
    domain: float
    """The largest among plants of the operating domain, put where the logs say and given the logged actions."""
    spread: float
    """Standard deviation of the signal in the logs."""


class SimulatorErrors(Reference):
    """How well the simulator predicts held-out logs, beside what its operating domain explains there."""

    signals: dict[str, SignalError]

    @property
    def found(self) -> str:
        return f"{len(self.signals)} prediction errors on held-out logs, and of the operating domain's plants there"
