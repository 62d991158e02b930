"""Train a population on a dataset's training episodes, resumable at every checkpoint with bit-identical results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from configs.errors import BadInput
from configs.home import Home
from configs.run import Learner, OpenedRun
from neorl_core.networks import Policy
from neorl_core.online import LEARNERS
from neorl_core.online.learner import composite_of
from neorl_core.safety.composite import Composite, make_composite
from neorl_core.training.population import diverged, policies
from tasks.data.store.histories import observed_spec
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import digest_json, write_atomic
from tasks.identify import simulator_of
from tasks.models.bundles.bundle import composite_digest, load_bundle, save_bundle
from tasks.models.plants.known import KnownPlant, plant_named, plant_of
from tasks.models.user_code.algorithms import algorithm_of
from tasks.references import (
    KNOWN,
    Bundle,
    Dataset,
    Identification,
    Learning,
    LearningMember,
    Member,
    Population,
    SimulatorErrors,
    TrainedLearner,
    member_name,
)
from tasks.stages import cached
from tasks.training.in_simulator import shield_around, useless
from tasks.training.placement import train_population, train_share
from tasks.training.population import Diverged, TrainingRun, training_run
from tasks.training.shielding import shield_of
from tasks.versions.verdicts import domain_explains, simulator_excess

if TYPE_CHECKING:
    from tasks.progress import FollowLearning, Report


def algorithm_modules(run: OpenedRun) -> list[str]:
    """Return the built-in modules of a run's algorithms; user code counts by its digest in the run."""
    return list(dict.fromkeys(name for alone in run.train.single_learners() for name in algorithm_of(alone).modules))


@cached(also=algorithm_modules)
def train(
    home: Home,
    run: OpenedRun,
    dataset: Dataset,
    progress: Report | None = None,
    protection: Bundle | None = None,
    identification: Identification = KNOWN,
    learning: FollowLearning | None = None,
    simulator: SimulatorErrors | None = None,
) -> Population:
    """Train the members of every learner, one per seed and grid point, and store each as a composite.

    Args:
        protection: fallback and shield of a log-only plant.
        simulator: prediction errors of the simulator. Learners in the simulator are left out if it does not predict the
            held-out logs.

    Returns:
        The members that did not diverge, and the learning curves of all members.

    Raises:
        BadInput: if an algorithm or hyper-parameter is unknown, or devices are missing.
        Refused: if every member diverged, or all learners need a simulator that predicts the held-out logs.
    """
    members: list[Member] = []
    learners: list[TrainedLearner] = []
    lost: list[Diverged] = []
    keys, index, rows = [], 0, 0
    for place, alone in enumerate(run.train.single_learners()):
        if alone.algorithm in LEARNERS and simulator is not None and not domain_explains(simulator):
            lost.append(_left_out(alone, simulator))
            continue
        training = _training(home, run.model_copy(update={"train": alone}), dataset, identification)
        keys.append(training.key)
        rows = training.data.moments.rows
        shown = _named(progress, alone) if run.train.beside else progress
        try:
            learner, found = _trained(training, place, shown, learning)
        except Diverged as error:
            lost.append(error)
        else:
            learners.append(learner)
            for member, policy in zip(training.members, found, strict=True):
                if policy is not None:
                    position = {"index": index + member.index, "learner": len(learners) - 1, "row": member.index}
                    bundle = _kept(training, policy, protection, identification)
                    members.append(
                        Member(
                            **position,
                            algorithm=alone.algorithm,
                            seed=member.seed,
                            hyperparameters=_varied(alone, member.hyperparameters),
                            bundle=bundle,
                        )
                    )
        index += len(training.members)
    if not members:
        raise lost[0]
    return Population(
        digest=digest_json({"training": keys, "members": [member.bundle.digest for member in members]}),
        folder=home.folder("runs", run.plant, "populations", keys[0]),
        learners=tuple(learners),
        members=tuple(members),
        diverged=tuple(str(error) for error in lost),
        rows=rows,
    )


def train_shares(
    home: Home, run: OpenedRun, dataset: Dataset, process: int, processes: int, progress: Report | None = None
) -> list[str]:
    """Train one machine's share of every learner's members. Afterwards, `train` on one machine collects all members.

    Args:
        process: number of this machine, from 0.

    Returns:
        Titles of the trained members.

    Raises:
        BadInput: if an algorithm or hyper-parameter is unknown, or members share one program.
        Refused: if a member's process ended early.
    """
    done = []
    for alone in run.train.single_learners():
        if alone.algorithm in LEARNERS:
            continue  # `train` learns in the simulator, in one program
        if alone.members != "processes":
            raise BadInput(
                f"train.members of {alone.algorithm} is '{alone.members}', but several machines can only share members "
                "that train in processes: set train.members to processes"
            )
        training = _training(home, run.model_copy(update={"train": alone}), dataset)
        shown = _named(progress, alone) if run.train.beside else progress
        found = train_share(training, process, processes, shown)
        done += [f"{alone.title} {index} (seed {training.members[index].seed})" for index in found]
    return done


def _left_out(learner: Learner, errors: SimulatorErrors) -> Diverged:
    """Return the reason why a learner is left out."""
    excess = {name: simulator_excess(error) for name, error in errors.signals.items()}
    signals = [f"{name} ({found:.2f} of the allowed error)" for name, found in excess.items() if found > 1.0]
    return Diverged(
        f"{learner.title} was not trained, because the simulator mispredicts {', '.join(signals) or 'every signal'} of "
        "the held-out logs: correct its constants, estimate them under 'identify', or widen certify.domain"
    )


