"""The records that a dataset consists of besides its rows: typed and frozen here, JSON on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Record(BaseModel):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(Record):
    """A file and the digest by which it is known."""

    file: str
    """The file's name, or its path relative to the folder of the plant's datasets."""
    sha256: str


class ShardRecord(FileRecord):
    """One shard: an immutable file of whole episodes."""

    content: str
    """Merkle root over its canonical blocks of rows."""
    rows: int
    episodes: int


GAP = "a signal was not archived"
REPEATED = "repeats an earlier row"


def by_reason(counts: Mapping[str, int]) -> str:
    """Counts by reason, most first, after a colon; nothing where there are none."""
    shown = ", ".join(f"{reason} ({n:,})" for reason, n in sorted(counts.items(), key=lambda item: -item[1]) if n)
    return f": {shown}" if shown else ""


class SampleCounts(Record):
    """Archived samples of one tag by their OPC UA severity."""

    good: int
    uncertain: int
    bad: int

    def shares(self) -> tuple[float, float, float]:
        """Of all samples those that are Good, Uncertain and Bad."""
        total = max(self.good + self.uncertain + self.bad, 1)
        return self.good / total, self.uncertain / total, self.bad / total


class RawAccount(Record):
    """What became of the raw rows of a historian's export."""

    rows: int
    ignored: int
    """Rows of tags that the mapping ignores."""
    rejected: int
    reasons: dict[str, int]
    put_in_place: int
    """Rows that came late and were put in their place."""
    in_order_of_time: bool


class StepAccount(Record):
    """What became of a historian's control steps: rows + rejected + gap + not_running + outside_limits = steps."""

    steps: int
    rows: int
    rejected: int
    gap: int
    """Steps at which a signal was not archived."""
    silent: int
    """Steps of a silence of the whole archive; they are among `gap`."""
    not_running: int
    outside_limits: int
    trips: int
    """Rows that terminate their episode at a hard limit; they are among `rows`."""
    beyond_limits: int
    """Rows that end beyond a hard limit; they are among `rows`."""
    alarms: dict[str, int]
    """Rows that end beyond a signal's soft limits, by signal; they are among `rows`."""
    samples: dict[str, SampleCounts]
    """Counts of raw rows by tag."""
    raw: RawAccount


class SourceRecord(Record):
    """What became of one source's rows."""

    sha256: str
    seen: int
    """Rows that were checked."""
    quarantined: int
    reasons: dict[str, int] = {}
    """Quarantined rows by reason."""
    quarantine: tuple[FileRecord, ...] = ()
    raw_quarantine: tuple[FileRecord, ...] = ()
    account: StepAccount | None = None
    """What became of control steps; only of a historian's export."""

    @property
    def used(self) -> int:
        """Rows of the dataset."""
        return self.seen - self.quarantined

    @property
    def lost(self) -> dict[str, int]:
        """Rows, or of a historian's export control steps, that did not become rows of the dataset, by reason."""
        found = dict(self.reasons)
        if (steps := self.account) is not None:
            found |= {GAP: steps.gap, "the plant was not running": steps.not_running}
            found |= {"outside the limits after a trip": steps.outside_limits}
        return {reason: count for reason, count in sorted(found.items(), key=lambda item: -item[1]) if count}

    def lines(self) -> tuple[str, ...]:
        """Where every row that was read went: used and lost make all of them."""
        if (steps := self.account) is None:
            return (f"{self.seen:,} rows read: {self.used:,} used, {self.quarantined:,} lost{by_reason(self.lost)}",)
        raw = steps.raw
        ignored = f", {raw.ignored:,} of ignored tags" if raw.ignored else ""
        used, lost = raw.rows - raw.ignored - raw.rejected, sum(self.lost.values())
        found = [
            f"{raw.rows:,} raw rows read: {used:,} used{ignored}, {raw.rejected:,} lost{by_reason(raw.reasons)}",
            f"{steps.steps:,} control steps: {self.used:,} used, {lost:,} lost{by_reason(self.lost)}",
        ]
        if steps.beyond_limits:
            found.append(f"{steps.beyond_limits:,} steps end beyond a limit ({steps.beyond_limits / steps.rows:.1%})")
        if alarms := {name: count for name, count in steps.alarms.items() if count}:
            found.append(f"beyond soft limits{by_reason(alarms)}")
        return tuple(found)


class IngestedSource(SourceRecord):
    """What a source became, so that it need not be read a second time."""

    keys: tuple[str, ...]
    shards: tuple[ShardRecord, ...]

    def public(self) -> SourceRecord:
        """What a manifest says of the source; its shards are listed there anyway."""
        return SourceRecord.model_validate(self.model_dump(exclude={"keys", "shards"}))


class Provenance(BaseModel):
    """Where some rows came from. Fields that are not listed here are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    plant: dict[str, JsonValue] = {}
    """The plant's spec as JSON."""
    format: str | None = None
    mapping: dict[str, JsonValue] | None = None
    """The historian's mapping as JSON."""
    horizon: int | None = None
    code: str | None = None
    """Digest of the sources of the code that made the rows."""
    sources: tuple[SourceRecord, ...] = ()


