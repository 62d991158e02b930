"""What estimators of different kinds say together: one value, an interval as wide as they differ, or no support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.ope import fqe
from neorl_core.ope.model import MEMBERS, ModelValue, spread

Floats = npt.NDArray[np.float64]
Reason = Literal[
    "",
    "no finite estimate",
    "too many of the visited steps lie outside the logged ones",
    "fitted Q evaluation converges on too few guesses",
    "the models contradict each other on a policy that leaves the logged steps",
]
"""Why the logs do not support an estimate; empty where they do."""
MOST_OUTSIDE = 0.2
"""Share of a policy's steps outside the data's support beyond which nothing is said of it. In the cells that the study
was developed on, the intervals of policies up to here held the truth, and some of those beyond were far from it."""
MOST_OUTSIDE_APART = 0.1
"""That share where the families of models contradict each other."""
FAMILIES = 2
"""Families of models, whose draws are the first."""


class Estimate(NamedTuple):
    """A policy's discounted value over an episode; where it is not supported the numbers are for ordering alone."""

    value: float
    draws: Floats
    """(V, B) draws of each estimator: the families of models, widened as members and windows are few, each as far again
    from the other as they lie apart; then fitted Q evaluation on each guess, NaN where its rounds do not
    converge. Same resamples: subtract them."""
    below: float
    """How much less the models' value is if steps outside the data's support pay as the worst logged ones do."""
    above: float
    """How much more it is if they pay as the best ones do."""
    cost: float
    cost_draws: Floats
    """(B',) discounted cost, by fitted Q evaluation on every guess."""
    reason: Reason
    outside: float
    """Share of the policy's steps outside the data's support."""
    disagreement: float
    effective_rows: float

    @property
    def supported(self) -> bool:
        """Whether the logs support the estimate."""
        return not self.reason

    def bounds(self, confidence: float) -> tuple[float, float]:
        """Lower and upper end of the value's interval: what `interval` says of the draws, the models' with `below` and
        `above`."""
        models, heard = self.draws[:FAMILIES], self.draws[FAMILIES:]
        return interval(np.concatenate([models - self.below, models + self.above, heard]), confidence)

    def less(self, other: Estimate) -> Estimate:
        """How much more this policy is worth than another, by the same estimators and resamples.

        What steps outside the support pay is unknown of both.
        """
        return self._replace(
            value=self.value - other.value,
            draws=self.draws - other.draws,
            below=self.below + other.above,
            above=self.above + other.below,
        )


def together(rounds: Sequence[fqe.Evaluation], models: ModelValue, windows: int, confidence: float) -> Estimate:
    """Hold the families of models against each other and against fitted Q evaluation.

    The value is the mean of what the two families say and fitted Q evaluation, as far as its rounds converge. What the
    models' bootstrap draws from is few: `MEMBERS` refits, and sometimes fewer windows; the draws are spread by `spread`
    for the fewer of them. No resample tells of errors that the members of a
    family share. Two of them tell a little: the truth may lie as far beyond either as they lie apart, which is where
    the draws of each family are moved to. What steps outside the data's support pay no model knows: the interval has
    the worst and the best logged rewards there (Manski 1990, Nonparametric bounds on treatment effects).

    Where fitted Q evaluation says another thing, the interval reaches over both. An estimate has support where the
    policy stays by the logged steps, the nearer if the models contradict each other, and where fitted Q evaluation
    converges on at least half of the guesses: beside models that are wrong of a policy its rounds often do not.

    Args:
        rounds: fitted Q evaluation on each guess.
        models: value in the models of both families, with as many draws.
        windows: logged windows behind the draws.
        confidence: of the intervals that are compared.
    """
    wider = spread(min(windows, MEMBERS), confidence)
    value = np.asarray(models.value, np.float64)
    each = value[:, None] + wider * (np.asarray(models.draws, np.float64) - value[:, None])
    apart = value - value[::-1]
    drawn = [np.asarray(one.draws, np.float64) for one in rounds]
    heard = [
        draws[:, fqe.REWARD] if bool(one.supported) else np.nan * draws[:, fqe.REWARD]
        for one, draws in zip(rounds, drawn, strict=True)
    ]
    said = [float(one.value[fqe.REWARD]) for one in rounds if bool(one.supported)]
    return Estimate(
        value=float(np.mean([*value, np.mean(said)] if said else value)),
        draws=np.concatenate([each + apart[:, None], heard]),
        below=float(models.below),
        above=float(models.above),
        cost=float(np.mean([float(one.value[fqe.COST]) for one in rounds])),
        cost_draws=np.concatenate([draws[:, fqe.COST] for draws in drawn]),
        reason=_reason(each, heard, float(models.outside), confidence),
        outside=float(models.outside),
        disagreement=float(models.disagreement),
        effective_rows=float(np.mean([float(one.effective_rows) for one in rounds])),
    )


def _reason(each: Floats, heard: Sequence[Floats], outside: float, confidence: float) -> Reason:
    if not (np.isfinite(each).all() and np.isfinite(outside)):
        return "no finite estimate"
    if outside > MOST_OUTSIDE:
        return "too many of the visited steps lie outside the logged ones"
    if 2 * sum(np.isfinite(draws).all() for draws in heard) < len(heard):
        return "fitted Q evaluation converges on too few guesses"
    if not _overlap(*(interval(draws, confidence) for draws in each)) and outside > MOST_OUTSIDE_APART:
        return "the models contradict each other on a policy that leaves the logged steps"
    return ""


def interval(draws: Floats, confidence: float) -> tuple[float, float]:
    """From the lowest to the highest end of the estimators' percentile intervals: it holds where one of theirs does.

    Args:
        draws: (B,), or (V, B) of V estimators, of which those that are not finite do not count; NaN where none is.
        confidence: two-sided; a percentile interval leaves (1 - confidence) / 2 on each side.
    """
    every = np.atleast_2d(draws)
    finite = every[np.isfinite(every).all(axis=1)]
    if not len(finite):
        return np.nan, np.nan
    tail = (1.0 - confidence) / 2.0
    lower, upper = np.quantile(finite, [tail, 1.0 - tail], axis=1)
    return float(lower.min()), float(upper.max())


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
