"""What fitted Q evaluation on several guesses says: one value, an interval over all of them, or no support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.ope import fqe
from neorl_core.ope.model import ModelValue, spread

Floats = npt.NDArray[np.float64]
Reason = Literal[
    "",
    "no finite estimate",
    "too many of the visited steps lie outside the logged ones",
    "fitted Q evaluation carries errors too far on too many guesses",
    "the interval of the gain is wider than half of what logged rewards allow",
]
"""Why the logs do not support an estimate, or a gain over the logged controller; empty where they do."""
WIDE: Reason = "the interval of the gain is wider than half of what logged rewards allow"
MOST_OUTSIDE = 0.2
"""Share of a policy's steps outside the data's support beyond which nothing is said of it. In the cells that the study
was developed on, the intervals of policies up to here held the truth, and some of those beyond were far from it."""

WIDEST = 0.5
"""Width of a gain's interval beyond which it says nothing, as a share of how far the lowest and the highest value lie
apart that logged rewards allow. Of the 32 claims, on nine plants, on which it was found all were
a third of it wide at most, or seven tenths and more. One reward far from all others allows almost everything, and then
this refuses nothing."""


class Estimate(NamedTuple):
    """A policy's discounted value over an episode; where it is not supported the numbers are for ordering alone."""

    guessed: Floats
    """(2, G) value by fitted Q evaluation on each guess, NaN where the logs do not support it."""
    modelled: Floats
    """(2,) value in the models of either family themselves."""
    pessimistic: Floats
    """(V, B) draws of fitted Q evaluation on each guess, of networks before those of regressions, widened as windows
    are few, NaN where the logs do not support it; and of the models themselves, either family as far again from the
    other as they lie apart; all if steps outside the data's support pay as the worst logged ones do. Same resamples:
    subtract them."""
    optimistic: Floats
    """The same draws if they pay as the best ones do."""
    allowed: tuple[float, float]
    """The lowest and the highest value that logged rewards allow, by `fqe.reachable`. Nothing is taken to be worth
    more; how bad a policy may be, rewards that were logged of another do not tell."""
    cost: float
    cost_draws: Floats
    """(V, B) draws of the discounted cost, as those of the value."""
    reason: Reason
    outside: float
    """Share of the policy's steps outside the data's support."""
    disagreement: float
    effective_rows: float

    @property
    def value(self) -> float:
        """The mean of what the guesses of either family come to; where too few are supported, of the models'."""
        found = np.nanmean(self.guessed, axis=1) if _enough(self.guessed) else self.modelled
        return float(np.minimum(found.mean(), self.allowed[1]))

    @property
    def supported(self) -> bool:
        """Whether the logs support the estimate."""
        return not self.reason

    def bounds(self, confidence: float) -> tuple[float, float]:
        """Lower and upper end of the value's interval: what `interval` says of the draws, as far as rewards allow."""
        lower, upper = interval(np.concatenate([self.pessimistic, self.optimistic]), confidence)
        return float(np.minimum(lower, self.allowed[1])), float(np.minimum(upper, self.allowed[1]))

    def less(self, other: Estimate) -> Estimate:
        """How much more this policy is worth than another, by the same estimators and resamples.

        What steps outside the support pay is unknown of both. Guesses on which one of the two is not supported say
        nothing of the difference.
        """
        return self._replace(
            guessed=self.guessed - other.guessed,
            modelled=self.modelled - other.modelled,
            pessimistic=self.pessimistic - other.optimistic,
            optimistic=self.optimistic - other.pessimistic,
            allowed=(self.allowed[0] - other.allowed[1], self.allowed[1] - other.allowed[0]),
        )

    def gain(self, logged: Estimate, confidence: float) -> Estimate:
        """How much more this policy is worth than the logged controller, which has no support if it says too little.

        The logged controller's value is known, and what rewards allow beyond it is the most that there is to gain. An
        interval that is wider than `WIDEST` of what they allow holds almost any policy: with such a one a policy is no
        better known than without logs.
        """
        lowest, highest = self.allowed
        found = self.less(logged)._replace(allowed=(lowest - logged.value, highest - logged.value))
        lower, upper = found.bounds(confidence)
        rounding = 1e-6 * max(abs(lowest), abs(highest))
        if found.reason or upper - lower <= WIDEST * (highest - lowest) + rounding:
            return found
        return found._replace(reason=WIDE if np.isfinite(upper - lower) else "no finite estimate")


