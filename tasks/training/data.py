"""Training data of a run: training episodes, resident in memory or streamed, and their scales."""

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
from neorl_core.training.preparation import Moments, Scaling, make_scaling, moments, scale_rows
from neorl_core.types import PlantSpec
from tasks.data.store.episodes import best_episodes, read_logs
from tasks.data.store.histories import run_history
from tasks.data.store.reader import StoredDataset
from tasks.data.store.stream import Ring, Stream, row_bytes, window_shape


class TrainingData(NamedTuple):
    """Training rows of a run, with their scales and the plan of the training."""

    moments: Moments
    """Means and deviations of all training rows, in physical units and without history. The lowest and highest
    observations are those of the learner's own rows."""
    scaling: Scaling
    plan: Plan
    streamed: bool
    """Whether rows are streamed from disk because they exceed the allowed memory."""
    open: Callable[[Mesh | None], AbstractContextManager[TrainingRows]]
    """Function of the devices (None for one device) that returns a context with the rows for the training loop."""


def training_data(
    run: OpenedRun, store: StoredDataset, spec: PlantSpec, algorithm: Algorithm, warm_up: int = 0
) -> TrainingData:
    """Prepare the training data: resident if the rows fit into the allowed memory, else streamed.

    Scales come from all training episodes, so that the whole population has one scale. The range of observations comes
    only from the rows that this learner trains on, because the shield hands over outside this range.

    Args:
        spec: names, units and bounds of the plant, with the history stacked into the observation.
        warm_up: gradient steps of the algorithm's warm-up.

    Raises:
        ValueError: if the kinds of action (discrete, continuous) of algorithm, plant and dataset differ, or the warm-up
            leaves no gradient step.
    """
    for of in (spec, store.spec):
        check_actions(algorithm, of)
    episodes, batches = store.split(run.data.held_out)[0], algorithm.batches_per_update
    past = run_history(run, store)
    given = best_episodes(store, episodes, run.train.best_episodes) if run.train.best_episodes < 1.0 else episodes
    ring = Ring(store, given, past)
    updates = run.train.updates
    # With a warm-up, the number of updates stays, because the warm-up was planned for the requested number.
    if run.train.start is not None and not warm_up:
        updates = tuning_updates(updates, len(ring), run.train.batch_size, batches)
    memory = None if run.train.memory_mb is None else int(run.train.memory_mb * 1e6)
    if memory is None or len(ring) * row_bytes(spec) <= memory:
        logs = read_logs(store, given)
        seen = moments(logs.transitions)
        known = seen if given is episodes else Ring(store, episodes).moments()
        how = make_scaling(known, spec)
        # Histories are stacked once, in NumPy. Gathering them on the device would save memory, but would require a
        # second kind of data in every algorithm and placement. Streamed rows are stacked by blocks.
        transitions = past.stacked(logs).transitions
        plan = schedule(updates, run.train.checkpoint_every, batches, warm_up)

        def hold(mesh: Mesh | None) -> AbstractContextManager[TrainingRows]:
            data = scale_rows(how, transitions)
            return nullcontext(resident(data if mesh is None else sharding.replicate(mesh, data)))

        return TrainingData(_reaching(known, seen), how, plan, False, hold)
    seen = ring.moments()
    known = seen if given is episodes else Ring(store, episodes).moments()
    how = make_scaling(known, spec)
    # The window moves with the logged points of the curves, independent of checkpoints.
    plan = schedule(updates, 1, batches, warm_up)
    shape = window_shape(memory, spec, plan.log_every * run.train.batch_size)

    @contextmanager
    def stream(mesh: Mesh | None) -> Iterator[TrainingRows]:
        if mesh is not None:
            raise BadInput(
                f"streamed data need one device, train.devices is {run.train.devices}: raise train.memory_mb, or set "
                "train.devices to 1"
            )
        with Stream(ring, how, shape, plan.chunk, run.seed) as window:
            yield window.source()

    return TrainingData(_reaching(known, seen), how, plan, True, stream)


def _reaching(known: Moments, seen: Moments) -> Moments:
    """Return the moments of all rows with the range of the learner's rows."""
    return known._replace(observation_low=seen.observation_low, observation_high=seen.observation_high)


def mesh_for(run: OpenedRun, members: int) -> Mesh | None:
    """Return the devices to spread members over, or None for one device.

    Raises:
        ValueError: if this machine lacks the devices or the precision.
    """
    if run.train.precision != "float32" and jax.default_backend() == "cpu":
        raise ValueError(
            f"train.precision {run.train.precision} needs an accelerator with bf16 products, not a CPU: set float32"
        )
    if run.train.devices == 1:
        return None
    if run.train.devices > jax.device_count():
        raise ValueError(f"train.devices must be at most {jax.device_count()} here, got {run.train.devices}: lower it")
    return sharding.mesh_of(members, run.train.batch_size, jax.devices()[: run.train.devices])
