"""Run a claim's episode program in batches, here or on a Dask cluster, with identical bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import jax
import numpy as np

from neorl_core.plants.base import EpisodeResult
from neorl_core.safety.certify import episode_keys
from neorl_core.safety.program import Program, read_program, run_episodes
from tasks.evaluation.cluster import cluster, in_order
from tasks.evaluation.guarded import guarded
from tasks.evidence.claims import Claim

Results = Iterator[EpisodeResult | None]
KEPT = 4
"""Number of compiled programs that a process keeps."""


class _Batch(NamedTuple):
    """One batch of a claim's episodes, with everything that a worker needs."""

    artifact: bytes
    """From `Program.serialise`."""
    leaves: tuple[Any, ...]
    """Arguments of the program beside the keys, as NumPy arrays."""
    plant: str
    seconds: float
    seed: bytes
    start: int
    size: int


@contextmanager
def episodes_of(claim: Claim, program: Program, arguments: Any, seed: bytes) -> Iterator[Results]:
    """Yield results of episodes 0, 1, 2, ... of a claim, in batches of `claim.batch`, without end.

    Args:
        program: from `neorl_core.safety.program.episode_program`, for batches of `claim.batch`.
        arguments: composite and operating domain.

    Yields:
        Results; None for a batch that crashed or timed out.

    Raises:
        Refused: as `in_order`.
        BadInput, ServiceMissing: as `cluster`.
    """
    with cluster() as client:
        leaves = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(arguments))
        first = _Batch(program.serialise(), leaves, claim.plant, claim.batch_seconds, seed, 0, claim.batch)
        batches = (first._replace(start=start) for start in count(0, claim.batch))
        if client is None:
            yield map(_results, batches)
            return
        with closing(in_order(client, _of_batch, batches)) as results:
            yield results


def _results(batch: _Batch) -> EpisodeResult | None:
    keys = episode_keys(batch.seed, batch.start, batch.size)
    return guarded(lambda: _compiled(batch.artifact)(keys, *batch.leaves), batch.plant, batch.seconds)


def _of_batch(batch: _Batch) -> EpisodeResult | None:
    """Simulate a batch on a worker."""
    found = _results(batch)
    return None if found is None else EpisodeResult(*jax.device_get(found))


# All batches of a claim, and claims with equal programs, share one compiled program.
@lru_cache(maxsize=KEPT)
def _compiled(artifact: bytes) -> Callable[..., EpisodeResult]:
    return run_episodes(read_program(artifact))
