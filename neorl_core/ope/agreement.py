"""Combine fitted Q evaluation with two families of learned models into one estimate with an interval, or reject it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from neorl_core.ope import fqe
from neorl_core.ope.model_based import ModelValue, spread

Floats = npt.NDArray[np.float64]
Reason = Literal[
    "",
    "no finite estimate",
    "too many of the visited steps lie outside the logged ones",
    "fitted Q evaluation carries errors too far on too many guesses",
    "the interval of the gain is wider than half of what logged rewards allow",
]
"""Reason why the logs do not support an estimate or a gain over the logged controller; empty if they do."""
WIDE: Reason = "the interval of the gain is wider than half of what logged rewards allow"
MOST_OUTSIDE = 0.2
"""Largest share of policy steps outside the support. In the study's development runs, the intervals of policies up to
this share contained the true value; above this share, some intervals were far off."""

WIDEST = 0.5
"""Largest width of a supported gain interval, as a share of the range of values that logged rewards allow. It was
chosen on 32 claims for nine plants, in which every interval had a share of at most 0.33 or at least 0.7. A single
extreme reward makes the range so large that this check rejects nothing."""


class Estimate(NamedTuple):
    """Estimate of a policy's discounted return over an episode. Use an unsupported estimate for ranking only."""

    guessed: Floats
    """(2, G) value by fitted Q evaluation with each of G guesses per family; NaN if unsupported."""
    modelled: Floats
    """(2,) value in the networks and in the regressions."""
    pessimistic: Floats
    """(V, B) draws of V estimators, for the worst logged rewards outside the support. The estimators are fitted Q
    evaluation with each guess (networks, then regressions; NaN if unsupported), and each model family, moved away from
    the other family by their distance. All estimates use the same resamples: subtract draws to compare policies."""
    optimistic: Floats
    """(V, B) draws of the same estimators, for the best logged rewards outside the support."""
    allowed: tuple[float, float]
    """Lowest and highest value that the logged rewards allow (`fqe.reachable`). Only the highest value limits an
    estimate, because this policy may be worse than every logged step."""
    cost: float
    cost_draws: Floats
    """(V, B) bootstrap draws of the discounted cost."""
    reason: Reason
    outside: float
    """Share of the policy's steps outside the support."""
    disagreement: float
    effective_rows: float

    @property
    def value(self) -> float:
        """Mean over both families: of the supported guesses, or of the models if too few guesses are supported."""
        values = np.nanmean(self.guessed, axis=1) if _enough(self.guessed) else self.modelled
        return float(np.minimum(values.mean(), self.allowed[1]))

    @property
    def supported(self) -> bool:
        """Whether the logs support the estimate."""
        return not self.reason

    def bounds(self, confidence: float) -> tuple[float, float]:
        """Return the lower and upper end of the interval of the value, capped at the highest allowed value."""
        lower, upper = interval(np.concatenate([self.pessimistic, self.optimistic]), confidence)
        return float(np.minimum(lower, self.allowed[1])), float(np.minimum(upper, self.allowed[1]))

    def less(self, other: Estimate) -> Estimate:
        """Return the difference to another policy, by the same estimators and resamples.

        The draws allow for unknown rewards outside both supports. A guess is used only if supported for both policies.
        """
        return self._replace(
            guessed=self.guessed - other.guessed,
            modelled=self.modelled - other.modelled,
            pessimistic=self.pessimistic - other.optimistic,
            optimistic=self.optimistic - other.pessimistic,
            allowed=(self.allowed[0] - other.allowed[1], self.allowed[1] - other.allowed[0]),
        )

    def gain(self, logged: Estimate, confidence: float) -> Estimate:
        """Return the gain over the logged controller.

        The gain is unsupported if its interval is wider than `WIDEST` times the range of values that the logged rewards
        allow. The value of the logged controller is known, so the range also limits the gain.
        """
        lowest, highest = self.allowed
        gain = self.less(logged)._replace(allowed=(lowest - logged.value, highest - logged.value))
        lower, upper = gain.bounds(confidence)
        rounding = 1e-6 * max(abs(lowest), abs(highest))
        if gain.reason or upper - lower <= WIDEST * (highest - lowest) + rounding:
            return gain
        return gain._replace(reason=WIDE if np.isfinite(upper - lower) else "no finite estimate")


