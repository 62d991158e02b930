"""References about policies (bundles, populations, evaluation, rollouts) and about estimated plant constants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

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
    """One member of a population, as a composite."""

    index: int
    """Position among all trained members, including diverged ones."""
    learner: int
    """Index of the learner that trained the member."""
    row: int
    algorithm: str
    seed: int
    hyperparameters: dict[str, float] = Field(default_factory=dict)
    bundle: Bundle


def member_name(algorithm: str, seed: int, hyperparameters: Mapping[str, float]) -> str:
    """Return the display name of a member.

    Example:
        >>> member_name("bptt", 0, {"support": 0.3})
        'bptt seed 0 support 0.3'
    """
    return f"{algorithm} seed {seed}" + "".join(f" {name} {value:g}" for name, value in hyperparameters.items())


class Placement(Reference):
    """Where a population is trained: all members in one process, or each member in a process of its own."""

    processes: bool
    reason: str


class LearningMember(Reference):
    """Name and settings of a member, for the log of learning curves."""

    name: str
    params: dict[str, str]


class Learning(Reference):
    """Description of a learner's training, for the log of learning curves."""

    plant: str
    key: str
    """Digest that identifies the training; a resumed training has the same digest."""
    dataset: str
    members: tuple[LearningMember, ...]


class RatedMember(Reference):
    key: str
    row: int
    composite: str
    metrics: dict[str, float]


class TrainedLearner(Reference):
    algorithm: str
    key: str = ""
    place: int = 0
    updates: int
    curves: Path
    """Learning curves of all members, including diverged ones."""
    steps_per_second: float
    placement: Placement
    isolation: str = ""
    """Restrictions of the process that executed a user's algorithm; empty for a built-in algorithm."""

    def __str__(self) -> str:
        how = "in processes" if self.placement.processes else "in one program"
        rate = f", {self.steps_per_second:,.0f} updates/s" if self.steps_per_second else ""
        isolated = f", code isolated ({self.isolation})" if self.isolation else ""
        return f"{self.algorithm} {self.updates:,} updates, {how}{rate}{isolated}"


class Population(Reference):
    """Members with finite training, and the learning curves of all members."""

    digest: str
    folder: Path
    learners: tuple[TrainedLearner, ...]
    members: tuple[Member, ...]
    diverged: tuple[str, ...] = ()
    """One message for each learner whose members all diverged."""
    rows: int

    @property
    def found(self) -> str:
        lost = f"; {len(self.diverged)} learner(s) diverged" if self.diverged else ""
        return f"{len(self.members)} members of {'; '.join(map(str, self.learners))}{lost}"


class Champion(Reference):
    """The champion to compare candidates with."""

    digest: str | None = None
    """SHA-256 digest of the composite; None if the plant has no champion."""
    bundle: Bundle | None = None
    """The composite's files; None without a champion, or if the champion was made for different limits."""

    @property
    def incomparable(self) -> bool:
        """Whether there is a champion but candidates cannot be compared with it."""
        return self.digest is not None and self.bundle is None

    @property
    def found(self) -> str:
        if self.digest is None:
            return "no champion to compare with"
        limits = ", made for other limits" if self.incomparable else ""
        return f"champion {self.digest[:12]}{limits}"


class MemberEvaluation(Reference):
    """Estimates of a member by the held-out episodes for selection; NaN if the logs do not support an estimate."""

    index: int
    ope: Interval
    cost_ope: Interval
    gain: Interval
    """Gain over the logged controller."""
    supported: bool
    reason: str = ""
    """Reason if not supported; else empty."""
    outside: float
    """Discounted share of visited steps outside the logged data."""
    disagreement: float
    """Spread of the models' values, in standard deviations of the logged returns."""
    effective_rows: float


class RankedMember(Reference):
    """Rollouts of a member behind its shield."""

    score: Interval
    gain: Interval
    """Gain over the tuned controller in points of score, paired by episode."""
    violated: int
    """Episodes that violate a limit."""


class Ranking(Reference):
    """Rollouts that select the candidate, on episodes that neither training nor gates nor certification use."""

    members: tuple[RankedMember, ...]
    tuned_violated: int
    """Episodes in which the tuned controller violates a limit."""
    episodes: int

    def best(self, among: Sequence[int]) -> int:
        """Return the member with the highest lower bound of its gain.

        A member that violates limits in more episodes than the tuned controller ranks behind all other members.

        Args:
            among: indices of the members to choose from, at least one.
        """

        def key(index: int) -> tuple[bool, float]:
            member = self.members[index]
            lower = member.gain.lower
            if not math.isfinite(lower):
                return False, -math.inf
            return member.violated <= self.tuned_violated, lower

        return max(among, key=key)

    @property
    def found(self) -> str:
        gains = ", ".join(f"{member.gain.value:+.2f}" for member in self.members)
        return f"gains over the tuned controller in {self.episodes} episodes: {gains} points"


