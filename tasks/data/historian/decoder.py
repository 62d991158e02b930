"""Decode the values and statuses of historian rows, and reject invalid rows with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from tasks.data.historian.implausible_times import Implausible
from tasks.data.historian.raw_rows import RawRows, Rejects
from tasks.data.historian.resample import BAD, GOOD, UNCERTAIN
from tasks.data.historian.timestamps import ASTRAY, FAR, REASONS, TimestampReader

WORDS = {"good": GOOD, "uncertain": UNCERTAIN, "bad": BAD}
"""Status words. A longer word, such as 'Uncertain_SubNormal', is recognised by its beginning."""
OPC_DA = np.array([BAD, UNCERTAIN, 0xC0000000, GOOD], np.uint32)
"""OPC UA status for each value of the two highest bits of an OPC DA quality; OPC DA does not use the third value."""
OPC_DA_CODES = 256
NAMELESS = "tag is missing"
LONGEST_TEXT = 60
MOST_NAMED = 100
"""Largest number of different texts and status codes to name in reasons."""


class Decoder:
    """Decodes batches of a table into rows of the mapped tags, and rejects rows with invalid values or times."""

    def __init__(self, mapping: HistorianMapping, implausible: Implausible) -> None:
        self.mapping, self.implausible = mapping, implausible
        self.ignored = 0
        tags = list(mapping.tags.values())
        self._known: dict[str, int] = {}
        self._named_before: dict[str, set[str]] = {}
        ranges = [tag.range or (None, None) for tag in tags]
        self._low = np.array([-np.inf if low is None else low for low, _ in ranges])
        self._high = np.array([np.inf if high is None else high for _, high in ranges])
        self._ranged = bool(np.isfinite(self._low).any() or np.isfinite(self._high).any())

    def read(
        self,
        frame: pl.DataFrame,
        stamps: pl.Series,
        clock: TimestampReader,
        file: str,
        base: int,
        astray: npt.NDArray[np.int64],
    ) -> tuple[RawRows, list[Rejects], bool]:
        """Return the rows of the mapped tags, the rejected rows, and whether a tag is not in the mapping.

        Rows without a usable time are only among the rejected rows. Rows with an unusable value are also among the
        returned rows, with status Bad.

        Args:
            frame: columns code, nameless, timestamp and value, optionally status and row.
            stamps: the timestamps; in a wide table, the column `row` has the number of each row's timestamp.
            astray: numbers of rows with a wrong clock, counted from the first row of the frame.
        """
        count = len(frame)
        times, unreadable = self._times(frame, stamps, clock, file)
        texts = frame["value"] if frame["value"].dtype == pl.String else None
        values = _numbers(frame["value"])
        statuses, missing = self._statuses(frame, file)
        if "row" in frame.columns:
            ids = base + frame["row"].to_numpy().astype(np.int64)
        else:
            ids = np.arange(base, base + count, dtype=np.int64)
        strange = frame["code"].null_count() > 0
        codes = frame["code"].fill_null(len(self.mapping.tags)).to_numpy()
        rows = RawRows(codes, times, values, statuses, ids)
        mapped = codes < len(self.mapping.tags)
        nameless = frame["nameless"].to_numpy() if strange else np.zeros(0, bool)
        unknown = strange and bool((frame["code"].is_null() & ~frame["nameless"]).any())
        if texts is not None:
            rows = rows._replace(values=self._with_states(texts, codes, values))
        suspects = self._suspects(rows)
        lost = np.isin(ids - base, astray) if len(astray) else None
        far = self.implausible.among(times) if self.implausible else None
        unread = None if unreadable is None else unreadable != 0
        for odd in (missing, unread, nameless if strange else None, lost, far):
            if odd is not None:
                suspects |= odd
        keep, rejects = mapped, list[Rejects]()
        # Usually few rows are suspect, so look for reasons only in these rows.
        where = np.flatnonzero(suspects & (mapped | nameless if strange else mapped))
        if len(where):
            some = rows.take(where)
            reasons = np.full(len(where), None, object)
            if strange:
                reasons[nameless[where]] = NAMELESS
            if unreadable is not None:
                for code, reason in REASONS.items():
                    _note(reasons, unreadable[where] == code, reason)
            for wrong, reason in ((lost, ASTRAY), (far, FAR)):
                if wrong is not None:
                    _note(reasons, wrong[where], reason)
            timeless = reasons != None  # noqa: E711  (elementwise)
            if texts is not None:
                states = _states(texts.gather(where))
                odd = np.flatnonzero(states.is_not_null().to_numpy() & np.isnan(some.values) & (reasons == None))  # noqa: E711
                reasons[odd] = [self._named("digital state", f"'{text[:LONGEST_TEXT]}'") for text in states.gather(odd)]
            self._note_values(some, None if missing is None else missing[where], reasons)
            rejects = [Rejects(some, reasons, self._texts(frame, where, unreadable))]
            marked = statuses.copy()
            marked[where] = BAD
            rows = rows._replace(statuses=marked)
            keep = mapped.copy()
            keep[where[timeless]] = False
        if not keep.all():
            self.ignored += int((~mapped & ~nameless).sum() if strange else (~mapped).sum())
            rows = rows.take(keep)
        return rows, rejects, unknown

    def _times(
        self, frame: pl.DataFrame, stamps: pl.Series, clock: TimestampReader, file: str
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8] | None]:
        """Return times (n,), and codes of `REASONS` (n,), or None instead of codes if all times are readable."""
        if "row" in frame.columns:
            row = frame["row"].to_numpy()
            times, unreadable = clock.read(stamps, file)
            return times[row], None if unreadable is None else unreadable[row]
        tags = None
        if self.mapping.clock.ambiguous == "order":
            tags = frame.select(pl.when(pl.col("code") < len(self.mapping.tags)).then("code")).to_series()
        return clock.read(stamps, file, tags)

    def _suspects(self, rows: RawRows) -> npt.NDArray[np.bool_]:
        worst = UNCERTAIN if self.mapping.treat_uncertain_as_bad else BAD
        found: npt.NDArray[np.bool_] = ~np.isfinite(rows.values) | (rows.statuses >= worst)
        return found | self._outside(rows) if self._ranged else found

    def _outside(self, rows: RawRows) -> npt.NDArray[np.bool_]:
        low, high = np.append(self._low, -np.inf), np.append(self._high, np.inf)
        codes = np.minimum(rows.codes, len(self._low))
        outside: npt.NDArray[np.bool_] = (rows.values < low[codes]) | (rows.values > high[codes])
        return outside

    def _note_values(self, rows: RawRows, missing: npt.NDArray[np.bool_] | None, reasons: npt.NDArray[Any]) -> None:
        if missing is not None:
            _note(reasons, missing, "status is missing")
        severity = rows.statuses >> 30
        names = {2: "Bad", 3: "of the reserved severity"}
        if self.mapping.treat_uncertain_as_bad:
            names[1] = "Uncertain"
        for grade, name in names.items():
            odd = np.flatnonzero((severity == grade) & (reasons == None))  # noqa: E711
            reasons[odd] = [self._named(f"status is {name}", f"(0x{code:08X})") for code in rows.statuses[odd].tolist()]
        _note(reasons, np.isnan(rows.values), "value is missing or not a number")
        _note(reasons, np.isinf(rows.values), "value is not finite")
        if self._ranged:
            _note(reasons, self._outside(rows), "value is outside the instrument's range")

    def _named(self, kind: str, which: str) -> str:
        """Return a reason with the text or code; without it after `MOST_NAMED` different ones, as in a wrong column."""
        before = self._named_before.setdefault(kind, set())
        if which not in before and len(before) >= MOST_NAMED:
            return kind
        before.add(which)
        return f"{kind} {which}"

    def _with_states(
        self, texts: pl.Series, codes: npt.NDArray[np.uint16], values: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        result = values.copy()
        for code, tag in enumerate(self.mapping.tags.values()):
            if tag.states:
                mine = np.flatnonzero((codes == code) & np.isnan(values))
                given = texts.gather(mine).str.strip_chars()
                numbers = given.replace_strict(
                    list(tag.states), list(tag.states.values()), default=None, return_dtype=pl.Float64
                )
                result[mine] = numbers.to_numpy()
        return result

    def _statuses(self, frame: pl.DataFrame, file: str) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_] | None]:
        """Return OPC UA status codes (n,), and a mask of missing statuses, or None if none is missing."""
        if "status" not in frame.columns:
            return np.zeros(len(frame), np.uint32), None
        column = frame["status"]
        missing = column.is_null().to_numpy() if column.null_count() else None
        if column.dtype.is_integer():
            codes = column.cast(pl.UInt32, strict=False)
            if codes.null_count() != column.null_count():
                odd = column.filter(codes.is_null() & column.is_not_null())[0]
                raise self._unknown_status(str(odd), file)
            found = codes.fill_null(0).to_numpy()
            self._check_kind_of(found, file)
            if self.mapping.status_codes == "opc_da":
                found = OPC_DA[(found >> 6) & 3]
        else:
            text = column.cast(pl.String)
            for word in text.unique():
                if word is not None and word not in self._known:
                    self._known[word] = self._status_code(word, file)
            found = text.replace_strict(self._known, default=0, return_dtype=pl.UInt32).to_numpy()
            self._check_kind_of(found, file)
        if missing is not None:
            found = np.where(missing, BAD, found)
        return found, missing

    def _status_code(self, text: str, file: str) -> int:
        if text in self.mapping.statuses:
            return int(WORDS[self.mapping.statuses[text]])
        word = text.strip().lower()
        for beginning, code in WORDS.items():
            if word.startswith(beginning):
                return int(code)
        try:
            number = int(word, 0)
        except ValueError:
            number = -1
        if not 0 <= number < 2**32:
            raise self._unknown_status(text, file)
        return int(OPC_DA[(number >> 6) & 3]) if self.mapping.status_codes == "opc_da" else number

    def _check_kind_of(self, codes: npt.NDArray[np.uint32], file: str) -> None:
        """Raise BadInput for ambiguous numbers: OPC DA codes are from 0 to 255, and OPC UA uses only 0 of these."""
        if self.mapping.status_codes is None and len(odd := codes[(codes > 0) & (codes < OPC_DA_CODES)]):
            raise BadInput(
                f"the status {odd[0]} in {file} is ambiguous: set 'status_codes: opc_da' in the mapping (192 is Good, "
                "0 is Bad) or 'status_codes: opc_ua' (0 is Good)."
            )

    def _unknown_status(self, text: str, file: str) -> BadInput:
        return BadInput(
            f"the status '{text}' in {file} is neither Good, Uncertain, Bad nor an OPC UA code: translate it in the "
            "mapping's 'statuses'."
        )

    def _texts(
        self, frame: pl.DataFrame, where: npt.NDArray[np.int64], unreadable: npt.NDArray[np.uint8] | None
    ) -> list[str | None] | None:
        """Return for each row of `where` the text of a value or time that could not be read; None if all were read."""
        if frame["value"].dtype != pl.String and unreadable is None:
            return None
        shown: list[str | None] = [None] * len(where)
        if frame["value"].dtype == pl.String:
            shown = [None if text is None else text[:LONGEST_TEXT] for text in frame["value"].gather(where)]
        if unreadable is not None:
            stamps = frame["timestamp"].gather(where).cast(pl.String)
            for i, row in enumerate(where):
                if unreadable[row]:
                    shown[i] = None if stamps[i] is None else str(stamps[i])[:LONGEST_TEXT]
        return shown


def _numbers(column: pl.Series) -> npt.NDArray[np.float64]:
    if column.dtype == pl.String:
        column = column.str.strip_chars().cast(pl.Float64, strict=False)
    elif column.dtype != pl.Float64:
        column = column.cast(pl.Float64, strict=False)
    return column.to_numpy()  # a null becomes NaN


def _states(texts: pl.Series) -> pl.Series:
    plain = texts.str.strip_chars()
    number = (plain == "") | plain.cast(pl.Float64, strict=False).is_not_null()
    return plain.set(number.fill_null(True), None)


def _note(reasons: npt.NDArray[Any], mask: npt.NDArray[np.bool_], reason: str) -> None:
    if mask.any():
        reasons[mask & (reasons == None)] = reason  # noqa: E711  (elementwise)
