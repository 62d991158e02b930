"""Ingest logs into a dataset, named by the digest of content and provenance."""

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
from tasks.data.formats.reading import Blocks
from tasks.data.formats.reading import Source as FoundSource
from tasks.data.formats.sources import (
    NO_OPTIONS,
    SourceOptions,
    for_declared,
    for_plant,
    in_words,
    name_of,
    recognise,
    survey,
)
from tasks.data.store.cards.card import write_card
from tasks.data.store.reader import StoredDataset, dataset_of, newest_first
from tasks.data.store.records import FileRecord, IngestedSource, Provenance, by_reason, losses
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
"""Pattern of a dataset's digest, whole or shortened."""
MOST_NAMED = 10


@cached()
def ingest(home: Home, run: OpenedRun, sources: Sequence[Path], progress: Report | None = None) -> Dataset:
    """Read log files into a dataset. Sources that were ingested before and have not changed are not read again.

    If stored files of the dataset are missing or altered, they are written again.

    Args:
        sources: files or folders of logs, in the order that their rows get in the dataset.

    Raises:
        BadInput: if a source or the mapping cannot be read, or there are no rows.
        Refused: if more rows or control steps are lost than the run allows. Rejected rows stay in quarantine.
    """
    if not sources:
        raise BadInput(f"{run.plant} has no source files: name the plant's logs")
    check_there(sources)
    run = opened(run)
    mapping, plant = mapping_of(run), plant_of(run)
    recipe = recipe_of(plant, "historian" if mapping else "recorded", mapping)
    found = ((source, open_source(source, plant, mapping)) for source in sources)
    made = _ingest(home, plant.spec, recipe, found, len(sources), run.data, progress)
    return made.model_copy(update={"notes": tuple(_skipped(sources))}) if mapping else made


def check_there(sources: Iterable[Path]) -> None:
    """Check that all sources exist and that this account may read them, including all files in folders.

    Raises:
        BadInput: if a path is missing or not readable.
    """
    for source in sources:
        # pathlib's `exists` and `rglob` raise on long names and skip folders that may not be read.
        if not os.path.exists(source):
            raise BadInput(f"there is no source {source}: check the path")
        inside = (os.path.join(folder, name) for folder, *names in os.walk(source) for name in chain(*names))
        for path in (os.fspath(source), *inside):
            if os.path.exists(path) and not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
                raise BadInput(f"this account may not read {path}: change the owner or the permissions")


def ingest_file(
    home: Home,
    path: Path,
    options: SourceOptions = NO_OPTIONS,
    allowed: Data = AS_USUAL,
    progress: Report | None = None,
) -> Dataset:
    """Recognise the format of a file and ingest the file. If no plant is named, infer the spec from the data.

    Returns:
        The dataset, with notes on points to check.

    Raises:
        BadInput: if the format is unknown, the file is damaged, or the file does not fit the plant.
        Refused: if too many rows fail the checks. The rejected rows stay in quarantine.
    """
    plant, mapping, horizon, declared = options
    if declared is not None and plant is not None:
        raise BadInput(f"--plant {plant} and --spec {declared.name} cannot be used together: leave out one of them")
    if mapping is not None:
        named = load_yaml(mapping, HistorianMapping)
        if horizon is not None or declared is not None or plant not in (None, named.subject):
            raise BadInput(f"{mapping} is a mapping of {named.subject}: omit --spec, --horizon and another --plant")
        data = allowed.model_copy(update={"mapping": mapping.resolve()})
        run = OpenedRun(plant=named.subject, data=data)
        made = ingest(home, run, [path], progress)
        note = f"{path.name}: a historian's export of {named.subject}, read with the mapping {mapping.name}"
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


def _meaning(
    source: FoundSource, plant: str | None, declared: Path | None
) -> tuple[KnownPlant, Callable[[], Blocks], FileSpec | None]:
    """Return the plant of a source (named, declared or inferred), a function that yields rows, and the spec file."""
    if plant is not None:
        known = plant_at(plant)
        return known, for_plant(source, known.spec, known.logged), None
    name = name_of(source)
    spec = survey(source, f"{name}_log" if name in NAMES else name)
    if declared is None:
        return KnownPlant(spec, None, None), source.blocks, None
    file = load_yaml(declared, FileSpec)
    if file.name in NAMES:
        raise BadInput(f"{declared} declares {file.name}, the name of a built-in plant: choose another name")
    try:
        spec = declared_spec(file, spec, source.choices)
        costs = cost_formulas(file, spec)
    except ValueError as error:
        raise BadInput(f"{error}: correct {declared.name}, which describes {source.path.name}") from error
    return KnownPlant(spec, None, None), for_declared(source, spec, costs), file


class FoundDataset(NamedTuple):
    """The dataset that a command's argument names."""

    held: StoredDataset
    made: Dataset | None
    """Result of the ingestion; None if the dataset already existed."""

    def lines(self) -> list[str]:
        """Return notes about the ingestion, one per line."""
        return [] if self.made is None else [*self.made.notes, f"dataset {self.held.digest}", *self.made.accounted]


