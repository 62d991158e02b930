"""Train a population on a dataset's training episodes, resumable at every checkpoint with bit-identical results."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import RunConfig, Shield
from neorl_core.algorithms import ALGORITHMS
from neorl_core.networks import Policy
from neorl_core.safety.composite import Composite, make_composite
from neorl_core.safety.shield import envelope_of
from neorl_core.training.population import diverged, policies
from neorl_core.training.preparation import Moments
from tasks.adapters.files.arrays import npz_bytes
from tasks.adapters.files.canonical import digest_json, write_atomic
from tasks.adapters.models.bundle import composite_digest, load_bundle, save_bundle
from tasks.adapters.plants.known import KnownPlant, plant_named, plant_of
from tasks.adapters.store.histories import observed_spec
from tasks.identify import simulator_of
from tasks.references import KNOWN, Bundle, Dataset, Identification, Member, Population
from tasks.stages import cached
from tasks.training.placement import train_population
from tasks.training.population import training_run
from tasks.training.shielding import shield_of

if TYPE_CHECKING:
    from tasks.progress import Report


def algorithm_module(run: RunConfig) -> list[str]:
    """The module of the algorithm that a run trains with."""
    return [ALGORITHMS.module(run.train.algorithm)] if run.train.algorithm in ALGORITHMS else []


@cached(also=algorithm_module)
def train(
    home: Home,
    run: RunConfig,
    dataset: Dataset,
    progress: Report | None = None,
    protection: Bundle | None = None,
    identification: Identification = KNOWN,
) -> Population:
    """Train a member for every seed and point of the grid, and keep each as a composite that could ship.

    Args:
        home: where checkpoints, curves and bundles are kept.
        run: its plant, seed, training and share of held-out episodes; and its evaluation where the best checkpoint
            ships.
        dataset: what to learn from.
        progress: told of gradient steps made, of all that each member makes.
        identification: of the constants that the shield predicts with.
        protection: fallback and shield of a process without a simulator; a simulated plant brings its own.

    Returns:
        The members whose training stayed finite, and the learning curves of all.

    Raises:
        BadInput: on an unknown algorithm or hyper-parameter, or devices that are not there.
        Refused: when every member's training diverged.
    """
    if run.train.algorithm not in ALGORITHMS:
        raise BadInput(
            f"expected train.algorithm among {', '.join(ALGORITHMS)}, got '{run.train.algorithm}': correct the name."
        )
    try:
        training = training_run(home, run, dataset)
    except ValueError as error:
        raise BadInput(f"in 'train': {error}") from error
    trained = train_population(training, progress)
    plan, moments = training.data.plan, training.data.moments
    # What has diverged once is left out, whatever it came to later; the curves, saved with the state, remember it.
    sound = ~np.asarray(diverged(trained.state.curves))
    if not sound.any():
        raise Refused(
            "expected a member whose training stayed finite, got none: lower the learning rates in "
            "'train.hyperparameters'."
        )
    found = policies(ALGORITHMS[run.train.algorithm], trained.state.population, training.data.scaling.normaliser)
    members, plant, history = [], plant_of(run), observed_spec(run).history
    for member, policy in zip(training.members, found, strict=True):
        if sound[member.index]:
            composite = _shielded(plant, identification, policy, moments, run.shield, protection)
            bundle = keep_bundle(home, composite._replace(history=history), plant)
            members.append(Member(**asdict(member), bundle=bundle))
    folder = home.folder("runs", run.plant, "populations", training.key)
    return Population(
        digest=digest_json({"training": training.key, "members": [member.bundle.digest for member in members]}),
        folder=folder,
        members=tuple(members),
        curves=write_atomic(folder / "curves.npz", npz_bytes({"step": plan.steps, **trained.state.curves})),
        updates=plan.updates,
        steps_per_second=trained.rate,
        placement=trained.placement,
        rows=moments.rows,
    )


def _shielded(
    plant: KnownPlant,
    identification: Identification,
    policy: Policy,
    moments: Moments,
    settings: Shield,
    protection: Bundle | None,
) -> Composite:
    """A policy behind a shield that knows how far its training data reach."""
    if protection is not None:
        alone: Composite = load_bundle(protection.folder, protection.digest, plant.source)[1]
        return alone._replace(policy=policy)
    low, high = jnp.asarray(moments.observation_low), jnp.asarray(moments.observation_high)
    envelope = envelope_of(low, high, policy.normaliser.scale[: len(low)], settings.envelope)
    return make_composite(simulator_of(plant, identification), policy, shield_of(plant.spec, settings, envelope))


def keep_bundle(home: Home, composite: Composite, plant: KnownPlant | str) -> Bundle:
    """Write a composite under its own digest, once.

    Args:
        home: where bundles are kept.
        composite: what could ship.
        plant: what it is for; a name is of one of ours.
    """
    plant = plant_named(plant) if isinstance(plant, str) else plant
    digest = composite_digest(composite, plant)
    bundle = Bundle(digest=digest, plant=plant.name, folder=home.folder("bundles", plant.name) / digest[:24])
    if not bundle.complete:
        save_bundle(bundle.folder, composite, plant)
    return bundle


@cached(name="fallback")
def fallback_composite(home: Home, run: RunConfig, identification: Identification = KNOWN) -> Bundle:
    """The plant's own controller as a composite: what the shield hands over to, and what may stand in for a candidate.

    Args:
        home: where bundles are kept.
        run: its plant and shield, whose rate limits bind this controller too.
        identification: of the constants that go with it.
    """
    plant = plant_of(run)
    simulator = simulator_of(plant, identification)
    return keep_bundle(home, make_composite(simulator, shield=shield_of(simulator.spec, run.shield)), plant)
