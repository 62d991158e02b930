"""Tune the controller of a user's plant in its simulator, within the ranges that the plant's file declares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from configs.code import UserCode
from configs.errors import BadInput, Refused, nearest, printable
from neorl_core.control.search import Effort, Space, judge, search
from neorl_core.safety.bounds import (
    Interval,
    clopper_pearson_lower,
    clopper_pearson_upper,
    paired_difference_interval,
)
from neorl_core.types import Params
from tasks.models.plants.known import KnownPlant
from tasks.models.user_code.loading import import_code, tree_of
from tasks.simulate import score

if TYPE_CHECKING:
    from tasks.progress import Report

TUNABLE = "TUNABLE"
"""Name in a plant's file: mapping from parameters of `fallback_params` to ranges."""
EFFORT = Effort(starts=512, episodes=8, rounds=16, draws=64, draw_episodes=32, fresh=512)
EPISODES = 2_048
"""New episodes on which the tuned and the present parameters are compared."""
DIGITS = 4
"""Significant digits of tuned parameters. The rounded parameters are the ones that are compared."""
SUGGESTED = 5.0
"""Ratio of the ends of suggested ranges to the present value."""
MOST_SUGGESTED = 3
LARGEST = float(np.finfo(np.float32).max)


class Parameter(NamedTuple):
    """One tuned number."""

    name: str
    low: float
    high: float
    now: float
    tuned: float

    @property
    def remark(self) -> str:
        """Text for a number at an end of its range, where a wider range may be better, and for one outside."""
        at_end = min(self.tuned - self.low, self.high - self.tuned) <= 0.01 * (self.high - self.low)
        outside = not self.low <= self.now <= self.high
        return ", ".join(["now outside the range"] * outside + ["tuned at the end of the range"] * at_end)


class Tuned(NamedTuple):
    """Result of a search."""

    plant: str
    parameters: tuple[Parameter, ...]
    params: Params
    """Parameters of the controller, with the tuned numbers."""
    scores: tuple[float, float]
    """Mean scores of the present and of the tuned parameters on the same new episodes."""
    gain: Interval
    """95 % interval of the mean paired gain in points of score."""
    violations: tuple[int, int]
    """Episodes beyond a limit, of the present and of the tuned parameters."""
    episodes: int

    @property
    def better(self) -> bool:
        """Whether the tuned parameters violate less for certain, or gain for certain and violate no more."""
        return prefers(self.gain, self.violations[1], self.violations[0], self.episodes)


def prefers(gain: Interval, ours: int, theirs: int, episodes: int) -> bool:
    """Return whether a controller is better: it violates less for certain, or gains for certain and violates no more.

    Args:
        gain: interval of our gain.
        ours: our episodes beyond a limit.
        theirs: episodes beyond a limit of the controller to replace.
        episodes: episodes of each.
    """
    safer = clopper_pearson_upper(ours, episodes, 0.025) < clopper_pearson_lower(theirs, episodes, 0.025)
    return safer or (gain.lower > 0 and ours <= theirs)


def declared_space(known: KnownPlant) -> tuple[Space, npt.NDArray[np.float64]]:
    """Return the search space that a plant's file declares, and the present numbers (n,).

    A key of `TUNABLE` names a number of `fallback_params`, such as `kp`, `loop.kp` or `gain[0][1]`, or a whole tuple.
    All numbers of the tuple then have the same range.

    Raises:
        BadInput: if the file declares no ranges or wrong ones.
        Refused: if the plant is not a file or package of a user.
    """
    plant = known.simulator()
    if not isinstance(known.source, UserCode):
        raise Refused(
            f"the controller of {known.name} is not in a file of your own: name a plant's file, such as plants/tank.py"
        )
    module, place = import_code(known.source), str(tree_of(known.source).file(known.source.module))
    numbers = _numbers(plant.fallback_params)
    ranges = _ranges(module, place, {name: value for name, (_, value) in numbers.items()})
    names = tuple(ranges)
    leaves, shape = jax.tree.flatten(plant.fallback_params)
    targets = [numbers[name][0] for name in names]

    def build(values: Any) -> Params:
        changed = list(leaves)
        for leaf, value in zip(targets, values, strict=True):
            changed[leaf] = value
        return jax.tree.unflatten(shape, changed)

    low, high = zip(*ranges.values(), strict=True)
    return Space(names, low, high, build), np.asarray([numbers[name][1] for name in names])


