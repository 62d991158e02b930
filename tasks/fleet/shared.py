"""A policy that a fleet's sites share: trained on the episodes of all, each scaled by its own site's normaliser.

So what is shared is a policy of standardised signals, and a site's normaliser is what conditions it on the site. A site
begins a learner of its own with these weights and goes on with its own rows; evaluation on the site's held-out episodes
chooses between that member and the site's others, and the site's gates and certificate decide on it as on any.
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
"""Of a fleet's folder of weights: the digest of those that its sites begin with now."""


def pooled_start(
    home: Home,
    fleet: str,
    runs: Mapping[str, OpenedRun],
    datasets: Mapping[str, Dataset],
    progress: Report | None = None,
) -> str:
    """Train the shared learner on the training episodes of all sites, and keep its weights for theirs to begin with.

    A training on the same datasets with the same settings is found again; one that was killed goes on. One at a time of
    a fleet: two would write into one folder of checkpoints, and the second finds what the first one made.

    Args:
        home: keeps checkpoints and weights.
        fleet: its name.
        runs: of the sites, by their names, opened; their `shared` says what is trained.
        datasets: of the same sites.
        progress: told of gradient steps made.

    Returns:
        The digest of the weights.

    Raises:
        Refused: when its training diverged, or the sites' signals differ.
    """
    trainings = [training_run(home, shared_run(runs[site]), datasets[site]) for site in sorted(datasets)]
    pooled = _pooled(trainings)
    told = home.folder(FOLDER, fleet) / f"{pooled.key}.json"

    def held() -> None:
        print(f"  share: waits for another training of what fleet {fleet} shares", file=sys.stderr, flush=True)

    with exclusive(home.folder("locks") / f"fleet-{fleet}.lock", held):
        known = str(read_json(told)["start"]) if told.is_file() else ""
        if not (known and start_file(home, known).is_file() and file_sha256(start_file(home, known)) == known):
            with pooled.data.open(None) as rows:
                known = save_start(home, train_members(pooled, rows, progress=progress)[0].population)
            write_json(told, {"start": known, "datasets": [datasets[site].digest for site in sorted(datasets)]})
        write_json(home.folder(FOLDER, fleet) / CURRENT, {"start": known})
    return known


def current_start(home: Home, fleet: str) -> str:
    """The digest of the weights that sites of a fleet begin with now.

    Raises:
        Refused: when the fleet was never retrained as a whole.
    """
    path = home.root / FOLDER / fleet / CURRENT
    if not path.is_file():
        raise Refused(
            f"expected a shared policy of fleet {fleet}, got none: retrain the fleet with 'neorl fleet retrain' first."
        )
    return str(read_json(path)["start"])


def shared_run(run: OpenedRun) -> OpenedRun:
    """A site's run with the shared learner alone.

    Raises:
        ValueError: when nothing is shared.
    """
    if run.shared is None:
        raise ValueError("expected a run of a fleet that shares a policy, got none")
    alone = {**dict(run.shared.pooled()), "beside": [], "ships": "last", "source": None}
    return run.model_copy(update={"train": run.train.model_copy(update=alone)})


def _pooled(trainings: list[TrainingRun]) -> TrainingRun:
    """One training over the rows of several, each scaled as its own."""
    first, datas = trainings[0], [training.data for training in trainings]
    if any(training.data.streamed for training in trainings):
        raise Refused("expected sites whose rows fit into memory, got one that is streamed: raise train.memory_mb.")
    spec = first.run.plant

    @contextmanager
    def together(mesh: Mesh | None) -> Iterator[TrainingRows]:
        with ExitStack() as stack:
            parts = [stack.enter_context(data.open(None)).at(0) for data in datas]
            shapes = {tuple(jnp.shape(leaf)[1:] for leaf in jax.tree.leaves(part)) for part in parts}
            if len(shapes) > 1:
                raise Refused(f"expected sites of one plant to share a policy, got other signals than those of {spec}.")
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
    """A site's run with a learner beside its own that begins with the shared weights; itself where nothing is shared.

    Args:
        home: keeps the weights.
        run: opened.

    Raises:
        Refused: when there are no such weights yet.
    """
    if run.shared is None:
        return run
    learner = run.shared.fine_tuned(current_start(home, run.shared.fleet))
    return run.model_copy(update={"train": run.train.model_copy(update={"beside": [*run.train.beside, learner]})})
