"""Train a population on a dataset's training episodes, resumable at every checkpoint with bit-identical results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import RunConfig
from neorl_core import sharding
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import Plan, Source, on_host, resident, schedule
from neorl_core.fit import train as train_chunks
from neorl_core.networks import Normaliser, Policy
from neorl_core.plants import PLANTS
from neorl_core.precision import mixed
from neorl_core.preparation import Moments, Scaling, moments, scaled, scaling
from neorl_core.safety.composite import make_composite
from neorl_core.safety.shield import default_shield, envelope_of
from neorl_core.training import Algorithm, configure, diverged, init_population, members, policies
from neorl_core.types import PlantSpec
from tasks.adapters.bundle import composite_digest, save_bundle
from tasks.adapters.canonical import digest_json, npz_bytes, write_atomic, write_json
from tasks.adapters.checkpoints import Checkpoints
from tasks.adapters.dataset import Dataset
from tasks.adapters.provenance import core_digest
from tasks.adapters.stream import Ring, Stream, row_bytes, shape_of
from tasks.keeper import Keeper
from tasks.logs import read_logs
from tasks.progress import Report

ENVELOPE_SIGMAS = 1.0
"""How far beyond the training data, in its standard deviations, the shield lets the policy act."""


def train(home: Home, run: RunConfig, dataset: dict[str, Any], progress: Report | None = None) -> dict[str, Any]:
    """Train seeds x grid in one compiled program and keep every member as a composite that could ship.

    Args:
        dataset: reference from `ingest`.
        progress: told of updates done.

    Returns:
        {path, digest, members: [{index, seed, hyperparameters, path, digest}], curves_path, updates,
        steps_per_second, rows}.

    Raises:
        BadInput: on an unknown algorithm or hyper-parameter.
        Refused: when every member's training diverged.
    """
    plant = PLANTS[run.plant]
    algorithm = ALGORITHMS.get(run.train.algorithm)
    if algorithm is None:
        raise BadInput(
            f"expected train.algorithm among {', '.join(ALGORITHMS)}, got '{run.train.algorithm}': correct the name."
        )
    seeds = [run.seed + i for i in range(run.train.seeds)]
    try:
        config = configure(algorithm, run.train.hyperparameters)
        population = init_population(algorithm, plant.spec, config, seeds, run.train.grid)
        mesh = _mesh(run, len(members(seeds, run.train.grid)))
    except ValueError as error:
        raise BadInput(f"in 'train': {error}") from error
    identity = {
        "dataset": dataset["digest"],
        "train": run.train.model_dump(mode="json", exclude={"checkpoint_every"}),
        "held_out": run.data.held_out,
        "seed": run.seed,
        "core": core_digest(),
    }
    key = digest_json(identity)[:16]
    store = Dataset.open(Path(dataset["path"]), dataset["digest"])
    rows = _rows(run, store, plant.spec, algorithm)
    # Another cadence of saving has its own folder: its chunks would not fit.
    place = home.room("checkpoints", run.plant, f"{key}-{rows.plan.chunk}")
    learner = mixed(algorithm) if run.train.precision == "bfloat16" else algorithm
    if mesh is not None:
        learner, population = sharding.split(learner, mesh), sharding.placed(mesh, population)
    with rows.open(mesh) as source, Checkpoints(place, identity) as checkpoints:
        keeper = Keeper(checkpoints, progress, updates=run.train.checkpoint_every if rows.streamed else 0)
        try:
            reached = train_chunks(
                learner,
                population,
                source,
                rows.plan,
                run.train.batch_size,
                resume=keeper.resume,
                report=keeper.report,
            )
        except FloatingPointError as error:
            cure = f"{str(error).rstrip('.')} in 'train.hyperparameters'"
            raise Refused(f"{cure} ({keeper.leave()}).") from error
    folder = home.room("runs", run.plant, "populations", key)
    found = policies(algorithm, on_host(reached.population), rows.scaling.normaliser)
    described = members(seeds, run.train.grid)
    # What has diverged once is left out, whatever it came to later; the curves, saved with the state, remember it.
    lasting = ~np.asarray(diverged(reached.curves))
    sound = [m for m in described if lasting[m["index"]]]
    if not sound:
        raise Refused(
            "expected a member whose training stayed finite, got none: lower the learning rates in "
            "'train.hyperparameters'."
        )
    entries = [_keep(home, plant.spec, found[m["index"]], m, rows.known) for m in sound]
    digest = digest_json({"identity": identity, "members": [entry["digest"] for entry in entries]})
    curves_path = folder / "curves.npz"
    steps = np.arange(rows.plan.log_every, rows.plan.updates + 1, rows.plan.log_every)
    write_atomic(curves_path, npz_bytes({"step": steps, **reached.curves}))
    write_json(folder / "population.json", {"identity": identity, "members": entries, "digest": digest})
    return {
        "path": str(folder),
        "digest": digest,
        "members": entries,
        "curves_path": str(curves_path),
        "updates": rows.plan.updates,
        "steps_per_second": keeper.rate() * len(described),
        "rows": rows.known.rows,
    }


def _mesh(run: RunConfig, population: int) -> Mesh | None:
    """The devices to spread over, or None for one."""
    if run.train.precision != "float32" and jax.default_backend() == "cpu":
        raise ValueError("expected an accelerator with bf16 products, got a CPU: set train.precision to float32.")
    if run.train.devices == 1:
        return None
    if run.train.devices > jax.device_count():
        raise ValueError(f"expected train.devices of at most {jax.device_count()}, got {run.train.devices}: lower it.")
    return sharding.mesh_of(population, run.train.batch_size, jax.devices()[: run.train.devices])


class _Rows(NamedTuple):
    """The training episodes, how they are scaled, and how training is cut."""

    known: Moments
    scaling: Scaling
    plan: Plan
    streamed: bool
    open: Callable[[Mesh | None], AbstractContextManager[Source]]


def _rows(run: RunConfig, store: Dataset, spec: PlantSpec, algorithm: Algorithm) -> _Rows:
    """Resident where they fit into the memory that the run allows, else streamed."""
    episodes, batches = store.split(run.data.held_out)[0], algorithm.batches_per_update
    ring = Ring(store, episodes)
    memory = None if run.train.memory_mb is None else int(run.train.memory_mb * 1e6)
    if memory is None or len(ring) * row_bytes(spec) <= memory:
        transitions = read_logs(store, episodes).transitions
        known = moments(transitions)
        how = scaling(known, spec)
        plan = schedule(run.train.updates, run.train.checkpoint_every, batches)

        def held(mesh: Mesh | None) -> AbstractContextManager[Source]:
            data = scaled(how, transitions)
            return nullcontext(resident(data if mesh is None else sharding.replicated(mesh, data)))

        return _Rows(known, how, plan, False, held)
    known = ring.moments()
    how = scaling(known, spec)
    # The window moves with the rows of the curves, which no cadence of saving changes.
    plan = schedule(run.train.updates, 1, batches)
    shape = shape_of(memory, spec, plan.log_every * run.train.batch_size)

    @contextmanager
    def stream(mesh: Mesh | None) -> Iterator[Source]:
        if mesh is not None:
            raise BadInput(
                f"expected one device for data that are streamed, got {run.train.devices} in train.devices: allow more "
                "in train.memory_mb, or set train.devices to 1."
            )
        with Stream(ring, how, shape, plan.chunk, run.seed) as window:
            yield window.source()

    return _Rows(known, how, plan, True, stream)


def _keep(home: Home, spec: PlantSpec, policy: Policy, member: dict[str, Any], known: Moments) -> dict[str, Any]:
    """Write one member as a bundle: its policy behind a shield that knows how far its data reach."""
    plant = PLANTS[spec.name]
    normaliser: Normaliser = policy.normaliser
    envelope = envelope_of(
        jnp.asarray(known.observation_low),
        jnp.asarray(known.observation_high),
        normaliser.scale,
        ENVELOPE_SIGMAS,
    )
    composite = make_composite(plant, policy, default_shield(spec, envelope=envelope))
    return {**member, **keep_bundle(home, composite, spec.name)}


def keep_bundle(home: Home, composite: Any, plant: str) -> dict[str, str]:
    """Write a composite under its own digest, once.

    Returns:
        {path, digest}.
    """
    digest = composite_digest(composite, plant)
    folder = home.room("bundles", plant) / digest[:24]
    if not (folder / "composite.json").exists():
        save_bundle(folder, composite, plant)
    return {"path": str(folder), "digest": digest}
