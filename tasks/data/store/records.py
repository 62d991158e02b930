"""Records that describe a dataset and are stored as JSON: manifest, sources and card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tasks.data.store.schema import NO_SUCCESSOR


class Record(BaseModel):
    """Base class of records that cannot be changed; an unknown field raises a ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(Record):
    file: str
    """The file's name, or a path relative to the plant's folder of datasets."""
    sha256: str


class ShardRecord(FileRecord):
    """One shard: an immutable file of whole episodes."""

    content: str
    """Content digest of the rows; see `tasks.data.store.content.content_root`."""
    rows: int
    episodes: int


GAP = "a signal was not archived"
REPEATED = "repeats an earlier row"


def by_reason(counts: Mapping[str, int]) -> str:
    """Format counts as ': reason (count), ...', most frequent first; return '' if there are none."""
    shown = ", ".join(f"{reason} ({n:,})" for reason, n in sorted(counts.items(), key=lambda item: -item[1]) if n)
    return f": {shown}" if shown else ""


class SampleCounts(Record):
    good: int
    uncertain: int
    bad: int

    def shares(self) -> tuple[float, float, float]:
        total = max(self.good + self.uncertain + self.bad, 1)
        return self.good / total, self.uncertain / total, self.bad / total


class RawAccount(Record):
    rows: int
    ignored: int
    """Rows of tags that the mapping ignores."""
    rejected: int
    reasons: dict[str, int]
    put_in_place: int
    """Late rows that were sorted into their place."""
    in_order_of_time: bool


class StepAccount(Record):
    """Counts of a historian's control steps: rows + rejected + gap + not_running + outside_limits = steps."""

    steps: int
    rows: int
    rejected: int
    gap: int
    """Steps at which a signal was not archived."""
    silent: int
    """Steps at which the whole archive was silent; included in `gap`."""
    not_running: int
    outside_limits: int
    trips: int
    """Rows that terminate their episode at a hard limit; included in `rows`."""
    beyond_limits: int
    """Rows with a next observation beyond a hard limit; included in `rows`."""
    alarms: dict[str, int]
    """Rows with a next observation beyond a soft limit, by signal; included in `rows`."""
    samples: dict[str, SampleCounts]
    raw: RawAccount


class SourceRecord(Record):
    """Used and lost rows of one source, and the files with the lost rows."""

    sha256: str
    seen: int
    """Rows that were checked."""
    quarantined: int
    reasons: dict[str, int] = {}
    quarantine: tuple[FileRecord, ...] = ()
    raw_quarantine: tuple[FileRecord, ...] = ()
    account: StepAccount | None = None

    @property
    def used(self) -> int:
        return self.seen - self.quarantined

    @property
    def lost(self) -> dict[str, int]:
        """Numbers of rows, or control steps of a historian export, that are not in the dataset, by reason."""
        lost = dict(self.reasons)
        if (steps := self.account) is not None:
            lost |= {GAP: steps.gap, "the plant was not running": steps.not_running}
            lost |= {"outside the limits after a trip": steps.outside_limits}
        return {reason: count for reason, count in sorted(lost.items(), key=lambda item: -item[1]) if count}

    def lines(self) -> tuple[str, ...]:
        """Return text lines that account for every row that was read: used + lost = read."""
        if (steps := self.account) is None:
            return (f"{self.seen:,} rows read: {self.used:,} used, {self.quarantined:,} lost{by_reason(self.lost)}",)
        raw = steps.raw
        ignored = f", {raw.ignored:,} of ignored tags" if raw.ignored else ""
        used, lost = raw.rows - raw.ignored - raw.rejected, sum(self.lost.values())
        lines = [
            f"{raw.rows:,} raw rows read: {used:,} used{ignored}, {raw.rejected:,} lost{by_reason(raw.reasons)}",
            f"{steps.steps:,} control steps: {self.used:,} used, {lost:,} lost{by_reason(self.lost)}",
        ]
        if steps.beyond_limits:
            lines.append(f"{steps.beyond_limits:,} steps end beyond a limit ({steps.beyond_limits / steps.rows:.1%})")
        if alarms := {name: count for name, count in steps.alarms.items() if count}:
            lines.append(f"beyond soft limits{by_reason(alarms)}")
        return tuple(lines)


class Loss(NamedTuple):
    """Unintended losses of one kind: raw rows, rows, or control steps."""

    kind: str
    read: int
    reasons: Counter[str]
    key: str
    """Key in the section `data` of a run that limits the lost share."""

    @property
    def share(self) -> float:
        return self.reasons.total() / max(self.read, 1)


def losses(records: Sequence[SourceRecord]) -> tuple[Loss, ...]:
    """Return the unintended losses of sources: invalid raw rows, invalid rows or control steps, and gaps.

    Intended losses are not counted: rows that the mapping excludes (ignored tags, modes, trips), silence of the whole
    archive, last rows of episodes without a next observation, and raw rows that repeat an earlier row.
    """
    accounts = [record.account for record in records if record.account is not None]
    raw, failed = Counter[str](), Counter[str]()
    for account in accounts:
        raw.update(account.raw.reasons)
    for record in records:
        failed.update(record.reasons)
    raw.pop(REPEATED, None)
    failed.pop(NO_SUCCESSOR, None)
    gaps = Counter({GAP: sum(account.gap - account.silent for account in accounts)})
    seen = sum(record.seen for record in records)
    return (
        Loss("raw rows", sum(account.raw.rows - account.raw.ignored for account in accounts), raw, "max_quarantined"),
        Loss("control steps" if accounts else "rows", seen, failed, "max_quarantined"),
        Loss("control steps in gaps", seen + gaps.total(), gaps, "max_gaps"),
    )


