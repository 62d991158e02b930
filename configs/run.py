"""Models of a run's YAML file, and of an opened run, which also names the code of its plant and algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.code import CodeReference, Origin, Site, UserCode
from configs.fallback import Fallback, Shadow, Support
from configs.strict import Approvers, ConstantName, Count, FilePath, Name, Strict

Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
Rare = Annotated[float, Field(ge=1e-9, lt=1.0)]
"""Probability that an episode violates a limit. Below 1e-9, a test would need more episodes than can be simulated."""
Confidence = Annotated[float, Field(gt=0.0, le=1.0 - 1e-9)]
# A hyper-parameter: a number, layer sizes, a name or an optimiser recipe. The algorithm checks the value.
Setting = float | int | Name | list[float | int] | dict[Name, float | int | str | None]

LOCATIONS = ("project", "spec")
"""Keys of a source that `OpenedRun.settings` leaves out: a path on this machine, and a whole document."""
ALWAYS_KEPT = ("plant", "source", "seed")
"""Keys that `OpenedRun.part` always keeps."""
NO_RESULT = ("approval", "approvers", "concurrency")
"""Keys that do not change the results of a run."""


class Data(Strict):
    """Settings for making a dataset from log files."""

    mapping: FilePath | None = None
    """Path of the mapping file, relative to the run's file. Without a mapping, NeoRL detects the format of the logs."""
    max_quarantined: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """NeoRL refuses a dataset if a larger share of the rows, or of the control steps, is quarantined."""
    max_gaps: Annotated[float, Field(ge=0.0, le=1.0)] = 0.25
    """NeoRL refuses a dataset if a larger share of control steps lacks a signal. Periods without rows do not count."""
    held_out: Fraction = 0.2
    """Share of episodes in the held-out split."""


class UnknownConstant(Strict):
    """Prior distribution of a constant that is estimated from logs. The centre is the value in the plant's file."""

    deviation: Annotated[float, Field(gt=0.0)]
    """Prior standard deviation, as a share of the value."""
    law: Literal["log-normal", "normal"] = "log-normal"
    """Form of the prior distribution; use normal if the constant may be positive or negative."""


class UnknownStart(Strict):
    """Prior distribution of a signal's first value in an episode, if the signal was measured with much noise."""

    deviation: Annotated[float, Field(gt=0.0)]
    """Prior standard deviation, in the signal's unit."""
    mean: float | None = None
    """Prior mean; the measured value by default."""


class Identify(Strict):
    """Estimation of plant constants from the logs."""

    constants: Annotated[dict[ConstantName, UnknownConstant], Field(min_length=1)]
    segment: Count = 5
    """Steps of one forecast from measured values. Choose enough steps for the constants to have a visible effect."""
    starts: dict[str, UnknownStart] = Field(default_factory=dict)
    """Prior distributions of first values, by the signal's name."""
    inputs: list[str] = Field(default_factory=list)
    """Names of external signals. Forecasts use their measured values, because the simulator does not predict them."""


class LearnerFile(Strict):
    """One algorithm and its settings, for one or several members of the population."""

    algorithm: CodeReference = "bptt"
    """Name of a built-in algorithm, or the location of its code, as for a plant."""
    updates: Count = 4_000
    seeds: Count = 2
    hyperparameters: dict[Name, Setting] = Field(default_factory=dict)
    """Hyper-parameters of all members, by name. Hyper-parameters that are not listed keep the algorithm's defaults."""
    grid: dict[Name, Annotated[list[float], Field(min_length=1)]] = Field(default_factory=dict)
    """Values to try, by the hyper-parameter's name. Each combination of values gives `seeds` members, each with
    a different seed."""
    best_episodes: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the training rows to learn from. The rows come from the episodes with the highest returns."""


class Learner(LearnerFile):
    """A learner of an opened run. `algorithm` is a name, and `source` locates the code."""

    source: UserCode | None = None
    """The algorithm's code; None for a built-in algorithm."""
    start: str | None = None
    """Digest of a fleet's shared weights, from which all members start; None to draw each member's initial weights."""

    @property
    def title(self) -> str:
        """Name of the learner for reports: the algorithm, and `best_episodes` if below 1.

        Example:
            >>> Learner(algorithm="bc", best_episodes=0.25).title
            'bc of the best 25 %'
        """
        share = f" of the best {100 * self.best_episodes:g} %" if self.best_episodes < 1.0 else ""
        return f"{self.algorithm}{share}"