class Evaluation(Reference):
    """The selected member, and off-policy estimates: of all members on one half of the held-out episodes, and of the
    selected member's gain on the other half."""

    selected: int
    """Index among the population's members."""
    members: tuple[MemberEvaluation, ...]
    behaviour: Interval
    difference: Interval
    """Gain of the selected member over the logged controller."""
    supported: bool
    """Whether the logs support the estimates of the selected member; if not, differences are NaN."""
    reason: str = ""
    champion_difference: Interval | None = None
    """Gain over the champion; NaN if the logs do not support the estimate."""
    champion_unsupported: str = ""
    ranking: Ranking | None = None
    """Rollouts that selected the member; None for a log-only plant, where estimates select."""
    discount: float
    horizon: int = 0
    """Steps of the estimated return, at most the median logged length; 0 if not recorded."""
    episodes: int

    @property
    def unweighed(self) -> str:
        """Warning if the discount covers less than a tenth of the horizon; else empty."""
        if self.horizon * (1.0 - self.discount) <= 10.0 + 1e-9:
            return ""
        weighed = round(1.0 / (1.0 - self.discount))
        return (
            f"a discount of {self.discount:g} covers about {weighed:,} of {self.horizon:,} steps: later effects are "
            "hardly counted"
        )

    @property
    def unsupported(self) -> str:
        """Message that the logs do not support the estimate, with the reason if recorded."""
        return "not supported by the logs" + (f": {self.reason}" if self.reason else "")

    @property
    def found(self) -> str:
        gain = f"gain over the logged controller {self.difference}" if self.supported else self.unsupported
        return f"member {self.selected} selected, {gain}"


MOSTLY = 0.5
"""Reports mention the fallback if it decided more than this share of the steps."""


class ControllerRollouts(Reference):
    """Rollouts of one controller over the evaluation's episodes."""

    returns: Interval
    score: float
    violated: int
    episodes: int
    handovers_per_episode: float
    fallback_share: float
    """Share of all steps that the fallback decided."""
    least_margins: tuple[float, ...]


class Departure(Reference):
    """How far controllers leave the logs in their rollouts."""

    unlike: dict[str, float]
    """Share of a controller's steps that are farther from the training steps than 99 % of held-out steps; NaN if there
    are too few held-out steps."""
    beyond: dict[str, dict[str, float]]
    """Share of a controller's steps beyond the range of the training episodes, by signal or 'action NAME'."""
    steps: int
    """Compared steps of the candidate."""
    histograms: Path


class Rollouts(Reference):
    """Comparison of controllers on the same simulated episodes, which no selection has used."""

    controllers: dict[str, ControllerRollouts]
    differences: dict[str, Interval]
    """Return of the candidate minus that of each other controller, paired by episode."""
    score: float
    """Score of the candidate behind its shield."""
    departure: Departure | None = None
    """None in records of earlier versions."""
    trajectories: Path

    @property
    def found(self) -> str:
        versus = ", ".join(f"{found} against the {name}" for name, found in self.differences.items())
        share = self.controllers["candidate"].fallback_share
        mostly = f"; the fallback decided {share:.0%} of its steps" if share > MOSTLY else ""
        return f"return of the candidate {versus}; score {self.score:.1f}{mostly}"


class SignalError(Reference):
    """Root mean square prediction errors of the simulator for one signal, in the signal's unit."""

    logs: float
    domain: float
    """Largest error among plants of the operating domain, from logged states under logged actions."""
    spread: float


class SimulatorErrors(Reference):
    """Prediction errors of the simulator on held-out logs, and on plants of the operating domain."""

    signals: dict[str, SignalError]
    step: str = ""
    """Digest of the lowered program of the simulator's step; empty in early entries."""

    @property
    def found(self) -> str:
        return f"prediction errors of {len(self.signals)} signals on held-out logs and on plants of the domain"


class IdentifiedConstant(Reference):
    """Estimate of one constant, in the constant's unit."""

    name: str
    entry: int | None = None
    """Index in the field, if the field is a vector."""
    law: Literal["log-normal", "normal"]
    estimate: float
    lower: float
    upper: float
    """`lower` and `upper` are the ends of the marginal 95 % interval."""
    prior: float
    """Value in the plant's file."""
    deviation: float
    """Prior standard deviation, as a share of the value."""
    share: float
    """Posterior standard deviation as a share of the prior's."""
    identified: bool
    test: str = ""
    """Step test that would identify the constant, if it is not identified."""

    @property
    def label(self) -> str:
        return self.name if self.entry is None else f"{self.name}[{self.entry}]"

    def __str__(self) -> str:
        word = f"posterior {self.share:.2f} of the prior" if self.identified else f"not identified: {self.test}"
        return (
            f"{self.label} {self.estimate:.5g} [{self.lower:.5g}, {self.upper:.5g}], prior {self.prior:.5g} "
            f"± {100 * self.deviation:.2g} %; {word}"
        )


class Identification(Reference):
    """Posterior of a plant's unknown constants; empty if all constants are taken as known."""

    dataset: str = ""
    episodes: int = 0
    constants: tuple[IdentifiedConstant, ...] = ()
    domain: dict[str, float] = Field(default_factory=dict)
    """Additional fields of the operating domain: `neorl_core.identify.posterior_fields`."""

    @property
    def found(self) -> str:
        if not self.constants:
            return "no constants to identify: those in the plant's file are taken as known"
        lines = (f"identified from {self.episodes} episodes: {constant}" for constant in self.constants)
        return "\n".join(lines)


KNOWN = Identification()
"""Result for a run that estimates no constants."""