class IngestedSource(SourceRecord):
    """Result of ingesting a source, cached so that the source is read only once."""

    keys: tuple[str, ...]
    shards: tuple[ShardRecord, ...]

    def public(self) -> SourceRecord:
        """Return the record for the manifest, without the shards, because the manifest lists all shards itself."""
        return SourceRecord.model_validate(self.model_dump(exclude={"keys", "shards"}))


class Provenance(BaseModel):
    """Origin of the rows that were written together: plant, format, mapping, sources. Unknown fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    plant: dict[str, JsonValue] = {}
    format: str | None = None
    mapping: dict[str, JsonValue] | None = None
    horizon: int | None = None
    code: str | None = None
    """Digest of the source code that generated the rows."""
    sources: tuple[SourceRecord, ...] = ()


class Manifest(Record):
    """Spec, origin and shards of a dataset; the SHA-256 of the record's canonical JSON is the dataset's name."""

    version: int = Field(alias="schema")
    spec: dict[str, JsonValue]
    provenance: tuple[Provenance, ...]
    keys: tuple[str, ...]
    shards: tuple[ShardRecord, ...]
    view: FileRecord


class MappingCard(Record):
    sha256: str
    tags: int
    period_s: float
    causal: bool
    reward: str | None


class FileCard(Record):
    account: tuple[str, ...]
    """Text lines about rows and steps, from `SourceRecord.lines`."""

    sha256: str
    reasons: dict[str, int]
    steps: dict[str, int]
    """Control steps by outcome; empty except for a historian export."""
    raw: RawAccount | None
    samples: dict[str, SampleCounts]
    """Raw rows of each tag by status; empty except for a historian export."""


class SourceCard(Record):
    format: str | None
    mapping: MappingCard | None
    code: str | None
    files: tuple[FileCard, ...]


class SignalCard(Record):
    """Statistics of an observation or action, in its unit."""

    unit: str
    least: float
    mean: float
    greatest: float
    deviation: float
    change: float
    """Mean absolute difference of consecutive rows."""
    covered: float | None
    """Distance between the 5 % and 95 % quantiles, as a share of the range; None if no range is given."""
    histogram: tuple[int, ...]
    """Numbers of rows in equal bins from `low` to `high`."""
    low: float
    """Lower end of the range, or the least value if there is no range."""
    high: float


class ActionCard(Record):
    deviation_share: float
    """Standard deviation as a share of the range."""
    entropy_bits: float
    most_bits: float
    """Entropy of a uniform distribution."""
    explained: float | None
    """R^2 of the action's linear fit on the observation; None if the action is constant."""


class CoverageCard(Record):
    """Number of cells that rows visit in a grid over all signals."""

    rows_looked_at: int
    bins: int
    cells: int
    rows_per_cell: float
    mean_covered: float | None
    """Mean of `SignalCard.covered` over the signals with a range."""


class LimitCard(Record):
    unit: str
    low: float | None
    high: float | None
    violated_rows: int
    violated_share: float
    worst_excess: float


class GapsCard(Record):
    known: bool
    count: int
    longest_s: float
    total_s: float
    present: tuple[float, ...]
    """Share of each period that rows cover, for equal periods from first to last row; empty without timestamps."""


class TimelineCard(Record):
    """Used and lost rows in equal periods of time, or of row numbers if there are no timestamps."""

    by: Literal["time", "row"]
    first: int
    """Start of the first period: ns since 1970, UTC, or a row number."""
    last: int
    steps_per_period: float
    """Number of control steps, or rows, in a period without losses."""
    used: tuple[float, ...]
    """Share of each period that rows of the dataset cover."""
    lost: dict[str, tuple[int, ...]]
    """Control steps, or rows, in quarantine by reason and period."""
    raw_lost: dict[str, tuple[int, ...]]
    """Raw rows of a historian export in quarantine, by reason and period."""
    astray: int
    """Quarantined rows without a time, or outside these periods."""


class ChangeCard(Record):
    """Mean change of a signal after some steps, by size of an action."""

    steps: int
    level: tuple[float, ...]
    """Mean action of each group of rows."""
    change: tuple[float, ...]
    """Mean change of the signal in each group."""
    error: tuple[float, ...]


class ResponseCard(Record):
    action: str
    action_unit: str
    signal: str
    unit: str
    after: tuple[ChangeCard, ...]


class EpisodesCard(Record):
    count: int
    shortest: int
    median: float
    longest: int
    terminated: int
    return_least: float
    return_mean: float
    return_greatest: float


class Card(Record):
    """Summary of a dataset: contents, origin, and what cannot be learned from it."""

    version: int = Field(alias="schema")
    dataset: str
    plant: str
    rows: int
    source: tuple[SourceCard, ...]
    order: tuple[str, ...]
    """Names of the signals in the plant's order; JSON objects are sorted by name."""
    signals: dict[str, SignalCard]
    actions: dict[str, ActionCard]
    """Empty for a discrete action."""
    choices: dict[str, float] = {}
    """Share of rows that take each choice of a discrete action; empty for continuous actions."""
    coverage: CoverageCard
    limits: dict[str, LimitCard]
    gaps: GapsCard
    timeline: TimelineCard
    responses: tuple[ResponseCard, ...]
    episodes: EpisodesCard
    cannot_learn: tuple[str, ...]