def combine(
    rounds: Sequence[Sequence[fqe.Evaluation]],
    models: ModelValue,
    allowed: tuple[float, float],
    windows: float,
    confidence: float,
) -> Estimate:
    """Combine fitted Q evaluation and models of both families into one estimate.

    A bootstrap over episodes does not show model errors, so the interval is widened in three ways. It covers all
    guesses, because fitted Q evaluation cannot correct every error of a guess. It covers the values of both model
    families, each moved away from the other by their distance, because errors that all guesses share appear as a
    distance. It covers the worst and the best logged rewards outside the support (Manski 1990, Nonparametric bounds on
    treatment effects).

    The estimate is supported if few steps of the policy lie outside the support, and fitted Q evaluation is supported
    with at least half of the guesses and at least one guess per family.

    Args:
        rounds: fitted Q evaluation with the guesses of the networks, then with the guesses of the regressions.
        allowed: lowest and highest value that logged rewards allow.
        windows: effective number of logged windows (`effective_windows`).
        confidence: two-sided confidence of the intervals.
    """
    factor = spread(windows, confidence)
    draws = np.asarray([[e.draws for e in family] for family in rounds], np.float64)
    values = np.asarray([[e.value for e in family] for family in rounds], np.float64)
    supported = np.asarray([[bool(e.supported) for e in family] for family in rounds])
    values = np.where(supported[..., None], values, np.nan)
    draws = values[..., None, :] + factor * (draws - values[..., None, :])
    reward, cost = (values[..., which] for which in (fqe.REWARD, fqe.COST))
    evaluations = [e for family in rounds for e in family]
    model_values = np.asarray(models.value, np.float64)
    # The sampling error of the windows is nearly the same for every estimator, and cancels in differences.
    deviations = (draws - values[..., None, :])[..., fqe.REWARD][supported]
    sampling = deviations.mean(axis=0) if len(deviations) else np.zeros(draws.shape[2])
    extrapolated = model_values + (model_values - model_values[::-1])
    rewards = draws[..., fqe.REWARD].reshape(len(evaluations), -1)
    rewards = np.concatenate([rewards, extrapolated[:, None] + sampling])
    return Estimate(
        guessed=reward,
        modelled=model_values,
        pessimistic=rewards - float(models.below),
        optimistic=rewards + float(models.above),
        allowed=allowed,
        cost=float(np.mean(cost[supported])) if supported.any() else np.nan,
        cost_draws=draws[..., fqe.COST].reshape(len(evaluations), -1),
        reason=_reason(_enough(reward), models),
        outside=float(models.outside),
        disagreement=float(models.disagreement),
        effective_rows=float(np.mean([float(e.effective_rows) for e in evaluations])),
    )


def _enough(values: Floats) -> bool:
    """Return whether at least half of the guesses are supported, with at least one per family."""
    finite = np.isfinite(values)
    return bool(finite.any(axis=1).all()) and 2 * int(finite.sum()) >= finite.size


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
    """Return the smallest interval that contains the percentile intervals of all estimators.

    Args:
        draws: (B,) or (V, B) draws of V estimators. Estimators with non-finite draws are ignored; the interval is NaN
            if no estimator is left.
        confidence: two-sided confidence, with (1 - confidence) / 2 in each tail.
    """
    draws = np.atleast_2d(draws)
    finite = draws[np.isfinite(draws).all(axis=1)]
    if not len(finite):
        return np.nan, np.nan
    tail = (1.0 - confidence) / 2.0
    lower, upper = np.quantile(finite, [tail, 1.0 - tail], axis=1)
    return float(lower.min()), float(upper.max())
