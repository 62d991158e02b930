"""References about data: sources, datasets and their validation."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tasks.data.store.records import StepAccount
from tasks.references.base import Reference


class Source(Reference):
    """A file or folder of logs that was ingested into a dataset, and may have been deleted since."""

    path: str
    sha256: str


class Dataset(Reference):
    """An ingested dataset, named by the digest of its manifest."""

    digest: str
    plant: str
    format: str = "historian"
    store: Path
    """The plant's folder of datasets."""
    manifest: Path
    shards: tuple[Path, ...]
    view: Path | None = None
    card: Path | None = None
    card_record: Path | None = None
    card_pictures: tuple[Path, ...] = ()
    rows: int
    episodes: int
    quarantined: int = 0
    quarantine: Path | None = None
    """Folder of quarantined rows; `raw` in it has the quarantined raw rows."""
    quarantine_files: tuple[Path, ...] = ()
    accounted: tuple[str, ...] = ()
    """Counts of all rows and steps, one line each."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """Quarantined rows by reason."""
    accounts: tuple[StepAccount | None, ...] = ()
    """Counts of a historian's control steps, by source; None for other sources."""
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    """Points to check, one line each."""

    def at(self, store: Path) -> Dataset:
        """Return the reference with paths in another folder of datasets, for a home that was moved."""
        moved = {name: _moved(value, self.store, store) for name, value in self}
        return self.model_copy(update=moved)

    @property
    def found(self) -> str:
        lost = f", {self.quarantined:,} in quarantine" if self.quarantined else ""
        return f"dataset {self.digest[:12]}: {self.rows:,} rows in {self.episodes:,} episodes{lost}"


def _moved(value: object, before: Path, now: Path) -> object:
    """Move paths below one folder to another folder; return other values unchanged."""
    if isinstance(value, tuple):
        return tuple(_moved(each, before, now) for each in value)
    return now / value.relative_to(before) if isinstance(value, Path) and value.is_relative_to(before) else value


class DriftReference(Reference):
    """Dataset against which drift is measured: of the newest champion or shadow that was trained on other logs."""

    dataset: Dataset | None = None

    @property
    def found(self) -> str:
        return f"drift is measured against dataset {self.dataset.digest[:12]}" if self.dataset else "no earlier dataset"


class Validation(Reference):
    """Result of a dataset's validation: whether the dataset is fit for training and evaluation."""

    passed: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    summary: Path | None = None
    data_docs: Path | None = None

    @property
    def found(self) -> str:
        verdict = "fit for training" if self.passed else f"refused: {'; '.join(self.reasons)}"
        return f"{verdict}, {len(self.warnings)} warnings"
