"""The data that a run trains on: its training episodes, resident or streamed, and how they are scaled and cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from configs.errors import BadInput
from configs.run import OpenedRun
from neorl_core.algorithms import check_actions
from neorl_core.training import sharding
from neorl_core.training.loop import Plan, TrainingRows, resident, schedule
from neorl_core.training.parameters import tuning_updates
from neorl_core.training.population import Algorithm
from neorl_core.training.preparation import Moments, Scaling, moments, scale_rows, scaling
from neorl_core.types import PlantSpec
from tasks.data.store.episodes import best_episodes, read_logs
from tasks.data.store.histories import past_of
from tasks.data.store.reader import StoredDataset
from tasks.data.store.stream import Ring, Stream, row_bytes, window_shape


class TrainingData(NamedTuple):
    """The training episodes of a run."""

    moments: Moments
    """Moments of all rows, in physical units and without a history; lowest and highest observation of the learner's."""
    scaling: Scaling
    plan: Plan
    streamed: bool
    """Whether the rows stay on disk, because they do not fit into the memory that the run allows."""
    open: Callable[[Mesh | None], AbstractContextManager[TrainingRows]]
    """Devices to spread over, or None for one -> the rows as the training loop takes them, inside the context."""


def training_data(
    run: OpenedRun, store: StoredDataset, spec: PlantSpec, algorithm: Algorithm, warm_up: int = 0
) -> TrainingData:
    """Resident where the rows fit into the memory that the run allows, else streamed.

    Scales are those of all training episodes, whichever of them the learner is given, so that a population sees one
    scale and an observation that the best episodes never show is no extreme one. How far its own rows reach is told of
    these alone, for it is where its shield hands over.

    Args:
        run: its seed, training and share of held-out episodes.
        store: the dataset.
        spec: names, units and bounds of the plant, as the run's history stacks its observation.
        algorithm: that will be trained.
        warm_up: gradient steps of the algorithm's warm-up.

    Raises:
        ValueError: when the algorithm is of another kind of actions than the plant or the dataset, or no gradient step
            is left after the warm-up.
    """
    for of in (spec, store.spec):
        check_actions(algorithm, of)
    episodes, batches = store.split(run.data.held_out)[0], algorithm.batches_per_update
    past = past_of(run, store)
    given = best_episodes(store, episodes, run.train.best_episodes) if run.train.best_episodes < 1.0 else episodes
    ring = Ring(store, given, past)
    updates = run.train.updates
    # A warm-up is planned from all steps that were asked for, and would leave none of fewer.
    if run.train.start is not None and not warm_up:
        updates = tuning_updates(updates, len(ring), run.train.batch_size, batches)
    memory = None if run.train.memory_mb is None else int(run.train.memory_mb * 1e6)
    if memory is None or len(ring) * row_bytes(spec) <= memory:
        logs = read_logs(store, given)
        seen = moments(logs.transitions)
        known = seen if given is episodes else Ring(store, episodes).moments()
        how = scaling(known, spec)
        # Stacked once, in NumPy: a batch that gathered its earlier rows on the device would save memory, and cost
        # every algorithm and placement a second kind of data. What does not fit is streamed, and stacked by blocks.
        transitions = past.stacked(logs).transitions
        plan = schedule(updates, run.train.checkpoint_every, batches, warm_up)

        def hold(mesh: Mesh | None) -> AbstractContextManager[TrainingRows]:
            data = scale_rows(how, transitions)
            return nullcontext(resident(data if mesh is None else sharding.replicate(mesh, data)))

        return TrainingData(_reaching(known, seen), how, plan, False, hold)
    seen = ring.moments()
    known = seen if given is episodes else Ring(store, episodes).moments()
    how = scaling(known, spec)
    # The window moves with the rows of the curves, which no cadence of saving changes.
    plan = schedule(updates, 1, batches, warm_up)
    shape = window_shape(memory, spec, plan.log_every * run.train.batch_size)

    @contextmanager
    def stream(mesh: Mesh | None) -> Iterator[TrainingRows]:
        if mesh is not None:
            raise BadInput(
                f"expected one device for data that are streamed, got {run.train.devices} in train.devices: allow more "
                "in train.memory_mb, or set train.devices to 1."
            )
        with Stream(ring, how, shape, plan.chunk, run.seed) as window:
            yield window.source()

    return TrainingData(_reaching(known, seen), how, plan, True, stream)


def _reaching(known: Moments, seen: Moments) -> Moments:
    """Moments of all rows that reach as far as those seen."""
    return known._replace(observation_low=seen.observation_low, observation_high=seen.observation_high)


def mesh_for(run: OpenedRun, members: int) -> Mesh | None:
    """The devices to spread over, or None for one.

    Raises:
        ValueError: when the run asks for devices or a precision that this machine does not have.
    """
    if run.train.precision != "float32" and jax.default_backend() == "cpu":
        raise ValueError("expected an accelerator with bf16 products, got a CPU: set train.precision to float32.")
    if run.train.devices == 1:
        return None
    if run.train.devices > jax.device_count():
        raise ValueError(f"expected train.devices of at most {jax.device_count()}, got {run.train.devices}: lower it.")
    return sharding.mesh_of(members, run.train.batch_size, jax.devices()[: run.train.devices])
