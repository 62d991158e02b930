"""Train a population on a dataset's training episodes, resumable at every checkpoint with bit-identical results."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import RunConfig
from neorl_core.algorithms import ALGORITHMS
from neorl_core.networks import Normaliser, Policy
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from neorl_core.safety.shield import default_shield, envelope_of
from neorl_core.training.population import diverged, policies
from neorl_core.training.preparation import Moments
from neorl_core.types import PlantSpec
from tasks.adapters.files.arrays import npz_bytes
from tasks.adapters.files.canonical import digest_json, write_atomic, write_json
from tasks.adapters.models.bundle import composite_digest, save_bundle
from tasks.progress import Report
from tasks.training.placement import train_population
from tasks.training.population import population_of

ENVELOPE_SIGMAS = 1.0
"""How far beyond the training data, in its standard deviations, the shield lets the policy act."""


def train(home: Home, run: RunConfig, dataset: dict[str, Any], progress: Report | None = None) -> dict[str, Any]:
    """Train seeds x grid in one compiled program and keep every member as a composite that could ship.

    Args:
        dataset: reference from `ingest`.
        progress: told of updates done.

    Returns:
        {path, digest, members: [{index, seed, hyperparameters, path, digest}], curves_path, updates,
        steps_per_second, way: {processes, reason}, rows}.

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
    try:
        population = population_of(home, run, dataset)
    except ValueError as error:
        raise BadInput(f"in 'train': {error}") from error
    reached, way, rate = train_population(population, progress)
    plan, known = population.feed.plan, population.feed.known
    folder = home.folder("runs", run.plant, "populations", population.key)
    found = policies(algorithm, reached.population, population.feed.scaling.normaliser)
    # What has diverged once is left out, whatever it came to later; the curves, saved with the state, remember it.
    lasting = ~np.asarray(diverged(reached.curves))
    sound = [m for m in population.members if lasting[m["index"]]]
    if not sound:
        raise Refused(
            "expected a member whose training stayed finite, got none: lower the learning rates in "
            "'train.hyperparameters'."
        )
    entries = [_keep(home, plant.spec, found[m["index"]], m, known) for m in sound]
    digest = digest_json({"identity": population.identity, "members": [entry["digest"] for entry in entries]})
    curves_path = folder / "curves.npz"
    steps = np.arange(plan.log_every, plan.updates + 1, plan.log_every)
    write_atomic(curves_path, npz_bytes({"step": steps, **reached.curves}))
    write_json(folder / "population.json", {"identity": population.identity, "members": entries, "digest": digest})
    return {
        "path": str(folder),
        "digest": digest,
        "members": entries,
        "curves_path": str(curves_path),
        "updates": plan.updates,
        "steps_per_second": rate,
        "way": way._asdict(),
        "rows": known.rows,
    }


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
    folder = home.folder("bundles", plant) / digest[:24]
    if not (folder / "composite.json").exists():
        save_bundle(folder, composite, plant)
    return {"path": str(folder), "digest": digest}
