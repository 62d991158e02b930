"""Timestamps as historians write them, as ns since 1970 in UTC; and which of them a clock gone astray has written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from configs.dialect import chrono_format
from configs.errors import BadInput
from configs.mapping import Clock
from tasks.data.historian.raw_rows import UNKNOWN_TIME

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SECOND = 10**9
DAY = 86_400 * SECOND
ISO_DATE = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:"
OFFSET = r"(Z|[+-]\d{2}:?\d{2})$"
OTHER_SPELLINGS = (
    # ISO 8601's basic form.
    (r"^(\d{4})(\d{2})(\d{2})[T ](\d{2})(\d{2})(\d{2})", "${1}-${2}-${3}T${4}:${5}:${6}"),
    (r"^(\d{4})(\d{2})(\d{2})[T ](\d{2})(\d{2})", "${1}-${2}-${3}T${4}:${5}"),
    (r"^(\d{4})(\d{2})(\d{2})[T ](\d{2})", "${1}-${2}-${3}T${4}:00"),
    # With the year first there is one way to read a date, whatever stands between its parts.
    (r"^(\d{4})[-/.:](\d{1,2})[-/.:](\d{1,2})", "${1}-0${2}-0${3}"),
    (r"^(\d{4})-0?(\d{2})-0?(\d{2})", "${1}-${2}-${3}"),
    (r"^(\d{4}-\d{2}-\d{2})$", "${1}T00:00"),
    (r"^(\d{4}-\d{2}-\d{2})[T ](\d{1,2})(Z|[+-]\d{2}:?\d{2})?$", "${1}T${2}:00${3}"),
    (r"^(\d{4}-\d{2}-\d{2})[T ](\d):", "${1}T0${2}:"),
    (r"([T ]\d{2}:\d{2}:\d{2}),(\d)", "${1}.${2}"),
    # Offsets of whole hours.
    (r"([T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?) ?([+-]\d{2})$", "${1}${2}:00"),
)
"""What is ISO 8601 too, or can be read in one way only, and how polars wants it."""
MOST_SHOWN = 60
FOLLOWERS = 64
"""Rows that follow one that jumped ahead, and decide whether it is an outlier."""
FIRST_YEAR, LAST_YEAR = "1685", "2254"
"""Years that 64 bits hold in ns."""
LEAST_FALL_SECONDS = 60.0
"""A row that is less behind is late by a scan's jitter, and tells of no clock that was set back."""
MAX_MICROSECONDS = 9_000_000_000_000_000
"""About the year 2255, a bit less than what 64 bits hold in ns; historians write 9999 for 'never'."""

UNREADABLE, MISSING, AMBIGUOUS, SKIPPED, OUT_OF_RANGE = 1, 2, 3, 4, 5
REASONS = {
    UNREADABLE: "timestamp cannot be read",
    MISSING: "timestamp is missing",
    AMBIGUOUS: "timestamp comes twice, for clocks were set back",
    SKIPPED: "timestamp does not exist, for clocks were set forward",
    OUT_OF_RANGE: "timestamp is out of range",
}
ASTRAY = "timestamp is more than a day ahead of the rows around it"
FAR = "timestamp is implausibly far from those of nearly all rows"


