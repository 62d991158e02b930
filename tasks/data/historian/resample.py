"""Values of a tag at given times, by the 'Interpolative' aggregate of OPC UA Part 13 (1.04, 3.1.8 and 5.4.3.4).

Good and Uncertain values count, Bad values do not. If a mapping treats Uncertain as Bad, the decoder has marked such
values Bad. There is no value before the first.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.data.historian.raw_rows import Times

GOOD = np.uint32(0x00000000)
UNCERTAIN = np.uint32(0x40000000)
BAD = np.uint32(0x80000000)
"""Status codes of OPC UA Part 4; the two highest bits are the severity."""

Statuses = npt.NDArray[np.uint32]


class Samples(NamedTuple):
    """Archived values of one tag, in order of time."""

    times: Times
    """ns since 1970, UTC, strictly increasing (M,)."""
    values: npt.NDArray[np.float64]
    """(M,)"""
    statuses: Statuses
    """(M,)"""


class Resampled(NamedTuple):
    """Values of a tag at given times."""

    values: npt.NDArray[np.float64]
    """(G,); NaN if unknown."""
    reach: Times
    """ns between the values used, or since a held value became Bad; 0 at a raw value (G,)."""
    across_bad: npt.NDArray[np.bool_]
    """Whether Bad values were skipped (G,)."""


class Rule(NamedTuple):
    """Interpolation of a tag; times in ns."""

    stepped: bool
    max_gap: int
    """Longest time that a tag may be Bad, or a sloped tag not archived."""
    stale: int | None = None
    """The tag's own limit for holding or interpolating a value."""
    causal: bool = False
    """Use only values archived up to the given time."""
    skew: int = 0
    """Largest lead of a sample's time over the given time with which the sample still counts as known."""

    @property
    def reach(self) -> int:
        """Time after a given time within which samples may affect the value."""
        return 0 if self.stepped else max(self.stale or self.max_gap, self.skew)


def severity(statuses: Statuses) -> npt.NDArray[Any]:
    """Return 0 for Good, 1 for Uncertain, 2 (or 3) for Bad."""
    return statuses >> 30


def _split(samples: Samples) -> tuple[Times, npt.NDArray[np.float64], Times]:
    """Return times and values of the usable samples, and times of the others."""
    usable = (samples.statuses < BAD) & np.isfinite(samples.values)
    if usable.all():
        return samples.times, samples.values, samples.times[:0]
    where = np.flatnonzero(usable)
    return samples.times.take(where), samples.values.take(where), samples.times[~usable]


def _interpolate(
    times: Times, values: npt.NDArray[np.float64], bad_times: Times, at: Times, stepped: bool
) -> tuple[Resampled, Times, Times, npt.NDArray[np.bool_]]:
    """Sloped: v = v0 + (t − t0)(v1 − v0)/(t1 − t0) between the nearest values at t0 ≤ t < t1. Stepped: v = v0.

    Also return the index of the last value that is not later (G,), 0 if there is none; the ns since that value (G,),
    negative if there is none; and whether there is such a value, and none at that time or later (G,).
    """
    if not len(times):
        nothing, zeros = np.full(len(at), np.nan), np.zeros(len(at), np.int64)
        across = np.searchsorted(bad_times, at, side="right") > 0
        return Resampled(nothing, zeros, across), zeros, zeros - 1, np.zeros(len(at), bool)
    before = np.maximum(np.searchsorted(times, at, side="right") - 1, 0)
    age = at - times[before]
    beyond = (before == len(times) - 1) & (age > 0)
    if stepped:
        value = values[before]
        across, passed = _across(bad_times, times[before], at, "right")
        reach = np.zeros(len(at), np.int64)
        if len(bad_times):
            reach = np.where(across, at - bad_times[np.minimum(passed, len(bad_times) - 1)], reach)
    else:
        after = np.minimum(before + 1, len(times) - 1)
        width = times[after] - times[before]
        # The last value has no successor and so no slope.
        value = values[before] + age / np.maximum(width, 1) * (values[after] - values[before])
        across, _ = _across(bad_times, times[before], np.where(beyond, np.iinfo(np.int64).max, times[after]), "left")
        reach = np.where(beyond, age, width)
    between = age > 0
    across &= between
    reach = np.where(between, reach, 0)
    if len(at) and age[0] < 0:
        value = np.where(age < 0, np.nan, value)
    return Resampled(value, reach, across), before, age, beyond


def _across(bad_times: Times, since: Times, until: Times, side: Literal["left", "right"]) -> tuple[Any, Any]:
    """Whether there are Bad values in an interval, and how many there are up to the interval's start."""
    if not len(bad_times):
        return np.zeros(len(since), bool), np.zeros(len(since), np.int64)
    passed = np.searchsorted(bad_times, since, side="right")
    return np.searchsorted(bad_times, until, side=side) > passed, passed


class Within(NamedTuple):
    """Episode of each given time: from its first row up to the next episode's, ns."""

    since: Times
    """(G,)"""
    until: Times
    """(G,)"""


def known_at(samples: Samples, at: Times, rule: Rule, end: int, within: Within | None = None) -> Resampled:
    """Return a tag's values at times (G,), NaN where they are not known well enough.

    Sloped and causal: interpolate between two samples if the later one came by t + skew, otherwise hold the earlier.
    A sloped tag is unknown if its samples are farther apart than its limit, or if it falls silent, unless the archive
    ends before that could show. `reach` is the time compared with the limits.

    Args:
        samples: of the tag (M,), from its last value before `at` on.
        at: times (G,), ns, increasing.
        rule: of the tag.
        end: time [ns] up to which all archived samples are included.
        within: if given, samples of other episodes are neither used nor interpolated to.
    """
    times, values, bad_times = _split(samples)
    found, before, age, beyond = _interpolate(times, values, bad_times, at, rule.stepped)
    if not len(times):
        return found
    if within is not None:
        other = (age > 0) & (times[np.minimum(before + 1, len(times) - 1)] >= within.until)
        held = np.where(other, values[before], found.values)
        found = found._replace(values=held)
    foreign = np.zeros(len(at), bool) if within is None else times[before] < within.since
    if rule.stepped:
        far = foreign | (found.reach > rule.max_gap)
        if rule.stale is not None:
            far |= age > rule.stale
        return found._replace(values=np.where(far, np.nan, found.values))
    limit = rule.stale or rule.max_gap
    far = foreign | (found.reach > limit)
    if beyond.any():
        far |= beyond & (times[before] + limit < end)
    if rule.causal:
        # A silence may be judged with later knowledge, because it only leaves rows out. Values may not.
        later = times[np.minimum(before + 1, len(times) - 1)]
        seen = (age <= 0) | (~beyond & (later <= at + rule.skew))
        found = found._replace(values=np.where(seen, found.values, values[before]))
    return found._replace(values=np.where(far, np.nan, found.values))
