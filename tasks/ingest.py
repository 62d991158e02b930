"""Ingest: logs become a dataset, named by the digest of what it holds and of where that came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.load import load_yaml, nearest
from configs.mapping import HistorianMapping
from configs.process import described_spec
from configs.run import Data, RunConfig
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.types import PlantSpec
from tasks.adapters.formats.hdf5.layouts import NO_SUCCESSOR
from tasks.adapters.formats.sources import digest_of, for_plant, in_words, name_of, recognise, survey
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
    mapping = mapping_of(run)
    spec = plant_spec(run.plant, mapping)
    recipe = recipe_of(spec, "historian" if mapping else "recorded", mapping)
    opened = ((source, open_source(source, spec, mapping)) for source in sources)
    return _ingest(home, spec, recipe, opened, len(sources), run.data.max_quarantined, progress)


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
        plant: whose names, units and limits apply.
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
        made = ingest(home, RunConfig(plant=named.subject, data=data), [path], progress)
        note = f"{path.name}: a historian's export, read by {mapping.name} as {named.subject}"
        return made.model_copy(update={"notes": (note,)})
    source = recognise(path, horizon)
    if plant is not None:
        spec, blocks = PLANTS[plant].spec, for_plant(source, PLANTS[plant].spec, LOGGED[plant])
    else:
        name = name_of(source)
        spec, blocks = survey(source, f"{name}_log" if name in PLANTS else name), source.blocks
    recipe = recipe_of(spec, source.family, horizon=horizon)
    opened = [(path, recorded(blocks, digest_of(source)))]
    made = _ingest(home, spec, recipe, opened, 1, max_quarantined, progress)
    lost = (f"  left out: {count:,} row(s), {reason}" for reason, count in made.reasons.items())
    return made.model_copy(update={"notes": (*in_words(source, spec, plant is not None), *lost)})


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
