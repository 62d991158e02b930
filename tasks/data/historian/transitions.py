"""Convert a historian export to transitions: resample the tags at control instants, and divide the steps into episodes.

A row has the observation at a control instant t, the action until t + dt, and the observation at t + dt. Episodes
end at gaps, mode changes and trips. A trip is a violation of a hard limit at t + dt; it terminates the episode. Other
ends are timeouts. If the mapping does not end episodes at trips, steps beyond a limit are ordinary rows with costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from configs.expression import Expression
from configs.mapping import HistorianMapping
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import PlantSpec
from tasks.data.historian.export import Export
from tasks.data.historian.raw_rows import SECOND, UNKNOWN_TIME, Floats, Mask, RawQuarantine, Times
from tasks.data.historian.resample import Rule, Within, known_at
from tasks.data.historian.steps import Cutter, Points, Scorer, StepOutcome, outcomes, single
from tasks.data.historian.tag_history import TagGrouper, TagHistory, changes
from tasks.data.store.records import RawAccount, SampleCounts, StepAccount
from tasks.data.store.schema import BLOCK_ROWS, Rows

GRID_POINTS = 4096
SETTLE_ROWS = 2_000_000
"""Number of raw rows to read before control steps are computed."""
SILENCE = 7 * 86_400 * SECOND
SILENT_STEPS = 1000
"""The archive counts as silent after `SILENCE` ns and `SILENT_STEPS` control steps without any row. In a silence all
values are unknown, and control steps are only counted, because a year can have half a million steps."""
PIECE_ROWS = 24
"""Memory overhead of each tag in a chunk, in rows."""


class HistorianStream:
    """Reads a historian export (a table or a folder of tables) as blocks of transitions, in constant memory.

    Args:
        mapping: the mapping; BadInput is raised if it does not fit the plant or the export.
        logged: the plant's formulas for reward and distances to limits; None for a log-only plant.
        digests: SHA-256 of each table, if known.
    """

    def __init__(
        self,
        path: Path,
        mapping: HistorianMapping,
        spec: PlantSpec,
        logged: LoggedSignals | None,
        quarantine: RawQuarantine,
        digests: Mapping[Path, str] | None = None,
    ) -> None:
        self.mapping, self.spec, self.quarantine = mapping, spec, quarantine
        try:
            self.conversions = mapping.conversions(spec)
            self.observed = list(mapping.by_signal(spec.observation, ("observation", "set_point")).items())
            self.acting = list(mapping.by_signal(spec.action, ("action",)).values())
            self.derived, reward = mapping.formulas(spec)
        except ValueError as error:
            raise BadInput(f"{error}: correct the mapping of plant {spec.name}.") from error
        self.codes = {tag: code for code, tag in enumerate(mapping.tags)}
        self.inputs = [(str(t.signal), tag) for tag, t in mapping.tags.items() if t.role == "input"]
        self.inputs += [(name, name) for name, formula in mapping.derived.items() if formula.role == "input"]
        if logged is None:
            _check_formulas(spec, reward, {*spec.observation.names, *(name for name, _ in self.inputs)})
        self.scorer = Scorer(spec, logged, reward, tuple(name for name, _ in self.inputs))
        max_gap = round(mapping.episodes.max_gap_seconds * SECOND)
        self.rules = {
            tag: Rule(
                stepped=it.interpolation == "stepped",
                max_gap=max_gap,
                stale=None if it.stale_seconds is None else round(it.stale_seconds * SECOND),
                causal=mapping.causal,
                skew=round(mapping.skew_seconds * SECOND),
            )
            for tag, it in mapping.tags.items()
        }
        self.period = round(mapping.period_seconds * SECOND)
        self.export = Export.open(path, mapping, digests)
        begin, end = self.export.period()
        self.end = end
        if mapping.origin is None:
            origin = self.export.first_time(self.acting[0])
        else:
            origin = mapping.clock.moment(mapping.origin)
        self.next = self.first = begin + (origin - begin) % self.period
        if self.next + self.period > end:
            raise BadInput(
                f"{path.name} is shorter than one control step of {mapping.period_seconds:g} s, it has rows from "
                f"{np.datetime64(begin, 'ns')} to {np.datetime64(end, 'ns')}: export a longer period."
            )
        held = [max_gap, *(rule.stale for rule in self.rules.values() if rule.stale is not None)]
        self.grouper = TagGrouper(len(mapping.tags), mapping.clock, max(SILENCE, SILENT_STEPS * self.period, *held))
        episode = None if mapping.episode is None else self.codes[mapping.episode]
        self.history = TagHistory(len(mapping.tags), mapping.clock, quarantine, episode)
        self._outcomes = np.zeros(len(StepOutcome), np.int64)
        self._trips = self._beyond = self._silent = 0
        self.alarms = mapping.alarms(spec)
        self._alarmed = dict.fromkeys(self.alarms, 0)
        self._cutter = Cutter(mapping.episodes.max_steps or spec.horizon)

    def blocks(self) -> Iterator[Rows]:
        """Yield blocks of rows with rewards and costs; `account` counts the rows yielded so far."""
        waiting: Points | None = None
        for points in self._all_points():
            waiting = points if waiting is None else Points(*map(np.concatenate, zip(waiting, points, strict=True)))
            if len(waiting.times) > GRID_POINTS:
                yield from self._rows(waiting, last=False)
                waiting = waiting.slice(slice(len(waiting.times) - 2, None))
        if waiting is not None:
            yield from self._rows(waiting, last=True)

    def _all_points(self) -> Iterator[Points]:
        # Samples up to this time later can change a point. The action is read in the middle of the step.
        reach = max(rule.reach for rule in self.rules.values()) + self.period // 2
        unsettled = 0
        for chunk in self.export.chunks(self.quarantine, self.grouper):
            self.history.push(chunk)
            unsettled += len(chunk.rows.ids) + PIECE_ROWS * len(self.codes)
            del chunk
            if unsettled >= SETTLE_ROWS:
                unsettled = 0
                yield from self._settled(self.history.complete - reach, self.history.complete)
                self.history.trim(self.next)
        yield from self._settled(self.end + 1, self.end)

    @property
    def account(self) -> StepAccount:
        counts = self.grouper.counts
        steps = {outcome.name.lower(): int(self._outcomes[outcome]) for outcome in StepOutcome}
        return StepAccount(
            steps=int(self._outcomes.sum()),
            rows=steps["row"],
            rejected=steps["rejected"],
            gap=steps["gap"],
            silent=self._silent,
            not_running=steps["not_running"],
            outside_limits=steps["outside_limits"],
            trips=self._trips,
            beyond_limits=self._beyond,
            alarms=dict(self._alarmed),
            samples={
                tag: SampleCounts(**{name: int(counts[name][code]) for name in counts})
                for tag, code in self.codes.items()
            },
            raw=RawAccount(
                rows=self.export.rows,
                ignored=self.export.ignored,
                rejected=self.quarantine.count,
                reasons=dict(self.quarantine.reasons.most_common()),
                put_in_place=self.grouper.displaced,
                in_order_of_time=self.export.ordered,
            ),
        )

    def _settled(self, before: int, known_to: int) -> Iterator[Points]:
        """Yield the points before the time `before`; the caller ensures that later rows cannot change their values."""
        while self.next < before:
            silence = next((some for some in self.grouper.silences if some[1] > self.next), None)
            stop = before
            if silence is not None:
                # Compute one point inside the silence, so that no step extends over the silence.
                made = silence[0] + 2 * self.period
                if self.next >= made:
                    skipped = -(-(min(silence[1], before) - self.next) // self.period)
                    self._outcomes[StepOutcome.GAP] += skipped
                    self._silent += skipped
                    self.next += skipped * self.period
                    continue
                stop = min(before, made)
            count = min(-(-(stop - self.next) // self.period), GRID_POINTS)
            grid = self.next + self.period * np.arange(count, dtype=np.int64)
            yield self._points(grid, known_to)
            self.next = int(grid[-1]) + self.period

    def _points(self, grid: Times, known_to: int) -> Points:
        middles = grid + self.period // 2
        begun, within = self._episodes(grid)
        values, gap, fault = self._resample([tag for _, tag in self._tagged()], grid, known_to, within)
        signals = {signal: values[:, i] for i, (signal, _) in enumerate(self._tagged())}
        for name, formula in self.derived.items():
            signals[name] = np.broadcast_to(np.asarray(formula.compute(signals), float), grid.shape)
            # If an input is missing, the point already has a gap or fault. Otherwise the formula itself has no value.
            fault[~np.isfinite(signals[name]) & ~gap & (fault == "")] = f"derived {name} is not finite"
        observations = np.stack([signals[name] for name, _ in self.observed], axis=1)
        inputs = np.stack([signals[n] for n, _ in self.inputs], axis=1) if self.inputs else np.zeros((len(grid), 0))
        # Read the action in the middle of the step, so that a delay of the archive does not shift it by a step.
        actions, action_gap, action_fault = self._resample(self.acting, middles, known_to, within)
        running, modes = np.ones(len(grid), bool), np.zeros((len(grid), len(self.mapping.modes)))
        for i, tag in enumerate(self.mapping.modes):
            found = known_at(self.history.samples(self.codes[tag]), grid, self.rules[tag], known_to)
            running &= np.isin(found.values, self.mapping.tags[tag].running)
            modes[:, i] = np.nan_to_num(found.values, nan=np.inf)
        here = (grid, begun, single(observations), inputs, single(actions))
        return Points(*here, gap, action_gap, fault, action_fault, running, modes)

    def _episodes(self, grid: Times) -> tuple[Times, Within | None]:
        """Return the begin of each point's episode (G,) and the episodes' intervals; 0 and None without a name tag."""
        if self.mapping.episode is None:
            return np.zeros(len(grid), np.int64), None
        named = self.history.samples(self.codes[self.mapping.episode])
        # Use the name of an episode even if its status is Bad, so that values are not held into the next episode.
        starts = named.times[changes(named.values)]
        after = np.searchsorted(starts, grid, side="right")
        since = np.append(starts, UNKNOWN_TIME)[after - 1]
        return since, Within(since, np.append(starts, np.iinfo(np.int64).max)[after])

    def _tagged(self) -> list[tuple[str, str]]:
        return [
            (str(tag.signal), name)
            for name, tag in self.mapping.tags.items()
            if tag.role in ("observation", "set_point", "input")
        ]

    def _resample(
        self, tags: list[str], at: Times, known_to: int, within: Within | None
    ) -> tuple[Floats, Mask, npt.NDArray[Any]]:
        values, gap, fault = np.empty((len(at), len(tags))), np.zeros(len(at), bool), np.full(len(at), "", dtype=object)
        for i, tag in enumerate(tags):
            found = known_at(self.history.samples(self.codes[tag]), at, self.rules[tag], known_to, within)
            lost = np.isnan(found.values)
            bad = lost & found.across_bad
            scale, offset = self.conversions[tag]
            values[:, i] = scale * found.values + offset
            gap |= lost & ~bad
            if bad.any():
                limit = (self.rules[tag].stale or self.rules[tag].max_gap) / SECOND
                fault[bad & (fault == "")] = f"{tag} had no usable value for more than {limit:g} s"
        for since, until in self.grouper.silences:
            silent = (at > since) & (at < until)
            gap |= silent
            values[silent] = np.nan
        return values, gap, fault

    def _rows(self, points: Points, last: bool) -> Iterator[Rows]:
        """Yield the steps between the points as rows; the last step waits for the next call, unless `last` is True."""
        now, later = points.slice(slice(None, -1)), points.slice(slice(1, None))
        if not len(now.times):
            return
        outside = self.scorer.outside(points)
        outcome = outcomes(now, later, outside, self.mapping.end_at_trip)
        keep = outcome <= StepOutcome.REJECTED
        beyond = (outcome == StepOutcome.ROW) & outside[1:]
        terminals = beyond & self.mapping.end_at_trip
        changed = (now.modes != later.modes).any(axis=1)
        ends = self._cutter.cut(keep, terminals | changed | self.spec.over(later.observations), last)
        count = len(ends)
        fault = np.where(now.fault != "", now.fault, later.fault)
        fault = np.where(fault != "", fault, now.action_fault)
        rows: Rows = {
            "observations": now.observations,
            "actions": now.actions,
            "next_observations": later.observations,
            "terminals": terminals,
            "timeouts": np.append(ends, np.zeros(len(outcome) - count, bool)) & ~terminals,
            "timestamps": now.times,
            "rejected": np.where(outcome == StepOutcome.REJECTED, fault, ""),
            "numbers": (now.times - self.first) // self.period,
        }
        rows |= self.scorer.formulas(points)
        self._outcomes += np.bincount(outcome[:count], minlength=len(StepOutcome))
        self._trips += int(terminals[:count].sum())
        self._beyond += int(beyond[:count].sum())
        for name, (low, high) in self.alarms.items():
            reached = self.scorer.signals(later)[name][:count]
            alarmed = (outcome[:count] == StepOutcome.ROW) & ((reached < low) | (reached > high))
            self._alarmed[name] += int(alarmed.sum())
        where = np.flatnonzero(keep[:count])
        for start in range(0, max(len(where), 1), BLOCK_ROWS):
            chosen = where[start : start + BLOCK_ROWS]
            yield self.scorer.score({key: values[chosen] for key, values in rows.items()})


def _check_formulas(spec: PlantSpec, reward: Expression | None, known: set[str]) -> None:
    """Raise BadInput if the mapping of a plant without formulas lacks the reward or a quantity with a limit."""
    if reward is None:
        raise BadInput(
            f"there is no formula for the reward of plant {spec.name}: add logged_reward and logged_margins to the "
            "plant's file, or 'reward' to the mapping."
        )
    unseen = [limit.name for limit in spec.constraints if limit.name not in known]
    if unseen:
        raise BadInput(
            f"plant {spec.name} has a limit for '{unseen[0]}', which the mapping neither measures nor derives: add "
            f"logged_margins to the plant's file, or a derived signal '{unseen[0]}' to the mapping."
        )