def together(
    rounds: Sequence[Sequence[fqe.Evaluation]],
    models: ModelValue,
    allowed: tuple[float, float],
    windows: float,
    confidence: float,
) -> Estimate:
    """What fitted Q evaluation makes of the guesses of both families of models.

    A model's own value has its errors in it, of which no resample of episodes tells; a guess of it that logged steps
    correct has them no more, as far as features and logs reach. Errors that are left differ between guesses: the
    interval reaches over all of them. Where all guesses err alike and features are too few to correct them, models that
    lie apart tell: the interval reaches over their own values, too, and as far beyond either family as they lie apart.
    What steps outside the data's support pay neither models nor logs know: the interval reaches as much further as the
    networks' replays would pay less or more there with the worst and the best logged rewards, after Manski (1990,
    Nonparametric bounds on treatment effects).

    An estimate has support where the policy stays by the logged steps, and where fitted Q evaluation is supported on at
    least half of the guesses, and on some of either family.

    Args:
        rounds: fitted Q evaluation on networks' guesses, and on regressions', as many of both.
        models: values in the models themselves, and how far the policy's steps lie outside.
        allowed: the lowest and the highest value that logged rewards allow.
        windows: logged windows behind the draws, as `model.effective_windows` counts them.
        confidence: of the intervals that are compared.
    """
    wider = spread(windows, confidence)
    drawn = np.asarray([[one.draws for one in family] for family in rounds], np.float64)
    said = np.asarray([[one.value for one in family] for family in rounds], np.float64)
    known = np.asarray([[bool(one.supported) for one in family] for family in rounds])
    each = np.where(known[..., None], said, np.nan)
    own = each[..., None, :] + wider * (drawn - each[..., None, :])
    reward, cost = (each[..., which] for which in (fqe.REWARD, fqe.COST))
    every = [one for family in rounds for one in family]
    of_models = np.asarray(models.value, np.float64)
    # What other windows would have given is much the same for every estimator, and cancels in differences.
    heard = (own - each[..., None, :])[..., fqe.REWARD][known]
    chance = heard.mean(axis=0) if len(heard) else np.zeros(own.shape[2])
    apart = of_models + (of_models - of_models[::-1])
    draws = np.concatenate([own[..., fqe.REWARD].reshape(len(every), -1), apart[:, None] + chance])
    return Estimate(
        guessed=reward,
        modelled=of_models,
        pessimistic=draws - float(models.below),
        optimistic=draws + float(models.above),
        allowed=allowed,
        cost=float(np.mean(cost[known])) if known.any() else np.nan,
        cost_draws=own[..., fqe.COST].reshape(len(every), -1),
        reason=_reason(_enough(reward), models),
        outside=float(models.outside),
        disagreement=float(models.disagreement),
        effective_rows=float(np.mean([float(one.effective_rows) for one in every])),
    )


def _enough(each: Floats) -> bool:
    """Whether at least half of the guesses say something, and some of either family."""
    known = np.isfinite(each)
    return bool(known.any(axis=1).all()) and 2 * int(known.sum()) >= known.size


def _reason(enough: bool, models: ModelValue) -> Reason:
    outside = float(models.outside)
    if not (np.isfinite(models.value).all() and np.isfinite(outside)):
        return "no finite estimate"
    if outside > MOST_OUTSIDE:
        return "too many of the visited steps lie outside the logged ones"
    if not enough:
        return "fitted Q evaluation carries errors too far on too many guesses"
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
