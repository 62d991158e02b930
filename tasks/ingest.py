"""Ingest: logs become a dataset, named by the digest of what it holds and of where that came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.load import load_yaml
from configs.mapping import HistorianMapping
from configs.run import Data, RunConfig
from neorl_core.plants import NAMES
from neorl_core.types import PlantSpec
from tasks.adapters.formats.hdf5.layouts import NO_SUCCESSOR
from tasks.adapters.formats.sources import digest_of, for_plant, in_words, name_of, recognise, survey
from tasks.adapters.plants.known import KnownPlant, plant_at, plant_of
from tasks.adapters.plants.opening import mapping_of, opened
from tasks.adapters.store.card import write_card
from tasks.adapters.store.reader import StoredDataset
from tasks.adapters.store.records import IngestedSource, Provenance
from tasks.adapters.store.writer import DatasetWriter
from tasks.references import Dataset, Source
from tasks.sources import OpenSource, add_source, open_source, recipe_of, recorded
from tasks.stages import cached

Progress = Callable[[int, int, str], None]


@cached()
def ingest(home: Home, run: RunConfig, sources: Sequence[Path], progress: Progress | None = None) -> Dataset:
    """Turn source files into a dataset; a source that was read before is not read again.

    A shard, view, card or quarantine file that has gone, or was altered, is made again.

    Args:
        home: holds the datasets.
        run: names the plant, the mapping and how many rows may fail.
        sources: files in the order in which their rows shall come.
        progress: called with (done, total, unit).

    Returns:
        The dataset with all of its files.

    Raises:
        BadInput: when a source or the mapping cannot be read, or holds no rows.
        Refused: when more than `data.max_quarantined` of the rows fail; the quarantine stays.
    """
    if not sources:
        raise BadInput("expected at least one source file, got none: name the plant's logs.")
    for source in sources:
        if not source.exists():
            raise BadInput(f"expected a source at {source}, got none: check the path.")
    run = opened(run)
    mapping, plant = mapping_of(run), plant_of(run)
    recipe = recipe_of(plant, "historian" if mapping else "recorded", mapping)
    found = ((source, open_source(source, plant, mapping)) for source in sources)
    return _ingest(home, plant.spec, recipe, found, len(sources), run.data.max_quarantined, progress)


def ingest_file(
    home: Home,
    path: Path,
    plant: str | None = None,
    mapping: Path | None = None,
    horizon: int | None = None,
    max_quarantined: float = 0.05,
    progress: Progress | None = None,
) -> Dataset:
    """Recognise a file and turn it into a dataset; without a known plant its spec is made from the data.

    Args:
        home: holds the datasets.
        path: a file, or Minari's folder.
        plant: whose names, units and limits apply: a name, or a plant's code in the working directory.
        mapping: what a historian's tags mean; it names the plant.
        horizon: steps after which episodes were cut, for a D4RL file that does not tell.
        max_quarantined: share of rows that may fail, besides those that nothing follows.
        progress: called with (done, total, unit).

    Returns:
        The dataset, with a note for each thing that a reader should check.

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
        data = Data(mapping=mapping.resolve(), max_quarantined=max_quarantined)
        run = RunConfig(plant=named.subject, data=data)
        made = ingest(home, run, [path], progress)
        note = f"{path.name}: a historian's export, read by {mapping.name} as {named.subject}"
        return made.model_copy(update={"notes": (note,)})
    source = recognise(path, horizon)
    if plant is not None:
        known = plant_at(plant)
        blocks = for_plant(source, known.spec, known.logged)
    else:
        name = name_of(source)
        known, blocks = KnownPlant(survey(source, f"{name}_log" if name in NAMES else name), None, None), source.blocks
    recipe = recipe_of(known, source.family, horizon=horizon)
    one = [(path, recorded(blocks, digest_of(source)))]
    made = _ingest(home, known.spec, recipe, one, 1, max_quarantined, progress)
    lost = (f"  left out: {count:,} row(s), {reason}" for reason, count in made.reasons.items())
    return made.model_copy(update={"notes": (*in_words(source, known.spec, plant is not None), *lost)})


