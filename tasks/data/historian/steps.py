"""Decide which control steps become rows, compute their rewards and costs, and find the ends of episodes."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.expression import Expression
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import PlantSpec
from tasks.data.historian.raw_rows import Floats, Mask, Times
from tasks.data.store.schema import Rows
from tasks.data.store.scoring import margins_of, with_costs, with_rewards


class StepOutcome(IntEnum):
    """Result of checking a control step: it becomes a row, or is left out for a reason."""

    ROW = 0
    REJECTED = 1
    """Quarantined: a value was Bad for too long, or a derived quantity is not finite although its inputs are known."""
    GAP = 2
    NOT_RUNNING = 3
    """At the start or end of the step, the plant was in a mode that does not count as running."""
    OUTSIDE_LIMITS = 4
    """The step began outside the hard limits, after a trip that ended the episode."""


class Points(NamedTuple):
    """Values at G control instants, and actions of the steps that begin there, as arrays (G, ...)."""

    times: Times
    begun: Times
    """Begin of each point's episode in ns since 1970; 0 if the export does not name episodes."""
    observations: Floats
    inputs: Floats
    """Signals that only formulas use."""
    actions: Floats
    """Actions at the middle of the step that begins at this point."""
    gap: Mask
    action_gap: Mask
    fault: npt.NDArray[Any]
    """Reason why a value is unusable, or ''."""
    action_fault: npt.NDArray[Any]
    running: Mask
    modes: Floats

    def slice(self, where: slice) -> Points:
        return Points._make(column[where] for column in self)


class Scorer:
    """Computes rewards and costs with the plant's formulas (`logged`) or, if None, with the mapping's formulas.

    `inputs` has the names of the signals that only formulas use.
    """

    def __init__(
        self, spec: PlantSpec, logged: LoggedSignals | None, reward: Expression | None, inputs: tuple[str, ...]
    ) -> None:
        self.spec, self.logged, self.reward, self.inputs = spec, logged, reward, inputs

    def outside(self, points: Points) -> Mask:
        """Mark the points that violate a hard limit (G,)."""
        with np.errstate(invalid="ignore"):
            return np.asarray((self._margins(points) < 0).any(axis=1))

    def _margins(self, points: Points) -> npt.NDArray[Any]:
        if self.logged is not None:
            return margins_of(self.logged, points.observations)
        if not self.spec.constraints:
            return np.zeros((len(points.times), 0))
        signals = self.signals(points)
        return np.stack(
            [np.minimum(signals[c.name] - c.low, c.high - signals[c.name]) for c in self.spec.constraints], axis=1
        )

    def signals(self, points: Points) -> dict[str, Floats]:
        columns = [*points.observations.T, *points.inputs.T]
        return dict(zip((*self.spec.observation.names, *self.inputs), columns, strict=True))

    def formulas(self, points: Points) -> Rows:
        """Compute rewards and costs of the G - 1 steps between the points with the mapping's formulas."""
        results: Rows = {}
        if self.reward is not None:
            signals = self.signals(points)
            values = {name: column[:-1] for name, column in signals.items()}
            values |= {f"next.{name}": column[1:] for name, column in signals.items()}
            values |= dict(zip(self.spec.action.names, points.actions[:-1].T, strict=True))
            reward = np.broadcast_to(np.asarray(self.reward.compute(values), float), (len(points.times) - 1,))
            results["rewards"] = single(reward).astype(np.float32)
        if self.logged is None:
            excess = single(np.maximum(-self._margins(points)[1:], 0.0)).astype(np.float32)
            results["constraint_costs"] = excess
            results["costs"] = np.asarray((excess > 0).any(axis=1), np.float32)
        return results

    def score(self, rows: Rows) -> Rows:
        count = len(rows["numbers"])
        if self.logged is not None and count:
            return with_costs(rows if "rewards" in rows else with_rewards(rows, self.logged), self.logged)
        none, limits = np.zeros(count, np.float32), np.zeros((count, len(self.spec.constraints)), np.float32)
        return {"rewards": none, "costs": none, "constraint_costs": limits} | rows


class Cutter:
    """Decides at which steps episodes end; an episode has at most `longest` steps and may extend over several calls."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._age = 0

    def cut(self, keep: Mask, ends: Mask, last: bool) -> Mask:
        """Mark the steps that end an episode. The last step is decided in the next call, unless `last` is True.

        Args:
            keep: whether each step becomes a row (n,).
            ends: whether each step ends an episode in any case (n,).
            last: whether these are the last steps of the export.
        """
        following = np.append(keep[1:], False)
        ended = (ends | ~following)[: len(keep) if last else len(keep) - 1]
        kept = keep[: len(ended)]
        index = np.arange(len(ended))
        begins = kept & np.append(True, ended[:-1] | ~kept[:-1])
        begin = np.maximum.accumulate(np.where(begins, index, 0))
        # The first step continues the episode of the previous call.
        age = index - begin + np.where(begin == 0, self._age, 0)
        cut: Mask = kept & (ended | ((age + 1) % self.longest == 0))
        if len(ended):
            self._age = int(age[-1]) + 1 if kept[-1] and not ended[-1] else 0
        return cut


def single(values: Floats) -> Floats:
    """Replace values beyond single precision by infinity, so that the row checks reject them."""
    return np.where(np.abs(values) > np.finfo(np.float32).max, np.inf, values)


def outcomes(now: Points, later: Points, outside: Mask, end_at_trip: bool) -> npt.NDArray[np.int64]:
    """Return the `StepOutcome` of each of the G - 1 steps between G points.

    A step that leaves the hard limits is kept, even if the plant stops at its end.

    Args:
        outside: whether a hard limit is violated at each point (G,).
        end_at_trip: whether to leave out steps that begin outside the hard limits.
    """
    outcome = np.full(len(now.times), StepOutcome.ROW)
    outcome[(now.fault != "") | (later.fault != "") | (now.action_fault != "")] = StepOutcome.REJECTED
    # There is no step between two episodes.
    outcome[now.gap | later.gap | now.action_gap | (now.begun != later.begun)] = StepOutcome.GAP
    if end_at_trip:
        outcome[outside[:-1]] = StepOutcome.OUTSIDE_LIMITS
    outcome[~now.running | (~later.running & ~outside[1:])] = StepOutcome.NOT_RUNNING
    return outcome
