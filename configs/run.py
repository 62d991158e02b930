"""What a run may say: every key of `configs/<plant>.yaml`, its type, range and default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.code import CodeReference, Origin, Site, UserCode
from configs.fallback import Fallback, Shadow, Support
from configs.strict import Approvers, ConstantName, Count, FilePath, Name, Strict

Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
Rare = Annotated[float, Field(ge=1e-9, lt=1.0)]
"""A probability of violation: one that is smaller takes more episodes than a year has seconds for."""
Confidence = Annotated[float, Field(gt=0.0, le=1.0 - 1e-9)]
# A number, sizes of layers, a name, or a recipe of an optimiser: the algorithm says which of its settings takes what.
Setting = float | int | Name | list[float | int] | dict[Name, float | int | str | None]

PLACES = ("project", "spec")
"""Of a source, what is no setting: where it lies on this machine, and a whole document."""
ALWAYS = ("plant", "source", "seed")
"""Keys that every part of a run keeps."""
DECIDES_NOTHING = ("approval", "approvers", "concurrency")
"""Keys that change no result: who decides, and what waits."""


class Data(Strict):
    """How files named on the command line become a dataset."""

    mapping: FilePath | None = None
    """Mapping file of a historian's tags, relative to the run's own file; without one the format is recognised."""
    max_quarantined: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of raw rows, and of rows or control steps, that may fail before the dataset is refused."""
    max_gaps: Annotated[float, Field(ge=0.0, le=1.0)] = 0.25
    """Share of control steps at which a signal may not have been archived; a week without any row is none of them."""
    held_out: Fraction = 0.2
    """Share of episodes kept from training, for selection."""


class UnknownConstant(Strict):
    """How well a constant was known before: about its value in the plant's file."""

    deviation: Annotated[float, Field(gt=0.0)]
    """Prior standard deviation, as a share of that value."""
    law: Literal["log-normal", "normal"] = "log-normal"
    """The prior; one that may change its sign is normal."""


class UnknownStart(Strict):
    """A signal whose value at the start of each episode was measured only with noise that matters."""

    deviation: Annotated[float, Field(gt=0.0)]
    """Prior standard deviation, in the signal's unit."""
    mean: float | None = None
    """Prior mean; what was measured where there is none."""


class Identify(Strict):
    """What is estimated from the logs, and how."""

    constants: Annotated[dict[ConstantName, UnknownConstant], Field(min_length=1)]
    segment: Count = 5
    """Steps of a forecast before it begins anew from what was measured: about as long as the constants take to show."""
    starts: dict[str, UnknownStart] = Field(default_factory=dict)
    """By signal."""
    inputs: list[str] = Field(default_factory=list)
    """Signals that act on the plant from outside and that it does not predict: taken as measured at every step."""


class Learner(Strict):
    """One algorithm, and the members of a population that are trained by it."""

    algorithm: CodeReference = "bptt"
    """One of ours by its name, or where its code is, as for a plant. An opened run has the name."""
    source: UserCode | None = Field(default=None, repr=False)
    """Where the algorithm comes from, which opening a run finds out; None of one of ours."""
    updates: Count = 4_000
    seeds: Count = 2
    hyperparameters: dict[Name, Setting] = Field(default_factory=dict)
    """Overrides of the algorithm's own defaults, the same for all its members."""
    grid: dict[Name, Annotated[list[float], Field(min_length=1)]] = Field(default_factory=dict)
    """Hyper-parameters that its members differ in; there are seeds x the product of these lists, and no two of
    them have a seed in common."""
    best_episodes: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the training rows that it learns from: the episodes of the highest returns; all by default."""
    start: str | None = Field(default=None, repr=False)
    """Digest of the weights that its members begin with, which a fleet's retraining finds; seeds draw them without."""

    @property
    def words(self) -> str:
        """The algorithm, and which episodes it learns from where those are not all.

        Example:
            >>> Learner(algorithm="bc", best_episodes=0.25).words
            'bc of the best 25 %'
        """
        share = f" of the best {100 * self.best_episodes:g} %" if self.best_episodes < 1.0 else ""
        return f"{self.algorithm}{share}"


