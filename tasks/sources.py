"""Sources become checked rows of a dataset; what the same code read before is not read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from neorl_core.types import PlantSpec
from tasks.data.formats.hdf5.sources import Source
from tasks.data.formats.sources import digest_of, files_of, for_plant, recognise
from tasks.data.historian.raw_rows import RawQuarantine
from tasks.data.store.records import FileRecord, IngestedSource, Provenance, StepAccount
from tasks.data.store.row_checks import Quarantine, RowChecker
from tasks.data.store.schema import Rows
from tasks.data.store.writer import DatasetWriter
from tasks.files.canonical import FileState, digest_json, file_state, read_json, write_json
from tasks.files.spec import spec_record
from tasks.files.stored import is_stored, sha256_while_unchanged
from tasks.models.plants.known import KnownPlant


class SourceStream(NamedTuple):
    """A source that is being read."""

    blocks: Iterator[Rows]
    account: Callable[[], StepAccount | None]
    """What became of its control steps, where it is a historian's; complete when the blocks are."""


class OpenSource(NamedTuple):
    """A source that is ready to be read."""

    sha256: str
    files: Mapping[Path, FileState]
    """What it is read from, as each file was just before it was hashed."""
    stream: Callable[[RawQuarantine], SourceStream]
    """Begins to read; raw rows that do not count go to the quarantine."""

    def check_unchanged(self) -> None:
        """Refuse what was read where a file is not the one that was hashed: its name would not be that of its rows.

        Raises:
            BadInput: naming the first file that changed.
        """
        for file, state in self.files.items():
            if not file.exists() or file_state(file) != state:
                raise BadInput(
                    f"expected {file} to stay as it is while it is read, got changes: ingest it when nothing writes to "
                    "it, or a copy."
                )


def recipe_of(
    plant: KnownPlant, kind: str, mapping: HistorianMapping | None = None, horizon: int | None = None
) -> Provenance:
    """Everything besides a source's content that its rows depend on.

    Args:
        plant: whose rows they are.
        kind: format family of the sources.
        mapping: meaning of a historian's tags.
        horizon: steps after which episodes were cut, where the file does not tell.
    """
    return Provenance(
        plant=spec_record(plant.spec),
        format=kind,
        mapping=mapping.model_dump(mode="json") if mapping else None,
        horizon=horizon,
        # All code that has a say in the rows; other code may change without consequence.
        code=plant.sources(__name__),
    )


def recorded(source: Source, blocks: Callable[[], Iterator[Rows]]) -> OpenSource:
    """A source whose rows are transitions already."""
    files = {file: file_state(file) for file in files_of(source)}
    return OpenSource(digest_of(source), files, lambda _: SourceStream(blocks(), lambda: None))


def open_source(source: Path, plant: KnownPlant, mapping: HistorianMapping | None) -> OpenSource:
    """Find out what a source is and how it is read.

    Args:
        source: a file or folder.
        plant: whose rows they are.
        mapping: meaning of the tags, where the source is a historian's export.

    Raises:
        BadInput: when it is none of the known formats, damaged, or does not fit the plant.
    """
    if mapping is None:
        found = recognise(source)
        return recorded(found, for_plant(found, plant.spec, plant.logged))

    from tasks.data.historian.folders import digest_of_tables, source_files, table_digests

    files = {file: file_state(file) for file in source_files(source)}
    digests = table_digests(list(files))

    def stream(quarantine: RawQuarantine) -> SourceStream:
        from tasks.data.historian.transitions import HistorianStream

        found = HistorianStream(source, mapping, plant.spec, plant.logged, quarantine, digests)
        return SourceStream(found.blocks(), lambda: found.account)

    return OpenSource(digest_of_tables(source, digests), files, stream)


def add_source(writer: DatasetWriter, source: OpenSource, spec: PlantSpec, recipe: Provenance) -> IngestedSource:
    """Add a source's rows to a dataset, or the shards that it became before.

    Args:
        writer: the dataset.
        source: as `open_source` found it.
        spec: the plant.
        recipe: what its rows depend on besides its content.

    Returns:
        What became of it.
    """
    key = digest_json({**recipe.model_dump(mode="json"), "source": source.sha256})
    memo = writer.root / "sources" / f"{key}.json"
    if (known := _recall(memo, writer.root)) is not None:
        writer.adopt_keys(known.keys)
        writer.adopt_shards(known.shards)
        return known
    quarantine = Quarantine(writer.root / "quarantine" / key, spec)
    # Kept under its digest: a file's name says nothing of what is in it, and may change.
    checker = RowChecker(spec, quarantine, source.sha256[:16])
    raw = RawQuarantine(writer.root / "quarantine" / key / "raw")
    first = len(writer.shards)
    blocks, account = source.stream(raw)
    for block in blocks:
        writer.append(checker.push(block))
    source.check_unchanged()
    if (last := checker.flush()) is not None:
        writer.append(last)
    writer.end_source()
    quarantine.close()
    raw.close()
    found = IngestedSource(
        sha256=source.sha256,
        seen=checker.seen,
        quarantined=quarantine.count,
        reasons=dict(quarantine.reasons),
        quarantine=_parts(f"quarantine/{key}", quarantine.digests),
        raw_quarantine=_parts(f"quarantine/{key}/raw", raw.digests),
        account=account(),
        keys=tuple(writer.keys),
        shards=tuple(writer.shards[first:]),
    )
    record = found.model_dump(mode="json")
    write_json(memo, {"record": record, "digest": digest_json(record)})
    return found


def _parts(folder: str, digests: list[str]) -> tuple[FileRecord, ...]:
    return tuple(FileRecord(file=f"{folder}/part-{i:05d}.parquet", sha256=digest) for i, digest in enumerate(digests))


def _recall(memo: Path, root: Path) -> IngestedSource | None:
    """What a source became before, if that is still there unchanged."""
    if not memo.exists():
        return None
    try:
        held = read_json(memo)
        found = IngestedSource.model_validate(held["record"])
        whole = held["digest"] == digest_json(held["record"])
    except (BadInput, ValidationError, KeyError, TypeError):
        return None  # a damaged note costs no more than reading the source again
    files = [(root / "shards" / shard.file, shard.sha256) for shard in found.shards]
    files += [(root / part.file, part.sha256) for part in (*found.quarantine, *found.raw_quarantine)]
    return found if whole and all(is_stored(p) and sha256_while_unchanged(p) == d for p, d in files) else None
