"""Convert historian timestamps to ns since 1970 in UTC, and find rows with a wrong clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from configs.dialect import chrono_format
from configs.errors import BadInput
from configs.mapping import Clock
from tasks.data.historian.raw_rows import DAY, UNKNOWN_TIME, Mask, Times

ISO_DATE = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:"
OFFSET = r"(Z|[+-]\d{2}:?\d{2})$"
OTHER_SPELLINGS = (
    # ISO 8601 basic format.
    (r"^(\d{4})(\d{2})(\d{2})[T ](\d{2})(\d{2})(\d{2})", "${1}-${2}-${3}T${4}:${5}:${6}"),
    (r"^(\d{4})(\d{2})(\d{2})[T ](\d{2})(\d{2})", "${1}-${2}-${3}T${4}:${5}"),
    (r"^(\d{4})(\d{2})(\d{2})[T ](\d{2})", "${1}-${2}-${3}T${4}:00"),
    # A date with the year first is unambiguous, whatever the separator.
    (r"^(\d{4})[-/.:](\d{1,2})[-/.:](\d{1,2})", "${1}-0${2}-0${3}"),
    (r"^(\d{4})-0?(\d{2})-0?(\d{2})", "${1}-${2}-${3}"),
    (r"^(\d{4}-\d{2}-\d{2})$", "${1}T00:00"),
    (r"^(\d{4}-\d{2}-\d{2})[T ](\d{1,2})(Z|[+-]\d{2}:?\d{2})?$", "${1}T${2}:00${3}"),
    (r"^(\d{4}-\d{2}-\d{2})[T ](\d):", "${1}T0${2}:"),
    (r"([T ]\d{2}:\d{2}:\d{2}),(\d)", "${1}.${2}"),
    # Offsets of whole hours.
    (r"([T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?) ?([+-]\d{2})$", "${1}${2}:00"),
)
"""Patterns of other unambiguous spellings, each with its replacement in the ISO 8601 form that polars reads."""
MOST_SHOWN = 60
FOLLOWERS = 64
"""Number of rows after a jump ahead in time that decide whether the jump is an error."""
FIRST_YEAR, LAST_YEAR = "1685", "2254"
"""First and last year in which every time fits into 64 bits in ns."""
LEAST_FALL_SECONDS = 60.0
"""Shortest step back in time that counts as a changed clock; shorter steps are jitter."""
MAX_MICROSECONDS = 9_000_000_000_000_000
"""Largest accepted time in us since 1970, about the year 2255, because times in ns must fit into 64 bits."""

UNREADABLE, MISSING, AMBIGUOUS, SKIPPED, OUT_OF_RANGE = 1, 2, 3, 4, 5
REASONS = {
    UNREADABLE: "timestamp cannot be read",
    MISSING: "timestamp is missing",
    AMBIGUOUS: "timestamp is ambiguous, because clocks were set back",
    SKIPPED: "timestamp does not exist, because clocks were set forward",
    OUT_OF_RANGE: "timestamp is out of range",
}
ASTRAY = "timestamp is more than a day ahead of the rows around it"
FAR = "timestamp is implausibly far from nearly all others"


class SecondPass:
    """Decides, by the order of the rows, which rows are from the second pass of an hour, after a clock was set back.

    The second pass begins with a row that goes back in time by half an hour, or by more than a row may be late. If the
    hour has only one time, as in hourly logs, the second pass begins with the second row of a tag at this time. After
    that, a row with a time near the end of the hour counts as a late row of the first pass, until the second pass
    approaches this time.
    """

    def __init__(self, late_seconds: float) -> None:
        self.late = round(max(late_seconds, LEAST_FALL_SECONDS) * 1e9)
        self.met = False
        self._first = self._crest = UNKNOWN_TIME
        self._begun = self._again = UNKNOWN_TIME
        """Begin and latest time of the second pass; `UNKNOWN_TIME` before it begins."""
        self._single: set[object] | None = None
        """Tags with a row at the hour's first time, until another time occurs; None if the tags cannot decide."""

    def of(self, earlier: Times, width: int, before: Times, tags: pl.Series) -> Mask:
        """Mark the rows of the second pass among n rows with ambiguous times, in the order of the file.

        Args:
            earlier: the earlier possible time of each row in ns (n,).
            width: difference between the two possible times in ns.
            before: time of the row before each row in ns (n,).
            tags: tag of each row (n,).
        """
        self.met = True
        second = np.zeros(len(earlier), bool)
        starts = np.flatnonzero(np.abs(np.diff(earlier)) > DAY) + 1
        for start, end in zip([0, *starts], [*starts, len(earlier)], strict=True):
            at = earlier[start:end]
            if self._crest == UNKNOWN_TIME or abs(int(at[0]) - self._crest) > DAY:  # another autumn
                self._first = self._crest = int(at[0])
                self._begun = self._again = UNKNOWN_TIME
                self._single = set() if self._first - int(before[start]) >= width // 2 else None
            second[start:end] = self._hour(at, width, tags[start:end])
        return second

    def _hour(self, at: Times, width: int, tags: pl.Series) -> Mask:
        fall = np.maximum.accumulate(np.append(self._crest, at))[:-1] - at
        begins = (fall > self.late) | (fall >= width // 2)
        if self._single is not None:
            alone = int(np.argmin(np.append(at == self._first, False)))
            for i, tag in enumerate(tags[:alone]):
                if tag in self._single:
                    begins[i] = True
                    break
                self._single.add(tag)
            self._single = self._single if alone == len(at) and not begins.any() else None
        self._crest = max(self._crest, int(at.max()))
        second: Mask = np.logical_or.accumulate(begins) | (self._begun != UNKNOWN_TIME)
        if second.any():
            after = at[second]
            if self._begun == UNKNOWN_TIME:
                self._begun = self._again = int(after[0])
            ahead = width - min(self.late, width // 2)
            near = np.where(after <= self._begun + ahead, after, self._begun)
            reached = np.maximum.accumulate(np.append(self._again, near))
            second[second] = after <= reached[:-1] + ahead
            self._again = int(reached[-1])
        return second


class TimestampReader:
    """Reads the timestamps of one file, batch by batch, by the rules in the mapping's `clock`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.second_pass = SecondPass(clock.late_seconds)
        self._last = UNKNOWN_TIME
        self._any = False

    def read(
        self, column: pl.Series, file: str, tags: pl.Series | None = None
    ) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        """Return times (n,), and codes of `REASONS` (n,), 0 for a readable time; None for codes if all are readable.

        Args:
            column: timestamps (n,), in the order of the file; if no time is readable, BadInput is raised.
            tags: tag of each row (n,), null if unknown; None if each row belongs to all tags.
        """
        given = column.null_count()
        if self.clock.format is not None and column.dtype.is_integer():
            column = column.cast(pl.String)  # digits only, such as 20260131
        if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone is not None:
            times, reasons = _in_range(column)
        elif isinstance(column.dtype, pl.Datetime) or column.dtype == pl.Date:
            times, reasons = self._local(column.cast(pl.Datetime("us")) if column.dtype == pl.Date else column)
        elif column.dtype == pl.String and self.clock.epoch is None:
            times, reasons = self._texts(column, file)
        elif self.clock.epoch is not None:
            times, reasons = self._numbers(column)
        else:
            raise BadInput(
                f"the times in {file} are numbers: set clock.epoch in the mapping to their unit since 1970, such as s "
                "or ms."
            )
        if self.clock.ambiguous != "quarantine":
            times, reasons = self._resolved(times, reasons, tags)
        if given and reasons is None:
            reasons = np.zeros(len(times), np.uint8)
        if given and reasons is not None:
            reasons[column.is_null().to_numpy()] = MISSING
        if reasons is not None:
            times = np.where(reasons == 0, times, UNKNOWN_TIME)
        return times, reasons

    def _resolved(
        self, times: Times, reasons: npt.NDArray[np.uint8] | None, tags: pl.Series | None
    ) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        own = np.arange(len(times)) if tags is None else np.flatnonzero(tags.is_not_null().to_numpy())
        before = np.append(self._last, times[own])
        self._last = int(before[-1])
        if reasons is None or not (twice := reasons == AMBIGUOUS).any():
            return times, reasons
        later, times, zone = times.copy(), times.copy(), self.clock.zone
        shown = pl.Series(times[twice]).cast(pl.Datetime("ns", "UTC")).dt.convert_time_zone(zone)
        again = shown.dt.replace_time_zone(None).dt.replace_time_zone(zone, ambiguous="latest")
        later[twice] = again.to_physical().to_numpy()
        if self.clock.ambiguous == "later":
            times = later
        elif self.clock.ambiguous == "order" and (mine := twice[own]).any():
            where = own[mine]
            whose = pl.repeat(0, len(where), eager=True) if tags is None else tags.gather(where)
            width = int(later[where[0]] - times[where[0]])
            second = self.second_pass.of(times[where], width, before[:-1][mine], whose)
            times[where] = np.where(second, later[where], times[where])
        reasons[twice] = 0
        return times, reasons if reasons.any() else None

    def _numbers(self, column: pl.Series) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        unit = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[str(self.clock.epoch)]
        if column.dtype.is_integer():
            whole = column.cast(pl.Int64, strict=False)
            far = whole.abs() > MAX_MICROSECONDS * 1000 // unit
            times = (whole.set(far.fill_null(True), 0) * unit).fill_null(0)
        else:
            number = column.cast(pl.Float64, strict=False)
            far = ~(number.is_finite() & (number.abs() < MAX_MICROSECONDS * 1000 / unit))
            whole = number.floor()
            part = ((number - whole).set(far.fill_null(True), 0.0) * unit).round()
            times = whole.set(far.fill_null(True), 0.0).cast(pl.Int64) * unit + part.cast(pl.Int64)
        wrong = far.fill_null(True).to_numpy()
        reasons = np.where(wrong, OUT_OF_RANGE, 0).astype(np.uint8) if wrong.any() else None
        return times.fill_null(0).to_numpy().astype(np.int64), reasons

    def _texts(self, column: pl.Series, file: str) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        text = column.str.strip_chars()
        if self.clock.format is not None:
            return self._formatted(text, file)
        times, reasons = self._iso(text)
        odd = pl.Series(reasons == UNREADABLE) & text.is_not_null()
        if odd.any():
            mask, others = odd.to_numpy(), text.filter(odd)
            for pattern, instead in OTHER_SPELLINGS:
                others = others.str.replace(pattern, instead)
            times[mask], reasons[mask] = self._iso(others)
        # Ambiguous times count as readable.
        read = (reasons == 0) | (reasons == AMBIGUOUS)
        if len(text) and not self._any and not read.any() and column.null_count() < len(text):
            shown = str(column.drop_nulls()[0])[:MOST_SHOWN]
            raise BadInput(
                f"'{shown}' in {file} is not an unambiguous time: set clock.format in the mapping, for example to "
                "%d.%m.%Y, or export ISO 8601 times, for example 2026-01-31T23:59:59.5Z."
            )
        self._any |= bool(read.any())
        return times, reasons if reasons.any() else None

    def _iso(self, text: pl.Series) -> tuple[Times, npt.NDArray[np.uint8]]:
        iso = text.str.contains(ISO_DATE).fill_null(False)
        offset = text.str.contains(OFFSET).fill_null(False)
        with_offset = iso & offset
        times = np.full(len(text), UNKNOWN_TIME, np.int64)
        reasons = np.full(len(text), UNREADABLE, np.uint8)
        parts: tuple[tuple[pl.Series, Callable[[pl.Series], tuple[Times, npt.NDArray[np.uint8] | None]]], ...] = (
            (with_offset, _in_range),
            (iso & ~offset, self._local),
        )
        for which, judge in parts:
            mask = which.to_numpy()
            if mask.any():
                chosen = text.filter(which)
                # polars infers the format from the first text, so write all texts with a fraction of a second.
                chosen = chosen.str.replace(r"^(\d{4}-\d{2}-\d{2}) ", "${1}T").str.replace(
                    r"(T\d{2}:\d{2}:\d{2})(Z|[+-]\d{2}:?\d{2})?$", "${1}.0${2}"
                )
                zone = "UTC" if which is with_offset else None
                try:
                    parsed = chosen.str.to_datetime(time_unit="ns", time_zone=zone, strict=False)
                except pl.exceptions.ComputeError:  # no text fits any format
                    continue
                # Years outside this range would overflow in ns.
                far = ~chosen.str.slice(0, 4).is_between(pl.lit(FIRST_YEAR), pl.lit(LAST_YEAR))
                found, why = judge(parsed.set(far, None) if far.any() else parsed)
                times[mask] = found
                why = np.zeros(len(found), np.uint8) if why is None else why
                reasons[mask] = np.where(far.to_numpy(), OUT_OF_RANGE, why)
        return times, reasons

    def _formatted(self, text: pl.Series, file: str) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        """Read times in the format `clock.format`; times without an offset from UTC are in the zone `clock.zone`."""
        written = str(self.clock.format)
        form, ending = chrono_format(written)
        if "%S,%f" in written:
            text = text.str.replace(r",(\d+)", ".${1}")
        whole = text + ending
        found = whole.str.to_datetime(form, time_unit="us", strict=False)
        year = found.dt.year()
        far = ((year < int(FIRST_YEAR)) | (year > int(LAST_YEAR))).fill_null(False)
        found = whole.set(far, None).str.to_datetime(form, time_unit="ns", strict=False)
        if len(text) and not self._any and found.null_count() == len(text) > text.null_count() + far.sum():
            odd = str(text.drop_nulls()[0])[:MOST_SHOWN]
            raise BadInput(f"'{odd}' in {file} does not fit clock.format '{written}': correct it in the mapping.")
        self._any |= found.null_count() < len(text)
        times, reasons = _in_range(found) if "%z" in written else self._local(found)
        if reasons is not None:
            reasons[far.to_numpy()] = OUT_OF_RANGE
        return times, reasons

    def _local(self, column: pl.Series) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        """Convert local times to UTC; an ambiguous time becomes the earlier possible time, with the code AMBIGUOUS."""
        zone = self.clock.zone
        if zone == "UTC":
            return _in_range(column.dt.replace_time_zone("UTC"))
        first = column.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        again = column.dt.replace_time_zone(zone, ambiguous="latest", non_existent="null")
        earlier, reasons = _in_range(first)
        later, _ = _in_range(again)
        skipped = (first.is_null() & column.is_not_null()).to_numpy()
        twice = (earlier != later) & ~skipped
        if not (skipped.any() or twice.any() or reasons is not None):
            return earlier, None
        why = np.zeros(len(earlier), np.uint8) if reasons is None else reasons
        why[skipped] = SKIPPED
        why[twice] = AMBIGUOUS
        return earlier, why


def _in_range(column: pl.Series) -> tuple[Times, npt.NDArray[np.uint8] | None]:
    if column.dtype.time_unit == "ns":  # type: ignore[attr-defined]
        times, wrong = column.to_physical(), column.is_null()
    else:
        coarse = column.dt.epoch("us")
        least, most = coarse.min(), coarse.max()
        sound = not coarse.null_count() and least is not None and most is not None
        if sound and least >= -MAX_MICROSECONDS and most <= MAX_MICROSECONDS:  # type: ignore[operator]
            return coarse.to_numpy() * 1000, None
        wrong = (~coarse.is_between(-MAX_MICROSECONDS, MAX_MICROSECONDS)).fill_null(True)
        times = coarse.set(wrong, 0) * 1000
    if not wrong.any():
        return times.to_numpy(), None
    reasons = np.where(column.is_null().to_numpy(), UNREADABLE, OUT_OF_RANGE).astype(np.uint8)
    reasons[~wrong.to_numpy()] = 0
    return times.fill_null(0).to_numpy().astype(np.int64), reasons


def find_astray(times: Times, top: int) -> Mask:
    """Mark rows that are more than a day after all earlier rows, if most of the next rows are a day before them again.

    Args:
        times: times in the order of the file (n,); `UNKNOWN_TIME` if unknown.
        top: latest time of the rows before.
    """
    astray = np.zeros(len(times), bool)
    known = np.flatnonzero(times != UNKNOWN_TIME)
    at = times[known]
    position = 0
    while position < len(at):
        crest = np.maximum.accumulate(np.concatenate([[top], at[position:]]))[:-1]
        # The first row of the file has no rows before it, so only the next rows decide.
        jumps = np.flatnonzero((crest == UNKNOWN_TIME) | (at[position:] > np.maximum(crest, UNKNOWN_TIME + DAY) + DAY))
        if not len(jumps):
            break
        jump = position + int(jumps[0])
        followers = at[jump + 1 : jump + 1 + FOLLOWERS]
        if len(followers) and np.median(followers) < at[jump] - DAY:
            astray[known[jump]] = True
        else:
            top = max(top, int(at[jump]))
        top = max(top, int(at[position:jump].max(initial=top)))
        position = jump + 1
    return astray