DEFAULT_GRID: dict[Name, list[float]] = {"support": [0.3, 1.5]}
"""Penalties for leaving the logged data, two values for the default learner. Low values work best on large datasets,
high values on small datasets."""
FAST: dict[str, Setting] = {"actor_lr": 1e-3, "critic_lr": 1e-3}
"""Learning rates with which 16,000 updates suffice; the papers use 3e-4 and many more updates."""
CLONE_UPDATES = 12_000
CLONE: dict[str, Setting] = {"huber": 0.2, "actor_recipe": {"schedule": "cosine", "steps": CLONE_UPDATES}}
"""Settings of behaviour cloning. The Huber loss clones the median of the logged actions, because the mean may lie
between the actions of two controllers. The learning rate falls to zero because small errors matter at high gains."""
DEFAULT_BESIDE = (
    Learner(algorithm="iql", updates=16_000, seeds=1, hyperparameters={**FAST, "beta": 10.0, "expectile": 0.9}),
    Learner(
        algorithm="td3_bc",
        updates=16_000,
        seeds=1,
        hyperparameters={**FAST, "critics": 4, "discount": 0.97},
        grid={"alpha": [2.5, 10.0]},
    ),
    Learner(algorithm="bc", updates=CLONE_UPDATES, seeds=1, hyperparameters=CLONE),
)
"""Further learners that a run trains by default. Behaviour cloning is included because off-policy evaluation can always
estimate the value of a clone."""
DEFAULT_DISCRETE = (
    Learner(algorithm="discrete_cql", updates=8_000, seeds=2),
    Learner(algorithm="discrete_iql", updates=8_000, seeds=1),
    Learner(algorithm="discrete_bc", updates=4_000, seeds=1),
)
"""Default learners for a plant with a discrete action."""


class TrainFile(LearnerFile):
    """The population to train: the members of one learner, and of further learners under `beside`."""

    beside: list[LearnerFile] = Field(default_factory=list)
    """Further learners. If `train` has no key of a learner, such as `algorithm`, NeoRL trains its default learners."""
    batch_size: Count = 256
    checkpoint_every: Count = 2_000
    """Updates between two checkpoints. A killed run loses at most the updates after its last checkpoint."""
    ships: Literal["last", "best"] = "last"
    """Checkpoint from which the candidate is selected: the last, or the best by return in the learned model."""
    memory_mb: Annotated[float, Field(gt=0.0)] | None = None
    """Device memory for transitions, in MB; larger datasets are streamed from disk."""
    members: Literal["auto", "vmapped", "processes"] = "auto"
    """vmapped: one process trains all members. processes: one process per member. auto: the faster, for a long run."""
    devices: Count = 1
    """Number of devices. Members are divided among devices, or each batch is, if members cannot be divided evenly."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products. bfloat16 needs an accelerator that supports it."""

    @model_validator(mode="before")
    @classmethod
    def _default_learners(cls, given: object) -> object:
        if not isinstance(given, dict) or given.keys() & {"beside", *Learner.model_fields}:
            return given
        return {**given, "beside": list(DEFAULT_BESIDE), "seeds": 1, "grid": dict(DEFAULT_GRID)}


class Train(TrainFile, Learner):
    """The population of an opened run."""

    beside: list[Learner] = Field(default_factory=list)  # type: ignore[assignment]

    def for_discrete_action(self) -> Train:
        """Return the training with the default learners for a discrete action, unless the run names an algorithm."""
        if "algorithm" in self.model_fields_set:
            return self
        first, *beside = DEFAULT_DISCRETE
        unset = {"algorithm", "updates", "seeds"} - self.model_fields_set
        change: dict[str, object] = {name: getattr(first, name) for name in unset}
        if self.beside == list(DEFAULT_BESIDE):
            change |= {"beside": beside, "seeds": first.seeds, "grid": dict(first.grid)}
        return self.model_copy(update=change)

    def single_learners(self) -> tuple[Train, ...]:
        """Return one training for each learner."""
        first = self.model_copy(update={"beside": []})
        return first, *(first.model_copy(update=dict(learner)) for learner in self.beside)


