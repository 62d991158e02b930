"""Train a population on a dataset's training episodes, resumable at every checkpoint with bit-identical results."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import RunConfig
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import schedule
from neorl_core.networks import Normaliser, Policy
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from neorl_core.safety.shield import default_shield, envelope_of
from neorl_core.training import (
    configure,
    diverged,
    init_population,
    make_train_chunk,
    members,
    phase,
    policies,
    prepare,
)
from neorl_core.types import PlantSpec, Transition
from tasks.adapters.bundle import composite_digest, save_bundle
from tasks.adapters.canonical import digest_json, npz_bytes, write_atomic, write_json
from tasks.adapters.checkpoints import Checkpoints
from tasks.adapters.dataset import Dataset
from tasks.adapters.provenance import core_digest
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
    except ValueError as error:
        raise BadInput(f"in 'train': {error}") from error
    store = Dataset.open(Path(dataset["path"]), dataset["digest"])
    logs = read_logs(store, store.split(run.data.held_out)[0])
    normaliser, data = prepare(logs.transitions, plant.spec)
    identity = {
        "dataset": dataset["digest"],
        "train": run.train.model_dump(mode="json", exclude={"checkpoint_every"}),
        "held_out": run.data.held_out,
        "seed": run.seed,
        "core": core_digest(),
    }
    key = digest_json(identity)[:16]
    warm_up = config.warm_up_updates if algorithm.warm_up else 0
    plan = schedule(run.train.updates, run.train.checkpoint_every, algorithm.batches_per_update, warm_up)
    log_every, chunk, updates = plan
    step_chunk = make_train_chunk(algorithm, chunk, log_every, run.train.batch_size)
    names = jax.eval_shape(step_chunk, population, data)[1]
    curves = {name: jnp.full((shape.shape[0], updates // log_every), jnp.nan) for name, shape in names.items()}
    # Another cadence of saving has its own folder: its chunks would not fit.
    with Checkpoints(home.room("checkpoints", run.plant, f"{key}-{chunk}"), identity) as checkpoints:
        done = 0
        if (latest := checkpoints.latest()) is not None:
            kept, _ = checkpoints.restore({"population": population, "curves": curves})
            done, population, curves = latest, kept["population"], kept["curves"]
            print(f"  train: goes on from {done:,} of {updates:,} updates", file=sys.stderr, flush=True)
        first, started = done, time.monotonic()
        while done < updates:
            if progress:
                progress(done, updates, "updates")
            step_chunk = make_train_chunk(phase(algorithm, config, done), chunk, log_every, run.train.batch_size)
            population, metrics = step_chunk(population, data)
            if np.asarray(diverged(metrics)).all():
                raise Refused(
                    f"expected training to stay finite, got divergence of every member by update "
                    f"{done + chunk}: lower the learning rates in 'train.hyperparameters'."
                )
            at = done // log_every
            curves = {
                name: rows.at[:, at : at + chunk // log_every].set(metrics[name]) for name, rows in curves.items()
            }
            done += chunk
            checkpoints.save(done, {"population": population, "curves": curves}, {})
    seconds = time.monotonic() - started
    if progress:
        progress(updates, updates, "updates")
    folder = home.room("runs", run.plant, "populations", key)
    found = policies(algorithm, population, normaliser)
    described = members(seeds, run.train.grid)
    # What has diverged once is left out, whatever it came to later; the curves, saved with the state, remember it.
    lasting = ~np.asarray(diverged(curves))
    sound = [m for m in described if lasting[m["index"]]]
    if not sound:
        raise Refused(
            "expected a member whose training stayed finite, got none: lower the learning rates in "
            "'train.hyperparameters'."
        )
    entries = [_keep(home, plant.spec, found[m["index"]], m, logs.transitions) for m in sound]
    digest = digest_json({"identity": identity, "members": [entry["digest"] for entry in entries]})
    curves_path = folder / "curves.npz"
    steps = np.arange(1, updates // log_every + 1) * log_every
    arrays = {"step": steps, **{name: np.asarray(rows) for name, rows in curves.items()}}
    write_atomic(curves_path, npz_bytes(arrays))
    write_json(folder / "population.json", {"identity": identity, "members": entries, "digest": digest})
    return {
        "path": str(folder),
        "digest": digest,
        "members": entries,
        "curves_path": str(curves_path),
        "updates": updates,
        "steps_per_second": (updates - first) * len(described) / max(seconds, 1e-9),
        "rows": len(logs.episode),
    }


def _keep(home: Home, spec: PlantSpec, policy: Policy, member: dict[str, Any], data: Transition) -> dict[str, Any]:
    """Write one member as a bundle: its policy behind a shield that knows how far its data reach."""
    plant = PLANTS[spec.name]
    normaliser: Normaliser = policy.normaliser
    envelope = envelope_of(
        jnp.asarray(data.observation.min(axis=0)),
        jnp.asarray(data.observation.max(axis=0)),
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
