"""Models of a run's YAML file, and of the run that the program makes of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.code import CodeReference, Origin, Site, UserCode
from configs.fallback import Fallback, Shadow, Support
from configs.strict import Approvers, ConstantName, Count, FilePath, Name, Strict

Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
Rare = Annotated[float, Field(ge=1e-9, lt=1.0)]
"""Probability of a violation; below 1e-9 a certificate would need more episodes than can be simulated."""
Confidence = Annotated[float, Field(gt=0.0, le=1.0 - 1e-9)]
# A number, layer sizes, a name or an optimiser recipe; each algorithm checks its own settings.
Setting = float | int | Name | list[float | int] | dict[Name, float | int | str | None]

LOCATIONS = ("project", "spec")
"""Keys of a source with paths on this machine or whole documents; they are no settings."""
ALWAYS_KEPT = ("plant", "source", "seed")
"""Keys that `OpenedRun.part` always keeps."""
NO_RESULT = ("approval", "approvers", "concurrency")
"""Keys that change no result."""


class Data(Strict):
    """How the files named on the command line become a dataset."""

    mapping: FilePath | None = None
    """Mapping of a historian's tags, relative to the run's file. Without a mapping the format is recognised."""
    max_quarantined: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of raw rows, and of control steps, that may be quarantined before the dataset is refused."""
    max_gaps: Annotated[float, Field(ge=0.0, le=1.0)] = 0.25
    """Share of control steps at which a signal may be missing. Periods without any row do not count."""
    held_out: Fraction = 0.2
    """Share of episodes in the held-out split."""


class UnknownConstant(Strict):
    """Prior of a plant constant that is estimated from logs, centred at the value in the plant's file."""

    deviation: Annotated[float, Field(gt=0.0)]
    """Prior standard deviation, as a share of the value."""
    law: Literal["log-normal", "normal"] = "log-normal"
    """Prior distribution; use normal if the constant may change sign."""


class UnknownStart(Strict):
    """Prior of a signal whose initial value in each episode was measured with significant noise."""

    deviation: Annotated[float, Field(gt=0.0)]
    """Prior standard deviation, in the signal's unit."""
    mean: float | None = None
    """Prior mean; the measured value by default."""


class Identify(Strict):
    """Estimation of plant constants from the logs."""

    constants: Annotated[dict[ConstantName, UnknownConstant], Field(min_length=1)]
    segment: Count = 5
    """Steps of a forecast before it restarts from measurements: long enough to show the constants' effect."""
    starts: dict[str, UnknownStart] = Field(default_factory=dict)
    """Unknown initial values, by signal."""
    inputs: list[str] = Field(default_factory=list)
    """External signals that the plant does not predict: their measured values are used at every step."""


class LearnerFile(Strict):
    """One algorithm and the population members that it trains."""

    algorithm: CodeReference = "bptt"
    """Name of a built-in algorithm, or the location of its code, as for a plant."""
    updates: Count = 4_000
    seeds: Count = 2
    hyperparameters: dict[Name, Setting] = Field(default_factory=dict)
    """Overrides of the algorithm's defaults for all members."""
    grid: dict[Name, Annotated[list[float], Field(min_length=1)]] = Field(default_factory=dict)
    """Hyper-parameters in which members differ. There are seeds x (product of these lists) members, each with a seed of
    its own."""
    best_episodes: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the training rows to learn from: the episodes with the highest returns."""


class Learner(LearnerFile):
    """A learner of an opened run: `algorithm` is a name."""

    source: UserCode | None = None
    """The algorithm's code; None for a built-in algorithm."""
    start: str | None = None
    """Digest of the initial weights that members of a fleet's run share; None to draw weights by seed."""

    @property
    def title(self) -> str:
        """The algorithm, and the share of episodes that it learns from.

        Example:
            >>> Learner(algorithm="bc", best_episodes=0.25).title
            'bc of the best 25 %'
        """
        share = f" of the best {100 * self.best_episodes:g} %" if self.best_episodes < 1.0 else ""
        return f"{self.algorithm}{share}"


DEFAULT_GRID: dict[Name, list[float]] = {"support": [0.3, 1.5]}
"""Penalties for leaving the data, of the default learner. Low values work best on large datasets; small datasets need
high values."""
FAST: dict[str, Setting] = {"actor_lr": 1e-3, "critic_lr": 1e-3}
"""Learning rates with which 16,000 updates suffice; the papers use 3e-4 and many more updates."""
CLONE_UPDATES = 12_000
CLONE: dict[str, Setting] = {"huber": 0.2, "actor_recipe": {"schedule": "cosine", "steps": CLONE_UPDATES}}
"""A Huber loss clones the median of the logged actions, which is a real action where actions saturate or several
controllers acted. The learning rate falls to zero because the remaining error of a steep controller acts as drift."""
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
"""Learners beside the default learner if a run names none; off-policy evaluation selects among their members. Behaviour
cloning is included because its value can always be estimated off-policy."""
DEFAULT_DISCRETE = (
    Learner(algorithm="discrete_cql", updates=8_000, seeds=2),
    Learner(algorithm="discrete_iql", updates=8_000, seeds=1),
    Learner(algorithm="discrete_bc", updates=4_000, seeds=1),
)
"""Learners of a plant with a discrete action if a run names none."""


