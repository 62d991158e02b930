"""Ingest: logs become a dataset, named by the digest of what it holds and of where that came from."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from configs.errors import BadInput, Refused, nearest
from configs.home import Home
from configs.mapping import HistorianMapping
from configs.process import FileSpec, cost_formulas, declared_spec
from configs.run import Data, OpenedRun
from configs.yaml_files import load_yaml
from neorl_core.plants import NAMES
from neorl_core.types import PlantSpec
from tasks.data.formats.hdf5.sources import Blocks
from tasks.data.formats.hdf5.sources import Source as FoundSource
from tasks.data.formats.options import UNTOLD, SourceOptions
from tasks.data.formats.sources import for_declared, for_plant, in_words, name_of, recognise, survey
from tasks.data.store.cards.card import write_card
from tasks.data.store.losses import losses
from tasks.data.store.reader import StoredDataset, dataset_of, newest_first
from tasks.data.store.records import FileRecord, IngestedSource, Provenance, by_reason
from tasks.data.store.writer import DatasetWriter
from tasks.models.plants.known import KnownPlant, plant_at, plant_of
from tasks.models.plants.opening import mapping_of, opened
from tasks.references import Dataset, Source
from tasks.sources import OpenSource, add_source, open_source, recipe_of, recorded
from tasks.stages import cached

if TYPE_CHECKING:
    from tasks.progress import Report

AS_USUAL = Data()
DIGITS = "[0-9a-f]{6,64}"
"""What names a dataset by its digest."""
MOST_NAMED = 10
"""Files that are named one by one."""


@cached()
def ingest(home: Home, run: OpenedRun, sources: Sequence[Path], progress: Report | None = None) -> Dataset:
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
        Refused: when more than `data.max_quarantined` of the raw rows, or of the control steps, are
            lost; the quarantine stays.
    """
    if not sources:
        raise BadInput("expected at least one source file, got none: name the plant's logs.")
    check_there(sources)
    run = opened(run)
    mapping, plant = mapping_of(run), plant_of(run)
    recipe = recipe_of(plant, "historian" if mapping else "recorded", mapping)
    found = ((source, open_source(source, plant, mapping)) for source in sources)
    made = _ingest(home, plant.spec, recipe, found, len(sources), run.data, progress)
    return made.model_copy(update={"notes": tuple(_skipped(sources))}) if mapping else made


def check_there(sources: Iterable[Path]) -> None:
    """Refuse a path where nothing is, or what this account may not read: a file, or a part of a folder.

    Raises:
        BadInput: when one of them is missing or closed.
    """
    for source in sources:
        # pathlib's `exists` and `rglob` raise at a name that is too long, and pass over a folder that is closed.
        if not os.path.exists(source):
            raise BadInput(f"expected a source at {source}, got none: check the path.")
        inside = (os.path.join(folder, name) for folder, *names in os.walk(source) for name in chain(*names))
        for path in (os.fspath(source), *inside):
            if os.path.exists(path) and not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
                raise BadInput(f"expected a source that this account may read, got {path}: change its owner or mode.")


def ingest_file(
    home: Home,
    path: Path,
    options: SourceOptions = UNTOLD,
    allowed: Data = AS_USUAL,
    progress: Report | None = None,
) -> Dataset:
    """Recognise a file and turn it into a dataset; without a known plant its spec is made from the data.

    Args:
        home: holds the datasets.
        path: a file, or Minari's folder.
        options: what the file does not tell by itself.
        allowed: shares that may be lost.
        progress: called with (done, total, unit).

    Returns:
        The dataset, with a note for each thing that a reader should check.

    Raises:
        BadInput: when the file is none of the known formats, damaged, or does not fit the plant.
        Refused: when too many of its rows fail; the quarantine stays.
    """
    plant, mapping, horizon, declared = options
    if declared is not None and plant is not None:
        raise BadInput(f"expected a plant or --spec, got {plant} and {declared.name}: leave out one of the two.")
    if mapping is not None:
        named = load_yaml(mapping, HistorianMapping)
        if horizon is not None or declared is not None or plant not in (None, named.subject):
            raise BadInput(
                f"expected a historian's mapping alone, got one of {named.subject} with another plant, a spec or a "
                "horizon: leave those out."
            )
        data = allowed.model_copy(update={"mapping": mapping.resolve()})
        run = OpenedRun(plant=named.subject, data=data)
        made = ingest(home, run, [path], progress)
        note = f"{path.name}: a historian's export, read by {mapping.name} as {named.subject}"
        return made.model_copy(update={"notes": (note, *made.notes)})
    check_there([path])
    source = recognise(path, horizon)
    known, blocks, file = _meaning(source, plant, declared)
    recipe = recipe_of(known, source.family, horizon=horizon)
    if file is not None:
        recipe = recipe.model_copy(update={"declared": file.model_dump(mode="json", exclude_none=True)})
    one = [(path, recorded(source, blocks))]
    made = _ingest(home, known.spec, recipe, one, 1, allowed, progress)
    lost = (f"  left out: {count:,} row(s), {reason}" for reason, count in made.reasons.items())
    by = declared.name if declared else known.name if plant else None
    return made.model_copy(update={"notes": (*in_words(source, known.spec, by), *lost)})