CAREFUL: dict[Name, list[float]] = {"support": [0.3, 1.5]}
"""What members of the default learner differ in, in a run that names none: how much they pay for leaving the logs. Of
logs that say much a low price makes more; of those that say little, only what a high one keeps near is supported. On
NeoRL-2's DMSD two seeds of twenty failed at .3 and at 10, so that each member has a seed of its own."""
FAST: dict[str, Setting] = {"actor_lr": 1e-3, "critic_lr": 1e-3}
"""Rates at which 16,000 updates come as far as the papers' 3e-4 in many more."""
CLONED = 12_000
"""Updates of a clone."""
CLONE: dict[str, Setting] = {"huber": 0.2, "actor_recipe": {"schedule": "cosine", "steps": CLONED}}
"""Nearer to the median of the logged actions than to their mean: the median is a controller's own action where its
noise is cut at a bound, and one of theirs where there were several. And by a rate that falls to nothing, for where a
controller is steep, what a clone errs by at the last rate is a drift."""
BESIDE = (
    Learner(algorithm="iql", updates=16_000, seeds=1, hyperparameters={**FAST, "beta": 10.0, "expectile": 0.9}),
    Learner(
        algorithm="td3_bc",
        updates=16_000,
        seeds=1,
        hyperparameters={**FAST, "critics": 4, "discount": 0.97},
        grid={"alpha": [2.5, 10.0]},
    ),
    Learner(algorithm="bc", updates=CLONED, seeds=1, hyperparameters=CLONE),
)
"""What learns beside the default learner, in a run that names none: logs differ in what they can teach, and evaluation
on the held-out episodes chooses. The clone of the logged controller is the one whose estimate the logs support when
they support none of the others.
docs/training.md says how the settings were found."""
CHOOSING = (
    Learner(algorithm="discrete_cql", updates=8_000, seeds=2),
    Learner(algorithm="discrete_iql", updates=8_000, seeds=1),
    Learner(algorithm="discrete_bc", updates=4_000, seeds=1),
)
"""What learns where a plant's action is discrete and a run names no algorithm."""


class Train(Learner):
    """The population that is trained: a first learner, and others beside it."""

    beside: list[Learner] = Field(default_factory=list)
    """Further learners. A run that says nothing of any learner trains the default one at `CAREFUL`, with `BESIDE`."""
    batch_size: Count = 256
    checkpoint_every: Count = 2_000
    """Updates between checkpoints: what a killed run may lose."""
    ships: Literal["last", "best"] = "last"
    """Which checkpoint's policies become candidates: the last, or the one worth most in the learned model."""
    memory_mb: Annotated[float, Field(gt=0.0)] | None = None
    """Device memory for transitions, in 10^6 bytes; what does not fit is streamed from disk."""
    members: Literal["auto", "vmapped", "processes"] = "auto"
    """Whether members share one program or run in a process each; auto measures which is faster when a run is long."""
    devices: Count = 1
    """Devices that the members are spread over; batches are spread where the members do not divide evenly."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products; bfloat16 only on accelerators that have it."""

    @model_validator(mode="before")
    @classmethod
    def _mixed_by_default(cls, given: object) -> object:
        untold = isinstance(given, dict) and not given.keys() & {"beside", *Learner.model_fields}
        default = {"beside": list(BESIDE), "seeds": 1, "grid": dict(CAREFUL)}
        return {**given, **default} if isinstance(given, dict) and untold else given

    def choosing(self) -> Train:
        """The same training of a discrete action: `CHOOSING`, as far as nothing else was said."""
        if "algorithm" in self.model_fields_set:
            return self
        first, *beside = CHOOSING
        untold = {"algorithm", "updates", "seeds"} - self.model_fields_set
        change: dict[str, object] = {name: getattr(first, name) for name in untold}
        if self.beside == list(BESIDE):
            change |= {"beside": beside, "seeds": first.seeds, "grid": dict(first.grid)}
        return self.model_copy(update=change)

    def alone(self) -> tuple[Train, ...]:
        """The same training with each of its learners alone."""
        first = self.model_copy(update={"beside": []})
        return first, *(first.model_copy(update=dict(learner)) for learner in self.beside)


