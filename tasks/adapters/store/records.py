"""The records that a dataset consists of besides its rows: typed and frozen here, JSON on disk."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Record(BaseModel):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(Record):
    """A file and the digest by which it is known."""

    file: str
    """Its name, or its path relative to the folder of the plant's datasets."""
    sha256: str


class ShardRecord(FileRecord):
    """One shard: an immutable file of whole episodes."""

    content: str
    """Merkle root over its canonical blocks of rows."""
    rows: int
    episodes: int


class SampleCounts(Record):
    """Archived samples of one tag by their OPC UA severity."""

    good: int
    uncertain: int
    bad: int


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
    not_running: int
    outside_limits: int
    trips: int
    """Rows that end in a trip; they are among `rows`."""
    samples: dict[str, SampleCounts]
    """By tag."""
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
    """Only of a historian's export."""


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
