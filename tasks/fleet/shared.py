"""Shared policy of a fleet, trained on the training episodes of all sites.

Each site's rows are scaled by the site's normaliser, so the shared policy maps standardised signals to standardised
actions. Each site then trains one more learner, which starts from the shared weights. Its members compete with the
site's other members and must pass the same gates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from configs.errors import Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.training.loop import TrainingRows, resident
from neorl_core.training.preparation import merge_moments
from tasks.files.canonical import digest_json, exclusive, file_sha256, read_json, write_json
from tasks.progress import Report
from tasks.references import Dataset
from tasks.training.population import TrainingRun, train_members, training_run
from tasks.training.start import FOLDER, save_start, start_file

CURRENT = "current.json"
"""File in a fleet's folder of weights that names the current shared weights by digest."""


def pooled_start(
    home: Home,
    fleet: str,
    runs: Mapping[str, OpenedRun],
    datasets: Mapping[str, Dataset],
    progress: Report | None = None,
) -> str:
    """Train the shared learner on the training episodes of all sites and store the weights.

    A finished training with the same datasets and settings is reused, and an interrupted one is resumed. A lock per
    fleet prevents two processes from writing to the same checkpoints.

    Args:
        home: home with checkpoints and weights.
        fleet: name of the fleet.
        runs: opened run of each site; `shared` configures the learner.
        datasets: dataset of each site.
        progress: callback with the number of gradient steps.

    Returns:
        Digest of the weights.

    Raises:
        Refused: if the training diverges or the sites' signals differ.
    """
    trainings = [training_run(home, shared_run(runs[site]), datasets[site]) for site in sorted(datasets)]
    pooled = _pooled(trainings)
    record = home.folder(FOLDER, fleet) / f"{pooled.key}.json"

    def report_wait() -> None:
        print(
            f"  share: waiting for another training of the shared policy of fleet {fleet}", file=sys.stderr, flush=True
        )

    with exclusive(home.folder("locks") / f"fleet-{fleet}.lock", report_wait):
        digest = str(read_json(record)["start"]) if record.is_file() else ""
        if not (digest and start_file(home, digest).is_file() and file_sha256(start_file(home, digest)) == digest):
            with pooled.data.open(None) as rows:
                digest = save_start(home, train_members(pooled, rows, progress=progress)[0].population)
            write_json(record, {"start": digest, "datasets": [datasets[site].digest for site in sorted(datasets)]})
        write_json(home.folder(FOLDER, fleet) / CURRENT, {"start": digest})
    return digest


def current_start(home: Home, fleet: str) -> str:
    """Return the digest of the current shared weights of a fleet.

    Raises:
        Refused: if the fleet was never retrained as a whole.
    """
    path = home.root / FOLDER / fleet / CURRENT
    if not path.is_file():
        raise Refused(f"fleet {fleet} has no shared policy ({path} is missing): run 'neorl fleet retrain' first")
    return str(read_json(path)["start"])


def shared_run(run: OpenedRun) -> OpenedRun:
    """Return a site's run with the shared learner only."""
    if run.shared is None:
        raise ValueError(f"the run of plant {run.plant} has no shared policy: add 'shared' to the fleet's file")
    alone = {**dict(run.shared.pooled()), "beside": [], "ships": "last", "source": None}
    return run.model_copy(update={"train": run.train.model_copy(update=alone)})


def _pooled(trainings: list[TrainingRun]) -> TrainingRun:
    """Combine the trainings of several sites into one; each site's rows keep the site's scaling."""
    first, datas = trainings[0], [training.data for training in trainings]
    if streamed := sum(data.streamed for data in datas):
        raise Refused(
            f"a shared policy needs all rows in memory, but the rows of {streamed} of {len(datas)} sites do not fit: "
            "raise train.memory_mb"
        )
    spec = first.run.plant

    @contextmanager
    def together(mesh: Mesh | None) -> Iterator[TrainingRows]:
        with ExitStack() as stack:
            parts = [stack.enter_context(data.open(None)).at(0) for data in datas]
            shapes = {tuple(jnp.shape(leaf)[1:] for leaf in jax.tree.leaves(part)) for part in parts}
            if len(shapes) > 1:
                raise Refused(
                    f"sites that share a policy must have the signals of {spec}, got rows of {len(shapes)} different "
                    "shapes: remove 'shared' from the fleet's file, or give all sites the same signals"
                )
            yield resident(jax.tree.map(lambda *x: jnp.asarray(np.concatenate(x)), *parts))

    scaling = first.data.scaling._replace(limit=max(data.scaling.limit for data in datas))
    data = first.data._replace(
        moments=reduce(merge_moments, (data.moments for data in datas)), scaling=scaling, open=together
    )
    identity = first.identity.model_copy(
        update={"dataset": digest_json([training.identity.digest() for training in trainings])}
    )
    return first._replace(data=data, identity=identity)


def with_shared(home: Home, run: OpenedRun) -> OpenedRun:
    """Add a learner that starts from the shared weights to a site's run, if the fleet has a shared policy.

    Raises:
        Refused: if there are no shared weights yet.
    """
    if run.shared is None:
        return run
    learner = run.shared.fine_tuned(current_start(home, run.shared.fleet))
    return run.model_copy(update={"train": run.train.model_copy(update={"beside": [*run.train.beside, learner]})})