class Shared(Strict):
    """A policy that the sites of a fleet share, and from which each goes on by itself."""

    algorithm: Name = "td3_bc"
    """One of ours."""
    updates: Count = 8_000
    """Gradient steps on the rows of all sites."""
    fine_tune: Count = 2_000
    """Gradient steps that a site then makes on its own rows, but for at most thirty passes over them."""
    hyperparameters: dict[Name, Setting] = Field(default_factory=dict)
    fleet: str = Field(default="", repr=False)
    """Whose sites share it, as the fleet's file says."""

    def pooled(self) -> Learner:
        """What is trained on the rows of all sites."""
        return Learner(
            algorithm=self.algorithm, updates=self.updates, seeds=1, hyperparameters=self.hyperparameters, grid={}
        )

    def going_on(self, start: str | None) -> Learner:
        """What a site trains further, from the weights of a digest."""
        return self.pooled().model_copy(update={"updates": self.fine_tune, "start": start})


class Shield(Strict):
    """What limits a policy's actions, and when the plant's own controller takes over."""

    look_ahead: Annotated[int, Field(ge=1, le=1_000)] = 12
    """Predicted steps, in which the plant's own controller must be able to turn the plant around."""
    hold: Annotated[int, Field(ge=0)] = 5
    """Least number of steps for which the plant's own controller keeps control."""
    dwell: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Least number of steps between two changes of a discrete action, which bind the plant's own controller too."""
    buffers: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """What must be left of a limit at every predicted step, by the limit's name and in its unit; an eighth of the width
    between two limits by default. A limit on one side has no width, so its buffer must be given."""
    return_buffers: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """What must be left beyond the buffer before the policy gets control back; half of the buffer by default."""
    rate_limits: dict[Name, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """Largest change of an action in one step, by its name and in its unit; by default its whole range, in a process
    the largest that was logged."""
    envelope: Annotated[float, Field(ge=0.0)] = 1.0
    """How far beyond its training data the policy is trusted, in their standard deviations."""


class Evaluate(Strict):
    """Off-policy evaluation on held-out episodes, and rollouts for the record."""

    model_updates: Count = 3_000
    """Gradient steps of the learned models whose guesses of values evaluation corrects."""
    bootstraps: Annotated[int, Field(ge=2)] = 1_000
    discount: Fraction = 0.99
    confidence: Fraction = 0.95
    rollouts: Count = 256


class Certify(Strict):
    """The statistical certificate: P(violation) <= p0 with this confidence, over this operating domain."""

    p0: Rare = 1e-3
    confidence: Confidence = 0.95
    max_episodes: Count | None = None
    """Episodes after which the test gives up; by default what the claim needs with ten violations."""
    domain: dict[Name, float] = Field(default_factory=dict)
    """Overrides of the plant's default operating domain."""


class Gates(Strict):
    """What a candidate has to show besides its certificate."""

    beat_plant: bool = True
    """Whether a candidate must beat the plant's own controller, on logs and on the simulator, or this is only shown."""


class RunConfig(Strict):
    """One run of the retraining flow."""

    plant: CodeReference
    """A plant's name, or where its code is: a file of the project, or `package.module:PLANT`. An opened run
    (`tasks.models.plants.opening`) has the name."""
    source: Origin | None = Field(default=None, repr=False)
    """Where the plant comes from, which opening a run finds out; None of one of ours."""
    site: Site | None = Field(default=None, repr=False)
    """Which site of a fleet the run is of, as the fleet's file says; None of a plant by itself."""
    shared: Shared | None = Field(default=None, repr=False)
    """The policy that the fleet's sites share, as the fleet's file says; None of a plant by itself."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: Data = Data()
    history: dict[str, Count] = Field(default_factory=dict)
    """How many earlier values of a signal or an action policies see beside the observation, by its name."""
    train: Train = Train()
    identify: Identify | None = None
    """Constants of a simulated plant that are estimated from its logs; none when not given."""
    shield: Shield = Shield()
    evaluate: Evaluate = Evaluate()
    certify: Certify = Certify()
    gates: Gates = Gates()
    fallback: Fallback | None = None
    """What takes over in a process without a simulator; a simulated plant has its own controller."""
    support: Support = Support()
    shadow: Shadow = Shadow()
    approval: Literal["auto", "required"] = "required"
    approvers: Approvers | None = None
    """Who must approve, as the plant's safety policy is drafted at its first run; one person when not given."""
    concurrency: Literal["wait", "refuse"] = "refuse"
    """What a second run of the same plant does while one is going on; a deployment's waits, whatever stands here."""

    @model_validator(mode="after")
    def _persons_are_asked(self) -> RunConfig:
        if self.approvers is not None and (self.approvers.count == 0) is not (self.approval == "auto"):
            told = f"approval: {self.approval} and {self.approvers.count} approvers"
            raise ValueError(f"expected persons as 'approvers' where approval is required, and none else, got {told}")
        return self

    def part(self, *names: str) -> RunConfig:
        """A copy that keeps only what is named, and the plant, its source and the seed; all else is at its default.

        A stage that is given a part of the configuration, and is cached under it, runs again only when that part
        changes.

        Args:
            names: sections such as "train", keys of a section such as "data.held_out", or keys of the run such as
                "approval".

        Returns:
            The reduced configuration.

        Raises:
            ValueError: when there is no section or key of that name.

        Example:
            >>> run = RunConfig(plant="double_mass", seed=3, train=Train(updates=10), approval="auto")
            >>> run.part("train") == RunConfig(plant="double_mass", seed=3, train=Train(updates=10))
            True
        """
        kept: dict[str, object] = {"plant": self.plant, "source": self.source, "seed": self.seed}
        for name in names:
            if name in ALWAYS:
                continue
            section, dot, key = name.partition(".")
            value = getattr(self, section, None)
            known = section in RunConfig.model_fields
            if not known or (dot and not (isinstance(value, Strict) and key in type(value).model_fields)):
                raise ValueError(f"expected a section or key of a run's configuration, got {name!r}")
            if key:
                assert isinstance(value, Strict)
                defaults = kept.get(section, type(value)())
                assert isinstance(defaults, Strict)
                value = defaults.model_copy(update={key: getattr(value, key)})
            kept[section] = value
        return RunConfig.model_validate(kept)

    def for_training(self) -> RunConfig:
        """What members depend on: training, history, shield, and the evaluation where it says what ships."""
        return self.part(
            "train", "history", "shield", "data.held_out", *(["evaluate"] if self.train.ships == "best" else [])
        )

    def settings(self) -> Iterator[tuple[str, str]]:
        """Every setting that the run's results depend on, by its dotted name; approval and concurrency change none.

        Example:
            >>> dict(RunConfig(plant="double_mass").settings())["train.algorithm"]
            'bptt'
        """
        kept = self.model_dump(mode="json", exclude={"data": {"mapping"}, **dict.fromkeys(DECIDES_NOTHING, True)})
        for name, value in named(kept):
            *_, part, last = ("", *name.split("."))
            if last != "source" and not (part in ("source", "code") and last in PLACES):
                yield name, value


def named(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings, and lists of such, as dotted names with the text of what they hold.

    Example:
        >>> list(named({"a": {"b": 1}, "c": [{"d": 2}]}))
        [('a.b', '1'), ('c.0.d', '2')]
    """
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from named(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, str(value)