class Manifest(Record):
    """What a dataset is; the SHA-256 of its canonical JSON is the dataset's name."""

    version: int = Field(alias="schema")
    spec: dict[str, JsonValue]
    """The plant's spec as JSON."""
    provenance: tuple[Provenance, ...]
    keys: tuple[str, ...]
    """Keys that have one entry per row."""
    shards: tuple[ShardRecord, ...]
    view: FileRecord


class MappingCard(Record):
    """A historian's mapping in brief."""

    sha256: str
    tags: int
    period_s: float
    causal: bool
    reward: str | None
    """Expression of the reward."""


class FileCard(Record):
    """What became of one source."""

    account: tuple[str, ...]
    """Where every row and step went, a line each."""

    sha256: str
    reasons: dict[str, int]
    steps: dict[str, int]
    """Control steps by what became of them; empty where the source is no historian's export."""
    raw: RawAccount | None
    samples: dict[str, SampleCounts]
    """Raw rows of each tag by their status; empty where the source is no historian's export."""


class SourceCard(Record):
    """Where some rows came from."""

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
    """Share of its range between its 5 % and 95 % quantiles; None where no range was given."""
    histogram: tuple[int, ...]
    """Rows in equal bins from `low` to `high`."""
    low: float
    """Lower end of its range, or of what was seen where it has none."""
    high: float


class ActionCard(Record):
    """How an action was varied."""

    deviation_share: float
    """Standard deviation as a share of the range."""
    entropy_bits: float
    most_bits: float
    """Entropy of a uniform distribution."""
    explained: float | None
    """R^2 of the linear fit on the observation; None of a constant action."""


class CoverageCard(Record):
    """Cells of a grid over all signals that rows fall into."""

    rows_looked_at: int
    bins: int
    """Cells per signal."""
    cells: int
    rows_per_cell: float
    mean_covered: float | None
    """Mean of the covered shares of signals with a range."""


class LimitCard(Record):
    """How often and by how much a limit is violated."""

    unit: str
    low: float | None
    high: float | None
    violated_rows: int
    violated_share: float
    worst_excess: float


class GapsCard(Record):
    """Time that is missing between episodes."""

    known: bool
    """Whether there are timestamps."""
    count: int
    longest_s: float
    total_s: float
    present: tuple[float, ...]
    """Share of each of equal periods, from the first row to the last, that rows cover; empty where time is unknown."""


class TimelineCard(Record):
    """When rows were used and lost, in equal periods of time, or of rows as they were read where time is unknown."""

    by: Literal["time", "row"]
    first: int
    """Where the periods begin: ns since 1970, UTC, or number of the row."""
    last: int
    """Where they end."""
    steps_per_period: float
    """Control steps, or rows, that a period has room for."""
    used: tuple[float, ...]
    """Share of each period that rows of the dataset cover."""
    lost: dict[str, tuple[int, ...]]
    """Control steps, or rows, in quarantine by reason and period."""
    raw_lost: dict[str, tuple[int, ...]]
    """Raw rows of a historian's export in quarantine by reason and period."""
    astray: int
    """Rows in quarantine whose time is unknown or outside of these periods."""


class ChangeCard(Record):
    """The mean change of a signal after some steps, by how large an action was."""

    steps: int
    level: tuple[float, ...]
    """Mean of the action in each group of rows."""
    change: tuple[float, ...]
    """Mean change of the signal there."""
    error: tuple[float, ...]
    """Two standard errors of it."""


class ResponseCard(Record):
    """How a signal moved after an action."""

    action: str
    action_unit: str
    signal: str
    unit: str
    after: tuple[ChangeCard, ...]


class EpisodesCard(Record):
    """Lengths in steps, and returns."""

    count: int
    shortest: int
    median: float
    longest: int
    terminated: int
    return_least: float
    return_mean: float
    return_greatest: float


class Card(Record):
    """What a dataset holds, how it was made, and what cannot be learned from it."""

    version: int = Field(alias="schema")
    dataset: str
    """The dataset's digest."""
    plant: str
    rows: int
    source: tuple[SourceCard, ...]
    order: tuple[str, ...]
    """Names of the signals as the plant has them; those of JSON's objects are sorted."""
    signals: dict[str, SignalCard]
    actions: dict[str, ActionCard]
    """Of continuous actions."""
    choices: dict[str, float] = {}
    """Shares of the rows that take each choice of a discrete action; empty of continuous actions."""
    coverage: CoverageCard
    limits: dict[str, LimitCard]
    gaps: GapsCard
    timeline: TimelineCard
    responses: tuple[ResponseCard, ...]
    """The clearest ones."""
    episodes: EpisodesCard
    cannot_learn: tuple[str, ...]
    """One sentence for each thing."""
