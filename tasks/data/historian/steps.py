"""Outcomes, rewards and costs of control steps, and ends of episodes."""

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
    """Outcome of a control step."""

    ROW = 0
    REJECTED = 1
    """Quarantined: values were Bad for longer than a gap may be, or a derived quantity has no value although all inputs
    have one."""
    GAP = 2
    NOT_RUNNING = 3
    """The plant was in another mode at the step's start or end."""
    OUTSIDE_LIMITS = 4
    """The step began outside the hard limits, after a trip that ended the episode."""


class Points(NamedTuple):
    """Values at grid points, and of the steps that begin there; arrays (G, ...)."""

    times: Times
    begun: Times
    """Begin of each point's episode, ns since 1970; 0 if the export names none."""
    observations: Floats
    inputs: Floats
    """Signals for formulas only."""
    actions: Floats
    """Actions at the middle of the step that begins here."""
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
    """Rewards and margins by the formulas of the plant (`logged`), or of the mapping if there are none.

    `inputs` are names of signals for formulas only.
    """

    def __init__(
        self, spec: PlantSpec, logged: LoggedSignals | None, reward: Expression | None, inputs: tuple[str, ...]
    ) -> None:
        self.spec, self.logged, self.reward, self.inputs = spec, logged, reward, inputs

    def outside(self, points: Points) -> Mask:
        """Mark points that violate a hard limit (G,)."""
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
        """Return the values at grid points by signal (G,)."""
        columns = [*points.observations.T, *points.inputs.T]
        return dict(zip((*self.spec.observation.names, *self.inputs), columns, strict=True))

    def formulas(self, points: Points) -> Rows:
        """Evaluate the mapping's formulas for the steps between grid points (G - 1,)."""
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
        """Add rewards and costs to rows."""
        count = len(rows["numbers"])
        if self.logged is not None and count:
            return with_costs(rows if "rewards" in rows else with_rewards(rows, self.logged), self.logged)
        none, limits = np.zeros(count, np.float32), np.zeros((count, len(self.spec.constraints)), np.float32)
        return {"rewards": none, "costs": none, "constraint_costs": limits} | rows


class Cutter:
    """Decides where episodes of at most `longest` steps end; keeps the state between calls."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._age = 0

    def cut(self, keep: Mask, ends: Mask, last: bool) -> Mask:
        """Mark the steps that end an episode; all but the last are decided, unless it is the very last.

        Args:
            keep: whether each step is a row (n,).
            ends: whether each step ends an episode for another reason (n,).
            last: whether no step follows.
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
    """Replace values beyond single precision by infinity, which the row checks find."""
    return np.where(np.abs(values) > np.finfo(np.float32).max, np.inf, values)


def outcomes(now: Points, later: Points, outside: Mask, end_at_trip: bool) -> npt.NDArray[np.int64]:
    """Return the outcome (G - 1,) of each step from `now` to `later` (G - 1, ...).

    A step that leads out of the limits is kept although the plant then stops.

    Args:
        now: beginnings of the steps.
        later: ends of the steps.
        outside: whether a hard limit is violated (G,).
        end_at_trip: whether steps that begin outside are left out.
    """
    outcome = np.full(len(now.times), StepOutcome.ROW)
    outcome[(now.fault != "") | (later.fault != "") | (now.action_fault != "")] = StepOutcome.REJECTED
    # There is no step between two episodes.
    outcome[now.gap | later.gap | now.action_gap | (now.begun != later.begun)] = StepOutcome.GAP
    if end_at_trip:
        outcome[outside[:-1]] = StepOutcome.OUTSIDE_LIMITS
    outcome[~now.running | (~later.running & ~outside[1:])] = StepOutcome.NOT_RUNNING
    return outcome