class TrainFile(LearnerFile):
    """The population to train: a first learner, and further learners beside it."""

    beside: list[LearnerFile] = Field(default_factory=list)
    """Further learners. If `train` sets no key of a learner, the default learners are trained."""
    batch_size: Count = 256
    checkpoint_every: Count = 2_000
    """Updates between checkpoints: the most that a killed run loses."""
    ships: Literal["last", "best"] = "last"
    """Checkpoint with the policies to select from: the last, or the best in the learned model."""
    memory_mb: Annotated[float, Field(gt=0.0)] | None = None
    """Device memory for transitions, in MB; larger datasets are streamed from disk."""
    members: Literal["auto", "vmapped", "processes"] = "auto"
    """Whether members share one program or run in a process each; auto measures which is faster if a run is long."""
    devices: Count = 1
    """Devices over which members are spread; batches are spread if the members do not divide evenly."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products; bfloat16 only on accelerators that support it."""

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
        """Replace defaults by those for a discrete action, unless the run names an algorithm."""
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
    """Further gradient steps on a site's own rows, for at most thirty passes over them."""
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
        """Return the learner that a site continues with.

        Args:
            start: digest of the shared weights.
        """
        return self.pooled().model_copy(update={"updates": self.fine_tune, "start": start})


class Shield(Strict):
    """Limits of a policy's actions, and the conditions for the hand-over to the fallback."""

    look_ahead: Annotated[int, Field(ge=1, le=1_000)] = 12
    """Predicted steps within which the fallback must be able to keep all limits."""
    hold: Annotated[int, Field(ge=0)] = 5
    """Minimum number of steps for which the fallback stays in control."""
    dwell: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Minimum number of steps between changes of a discrete action, by policy or fallback."""
    buffers: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """Margin to keep to a limit at every predicted step, by the limit's name and in its unit. Default: an eighth of the
    distance between two limits. A one-sided limit needs a value."""
    return_buffers: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """Further margin before the policy regains control. Default: half of the buffer."""
    rate_limits: dict[Name, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """Largest change of an action in one step, by its name and in its unit. Default: the whole range; without a
    simulator the largest logged change."""
    envelope: Annotated[float, Field(ge=0.0)] = 1.0
    """Largest distance from the training data at which the policy acts, in standard deviations of the data."""


class Evaluate(Strict):
    """Off-policy evaluation on the held-out split, and rollouts for the report."""

    model_updates: Count = 3_000
    """Gradient steps of the learned models; off-policy evaluation corrects the values that they estimate."""
    bootstraps: Annotated[int, Field(ge=2)] = 1_000
    discount: Fraction = 0.99
    confidence: Fraction = 0.95
    rollouts: Count = 256


class Certify(Strict):
    """The certificate's claim: P(violation) <= p0 with this confidence, over the operating domain."""

    p0: Rare = 1e-3
    confidence: Confidence = 0.95
    max_episodes: Count | None = None
    """Episodes after which the test stops. Default: enough to prove the claim despite ten violations."""
    domain: dict[Name, float] = Field(default_factory=dict)
    """Overrides of the plant's default operating domain."""


class Gates(Strict):
    """Requirements on a candidate in addition to the certificate."""

    beat_plant: bool = True
    """Whether a candidate must beat the tuned controller, on logs and simulator; if false, only report it."""


class RunFile(Strict):
    """The keys of `configs/<plant>.yaml`."""

    plant: CodeReference
    """Name of a plant, or the location of its code: a file of the project, or `package.module:PLANT`."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: Data = Data()
    history: dict[str, Count] = Field(default_factory=dict)
    """Number of earlier values of a signal or action that policies see beside the observation, by name."""
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
    """Approvers written into the plant's safety policy at its first run; one person by default."""
    concurrency: Literal["wait", "refuse"] = "refuse"
    """Behaviour of a second run of the same plant while a run is active; a deployment's runs always wait."""

    @model_validator(mode="after")
    def _approvers_match_approval(self) -> RunFile:
        if self.approvers is not None and (self.approvers.count == 0) is not (self.approval == "auto"):
            raise ValueError(
                f"approval is {self.approval} but approvers.count is {self.approvers.count}; use count 0 with "
                "approval auto, and at least 1 with approval required"
            )
        return self


class OpenedRun(RunFile):
    """A run's file after loading: `plant` and algorithms are names, and the located code is in `source`."""

    source: Origin | None = None
    """The plant's code or description; None for a built-in plant, and before the run is opened
    (`tasks.models.plants.opening`)."""
    site: Site | None = None
    """The fleet's site that the run is for; None without a fleet."""
    shared: Shared | None = None
    """The policy that all sites of the fleet share; None without a fleet."""
    train: Train = Train()

    def part(self, *names: str) -> OpenedRun:
        """Return a copy with the named parts, the plant, its source and the seed; all else has its default.

        A cached task takes such a part as an argument, so that it runs again only if the part changes.

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
                    f"a run has no section or key {name!r}; its sections are {', '.join(OpenedRun.model_fields)}"
                )
            if key:
                assert isinstance(value, Strict)
                defaults = kept.get(section, type(value)())
                assert isinstance(defaults, Strict)
                value = defaults.model_copy(update={key: getattr(value, key)})
            kept[section] = value
        return OpenedRun.model_validate(kept)

    def for_training(self) -> OpenedRun:
        """Return the part that training depends on."""
        return self.part(
            "train", "history", "shield", "data.held_out", *(["evaluate"] if self.train.ships == "best" else [])
        )

    def settings(self) -> Iterator[tuple[str, str]]:
        """Yield the dotted name and text of every setting that results depend on.

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
    """Yield the dotted name and text of every leaf of nested mappings and lists of mappings.

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