def _ingest(
    home: Home,
    spec: PlantSpec,
    recipe: Provenance,
    sources: Iterable[tuple[Path, OpenSource]],
    total: int,
    max_quarantined: float,
    progress: Progress | None,
) -> Dataset:
    """Add all sources to one dataset, and name it if few enough of its rows failed."""
    root = home.folder("datasets", spec.name)
    paths, records = list[Path](), list[IngestedSource]()
    with DatasetWriter(root, spec) as writer:
        for path, source in sources:
            records.append(add_source(writer, source, spec, recipe))
            paths.append(path)
            if progress:
                progress(len(records), total, "sources")
        _hold_to_threshold(records, max_quarantined, root)
        public = tuple(record.public() for record in records)
        digest = writer.commit(recipe.model_copy(update={"sources": public}))
    return _reference(StoredDataset.open(root, digest, verify=False), spec, recipe, records, paths)


def _reference(
    held: StoredDataset, spec: PlantSpec, recipe: Provenance, records: Sequence[IngestedSource], paths: Sequence[Path]
) -> Dataset:
    """The dataset with all of its files; its card is made where there is none."""
    card = write_card(held, spec)
    return Dataset(
        digest=held.digest,
        plant=spec.name,
        format=str(recipe.format),
        store=held.root,
        manifest=held.manifest_path,
        shards=tuple(map(held.shard_path, held.manifest.shards)),
        view=held.view_path,
        card=card.page,
        card_record=card.record,
        rows=held.rows,
        episodes=len(held.episodes) - 1,
        quarantined=sum(record.quarantined for record in records),
        quarantine=_quarantine_folder(held.root, records),
        quarantine_files=tuple(
            held.root / part.file for record in records for part in (*record.quarantine, *record.raw_quarantine)
        ),
        reasons=dict(_reasons(records)),
        accounts=tuple(record.account for record in records),
        sources=tuple(
            Source(path=str(path), sha256=record.sha256) for path, record in zip(paths, records, strict=True)
        ),
    )


def _reasons(records: Sequence[IngestedSource]) -> Counter[str]:
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.reasons)
    return Counter(dict(total.most_common()))


def _quarantine_folder(root: Path, records: Sequence[IngestedSource]) -> Path | None:
    """The folder of the only source with failed rows, or that of all of them."""
    folders = [(root / record.quarantine[0].file).parent for record in records if record.quarantine]
    if len(folders) > 1:
        return root / "quarantine"
    return folders[0] if folders else None


def _hold_to_threshold(records: Sequence[IngestedSource], allowed: float, root: Path) -> None:
    seen = sum(record.seen for record in records)
    # A row that nothing follows is no fault of the source: formats without next observations end episodes so.
    failed = sum(record.quarantined - record.reasons.get(NO_SUCCESSOR, 0) for record in records)
    if seen and failed / seen > allowed:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in _reasons(records).most_common(5))
        raise Refused(
            f"expected at most {allowed:.2%} of the rows to fail, got {failed / seen:.2%} ({failed} of {seen}): "
            f"{reasons}; see {_quarantine_folder(root, records)} and mend the source, or raise data.max_quarantined."
        )
    if not seen:
        lost: Counter[str] = Counter()
        for record in records:
            if account := record.account:
                lost.update({"steps": account.steps, "rejected": account.rejected, "gap": account.gap})
                lost.update({"not running": account.not_running, "outside limits": account.outside_limits})
        went = ", ".join(f"{count} {what}" for what, count in lost.items() if count)
        raise BadInput(
            f"expected at least one row, got an empty dataset{f' ({went})' if went else ''}: "
            "check the sources and the mapping."
        )