def _named(progress: Report | None, learner: Learner) -> Report | None:
    """Return progress that names the learner, if there are several."""
    return progress and (lambda done, total, unit: progress(done, total, f"{unit} of {learner.title}"))


def _training(home: Home, run: OpenedRun, dataset: Dataset, identification: Identification = KNOWN) -> TrainingRun:
    try:
        return training_run(home, run, dataset, identification)
    except ValueError as error:
        raise BadInput(f"in 'train' of {run.train.algorithm}: {error}") from error


def _trained(
    training: TrainingRun, place: int, progress: Report | None, learning: FollowLearning | None
) -> tuple[TrainedLearner, list[Policy | None]]:
    """Return the trained learner and the policy of each member; None for a diverged member."""
    plan = training.data.plan
    with learning(_told(training)) if learning else nullcontext() as log:
        trained = train_population(training, progress, log)
        # A member that diverged once is left out even if it recovers, because its curves are stored and show it.
        sound = ~np.asarray(diverged(trained.state.curves, training.data.scaling.limit))
        if log is not None:
            log.log(trained.state.curves, plan.updates)
            log.end(sound)
    if not sound.any():
        raise Diverged(
            f"all {len(training.members)} members of {training.run.train.title} diverged: lower the learning rates in "
            "'train.hyperparameters'"
        )
    if training.setting is not None:
        _check_gradients(training, trained.state.curves)
    found = policies(training.algorithm, trained.state.population, training.normaliser)
    folder = training.home.folder("runs", training.run.plant, "populations", training.key)
    learner = TrainedLearner(
        algorithm=training.algorithm.name,
        key=training.key,
        place=place,
        updates=plan.updates,
        curves=write_atomic(folder / "curves.npz", npz_bytes({"step": plan.steps, **trained.state.curves})),
        steps_per_second=trained.rate,
        placement=trained.placement,
        isolation=algorithm_of(training.run.train).isolation,
    )
    return learner, [policy if good else None for policy, good in zip(found, sound, strict=True)]


def _check_gradients(training: TrainingRun, curves: Mapping[str, np.ndarray]) -> None:
    """Raise `Diverged` if the simulator's gradients were of no use in the last chunk of updates."""
    last = training.data.plan.chunk // training.data.plan.log_every
    reason = useless(training.run.plant, {name: float(curve[:, -last:].mean()) for name, curve in curves.items()})
    if reason:
        raise Diverged(f"{training.run.train.title} learned nothing, because {reason}")


def _told(training: TrainingRun) -> Learning:
    """Describe a training and its members for the log of learning curves."""
    run, config = training.run, training.config._asdict()
    members = []
    for member in training.members:
        own = {"algorithm": training.algorithm.name, "seed": member.seed, "updates": training.data.plan.updates}
        differs = _varied(run.train, member.hyperparameters)
        settings = {**own, "batch_size": run.train.batch_size, **config, **differs}
        members.append(
            LearningMember(
                name=member_name(training.algorithm.name, member.seed, differs),
                params={name: str(value) for name, value in settings.items()},
            )
        )
    return Learning(
        plant=run.plant,
        key=training.key,
        dataset=training.dataset.digest,
        members=tuple(members),
    )


def _varied(learner: Learner, hyperparameters: Mapping[str, float]) -> dict[str, float]:
    """Return the settings in which a member differs from others: grid point and share of episodes."""
    share = {"best_episodes": learner.best_episodes} if learner.best_episodes < 1.0 else {}
    return {**share, **hyperparameters}


def _kept(training: TrainingRun, policy: Policy, protection: Bundle | None, identification: Identification) -> Bundle:
    """Store a member's policy with a shield for the range of the training data, or with the given protection."""
    run, plant = training.run, plant_of(training.run)
    if training.setting is not None:
        return keep_bundle(training.home, composite_of(policy.params, training.setting), plant)
    if protection is not None:
        alone: Composite = load_bundle(protection.folder, protection.digest, plant.source)[1]
        composite = alone._replace(policy=policy)
    else:
        composite = make_composite(simulator_of(plant, identification), policy, shield_around(run, training.data))
    return keep_bundle(training.home, composite._replace(history=observed_spec(run).history), plant)


def keep_bundle(home: Home, composite: Composite, plant: KnownPlant | str) -> Bundle:
    """Write a composite to a bundle named by its digest, unless the bundle exists."""
    plant = plant_named(plant) if isinstance(plant, str) else plant
    digest = composite_digest(composite, plant)
    bundle = Bundle(digest=digest, plant=plant.name, folder=home.folder("bundles", plant.name) / digest[:24])
    if not bundle.complete:
        save_bundle(bundle.folder, composite, plant)
    return bundle


@cached(name="fallback")
def fallback_composite(home: Home, run: OpenedRun, identification: Identification = KNOWN) -> Bundle:
    """Store the tuned controller as a composite: the fallback of the shield, and a possible champion."""
    plant = plant_of(run)
    simulator = simulator_of(plant, identification)
    return keep_bundle(home, make_composite(simulator, shield=shield_of(simulator.spec, run.shield)), plant)
