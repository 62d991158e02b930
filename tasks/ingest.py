"""Ingest: logs become a dataset, named by the digest of what it holds and of where that came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import configs.expression
import configs.mapping
import configs.process
import configs.units
import neorl_core.plants
from configs.errors import BadInput, Refused
from configs.home import Home
from configs.load import load_yaml, nearest
from configs.mapping import HistorianMapping
from configs.run import RunConfig
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.types import PlantSpec
from tasks.adapters.canonical import digest_json, file_sha256, read_json, write_json
from tasks.adapters.card import write_card
from tasks.adapters.dataset import Dataset, DatasetWriter, spec_record
from tasks.adapters.formats import read_neorl2
from tasks.adapters.raw_rows import RawQuarantine
from tasks.adapters.rows import Quarantine, RowChecker
from tasks.adapters.shards import Rows

Progress = Callable[[int, int, str], None]


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
        if not source.is_file() and not (source.is_dir() and run.data.format == "historian"):
            raise BadInput(f"expected a source file at {source}, got none: check the path.")
    mapping = mapping_of(run)
    spec = plant_spec(run.plant, mapping)
    root = home.room("datasets", run.plant)
    recipe = {
        "plant": spec_record(spec),
        "format": run.data.format,
        "mapping": mapping.model_dump(mode="json") if mapping else None,
        "code": _code_digest(),
    }
    records = []
    with DatasetWriter(root, spec) as writer:
        for i, source in enumerate(sources):
            record = _ingest_source(writer, source, spec, mapping, recipe)
            records.append(record)
            if progress:
                progress(i + 1, len(sources), "sources")
        _hold_to_threshold(records, run.data.max_quarantined, root)
        digest = writer.commit({**recipe, "sources": [_public(record) for record in records]})
    opened = Dataset.open(root, digest, verify=False)
    card = write_card(opened, spec)
    return {
        "plant": run.plant,
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
            return configs.process.described_spec(mapping)
        except ValueError as error:
            raise BadInput(f"{error}: correct the mapping of process {name}.") from error
    if name not in PLANTS:
        raise BadInput(
            f"expected a known plant, got '{name}': {nearest(name, PLANTS)} A plant that is not simulated here is "
            "described by the mapping's 'process'."
        )
    return PLANTS[name].spec


@cache
def _code_digest() -> str:
    """SHA-256 over the source of all that has a say in a dataset's rows; other code may change without consequence."""
    here = Path(__file__)
    names = (
        "arrivals",
        "canonical",
        "dataset",
        "formats",
        "historian",
        "merkle",
        "parquet_batches",
        "raw_rows",
        "raw_times",
        "raw_values",
        "resample",
        "rows",
        "scoring",
        "shards",
        "steps",
        "tables",
        "tracks",
        "transitions",
    )
    files = [here, *(here.parent / "adapters" / f"{name}.py" for name in names)]
    modules = (configs.expression, configs.mapping, configs.process, configs.units)
    files += [Path(str(module.__file__)) for module in modules]
    files += sorted(Path(neorl_core.plants.__file__).parent.glob("*.py"))
    return digest_json({f"{file.parent.name}/{file.name}": file_sha256(file) for file in files})


def _ingest_source(
    writer: DatasetWriter, source: Path, spec: PlantSpec, mapping: HistorianMapping | None, recipe: dict[str, Any]
) -> dict[str, Any]:
    """Read a source, or find the shards that it became before."""
    sha256 = source_sha256(source)
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
    blocks, account = _blocks(source, spec, mapping, raw)
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


def _blocks(
    source: Path, spec: PlantSpec, mapping: HistorianMapping | None, raw: RawQuarantine
) -> tuple[Iterator[Rows], dict[str, Any] | None]:
    """Blocks of rows, and an account of them that is complete when they are."""
    if mapping is None:
        return read_neorl2(source, spec, LOGGED[spec.name]), None
    from tasks.adapters.transitions import HistorianStream

    stream = HistorianStream(source, mapping, spec, LOGGED.get(spec.name), raw)
    return stream.blocks(), stream.account


def source_sha256(source: Path) -> str:
    """What names a source: a file's SHA-256, or the digest over those of a folder's files."""
    if not source.is_dir():
        return file_sha256(source)
    from tasks.adapters.historian import folder_sha256

    return folder_sha256(source)


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
    failed = sum(record["quarantined"] for record in records)
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