class SharedFile(Strict):
    """A policy that is trained on the logs of all sites of a fleet and fine-tuned for each site."""

    algorithm: Name = "td3_bc"
    """Name of a built-in algorithm."""
    updates: Count = 8_000
    """Gradient steps on the rows of all sites."""
    fine_tune: Count = 2_000
    """Further gradient steps on the rows of one site, at most thirty passes over these rows."""
    hyperparameters: dict[Name, Setting] = Field(default_factory=dict)


class Shared(SharedFile):
    """The shared policy of an opened run."""

    fleet: str = ""
    """Name of the fleet."""

    def pooled(self) -> Learner:
        """Return the learner for the rows of all sites."""
        return Learner(
            algorithm=self.algorithm, updates=self.updates, seeds=1, hyperparameters=self.hyperparameters, grid={}
        )

    def fine_tuned(self, start: str | None) -> Learner:
        """Return the learner that fine-tunes the shared policy on the rows of one site.

        Args:
            start: digest of the shared weights.
        """
        return self.pooled().model_copy(update={"updates": self.fine_tune, "start": start})


class Shield(Strict):
    """Limits of a policy's actions, and the conditions for the hand-over to the fallback."""

    look_ahead: Annotated[int, Field(ge=1, le=1_000)] = 12
    """Steps that the shield predicts. The policy acts only if the fallback could keep all limits in these steps."""
    hold: Annotated[int, Field(ge=0)] = 5
    """Minimum number of steps for which the fallback stays in control."""
    dwell: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Minimum number of steps between two changes of a discrete action. Policy and fallback keep this minimum."""
    buffers: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """Smallest distance to a limit at every predicted step, by the limit's name, in the limit's unit. Default: an
    eighth of the range between the low and the high limit. A limit with one side needs a value."""
    return_buffers: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """Additional distance to a limit, beyond the buffer, before the policy acts again. Default: half of the buffer."""
    rate_limits: dict[Name, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """Largest change of an action in one step, by the action's name, in the action's unit. Default: the action's range;
    for a log-only plant, the largest logged change."""
    envelope: Annotated[float, Field(ge=0.0)] = 1.0
    """Largest distance from the training data at which the policy acts, in standard deviations of the data."""


class Evaluate(Strict):
    """Off-policy evaluation on the held-out split, and rollouts for the report."""

    model_updates: Count = 3_000
    """Gradient steps for fitting the learned models that off-policy evaluation uses."""
    bootstraps: Annotated[int, Field(ge=2)] = 1_000
    discount: Fraction = 0.99
    confidence: Fraction = 0.95
    rollouts: Count = 256


class Certify(Strict):
    """The certificate's claim: over the operating domain, P(episode violates a limit) <= p0, with this confidence."""

    p0: Rare = 1e-3
    confidence: Confidence = 0.95
    max_episodes: Count | None = None
    """Largest number of simulated episodes. Default: enough to prove the claim even if ten episodes violate a limit."""
    domain: dict[Name, float] = Field(default_factory=dict)
    """Parameters of the operating domain, by name. Parameters that are not listed keep the plant's defaults."""


class Gates(Strict):
    """Requirements on a candidate in addition to the certificate."""

    beat_plant: bool = True
    """Whether a candidate must be better than the tuned controller. If false, NeoRL only reports the comparison."""


