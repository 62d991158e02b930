"""Read sources into checked rows of a dataset. Rows that the same code read earlier from the same source are reused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from neorl_core.types import PlantSpec
from tasks.data.formats.reading import Source
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
    """Rows of a source that is being read, and the count of its control steps."""

    blocks: Iterator[Rows]
    account: Callable[[], StepAccount | None]
    """Count of control steps for a historian source, complete after the last block."""


class OpenSource(NamedTuple):
    """A source that is ready to be read: its digest, its files, and the function that starts reading."""

    sha256: str
    files: Mapping[Path, FileState]
    """State of each file (such as its time of change) just before its digest was computed."""
    stream: Callable[[RawQuarantine], SourceStream]
    """Starts reading; unusable raw rows go to the quarantine."""

    def check_unchanged(self) -> None:
        """Check that no file changed after its digest was computed, because the digest must match the rows.

        Raises:
            BadInput: if a file changed.
        """
        for file, state in self.files.items():
            if not file.exists() or file_state(file) != state:
                raise BadInput(f"{file} changed while it was read: ingest a copy, or wait until nothing writes to it")


def recipe_of(
    plant: KnownPlant, kind: str, mapping: HistorianMapping | None = None, horizon: int | None = None
) -> Provenance:
    """Return everything that determines the rows of a source, except the source's content.

    Args:
        plant: plant that the logs come from.
        kind: format family of the sources.
        mapping: mapping of a historian source.
        horizon: steps after which episodes were truncated, if the file does not say.
    """
    return Provenance(
        plant=spec_record(plant.spec),
        format=kind,
        mapping=mapping.model_dump(mode="json") if mapping else None,
        horizon=horizon,
        # Digest of all code that affects the rows.
        code=plant.sources(__name__),
    )


def recorded(source: Source, blocks: Callable[[], Iterator[Rows]]) -> OpenSource:
    """Open a source with complete transitions in its rows, which need no mapping."""
    files = {file: file_state(file) for file in files_of(source)}
    return OpenSource(digest_of(source), files, lambda _: SourceStream(blocks(), lambda: None))


def open_source(source: Path, plant: KnownPlant, mapping: HistorianMapping | None) -> OpenSource:
    """Recognise and open a source.

    Args:
        source: file or folder.
        plant: plant that the logs come from.
        mapping: mapping of a historian source.

    Raises:
        BadInput: if the format is unknown, the source is damaged, or the source does not fit the plant.
    """
    if mapping is None:
        recognised = recognise(source)
        return recorded(recognised, for_plant(recognised, plant.spec, plant.logged))

    from tasks.data.historian.dialects import digest_of_tables, source_files, table_digests

    files = {file: file_state(file) for file in source_files(source)}
    digests = table_digests(list(files))

    def stream(quarantine: RawQuarantine) -> SourceStream:
        from tasks.data.historian.transitions import HistorianStream

        historian = HistorianStream(source, mapping, plant.spec, plant.logged, quarantine, digests)
        return SourceStream(historian.blocks(), lambda: historian.account)

    return OpenSource(digest_of_tables(source, digests), files, stream)


def add_source(writer: DatasetWriter, source: OpenSource, spec: PlantSpec, recipe: Provenance) -> IngestedSource:
    """Add a source's rows to a dataset, reusing shards from an earlier ingest.

    Args:
        writer: writer of the dataset.
        source: source from `open_source`.
        spec: spec of the plant.
        recipe: from `recipe_of`.

    Returns:
        Counts and files of the ingested source.
    """
    key = digest_json({**recipe.model_dump(mode="json"), "source": source.sha256})
    memo = writer.root / "sources" / f"{key}.json"
    if (earlier := _recall(memo, writer.root)) is not None:
        writer.adopt_keys(earlier.keys)
        writer.adopt_shards(earlier.shards)
        return earlier
    quarantine = Quarantine(writer.root / "quarantine" / key, spec)
    # The checker names the source by its digest, because file names change.
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
    ingested = IngestedSource(
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
    record = ingested.model_dump(mode="json")
    write_json(memo, {"record": record, "digest": digest_json(record)})
    return ingested


def _parts(folder: str, digests: list[str]) -> tuple[FileRecord, ...]:
    return tuple(FileRecord(file=f"{folder}/part-{i:05d}.parquet", sha256=digest) for i, digest in enumerate(digests))


def _recall(memo: Path, root: Path) -> IngestedSource | None:
    """Return the stored result for a source if all its files are unchanged."""
    if not memo.exists():
        return None
    try:
        stored = read_json(memo)
        earlier = IngestedSource.model_validate(stored["record"])
        intact = stored["digest"] == digest_json(stored["record"])
    except (BadInput, ValidationError, KeyError, TypeError):
        return None  # damaged: read the source again
    files = [(root / "shards" / shard.file, shard.sha256) for shard in earlier.shards]
    files += [(root / part.file, part.sha256) for part in (*earlier.quarantine, *earlier.raw_quarantine)]
    return earlier if intact and all(is_stored(p) and sha256_while_unchanged(p) == d for p, d in files) else None
