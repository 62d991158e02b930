"""Small datasets made by the real ingestion, and an untrained population, for tests of single tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.home import Home
from configs.run import OpenedRun
from neorl_core.plants import PLANTS
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Provenance
from tasks.data.store.writer import DatasetWriter
from tasks.data.synthetic.reactor_history import generate
from tasks.ingest import ingest
from tasks.references import Bundle, Dataset, Member, Placement, Population, TrainedLearner

PLANT = "chemical_reactor"
MAPPING = Path(__file__).parents[1] / "configs" / "mappings" / "chemical_reactor.yaml"


def reactor_run(**settings: Any) -> OpenedRun:
    """Return a small run of the reactor."""
    data = {"mapping": MAPPING, "held_out": 0.3}
    train = {"algorithm": "td3_bc", "updates": 40, "batch_size": 32, "seeds": 2, "checkpoint_every": 20}
    train["hyperparameters"] = {"critics": 2, "hidden": [8]}
    evaluate = {"model_updates": 40, "bootstraps": 50, "rollouts": 16, "discount": 0.95}
    parts: dict[str, Any] = {"data": data, "train": train, "evaluate": evaluate}
    for name, value in settings.items():
        parts[name] = {**parts[name], **value} if name in parts else value
    return OpenedRun(plant=PLANT, **parts)


def reactor_dataset(home: Home, folder: Path, weeks: float, seed: int = 0) -> Dataset:
    """Ingest weeks of the reactor's log."""
    log = generate(PLANT, folder / f"log-{seed}", seed, weeks)
    return ingest(home, reactor_run(), [log.path])


def altered(reference: Dataset, folder: Path, **changes: Any) -> Dataset:
    """Copy a dataset with some arrays replaced: name -> function of the array."""
    rows = StoredDataset.open(reference.store, reference.digest).arrays()
    for name, change in changes.items():
        rows[name] = np.asarray(change(rows[name]), rows[name].dtype)
    with DatasetWriter(folder, PLANTS[reference.plant].spec) as writer:
        writer.append(rows)
        digest = writer.commit(Provenance())
    held = StoredDataset.open(folder, digest)
    changed = {
        "digest": digest,
        "store": folder,
        "manifest": held.manifest_path,
        "shards": tuple(map(held.shard_path, held.manifest.shards)),
        "view": held.view_path,
    }
    return reference.model_copy(update=changed)


def untrained(bundles: Sequence[Bundle], folder: Path) -> Population:
    """Return a population of untrained composites of one learner."""
    learner = TrainedLearner(
        algorithm="bc",
        updates=0,
        curves=folder,
        steps_per_second=0.0,
        placement=Placement(processes=False, reason="untrained"),
    )
    members = (
        Member(index=i, learner=0, row=i, algorithm="bc", seed=i, bundle=bundle) for i, bundle in enumerate(bundles)
    )
    digest = "/".join(bundle.digest for bundle in bundles)
    return Population(digest=digest, folder=folder, learners=(learner,), members=tuple(members), rows=0)