def tune(known: KnownPlant, seed: int, progress: Report | None = None, effort: Effort = EFFORT) -> Tuned:
    """Search for better parameters of a plant's controller, and compare them with the present ones.

    The comparison uses `EPISODES` episodes that the search has not used, the same for both.

    Raises:
        BadInput: if the plant's file declares no ranges or wrong ones.
        Refused: if the plant is not a file or package of a user, or a return is not a number.
    """
    space, now = declared_space(known)
    plant = known.simulator()
    searched, compared = jax.random.split(jax.random.key(seed))
    before = judge(plant, plant.fallback, space, now, compared, EPISODES)[0]
    check_returns(known.name, before.returns)

    def report(done: int, total: int) -> None:
        if progress:
            progress(done, total, "episodes")

    best = search(plant, plant.fallback, space, searched, effort, report=report)
    rounded = np.asarray([float(f"{x:.{DIGITS}g}") for x in best.numbers])
    numbers = np.clip(rounded, space.low, space.high)
    after = judge(plant, plant.fallback, space, numbers, compared, EPISODES)[0]
    check_returns(known.name, after.returns)
    points = [np.asarray([score(plant.spec, float(each)) for each in found.returns]) for found in (before, after)]
    return Tuned(
        plant=known.name,
        parameters=tuple(map(Parameter, space.names, space.low, space.high, now.tolist(), numbers.tolist())),
        params=space.params(numbers.tolist()),
        scores=(float(points[0].mean()), float(points[1].mean())),
        gain=paired_difference_interval(points[1], points[0]),
        violations=(int(before.violated.sum()), int(after.violated.sum())),
        episodes=EPISODES,
    )


def check_returns(plant: str, returns: npt.ArrayLike) -> None:
    """Check that all returns are finite.

    Raises:
        Refused: if one is not.
    """
    wrong = int(np.sum(~np.isfinite(returns)))
    if wrong:
        raise Refused(
            f"{wrong:,} of {np.size(returns):,} episodes of {plant} have a return that is not finite: correct the "
            "reward in the plant's file"
        )


def _numbers(params: Params) -> dict[str, tuple[int, float]]:
    """Return each number in a controller's parameters by name: its position among the leaves, and its value."""
    found: dict[str, tuple[int, float]] = {}
    for leaf, (path, value) in enumerate(jax.tree_util.tree_flatten_with_path(params)[0]):
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[jax.tree_util.keystr(path).removeprefix(".")] = (leaf, float(value))
    return found


def _ranges(module: ModuleType, place: str, numbers: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the declared range of each number."""
    declared = getattr(module, TUNABLE, None)
    if not isinstance(declared, Mapping) or not declared:
        got = "none" if declared is None else repr(declared)[:80]
        raise BadInput(
            f"{place} must declare the ranges of its controller's parameters, got {got}: add, for example, "
            f"{TUNABLE} = {_suggestion(numbers)}"
        )
    found: dict[str, tuple[float, float]] = {}
    for name, given in declared.items():
        elements = [each for each in numbers if each == name or each.startswith(f"{name}[")]
        if not elements:
            wrong = printable(str(name), but="")[:80]
            raise BadInput(f"{TUNABLE} of {place} names no parameter with '{wrong}': {nearest(wrong, numbers)}")
        if twice := found.keys() & set(elements):
            raise BadInput(f"{TUNABLE} of {place} names '{min(twice)}' twice: keep one range")
        if not _is_range(given):
            got = repr(given)[:80]
            raise BadInput(f"{TUNABLE}['{name}'] of {place} must be a lower and a higher number, got {got}: correct it")
        found |= dict.fromkeys(elements, (float(given[0]), float(given[1])))
    return found


def _is_range(given: object) -> bool:
    """Return whether a value is a lower and a higher number that single precision can store."""
    if not (isinstance(given, tuple | list) and len(given) == 2):
        return False
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in given):
        return False
    return bool(-LARGEST <= given[0] < given[1] <= LARGEST)


def _suggestion(numbers: Mapping[str, float]) -> str:
    """Return ranges around the first present values that are not zero, except bounds of the action."""
    ends = {
        name: sorted((x / SUGGESTED, x * SUGGESTED))
        for name, x in numbers.items()
        if x and math.isfinite(x) and name.rpartition(".")[2].partition("[")[0] not in ("low", "high")
    }
    shown = [f"'{name}': ({low:.3g}, {high:.3g})" for name, (low, high) in list(ends.items())[:MOST_SUGGESTED]]
    return f"{{{', '.join(shown) or repr(next(iter(numbers), 'kp')) + ': (0.1, 10)'}}}"


class _Code(float):
    """A number whose `repr` is Python code, also if the number is infinite."""

    def __repr__(self) -> str:
        return super().__repr__() if math.isfinite(self) else f'float("{super().__repr__()}")'


def as_written(params: Params) -> str:
    """Return parameters as Python code."""
    return repr(jax.tree.map(lambda x: _Code(x) if isinstance(x, float) else x, params))


def draw_tuned(known: KnownPlant, tuned: Tuned, path: Path, seed: int) -> None:
    """Draw one episode under the tuned and the present parameters."""
    from tasks.pictures.trajectories import draw_plant

    plant = known.simulator()
    shown = {"tuned": (plant.fallback, tuned.params), "present": (plant.fallback, plant.fallback_params)}
    draw_plant(plant, path, seed, 1, shown)