class RunFile(Strict):
    """The keys of `configs/<plant>.yaml`."""

    plant: CodeReference
    """Name of a plant, or the location of its code: a file of the project, or `package.module:PLANT`."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: Data = Data()
    history: dict[str, Count] = Field(default_factory=dict)
    """Number of earlier values that policies see in addition to the observation, by name of the signal or action."""
    train: TrainFile = TrainFile()
    identify: Identify | None = None
    """Plant constants to estimate from the logs; none by default."""
    shield: Shield = Shield()
    evaluate: Evaluate = Evaluate()
    certify: Certify = Certify()
    gates: Gates = Gates()
    fallback: Fallback | None = None
    """Fallback of a plant without a simulator; a simulated plant uses its tuned controller."""
    support: Support = Support()
    shadow: Shadow = Shadow()
    approval: Literal["auto", "required"] = "required"
    approvers: Approvers | None = None
    """Approvers that the plant's first run writes into the safety policy. Default: one person."""
    concurrency: Literal["wait", "refuse"] = "refuse"
    """Whether a run waits or is refused while the same plant has an active run. A deployment's runs always wait."""

    @model_validator(mode="after")
    def _approvers_match_approval(self) -> RunFile:
        if self.approvers is not None and (self.approvers.count == 0) is not (self.approval == "auto"):
            raise ValueError(
                f"approval is {self.approval} but approvers.count is {self.approvers.count}; use count 0 with "
                "approval auto, and at least 1 with approval required"
            )
        return self


class OpenedRun(RunFile):
    """A run's file after loading. `plant` and each `algorithm` are names, and `source` locates the code."""

    source: Origin | None = None
    """The plant's code or description; None for a built-in plant, and before `tasks.models.plants.opening` locates
    the code."""
    site: Site | None = None
    """The site, if the run belongs to a fleet; else None."""
    shared: Shared | None = None
    """The policy that all sites of the fleet share; None without such a policy."""
    train: Train = Train()

    def part(self, *names: str) -> OpenedRun:
        """Return a copy with the named parts, plant, source and seed. All other keys have their defaults.

        A cached task takes one part as an argument, so that changes of other parts do not repeat the task.

        Args:
            names: sections such as "train", keys of a section such as "data.held_out", or keys of the run such as
                "approval".

        Raises:
            ValueError: if there is no section or key of that name.

        Example:
            >>> run = OpenedRun(plant="double_mass", seed=3, train=Train(updates=10), approval="auto")
            >>> run.part("train") == OpenedRun(plant="double_mass", seed=3, train=Train(updates=10))
            True
        """
        kept: dict[str, object] = {"plant": self.plant, "source": self.source, "seed": self.seed}
        for name in names:
            if name in ALWAYS_KEPT:
                continue
            section, dot, key = name.partition(".")
            value = getattr(self, section, None)
            known = section in OpenedRun.model_fields
            if not known or (dot and not (isinstance(value, Strict) and key in type(value).model_fields)):
                raise ValueError(
                    f"a run has no section or key {name!r}: choose a section from {', '.join(OpenedRun.model_fields)}"
                )
            if key:
                assert isinstance(value, Strict)
                defaults = kept.get(section, type(value)())
                assert isinstance(defaults, Strict)
                value = defaults.model_copy(update={key: getattr(value, key)})
            kept[section] = value
        return OpenedRun.model_validate(kept)

    def for_training(self) -> OpenedRun:
        """Return the parts of the run on which the training depends."""
        more = ["evaluate"] if self.train.ships == "best" else []
        return self.part("train", "history", "shield", "data.held_out", "certify.domain", *more)

    def settings(self) -> Iterator[tuple[str, str]]:
        """Yield the dotted name and the text of every setting on which results depend.

        Example:
            >>> dict(OpenedRun(plant="double_mass").settings())["train.algorithm"]
            'bptt'
        """
        kept = self.model_dump(mode="json", exclude={"data": {"mapping"}, **dict.fromkeys(NO_RESULT, True)})
        for name, value in flattened(kept):
            *_, part, last = ("", *name.split("."))
            if last != "source" and not (part in ("source", "code") and last in LOCATIONS):
                yield name, value


def flattened(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the text of every value in nested mappings and lists of mappings.

    Example:
        >>> list(flattened({"a": {"b": 1}, "c": [{"d": 2}]}))
        [('a.b', '1'), ('c.0.d', '2')]
    """
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flattened(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, str(value)
