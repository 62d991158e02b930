"""Tune the controller of a user's plant in its simulator, within the ranges that the plant's file declares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.code import UserCode
from configs.errors import BadInput, Refused, nearest
from neorl_core.control.search import Effort, Space, judge, search
from neorl_core.safety.bounds import Interval, paired_difference_interval
from neorl_core.types import Params, Plant
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


class Parameter(NamedTuple):
    """One tuned number."""

    name: str
    low: float
    high: float
    now: float
    tuned: float

    @property
    def at_end(self) -> bool:
        """Whether the tuned number is within 1 % of an end of its range, so that a wider range may be better."""
        return min(self.tuned - self.low, self.high - self.tuned) <= 0.01 * (self.high - self.low)


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
        """Whether the gain is certain and costs no violation."""
        return self.gain.lower > 0 and self.violations[1] <= self.violations[0]


def declared_space(known: KnownPlant) -> tuple[Space, npt.NDArray[np.float64]]:
    """Return the search space that a plant's file declares, and the present numbers (n,).

    A key of `TUNABLE` names a number, such as `kp` or `loop.kp`, one element of an array, such as `gain[0,1]`, or a
    whole array or tuple, whose elements then have the same range.

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
    ranges = _ranges(module, place, numbers)
    names = tuple(ranges)
    leaves, shape = jax.tree.flatten(plant.fallback_params)
    targets = [numbers[name] for name in names]

    def build(values: Any) -> Params:
        changed: list[Any] = list(leaves)
        for value, (leaf, index, _) in zip(values, targets, strict=True):
            changed[leaf] = jnp.asarray(changed[leaf]).at[index].set(value) if index else value
        return jax.tree.unflatten(shape, changed)

    low, high = zip(*ranges.values(), strict=True)
    return Space(names, low, high, build), np.asarray([value for _, _, value in targets])


def tune(known: KnownPlant, seed: int, progress: Report | None = None, effort: Effort = EFFORT) -> Tuned:
    """Search for better parameters of a plant's controller, and compare them with the present ones.

    The comparison uses `EPISODES` episodes that the search has not used, the same for both.

    Raises:
        BadInput: if the plant's file declares no ranges or wrong ones.
        Refused: if the plant is not a file or package of a user.
    """
    space, now = declared_space(known)
    # JAX compiles by the plant's hash, and arrays in unused parameters would have none.
    plant = known.simulator()
    bare: Plant = plant._replace(fallback_params=(), found_params=None, reference=None, reference_params=None)
    searched, compared = jax.random.split(jax.random.key(seed))

    def report(done: int, total: int) -> None:
        if progress:
            progress(done, total, "episodes")

    best = search(bare, plant.fallback, space, searched, effort, report=report)
    numbers = np.asarray([float(f"{x:.{DIGITS}g}") for x in best.numbers])
    before, after = judge(bare, plant.fallback, space, [now, numbers], compared, EPISODES)
    points = [np.asarray([score(plant.spec, float(each)) for each in found.returns]) for found in (before, after)]
    return Tuned(
        plant=known.name,
        parameters=tuple(map(Parameter, space.names, space.low, space.high, now.tolist(), numbers.tolist())),
        params=space.params(jnp.asarray(numbers, jnp.float32)),
        scores=(float(points[0].mean()), float(points[1].mean())),
        gain=paired_difference_interval(points[1], points[0]),
        violations=(int(before.violated.sum()), int(after.violated.sum())),
        episodes=EPISODES,
    )


def _numbers(params: Params) -> dict[str, tuple[int, tuple[int, ...], float]]:
    """Return each floating-point number in a controller's parameters by name: its leaf, its index and its value."""
    found: dict[str, tuple[int, tuple[int, ...], float]] = {}
    for leaf, (path, value) in enumerate(jax.tree_util.tree_flatten_with_path(params)[0]):
        name = jax.tree_util.keystr(path).removeprefix(".")
        if isinstance(value, bool) or not (isinstance(value, int | float) or np.issubdtype(value.dtype, np.floating)):
            continue
        for index in np.ndindex(np.shape(value)):
            element = f"{name}[{','.join(map(str, index))}]" if index else name
            found[element] = (leaf, index, float(np.asarray(value)[index]))
    return found


def _ranges(
    module: ModuleType, place: str, numbers: Mapping[str, tuple[int, tuple[int, ...], float]]
) -> dict[str, tuple[float, float]]:
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
            raise BadInput(f"{TUNABLE} of {place} names no parameter with '{name}': {nearest(str(name), numbers)}")
        try:
            low, high = map(float, given)
        except (TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise BadInput(
                f"{TUNABLE}['{name}'] of {place} must be a lower and a higher number, got {given!r}: correct it"
            )
        found |= dict.fromkeys(elements, (low, high))
    return found


def _suggestion(numbers: Mapping[str, tuple[int, tuple[int, ...], float]]) -> str:
    """Return ranges around the present values that are not zero."""
    ends = {name: sorted((x / SUGGESTED, x * SUGGESTED)) for name, (_, _, x) in numbers.items() if x}
    return f"{{{', '.join(f'{name!r}: ({low:.3g}, {high:.3g})' for name, (low, high) in ends.items())}}}"


def as_written(params: Params) -> str:
    """Return parameters as Python code, with arrays as lists, to the seven digits of single precision."""

    def plain(value: Any) -> Any:
        if isinstance(value, int | float):
            return value
        return np.vectorize(lambda x: float(f"{x:.7g}"))(np.asarray(value, float)).tolist()

    return repr(jax.tree.map(plain, params))


def draw_tuned(known: KnownPlant, tuned: Tuned, path: Path, seed: int) -> Path:
    """Draw one episode under the tuned and the present parameters."""
    from tasks.pictures.trajectories import draw_plant

    plant = known.simulator()
    shown = {"tuned": (plant.fallback, tuned.params), "present": (plant.fallback, plant.fallback_params)}
    draw_plant(plant, path, seed, 1, shown)
    return path