class _Meaning(NamedTuple):
    """Whose rows a source's are."""

    plant: KnownPlant
    blocks: Callable[[], Blocks]
    file: FileSpec | None
    """What declares it."""


def _meaning(source: FoundSource, plant: str | None, declared: Path | None) -> _Meaning:
    """Whose a source's rows are: of a known plant, as a file declares, or as the rows tell by themselves."""
    if plant is not None:
        known = plant_at(plant)
        return _Meaning(known, for_plant(source, known.spec, known.logged), None)
    name = name_of(source)
    spec = survey(source, f"{name}_log" if name in NAMES else name)
    if declared is None:
        return _Meaning(KnownPlant(spec, None, None), source.blocks, None)
    file = load_yaml(declared, FileSpec)
    if file.name in NAMES:
        raise BadInput(f"expected another name than {file.name}, which is simulated here, in {declared}: rename it.")
    try:
        spec = declared_spec(file, spec, source.choices)
        costs = cost_formulas(file, spec)
    except ValueError as error:
        raise BadInput(f"{error}: correct {declared.name}, which is of {source.path.name}.") from error
    return _Meaning(KnownPlant(spec, None, None), for_declared(source, spec, costs), file)


class FoundDataset(NamedTuple):
    """The dataset that an argument of a command names."""

    held: StoredDataset
    made: Dataset | None
    """How it was ingested, where the argument is a source."""

    def lines(self) -> list[str]:
        """What a reader should know of its ingestion."""
        return [] if self.made is None else [*self.made.notes, f"dataset {self.held.digest}", *self.made.accounted]


def find_dataset(
    home: Home,
    named: Path,
    options: SourceOptions = UNTOLD,
    folder: Path | None = None,
    progress: Report | None = None,
) -> FoundDataset:
    """The dataset that a command is about: of a digest, of a plant that has only one here, or made of a source.

    Args:
        home: holds the datasets.
        named: a file or folder that `ingest_file` takes, six or more digits of a digest, or a plant's name.
        options: what a source does not tell by itself.
        folder: where the dataset is, if it was generated outside of the home.
        progress: called with (done, total, unit).

    Raises:
        BadInput: when the argument names none, or several; or as `ingest_file`.
        Refused: as `ingest_file` and `StoredDataset.open`.
    """
    if named.exists() and folder is None:
        made = ingest_file(home, named, options, AS_USUAL, progress)
        return FoundDataset(StoredDataset.open(made.store, made.digest, verify=False), made)
    if options != UNTOLD:
        raise BadInput(f"expected a file for --plant, --mapping, --spec or --horizon, got none at {named}: name one.")
    root, name = home.root / "datasets", str(named)
    plants = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if re.fullmatch(DIGITS, name):
        return FoundDataset(dataset_of([folder] if folder else plants, name), None)
    if folder is None and (root / name) in plants:
        digests = [path.stem for path in newest_first(root / name)]
        if len(digests) == 1:
            return FoundDataset(StoredDataset.open(root / name, digests[0]), None)
        if digests:
            some = ", ".join(digest[:12] for digest in digests[:MOST_NAMED])
            raise BadInput(f"expected one dataset of {name}, got {len(digests):,}: name one of {some}, newest first.")
    if named.suffix or named.parent != Path():
        raise BadInput(f"expected a source at {named}, got none: check the path.")
    raise BadInput(
        f"expected a file, six or more digits of a dataset's digest or a plant that has one, got '{name[:80]}': "
        + (nearest(name, [path.name for path in plants]) if plants else "ingest its logs first.")
    )