def find_dataset(
    home: Home,
    named: Path,
    options: SourceOptions = NO_OPTIONS,
    folder: Path | None = None,
    progress: Report | None = None,
) -> FoundDataset:
    """Find a dataset in the home by its digest or its plant, or ingest a source file.

    Args:
        named: a source file, six or more digits of a digest, or the name of a plant with a single dataset.
        folder: folder of a dataset that was generated outside the home.

    Raises:
        BadInput: if the argument names no dataset or several datasets; or as `ingest_file`.
        Refused: as `ingest_file` and `StoredDataset.open`.
    """
    if named.exists() and folder is None:
        made = ingest_file(home, named, options, AS_USUAL, progress)
        return FoundDataset(StoredDataset.open(made.store, made.digest, verify=False), made)
    if options != NO_OPTIONS:
        raise BadInput(f"--plant, --mapping, --spec and --horizon need a file, got {named}: name a file or omit them")
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
            raise BadInput(f"{name} has {len(digests):,} datasets: name one of {some} (newest first)")
    if named.suffix or named.parent != Path():
        raise BadInput(f"there is no source {named}: check the path")
    raise BadInput(
        f"'{name[:80]}' is neither a file, nor six digits of a dataset's digest, nor a plant with a dataset: "
        + (nearest(name, [path.name for path in plants]) if plants else "ingest logs first")
    )


def logs_of(home: Home, named: Path, mapped: bool) -> Path:
    """Return the log file of a run. For a dataset in the home, return the one file that shows all its rows.

    Args:
        named: path of a log file, or a dataset as for `find_dataset`.
        mapped: whether the run reads logs with a mapping.

    Raises:
        BadInput: if a run with a mapping names a dataset, or if several datasets have this name.
    """
    known = re.fullmatch(DIGITS, str(named)) or (home.root / "datasets" / named / "manifests").is_dir()
    if os.path.exists(named) or not known:
        return named
    held = find_dataset(home, named).held
    if mapped:
        raise BadInput(
            f"a run with a mapping needs logs, got dataset {held.digest[:12]}: name the dataset's source files; files "
            "that have not changed are not read again"
        )
    return held.view_path


def _skipped(sources: Sequence[Path]) -> Iterator[str]:
    """Yield a line for each folder with files that were left out: files that are no tables, and links."""
    from tasks.data.historian.dialects import links_not_followed, skipped_files

    whys = (
        (skipped_files, "file names are not those of tables"),
        (links_not_followed, "links to folders, or broken links"),
    )
    for source in sources:
        for found_in, why in whys:
            if skipped := [str(file.relative_to(source)) for file in found_in(source)]:
                more = f" and {len(skipped) - MOST_NAMED:,} more" if len(skipped) > MOST_NAMED else ""
                yield f"  not read in {source.name} ({why}): {', '.join(skipped[:MOST_NAMED])}{more}"


def _ingest(
    home: Home,
    spec: PlantSpec,
    recipe: Provenance,
    sources: Iterable[tuple[Path, OpenSource]],
    total: int,
    allowed: Data,
    progress: Report | None,
) -> Dataset:
    """Add all sources to one dataset, and store the dataset if the losses are acceptable."""
    root = home.folder("datasets", spec.name)
    paths, records = list[Path](), list[IngestedSource]()
    with DatasetWriter(root, spec) as writer:
        for path, source in sources:
            twins = [there for there, record in zip(paths, records, strict=True) if record.sha256 == source.sha256]
            if twins:
                raise BadInput(f"{twins[0]} and {path} have the same content: leave out one")
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
    """Return the reference to a dataset, and write the dataset's card if it does not exist."""
    card = write_card(held, spec)
    return Dataset(
        digest=held.digest,
        plant=spec.name,
        format=str(recipe.format),
        store=held.root,
        manifest=held.manifest_path,
        # Sources that begin with the same rows share shards, so each shard is listed once.
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
    """Return the quarantine folder of the one source with rejected rows, or the common folder of several sources."""
    folders = {root / "quarantine" / Path(part.file).parts[1] for record in records for part in _parts(record)}
    if len(folders) > 1:
        return root / "quarantine"
    return folders.pop() if folders else None


def _parts(record: IngestedSource) -> tuple[FileRecord, ...]:
    return (*record.quarantine, *record.raw_quarantine)


def _hold_to_threshold(records: Sequence[IngestedSource], allowed: Data, root: Path) -> None:
    if not sum(record.seen for record in records):
        went = "; ".join(line for record in records for line in record.lines())
        raise BadInput(f"the dataset would be empty ({went}): check the sources and the mapping")
    for loss in losses(records):
        most = float(getattr(allowed, loss.key))
        if loss.share > most:
            there = _quarantine_folder(root, records)
            raise Refused(
                f"{loss.share:.2%} of the {loss.kind} are lost ({loss.reasons.total():,} of {loss.read:,}), at most "
                f"{most:.2%} are allowed{by_reason(dict(loss.reasons.most_common(5)))}; "
                f"{f'see {there} and ' if there else ''}correct the source or its mapping, or raise data.{loss.key}"
            )
