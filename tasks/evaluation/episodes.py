"""Simulate a claim's episodes in batches, in this process or on a Dask cluster, with identical results."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import jax

from configs.code import Origin
from configs.errors import Refused
from neorl_core.plants.base import EpisodeResult
from neorl_core.safety.certify import episode_keys
from neorl_core.safety.composite import Composite, composite_controller
from neorl_core.types import Controller, Params, Plant
from tasks.evaluation.claims import claimed_simulator
from tasks.evaluation.cluster import cluster, in_order
from tasks.evaluation.guarded import guarded
from tasks.evidence.claims import Claim
from tasks.models.bundles.bundle import load_bundle
from tasks.models.bundles.manifest import stored_digest

Results = Iterator[EpisodeResult | None]
Files = tuple[tuple[str, bytes], ...]
KEPT = 2
"""Number of claims whose compiled programs a worker keeps."""


class _Batch(NamedTuple):
    """One batch of a claim's episodes, with everything that a worker needs."""

    files: Files
    digest: str
    source: Origin | None
    claim: str
    seed: bytes
    start: int


@contextmanager
def episodes_of(
    claim: Claim, plant: Plant, composite: Composite, seed: bytes, folder: Path, source: Origin | None = None
) -> Iterator[Results]:
    """Provide an endless iterator over the results of a claim's episodes, in batches of `claim.batch` episodes.

    Args:
        claim: determines simulator, operating domain and batch size.
        folder: bundle of the composite; workers receive a copy.

    Yields:
        The iterator; an item is None if the batch crashed or timed out.

    Raises:
        Refused: if the claim's domain does not match the plant, or as `in_order`.
        BadInput, ServiceMissing: as `cluster`.
    """
    with cluster() as client:
        if client is None:
            simulator, domain = claimed_simulator(plant, claim)
            yield _simulated(_Test(simulator, composite_controller(simulator), composite, domain), claim, seed)
            return
        files = tuple((path.name, path.read_bytes()) for path in sorted(folder.iterdir()) if path.is_file())
        first = _Batch(files, stored_digest(folder), source, claim.model_dump_json(), seed, 0)
        batches = (first._replace(start=start) for start in count(0, claim.batch))
        with closing(in_order(client, _of_batch, batches)) as results:
            yield results


class _Test(NamedTuple):
    simulator: Plant
    controller: Controller
    composite: Composite
    domain: Params


def _simulated(test: _Test, claim: Claim, seed: bytes) -> Results:
    run = guarded(claim.batch_seconds)
    for start in count(0, claim.batch):
        keys = episode_keys(seed, start, claim.batch)
        yield run(test.simulator, test.controller, test.composite, keys, test.domain)


def _of_batch(batch: _Batch) -> EpisodeResult | None:
    """Simulate a batch on a worker."""
    test, claim = _opened(batch.files, batch.digest, batch.source, batch.claim)
    keys = episode_keys(batch.seed, batch.start, claim.batch)
    found = guarded(claim.batch_seconds)(test.simulator, test.controller, test.composite, keys, test.domain)
    return None if found is None else EpisodeResult(*jax.device_get(found))


# JAX compiles again for each simulator object, so all batches of a claim share one object.
@lru_cache(maxsize=KEPT)
def _opened(
    files: tuple[tuple[str, bytes], ...], digest: str, source: Origin | None, claim: str
) -> tuple[_Test, Claim]:
    said = Claim.model_validate_json(claim)
    with tempfile.TemporaryDirectory(prefix="neorl-bundle-") as name:
        for file, content in files:
            (Path(name) / Path(file).name).write_bytes(content)
        plant, composite = load_bundle(Path(name), digest, source)
    if not isinstance(plant, Plant):
        raise Refused(f"the bundle {digest[:12]} has no simulator: a log-only plant cannot be certified")
    simulator, domain = claimed_simulator(plant, said)
    return _Test(simulator, composite_controller(simulator), composite, domain), said