def logs_of(home: Home, named: Path, mapped: bool) -> Path:
    """The file that a run reads where its logs are named: the path itself, or the view of a dataset of the home.

    Args:
        home: holds the datasets.
        named: a path, or a dataset as `find_dataset` takes it.
        mapped: whether the run reads its logs by a mapping.

    Raises:
        BadInput: when it names a dataset and the run has a mapping, or several datasets.
    """
    known = re.fullmatch(DIGITS, str(named)) or (home.root / "datasets" / named / "manifests").is_dir()
    if os.path.exists(named) or not known:
        return named
    held = find_dataset(home, named).held
    if mapped:
        raise BadInput(
            f"expected logs for a run with a mapping, got dataset {held.digest[:12]}, whose rows are made: name "
            "the files that it was made of, which are not read a second time."
        )
    return held.view_path


def _skipped(sources: Sequence[Path]) -> Iterator[str]:
    """A line for each folder that holds what is no table by its name, or links that are not followed."""
    from tasks.data.historian.folders import links_not_followed, skipped_files

    whys = (
        (skipped_files, "their names are no tables'"),
        (links_not_followed, "they are links to a folder or to nothing"),
    )
    for source in sources:
        for found_in, why in whys:
            if skipped := [str(file.relative_to(source)) for file in found_in(source)]:
                more = f" and {len(skipped) - MOST_NAMED:,} more" if len(skipped) > MOST_NAMED else ""
                yield f"  not read in {source.name}, for {why}: {', '.join(skipped[:MOST_NAMED])}{more}"


def _ingest(
    home: Home,
    spec: PlantSpec,
    recipe: Provenance,
    sources: Iterable[tuple[Path, OpenSource]],
    total: int,
    allowed: Data,
    progress: Report | None,
) -> Dataset:
    """Add all sources to one dataset, and name it if few enough of its rows failed."""
    root = home.folder("datasets", spec.name)
    paths, records = list[Path](), list[IngestedSource]()
    with DatasetWriter(root, spec) as writer:
        for path, source in sources:
            twins = [there for there, record in zip(paths, records, strict=True) if record.sha256 == source.sha256]
            if twins:
                raise BadInput(
                    f"expected every source once, got {twins[0]} and {path} of one content: leave out one of the two."
                )
            records.append(add_source(writer, source, spec, recipe))
            paths.append(path)
            if progress:
                progress(len(records), total, "sources")
        _hold_to_threshold(records, allowed, root)
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
        # Files, each once: sources that begin with the same rows share shards.
        shards=tuple(dict.fromkeys(map(held.shard_path, held.manifest.shards))),
        view=held.view_path,
        card=card.page,
        card_record=card.record,
        card_pictures=card.pictures,
        rows=held.rows,
        episodes=len(held.episodes) - 1,
        quarantined=sum(record.quarantined for record in records),
        quarantine=_quarantine_folder(held.root, records),
        quarantine_files=tuple(held.root / part.file for record in records for part in _parts(record)),
        reasons=dict(_reasons(records)),
        accounted=tuple(line for record in records for line in record.lines()),
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
    folders = {root / "quarantine" / Path(part.file).parts[1] for record in records for part in _parts(record)}
    if len(folders) > 1:
        return root / "quarantine"
    return folders.pop() if folders else None


def _parts(record: IngestedSource) -> tuple[FileRecord, ...]:
    return (*record.quarantine, *record.raw_quarantine)


def _hold_to_threshold(records: Sequence[IngestedSource], allowed: Data, root: Path) -> None:
    if not sum(record.seen for record in records):
        went = "; ".join(line for record in records for line in record.lines())
        raise BadInput(f"expected at least one row, got an empty dataset ({went}): check the sources and the mapping.")
    for loss in losses(records):
        most = float(getattr(allowed, loss.key))
        if loss.share > most:
            there = _quarantine_folder(root, records)
            raise Refused(
                f"expected at most {most:.2%} of the {loss.kind} to be lost, got {loss.share:.2%} "
                f"({loss.reasons.total():,} of {loss.read:,}){by_reason(dict(loss.reasons.most_common(5)))}; "
                f"{f'see {there} and ' if there else ''}mend the source or its mapping, or raise data.{loss.key}."
            )
