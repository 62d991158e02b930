"""Read historian exports in order of time: long or wide tables in Parquet or CSV, one file or a folder.

First, only the timestamps are read, to find the order of the files, the period, and rows with a wrong clock. An export
that is not in order of time is sorted with temporary files, so that memory use is constant.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from tasks.data.historian.decoder import Decoder
from tasks.data.historian.dialects import PlainTables, as_read, reading, source_files, table_digests
from tasks.data.historian.implausible_times import MONTH, NEVER, FileTimes, Implausible, Stretches, without_implausible
from tasks.data.historian.long_tables import EpisodeNumbers, batches, coded_batches, long_rows, sorted_rows, time_groups
from tasks.data.historian.raw_rows import FILE_BITS, UNKNOWN_TIME, RawQuarantine, RawRows, Rejects, Times
from tasks.data.historian.tag_history import Chunk, TagGrouper, ahead, portions
from tasks.data.historian.timestamps import FOLLOWERS, TimestampReader, find_astray

CHUNK_ROWS = 1_000_000
GROUPED_AHEAD = 16
"""Largest number of grouped portions of rows that wait in memory."""
FOOTER_CHECK_ROWS = 65_536
"""Number of rows at each end of a file that are read to check the order; for other rows the Parquet footer is used."""
MOST_NAMED = 50
MOST_SHOWN = 60
MOST_PARTS = 1024
"""Number of batches after which their intervals of time are joined."""
UNORDERED = 0.1
"""Share of late rows (with an earlier time than a row before) above which an export is not in order of time."""


@dataclass
class Export:
    path: Path
    mapping: HistorianMapping
    """Mapping for the converted tables that `tables` returns."""
    files: list[Path]
    digests: Mapping[Path, str] = field(default_factory=dict)
    times_of: list[FileTimes] = field(default_factory=list)
    implausible: Implausible = field(default_factory=lambda: Implausible(Stretches.joined([])))
    """Times that are too far from nearly all other times."""
    ordered: bool = True
    rows: int = 0
    """Number of rows read; for a wide table, the number of cells that are not empty, and of rows with an episode."""
    ignored: int = 0
    tables: PlainTables = field(init=False)
    episodes: EpisodeNumbers = field(init=False)

    def __post_init__(self) -> None:
        self.episodes = EpisodeNumbers(self.mapping.episode, self.mapping.tags)
        self.tables, self.mapping = PlainTables(self.mapping), as_read(self.mapping)

    @classmethod
    def open(cls, path: Path, mapping: HistorianMapping, digests: Mapping[Path, str] | None = None) -> Export:
        """Open a table, or a folder of tables: check the columns and read the timestamps.

        If `digests` has the SHA-256 of some files, only these files are read. A file that is missing, damaged or empty,
        or that lacks a column or readable timestamps, raises BadInput.
        """
        export = cls(path, mapping, list(digests or source_files(path)), digests or {})
        if mapping.clock.start is not None and len(export.files) > 1:
            raise BadInput(
                f"the mapping's clock.start needs a single file, got {len(export.files)} in {path}: ingest each file "
                "separately, or join the files."
            )
        for file in export.files:
            export._check_columns(file)
        with ThreadPoolExecutor(2) as pool:
            found, export.implausible = without_implausible(list(pool.map(export._file_times, export.files)))
        times_of = dict(zip(export.files, found, strict=True))
        export.files.sort(key=lambda file: times_of[file].centre)
        export.times_of = [times_of[file] for file in export.files]
        if not any(one.rows for one in export.times_of):
            raise BadInput(f"{path.name} has no rows: export a longer period.")
        if all(one.first > one.last for one in export.times_of):
            raise BadInput(f"{path.name} has no readable timestamps: export it again.")
        top, late = -np.inf, mapping.clock.late_seconds * 1e9
        for one in export.times_of:
            # If a file begins before the previous one ended, its rows would be late.
            follows = one.rows == 0 or (one.centre >= top and one.earliest >= top - late)
            export.ordered &= one.behind <= UNORDERED * one.rows and follows
            top = max(top, one.last)
        return export

    def period(self) -> tuple[int, int]:
        """Return the first and the last timestamp, in ns since 1970, UTC."""
        seen = [one for one in self.times_of if one.first <= one.last]
        # Late rows do not count for the first timestamp, unless the export will be sorted.
        return min(one.earliest if self.ordered else one.first for one in seen), max(one.last for one in seen)

    def first_time(self, tag: str) -> int:
        """Return the time of a tag's first row; raise BadInput if the tag has no value with a time."""
        columns, found = self.mapping.columns, []
        for file in self.files:
            with reading(file):
                table = self.tables.scan(file)
                if self.mapping.layout == "long":
                    rows = table.filter(pl.col(columns.tag).cast(pl.String) == tag)
                else:
                    rows = table.filter(pl.col(tag).is_not_null())
                head = rows.select(columns.timestamp).head(16).collect(engine="streaming")
            times, _ = TimestampReader(self.mapping.clock).read(head[columns.timestamp], file.name)
            found += times[(times != UNKNOWN_TIME) & ~self.implausible.among(times)].tolist()
            if found and self.ordered:
                break
        if not found:
            self._check_tags()
            raise BadInput(f"tag '{tag}' has no value with a time in {self.path.name}: export the tag.")
        return int(min(found)) if not self.ordered else int(found[0])

    def chunks(self, quarantine: RawQuarantine, grouper: TagGrouper) -> Iterator[Chunk]:
        """Yield all rows of the mapped tags, grouped by tag, in order of time except for late rows.

        Rejected rows go to the quarantine. A row that is rejected only because of its value is also yielded, with
        status Bad. An unknown tag or status, and a missing tag, raise BadInput.
        """
        digests = self.digests or table_digests(self.files)
        quarantine.begin([digests[file][:16] for file in self.files], list(self.mapping.tags))
        with tempfile.TemporaryDirectory(prefix="neorl-sort-") as folder:
            decoded = self._decoded()
            if not self.ordered:
                decoded = sorted_rows(decoded, self.period(), sum(k.rows for k in self.times_of), Path(folder))
            for chunk in ahead((grouper.arrange(*item) for item in portions(ahead(decoded, 1))), GROUPED_AHEAD):
                for rejects in chunk.rejects:
                    quarantine.add(*rejects)
                yield chunk
                del chunk

    def _decoded(self) -> Iterator[tuple[RawRows, list[Rejects]]]:
        decoder = Decoder(self.mapping, self.implausible)
        seen, checked = np.zeros(len(self.mapping.tags), bool), False
        for number, file in enumerate(self.files):
            clock = TimestampReader(self.mapping.clock)
            astray = self.times_of[number].astray if self.ordered else np.zeros(0, np.int64)
            base = 0
            for frame, stamps in self._batches(file):
                rows, rejects, unknown = decoder.read(
                    frame, stamps, clock, file.name, (number << FILE_BITS) + base, astray - base
                )
                if unknown and not checked:
                    self._check_tags()
                    checked = True
                base += len(stamps)
                self.rows, self.ignored = self.rows + len(frame), decoder.ignored
                if not seen.all():
                    seen[rows.codes] = True
                yield rows, rejects
        if not seen.all():
            self._check_tags()
            if self.mapping.layout == "wide":
                silent = next(tag for tag, known in zip(self.mapping.tags, seen, strict=True) if not known)
                raise BadInput(
                    f"the column of tag '{silent}' in {self.path.name} is empty: export it, or delete the tag from the "
                    "mapping and list it under 'ignore'."
                )

    def _batches(self, file: Path) -> Iterator[tuple[pl.DataFrame, pl.Series]]:
        """Yield a file's rows in batches: a table (code, timestamp, value, status, ...), and the timestamps as read."""
        columns = self.mapping.columns
        names = [*self.mapping.tags, *self.mapping.ignore]
        with reading(file):
            table = self.tables.scan(file)
            if self.mapping.layout == "wide":
                chosen = [columns.timestamp, *(n for n in table.collect_schema().names() if self._wanted(n))]
                size = max(CHUNK_ROWS // len(self.mapping.tags), 1)
                for batch in batches(table.select(chosen), size):
                    yield long_rows(self.episodes.number(batch), self.mapping), batch[columns.timestamp]
                return
            if (parquet := self.tables.parquet(file)) is not None:
                coded = coded_batches(parquet, columns, names, CHUNK_ROWS)
                yield from ((batch, batch["timestamp"]) for batch in coded)
                return
            tag = pl.col(columns.tag)
            if table.collect_schema()[columns.tag] != pl.String:
                tag = tag.cast(pl.String)
            picked = [
                tag.cast(pl.Enum(names), strict=False).to_physical().cast(pl.UInt16).alias("code"),
                tag.is_null().alias("nameless"),
                pl.col(columns.timestamp).alias("timestamp"),
                pl.col(columns.value).alias("value"),
            ]
            if columns.status is not None:
                picked.append(pl.col(columns.status).alias("status"))
            for batch in batches(table.select(picked), CHUNK_ROWS):
                yield batch, batch["timestamp"]

    def _wanted(self, column: str) -> bool:
        suffix = self.mapping.columns.status_suffix
        return column in self.mapping.tags or (suffix is not None and column.removesuffix(suffix) in self.mapping.tags)

    def _check_columns(self, file: Path) -> None:
        columns = self.mapping.columns
        with reading(file):
            schema = self.tables.scan(file).collect_schema()
            names = schema.names()
        if any("\ufffd" in name for name in names):
            raise BadInput(
                f"{file.name} is not UTF-8 text: set dialect.encoding in the mapping, for example to cp1252."
            )
        # polars adds the suffix _duplicated_ to a repeated name.
        parts = [name.partition("_duplicated_") for name in names]
        if doubled := next((before for before, sign, _ in parts if sign and before in names), None):
            raise BadInput(f"{file.name} has two columns '{doubled}': rename one of them.")
        wanted = [columns.timestamp]
        if self.mapping.layout == "long":
            wanted += [columns.tag, columns.value, *([columns.status] if columns.status is not None else [])]
        for name in wanted:
            if name not in names:
                shown = ", ".join(each if len(each) <= MOST_SHOWN else f"{each[:MOST_SHOWN]}…" for each in names[:20])
                raise BadInput(f"{file.name} has no column '{name}', only {shown}: correct 'columns' in the mapping.")
        if self.mapping.layout == "wide":
            tags = [n for n in names if n != columns.timestamp and (self._wanted(n) <= (n in self.mapping.tags))]
            _compare_tags(file, self.mapping, tags)
            wanted += [name for name in names if self._wanted(name)]
        for name in wanted:
            _check_type(file, name, schema[name], name == columns.timestamp)

    def _file_times(self, file: Path) -> FileTimes:
        if (found := self._footer_times(file)) is not None:
            return found
        late = round(self.mapping.clock.late_seconds * 1e9)
        earliest, behind, rows, top = NEVER, 0, 0, UNKNOWN_TIME
        astray: list[Times] = []
        parts: list[Stretches] = []
        clock = TimestampReader(self.mapping.clock)
        for times, numbers, settled in self._stamps(file, self.tables.scan(file), clock):
            rows += settled
            known = in_time = times[:settled]
            if (top == UNKNOWN_TIME or times[0] >= top) and (times[1:] >= times[:-1]).all():
                known = in_time = known[np.searchsorted(known, UNKNOWN_TIME, side="right") :]
            else:
                wrong = find_astray(times, top)[:settled]
                astray.append(numbers[:settled][wrong])
                known = known[~wrong & (known != UNKNOWN_TIME)]
                crest = np.maximum.accumulate(np.concatenate([[top], known]))[:-1]
                # Before the first row, the difference would overflow.
                belated = known < np.maximum(crest, UNKNOWN_TIME + late) - late
                behind += int(belated.sum())
                in_time = known[~belated]
            if len(known):
                parts.append(Stretches.of(known))
                earliest, top = min(earliest, int(in_time.min(initial=NEVER))), max(top, int(known.max()))
            if len(parts) > MOST_PARTS:
                parts = [Stretches.joined(parts)]
        if clock.second_pass.met and behind > UNORDERED * rows:
            raise BadInput(
                f"'clock.ambiguous: order' needs rows in order of time, but {behind:,} of {rows:,} rows of {file.name} "
                "are earlier than a row before: sort the rows, or export times with an offset from UTC."
            )
        joined = np.concatenate(astray) if astray else np.zeros(0, np.int64)
        return FileTimes(Stretches.joined(parts), earliest, rows, behind, joined)

    def _footer_times(self, file: Path) -> FileTimes | None:
        """Summarise the times from the Parquet footer, or return None if they are not in order or not reliable."""
        groups = None
        if not self.mapping.ignore and (parquet := self.tables.parquet(file)) is not None:
            groups = time_groups(parquet, self.mapping.columns.timestamp)
        late = round(self.mapping.clock.late_seconds * 1e9)
        if groups is None or len(groups.rows) < 3 or (groups.least[1:] < groups.greatest[:-1] - late).any():
            return None
        rows = int(groups.rows.sum())
        # All files of an export are usually in the same order, so check all rows only in the first file.
        most = rows if file == self.files[0] else FOOTER_CHECK_ROWS
        first, last = (min(int(count), most) for count in (groups.rows[0], groups.rows[-1]))
        ends, clock = [], TimestampReader(self.mapping.clock)
        for start, count in ((0, first), (rows - last, last)):
            for times, _, _ in self._stamps(file, self.tables.scan(file).slice(start, count), clock):
                # If a time at one end may be wrong, the caller must read every row.
                if (times[1:] < times[:-1]).any() or Stretches.of(times).apart > MONTH:
                    return None
                ends += [times[0], times[-1]]
        # If a row that was not read has a wrong time, the footer's extreme times differ from the times at the ends.
        if not ends or ends[0] != groups.least[0] or ends[-1] != groups.greatest[-1]:
            return None
        total = (groups.least / 2 + groups.greatest / 2) * groups.rows
        stretches = Stretches.joined([Stretches(groups.least, groups.greatest, groups.rows, total)])
        if stretches.apart > MONTH:
            return None
        return FileTimes(stretches, stretches.first[0], rows, 0, np.zeros(0, np.int64))

    def _stamps(self, file: Path, table: pl.LazyFrame, clock: TimestampReader) -> Iterator[tuple[Times, Times, int]]:
        """Yield times and row numbers of the mapped tags, and how many of the times have `FOLLOWERS` later rows."""
        columns = self.mapping.columns
        long = self.mapping.layout == "long"
        ignoring, by_order = long and bool(self.mapping.ignore), long and self.mapping.clock.ambiguous == "order"
        names = [columns.timestamp, *([columns.tag] if by_order else [])]
        if ignoring:
            table = table.with_row_index("number")
            table = table.filter(pl.col(columns.tag).cast(pl.String).is_in(list(self.mapping.tags)))
            names.append("number")
        times, numbers, seen = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
        with reading(file):
            for batch in batches(table.select(names), CHUNK_ROWS):
                found, _ = clock.read(batch[columns.timestamp], file.name, batch[columns.tag] if by_order else None)
                times = np.concatenate([times, found])
                given = batch["number"].to_numpy().astype(np.int64) if ignoring else np.arange(seen, seen + len(found))
                numbers, seen = np.concatenate([numbers, given]), seen + len(found)
                settled = len(times) - FOLLOWERS
                if settled > 0:
                    yield times, numbers, settled
                    times, numbers = times[settled:], numbers[settled:]
        if len(times):
            yield times, numbers, len(times)

    def _check_tags(self) -> None:
        if self.mapping.layout == "wide":
            return
        tags: set[str] = set()
        for file in self.files:
            with reading(file):
                column = pl.col(self.mapping.columns.tag).cast(pl.String)
                tags |= set(self.tables.scan(file).select(column.unique()).collect(engine="streaming").to_series())
        _compare_tags(self.path, self.mapping, sorted(tag for tag in tags if tag is not None))


def _check_type(file: Path, name: str, kind: pl.DataType, times: bool) -> None:
    """Raise BadInput for a column with lists, bytes or objects, and for times outside the timestamp column."""
    plain = kind.is_numeric() or isinstance(kind, (pl.String, pl.Boolean, pl.Null, pl.Categorical, pl.Enum))
    if not (plain or (times and isinstance(kind, (pl.Datetime, pl.Date)))):
        raise BadInput(
            f"column '{name}' of {file.name} must contain {'times' if times else 'numbers or texts'}, got {kind}: "
            "export one plain value per cell."
        )


def _compare_tags(path: Path, mapping: HistorianMapping, tags: list[str]) -> None:
    for tag in mapping.tags:
        if tag not in tags:
            near = difflib.get_close_matches(tag, tags, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(sorted(tags)[:10])}."
            raise BadInput(f"tag '{tag}' of the mapping is not in {path.name}: {hint}")
    if unknown := sorted(tag for tag in set(tags) - set(mapping.tags) if not mapping.ignores(tag)):
        more = f" and {len(unknown) - MOST_NAMED:,} more" if len(unknown) > MOST_NAMED else ""
        named = ", ".join(f"'{tag}'" for tag in unknown[:MOST_NAMED])
        raise BadInput(
            f"{path.name} has tags that the mapping lacks: {named}{more}: add each tag to 'tags' with a role, or to "
            "'ignore'. Under 'ignore', * matches any text."
        )
