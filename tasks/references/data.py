"""What is handed on about data: sources, datasets, and whether they are fit for training."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tasks.data.store.records import StepAccount
from tasks.references.base import Reference


class Source(Reference):
    """A file or folder of logs that a dataset was made of; it may be taken away once it is ingested."""

    path: str
    sha256: str


class Dataset(Reference):
    """What `ingest` makes of logs, named by the digest of its manifest."""

    digest: str
    plant: str
    format: str = "historian"
    store: Path
    """The plant's folder of datasets."""
    manifest: Path
    shards: tuple[Path, ...]
    view: Path | None = None
    card: Path | None = None
    """The dataset card as a page for readers."""
    card_record: Path | None = None
    """The dataset card as JSON."""
    card_pictures: tuple[Path, ...] = ()
    """The pictures beside the card."""
    rows: int
    episodes: int
    quarantined: int = 0
    quarantine: Path | None = None
    """Folder of the rows that failed and, in its folder `raw`, of the raw rows that do not count."""
    quarantine_files: tuple[Path, ...] = ()
    """Files of the rows that failed, and of raw rows that do not count."""
    accounted: tuple[str, ...] = ()
    """Where every row and step went, a line each."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """Quarantined rows by reason."""
    accounts: tuple[StepAccount | None, ...] = ()
    """What became of a historian's control steps, by source; None for other sources."""
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    """A line for each thing that a reader should check."""

    def at(self, store: Path) -> Dataset:
        """The same dataset with its files in another folder of datasets."""
        moved = {name: _moved(value, self.store, store) for name, value in self}
        return self.model_copy(update=moved)

    @property
    def found(self) -> str:
        lost = f", {self.quarantined:,} in quarantine" if self.quarantined else ""
        return f"dataset {self.digest[:12]}: {self.rows:,} rows in {self.episodes:,} episodes{lost}"


def _moved(value: object, before: Path, now: Path) -> object:
    """A path below one folder as below another; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(_moved(each, before, now) for each in value)
    return now / value.relative_to(before) if isinstance(value, Path) and value.is_relative_to(before) else value


class DriftReference(Reference):
    """The dataset that drift is measured against: of the last champion that learned from another one."""

    dataset: Dataset | None = None

    @property
    def found(self) -> str:
        return f"drift is measured against dataset {self.dataset.digest[:12]}" if self.dataset else "no earlier dataset"


class Validation(Reference):
    """Whether a dataset is fit for training and evaluation."""

    passed: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    summary: Path | None = None
    data_docs: Path | None = None

    @property
    def found(self) -> str:
        verdict = "fit for training" if self.passed else f"refused: {'; '.join(self.reasons)}"
        return f"{verdict}, {len(self.warnings)} warnings"