class SecondPass:
    """Tells by the order of rows which of them a clock that was set back wrote in the second of two equal hours.

    The second pass begins with the row that falls back further than a row may come late. Where rows come so rarely that
    either pass may hold one moment alone, as every hour, it also begins with the row of a tag that has one there. What
    then comes from the hour's end is a late row of the first pass, until the second one is under way.

    Args:
        late_seconds: how late a row may come; half of the hour always tells.
    """

    def __init__(self, late_seconds: float) -> None:
        self.late = round(max(late_seconds, LEAST_FALL_SECONDS) * 1e9)
        self.met = False
        """Whether there was such an hour."""
        self._first = self._crest = UNKNOWN_TIME
        self._begun = self._again = UNKNOWN_TIME
        """Where the second pass began, and how far it has come; not yet where unknown."""
        self._single: set[object] | None = None
        """The tags of the hour's first moment, as long as there is no other one; None where that tells nothing."""

    def of(self, earlier: Times, width: int, before: Times, tags: pl.Series) -> Mask:
        """Which rows belong to the second pass (n,), in the order of the file; calls go on from each other.

        Args:
            earlier: the earlier of the two times of each row (n,), ns.
            width: ns between the two.
            before: time of the row before each (n,).
            tags: whose rows they are (n,).
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
    """Reads the timestamps of one file, batch after batch; the state is what tells the second of two equal hours.

    Args:
        clock: zone and rules.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.second_pass = SecondPass(clock.late_seconds)
        self._last = UNKNOWN_TIME
        self._any = False

    def read(
        self, column: pl.Series, file: str, tags: pl.Series | None = None
    ) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        """Times (n,), and why each could not be read (0 where it could), or None where all could.

        Args:
            column: timestamps (n,), in the order of the file.
            file: for messages.
            tags: whose rows they are (n,), null where nobody's; None where each row is one of all tags.

        Raises:
            BadInput: when the column holds no times, or none can be read.
        """
        given = column.null_count()
        if self.clock.format is not None and column.dtype.is_integer():
            column = column.cast(pl.String)  # digits alone, such as 20260131
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
                f"expected times in {file}, got numbers: say what they count since 1970 in the mapping's clock.epoch."
            )
        if self.clock.ambiguous != "quarantine":
            times, reasons = self._told_apart(times, reasons, tags)
        if given and reasons is None:
            reasons = np.zeros(len(times), np.uint8)
        if given and reasons is not None:
            reasons[column.is_null().to_numpy()] = MISSING
        if reasons is not None:
            times = np.where(reasons == 0, times, UNKNOWN_TIME)
        return times, reasons

    def _told_apart(
        self, times: Times, reasons: npt.NDArray[np.uint8] | None, tags: pl.Series | None
    ) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        """The same times with those that come twice, of which the earlier is given, by the clock's rule."""
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
            mask = odd.to_numpy()
            times[mask], reasons[mask] = self._iso(_respelt(text.filter(odd)))
        # A time that comes twice was read, whatever becomes of it.
        read = (reasons == 0) | (reasons == AMBIGUOUS)
        if len(text) and not self._any and not read.any() and column.null_count() < len(text):
            shown = str(column.drop_nulls()[0])[:MOST_SHOWN]
            raise BadInput(
                f"expected timestamps such as 2026-01-31T23:59:59.5Z in {file}, got '{shown}', which "
                "can be read in more than one way: say which in the mapping's clock.format, such as %d.%m.%Y, or "
                "export ISO 8601."
            )
        self._any |= bool(read.any())
        return times, reasons if reasons.any() else None

    def _iso(self, text: pl.Series) -> tuple[Times, npt.NDArray[np.uint8]]:
        """Times in ISO 8601's extended form, and why others could not be read."""
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
                # A format is guessed from the first text: a millisecond more or less must not lose the others.
                chosen = chosen.str.replace(r"^(\d{4}-\d{2}-\d{2}) ", "${1}T").str.replace(
                    r"(T\d{2}:\d{2}:\d{2})(Z|[+-]\d{2}:?\d{2})?$", "${1}.0${2}"
                )
                zone = "UTC" if which is with_offset else None
                try:
                    parsed = chosen.str.to_datetime(time_unit="ns", time_zone=zone, strict=False)
                except pl.exceptions.ComputeError:  # not one of them fits any format
                    continue
                # In ns a year beyond these would come out as another one.
                far = ~chosen.str.slice(0, 4).is_between(pl.lit(FIRST_YEAR), pl.lit(LAST_YEAR))
                found, why = judge(parsed.set(far, None) if far.any() else parsed)
                times[mask] = found
                why = np.zeros(len(found), np.uint8) if why is None else why
                reasons[mask] = np.where(far.to_numpy(), OUT_OF_RANGE, why)
        return times, reasons

    def _formatted(self, text: pl.Series, file: str) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        """Times written as the clock's format says; an offset in them counts, otherwise they are the zone's."""
        written = str(self.clock.format)
        form, ending = chrono_format(written)
        if "%S,%f" in written:
            text = text.str.replace(r",(\d+)", ".${1}")
        whole = text + ending
        found = whole.str.to_datetime(form, time_unit="us", strict=False)
        year = found.dt.year()
        # In ns a year beyond these would come out as another one.
        far = ((year < int(FIRST_YEAR)) | (year > int(LAST_YEAR))).fill_null(False)
        found = whole.set(far, None).str.to_datetime(form, time_unit="ns", strict=False)
        if len(text) and not self._any and found.null_count() == len(text) > text.null_count() + far.sum():
            odd = str(text.drop_nulls()[0])[:MOST_SHOWN]
            raise BadInput(f"expected timestamps written as '{written}' in {file}, got '{odd}': correct clock.format.")
        self._any |= found.null_count() < len(text)
        times, reasons = _in_range(found) if "%z" in written else self._local(found)
        if reasons is not None:
            reasons[far.to_numpy()] = OUT_OF_RANGE
        return times, reasons

    def _local(self, column: pl.Series) -> tuple[Times, npt.NDArray[np.uint8] | None]:
        """Times that name no zone: the mapping says which. Of those that come twice the earlier, as AMBIGUOUS."""
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


def _respelt(text: pl.Series) -> pl.Series:
    """Times as ISO 8601's extended form with points, as far as there is only one way to read them."""
    for pattern, instead in OTHER_SPELLINGS:
        text = text.str.replace(pattern, instead)
    return text


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
    """Rows stamped more than a day ahead of all before them, while most of the rows that follow are behind again.

    Args:
        times: in the order of the file, `UNKNOWN_TIME` where unknown (n,).
        top: the youngest time of the rows before.
    """
    astray = np.zeros(len(times), bool)
    known = np.flatnonzero(times != UNKNOWN_TIME)
    at = times[known]
    position = 0
    while position < len(at):
        crest = np.maximum.accumulate(np.concatenate([[top], at[position:]]))[:-1]
        # Nothing is ahead of nothing: for the first row of all only its followers decide.
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
