"""Ingest: logs become a dataset, named by the digest of what it holds and of where that came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.load import load_yaml, nearest
from configs.mapping import HistorianMapping
from configs.process import described_spec
from configs.run import Data, RunConfig
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.types import PlantSpec
from tasks.adapters.files.canonical import digest_json, file_sha256, read_json, write_json
from tasks.adapters.files.provenance import sources_digest
from tasks.adapters.files.spec import spec_record
from tasks.adapters.formats.hdf5.layouts import NO_SUCCESSOR
from tasks.adapters.formats.source_rows import for_plant, survey
from tasks.adapters.formats.sources import digest_of, in_words, name_of, recognise
from tasks.adapters.historian.raw_rows import RawQuarantine
from tasks.adapters.store.card import write_card
from tasks.adapters.store.reader import Dataset
from tasks.adapters.store.row_checks import Quarantine, RowChecker
from tasks.adapters.store.schema import Rows
from tasks.adapters.store.writer import DatasetWriter

Progress = Callable[[int, int, str], None]
Opened = Callable[[RawQuarantine], tuple[Iterator[Rows], dict[str, Any] | None]]
"""Begins to read a source: blocks of rows, and an account of them that is complete when they are."""


def ingest(home: Home, run: RunConfig, sources: Sequence[Path], progress: Progress | None = None) -> dict[str, Any]:
    """Turn source files into a dataset; a source that was read before is not read again.

    Args:
        home: holds the datasets.
        run: names the plant, the format, the mapping and how many rows may fail.
        sources: files in the order in which their rows shall come.
        progress: called with (done, total, unit).

    Returns:
        Reference: plant, digest, path (of the plant's datasets), card, rows, episodes, quarantined, quarantine_path,
        reasons, account, sources.

    Raises:
        BadInput: when a source or the mapping cannot be read, or holds no rows.
        Refused: when more than `data.max_quarantined` of the rows fail; the quarantine stays.
    """
    if not sources:
        raise BadInput("expected at least one source file, got none: name the plant's logs.")
    for source in sources:
        if not source.exists():
            raise BadInput(f"expected a source at {source}, got none: check the path.")
    mapping = mapping_of(run)
    spec = plant_spec(run.plant, mapping)
    root = home.folder("datasets", run.plant)
    recipe = {
        "plant": spec_record(spec),
        "format": "historian" if mapping else "recorded",
        "mapping": mapping.model_dump(mode="json") if mapping else None,
        "code": _code_digest(spec.name),
    }
    records = []
    with DatasetWriter(root, spec) as writer:
        for i, source in enumerate(sources):
            records.append(_ingest_source(writer, *_opened(source, spec, mapping), spec, recipe))
            if progress:
                progress(i + 1, len(sources), "sources")
        _hold_to_threshold(records, run.data.max_quarantined, root)
        digest = writer.commit({**recipe, "sources": [_public(record) for record in records]})
    return _reference(root, spec, digest, records, sources)


def _reference(
    root: Path, spec: PlantSpec, digest: str, records: Sequence[dict[str, Any]], sources: Sequence[Path]
) -> dict[str, Any]:
    opened = Dataset.open(root, digest, verify=False)
    card = write_card(opened, spec)
    return {
        "plant": spec.name,
        "digest": digest,
        "path": str(root),
        "card": str(card),
        "rows": opened.rows,
        "episodes": len(opened.episodes) - 1,
        "quarantined": sum(record["quarantined"] for record in records),
        "quarantine_path": str(_quarantine_folder(root, records) or "") or None,
        "reasons": dict(_reasons(records)),
        "account": [record["account"] for record in records],
        "sources": [
            {"path": str(path), "sha256": record["sha256"]} for path, record in zip(sources, records, strict=True)
        ],
    }


def ingest_file(
    home: Home,
    path: Path,
    plant: str | None = None,
    mapping: Path | None = None,
    horizon: int | None = None,
    max_quarantined: float = 0.05,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Recognise a file and turn it into a dataset; without a known plant its spec is made from the data.

    Args:
        home: holds the datasets.
        path: a file, or Minari's folder.
        plant: whose names, units and limits apply.
        mapping: what a historian's tags mean; it names the plant.
        horizon: steps after which episodes were cut, for a D4RL file that tells nothing of it.
        max_quarantined: share of rows that may fail, besides those that nothing follows.
        progress: called with (done, total, unit).

    Returns:
        Reference as of `ingest`, with `format` and `words`, a line for each thing that a reader should check.

    Raises:
        BadInput: when the file is none of the known formats, damaged, or does not fit the plant.
        Refused: when too many of its rows fail; the quarantine stays.
    """
    if mapping is not None:
        named = load_yaml(mapping, HistorianMapping)
        if horizon is not None or plant not in (None, named.subject):
            raise BadInput(
                f"expected a historian's mapping alone, got one of {named.subject} with another plant or a horizon: "
                "leave those out."
            )
        run = RunConfig(
            plant=named.subject,
            data=Data(mapping=mapping.resolve(), max_quarantined=max_quarantined),
        )
        words = [f"{path.name}: a historian's export, read by {mapping.name} as {named.subject}"]
        return ingest(home, run, [path], progress) | {"format": "historian", "words": words}
    source = recognise(path, horizon)
    if plant is not None:
        spec, blocks = PLANTS[plant].spec, for_plant(source, PLANTS[plant].spec, LOGGED[plant])
    else:
        name = name_of(source)
        spec, blocks = survey(source, f"{name}_log" if name in PLANTS else name), source.blocks
    root = home.folder("datasets", spec.name)
    recipe = {"plant": spec_record(spec), "format": source.family, "mapping": None, "horizon": horizon}
    recipe["code"] = _code_digest(spec.name)
    with DatasetWriter(root, spec) as writer:
        record = _ingest_source(writer, digest_of(source), lambda _: (blocks(), None), spec, recipe)
        if progress:
            progress(1, 1, "sources")
        _hold_to_threshold([record], max_quarantined, root)
        digest = writer.commit({**recipe, "sources": [_public(record)]})
    words = in_words(source, spec, plant is not None)
    words += [f"  left out: {count:,} row(s), {reason}" for reason, count in record["reasons"].items()]
    return _reference(root, spec, digest, [record], [path]) | {"format": source.family, "words": words}


def mapping_of(run: RunConfig) -> HistorianMapping | None:
    """The mapping that a run names.

    Raises:
        BadInput: when it cannot be read, or is of another plant.
    """
    if run.data.mapping is None:
        return None
    mapping = load_yaml(run.data.mapping, HistorianMapping)
    if mapping.subject != run.plant:
        raise BadInput(
            f"expected a mapping of plant {run.plant} in {run.data.mapping}, got one of {mapping.subject}: "
            "name the right mapping in the run's file."
        )
    return mapping


def plant_spec(name: str, mapping: HistorianMapping | None) -> PlantSpec:
    """What is fixed about a plant: of a simulated one, or of one that the mapping describes.

    Raises:
        BadInput: when it is neither.
    """
    if mapping is not None and mapping.process is not None:
        if name in PLANTS:
            raise BadInput(f"expected another name than {name}, which is simulated here: name it as 'plant'.")
        try:
            return described_spec(mapping)
        except ValueError as error:
            raise BadInput(f"{error}: correct the mapping of process {name}.") from error
    if name not in PLANTS:
        raise BadInput(
            f"expected a known plant, got '{name}': {nearest(name, PLANTS)} A plant that is not simulated here is "
            "described by the mapping's 'process'."
        )
    return PLANTS[name].spec


def _code_digest(plant: str) -> str:
    """Digest of the source of all that has a say in a dataset's rows; other code may change without consequence."""
    simulated = (PLANTS.module(plant),) if plant in PLANTS else ()
    return sources_digest("tasks.ingest", *simulated)


def _ingest_source(
    writer: DatasetWriter, sha256: str, opened: Opened, spec: PlantSpec, recipe: dict[str, Any]
) -> dict[str, Any]:
    """Read a source, or find the shards that it became before."""
    key = digest_json({**recipe, "source": sha256})
    memo = writer.root / "sources" / f"{key}.json"
    if (record := _recall(memo, writer.root)) is not None:
        writer.adopt_keys(record["keys"])
        writer.adopt_shards(record["shards"])
        return record
    quarantine = Quarantine(writer.root / "quarantine" / key, spec)
    # Kept under its digest: a file's name says nothing of what is in it, and may change.
    checker = RowChecker(spec, quarantine, sha256[:16])
    raw = RawQuarantine(writer.root / "quarantine" / key / "raw")
    first = len(writer.shards)
    blocks, account = opened(raw)
    for block in blocks:
        writer.append(checker.push(block))
    if (last := checker.flush()) is not None:
        writer.append(last)
    writer.close_shard()
    quarantine.close()
    raw.close()
    record = {
        "sha256": sha256,
        "seen": checker.seen,
        "quarantined": quarantine.count,
        "reasons": dict(quarantine.reasons),
        "quarantine": [
            {"file": f"quarantine/{key}/part-{i:05d}.parquet", "sha256": digest}
            for i, digest in enumerate(quarantine.digests)
        ],
        "raw_quarantine": [
            {"file": f"quarantine/{key}/raw/part-{i:05d}.parquet", "sha256": digest}
            for i, digest in enumerate(raw.digests)
        ],
        "account": account,
        "keys": writer.keys,
        "shards": writer.shards[first:],
    }
    write_json(memo, {"record": record, "digest": digest_json(record)})
    return record


def _opened(source: Path, spec: PlantSpec, mapping: HistorianMapping | None) -> tuple[str, Opened]:
    """What names a source, and how it is read."""
    if mapping is None:
        found = recognise(source)
        blocks = for_plant(found, spec, LOGGED[spec.name])
        return digest_of(found), lambda _: (blocks(), None)

    from tasks.adapters.historian.export import digest_of_tables, table_digests

    digests = table_digests(source)

    def stream(raw: RawQuarantine) -> tuple[Iterator[Rows], dict[str, Any] | None]:
        from tasks.adapters.historian.transitions import HistorianStream

        found = HistorianStream(source, mapping, spec, LOGGED.get(spec.name), raw, digests)
        return found.blocks(), found.account

    return digest_of_tables(source, digests), stream


def source_sha256(source: Path) -> str:
    """What names a source: a file's SHA-256, or the digest over those of a folder's files."""
    if not source.is_dir():
        return file_sha256(source)
    from tasks.adapters.historian.export import digest_of_tables, table_digests

    return digest_of_tables(source, table_digests(source))


def _recall(memo: Path, root: Path) -> dict[str, Any] | None:
    """What a source became before, if that is still there unchanged."""
    if not memo.exists():
        return None
    try:
        held = read_json(memo)
    except BadInput:
        return None  # a damaged note costs no more than reading the source again
    record: dict[str, Any] = held["record"] if isinstance(held, dict) and "record" in held else {}
    if not record or held.get("digest") != digest_json(record):
        return None
    files = [(root / "shards" / shard["file"], shard["sha256"]) for shard in record["shards"]]
    files += [(root / part["file"], part["sha256"]) for part in (*record["quarantine"], *record["raw_quarantine"])]
    return record if all(path.exists() and file_sha256(path) == sha256 for path, sha256 in files) else None


def _reasons(records: Sequence[dict[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for record in records:
        total.update(record["reasons"])
    return Counter(dict(total.most_common()))


def _quarantine_folder(root: Path, records: Sequence[dict[str, Any]]) -> Path | None:
    """The folder of the only source with failed rows, or that of all of them."""
    folders = [(root / record["quarantine"][0]["file"]).parent for record in records if record["quarantine"]]
    if len(folders) > 1:
        return root / "quarantine"
    return folders[0] if folders else None


def _hold_to_threshold(records: Sequence[dict[str, Any]], allowed: float, root: Path) -> None:
    seen = sum(record["seen"] for record in records)
    # A row that nothing follows is no fault of the source: formats without next observations end episodes so.
    failed = sum(record["quarantined"] - record["reasons"].get(NO_SUCCESSOR, 0) for record in records)
    if seen and failed / seen > allowed:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in _reasons(records).most_common(5))
        raise Refused(
            f"expected at most {allowed:.2%} of the rows to fail, got {failed / seen:.2%} ({failed} of {seen}): "
            f"{reasons}; see {_quarantine_folder(root, records)} and mend the source, or raise data.max_quarantined."
        )
    if not seen:
        fates: Counter[str] = Counter()
        for record in records:
            account = record["account"] or {}
            fates.update({key: n for key, n in account.items() if isinstance(n, int) and key not in ("trips", "rows")})
        went = ", ".join(f"{count} {fate.replace('_', ' ')}" for fate, count in fates.items() if count)
        raise BadInput(
            f"expected at least one row, got an empty dataset{f' ({went})' if went else ''}: "
            "check the sources and the mapping."
        )


def _public(record: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of a source; its shards are listed there anyway."""
    return {key: value for key, value in record.items() if key not in ("shards", "keys")}
