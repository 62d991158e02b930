"""Compute a tag's values at given times, by the aggregate 'Interpolative' of OPC UA Part 13 (1.04, 3.1.8, 5.4.3.4).

Good and Uncertain values are used, Bad values are not. (The decoder marks Uncertain values Bad if the mapping demands
this.) Before a tag's first usable value, its value is unknown.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.data.historian.raw_rows import Times

GOOD = np.uint32(0x00000000)
UNCERTAIN = np.uint32(0x40000000)
BAD = np.uint32(0x80000000)
"""Status codes of OPC UA Part 4; the two highest bits give the severity."""

Statuses = npt.NDArray[np.uint32]


class Samples(NamedTuple):
    """M archived values of one tag, in order of time."""

    times: Times
    """Times in ns since 1970, UTC, strictly increasing (M,)."""
    values: npt.NDArray[np.float64]
    """Values (M,)."""
    statuses: Statuses
    """OPC UA status codes (M,)."""


class Resampled(NamedTuple):
    """Values of a tag at G given times."""

    values: npt.NDArray[np.float64]
    """Values (G,); NaN if unknown."""
    reach: Times
    """Time in ns between the two values used, or since a held value became Bad; 0 at an archived value (G,)."""
    across_bad: npt.NDArray[np.bool_]
    """Whether Bad values were skipped (G,)."""


class Rule(NamedTuple):
    """How to interpolate a tag; times in ns."""

    stepped: bool
    max_gap: int
    """Longest time for which any tag may be Bad, or a sloped tag not archived."""
    stale: int | None = None
    """Longest time for which this tag's value may be held or interpolated, if the mapping gives a limit."""
    causal: bool = False
    """Whether to use only values that were archived up to the given time."""
    skew: int = 0
    """If causal, samples up to this time after the given time are also used."""

    @property
    def reach(self) -> int:
        """Longest time in ns after a given time at which a sample can still change the value."""
        return 0 if self.stepped else max(self.stale or self.max_gap, self.skew)


def severity(statuses: Statuses) -> npt.NDArray[Any]:
    """Return the severity of each status: 0 for Good, 1 for Uncertain, 2 or 3 for Bad."""
    return statuses >> 30


def _split(samples: Samples) -> tuple[Times, npt.NDArray[np.float64], Times]:
    usable = (samples.statuses < BAD) & np.isfinite(samples.values)
    if usable.all():
        return samples.times, samples.values, samples.times[:0]
    where = np.flatnonzero(usable)
    return samples.times.take(where), samples.values.take(where), samples.times[~usable]


def _interpolate(
    times: Times, values: npt.NDArray[np.float64], bad_times: Times, at: Times, stepped: bool
) -> tuple[Resampled, Times, Times, npt.NDArray[np.bool_]]:
    """Interpolate linearly between the values before and after each time `at`, or hold the value before if `stepped`.

    Also return, for each time (G,): the index of the last value not after it, or 0 if there is none; the time since
    that value in ns, negative if there is none; and whether the time is after the last value.
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
        # After the last value, this holds the last value.
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
    """Return for each interval whether Bad values are inside, and the number of Bad values up to its start."""
    if not len(bad_times):
        return np.zeros(len(since), bool), np.zeros(len(since), np.int64)
    passed = np.searchsorted(bad_times, since, side="right")
    return np.searchsorted(bad_times, until, side=side) > passed, passed


class Within(NamedTuple):
    """Begin and end of the episode of each of G given times."""

    since: Times
    """Time of the episode's first row in ns (G,)."""
    until: Times
    """Time of the next episode's first row in ns (G,)."""


def known_at(samples: Samples, at: Times, rule: Rule, end: int, within: Within | None = None) -> Resampled:
    """Return a tag's values at G times; a value is NaN if the samples are too far apart, by the limits of the rule.

    If the rule is causal, a sloped tag is interpolated only if the later sample has a time of at most t + skew;
    otherwise the earlier value is held. After its last sample, a sloped tag becomes unknown when its limit has passed,
    but only if the archive goes on for so long.

    Args:
        samples: samples of the tag (M,), from the last value before `at` on.
        at: increasing times in ns (G,).
        end: time in ns up to which `samples` is complete.
        within: the episode of each time; if given, samples of other episodes are not used.
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
        # Values must not depend on later samples. The limits may, because they only decide whether a row is used.
        later = times[np.minimum(before + 1, len(times) - 1)]
        seen = (age <= 0) | (~beyond & (later <= at + rule.skew))
        found = found._replace(values=np.where(seen, found.values, values[before]))
    return found._replace(values=np.where(far, np.nan, found.values))
