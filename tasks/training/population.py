"""Populations: preparation, and training of all members or of a single one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax.sharding import Mesh

from configs.errors import Refused
from configs.home import Home
from configs.run import Evaluate, OpenedRun, Train
from neorl_core.networks import Normaliser
from neorl_core.online import LEARNERS
from neorl_core.online.learner import Setting
from neorl_core.training import sharding
from neorl_core.training.loop import RunState, TrainingRows, on_host, train
from neorl_core.training.population import (
    Algorithm,
    Member,
    TrainState,
    configure,
    init_population,
    members,
    policies,
    warm_up_updates,
)
from neorl_core.training.precision import mixed_precision
from tasks.data.store import reader
from tasks.data.store.episodes import halves, read_logs
from tasks.data.store.histories import observed_spec, run_history
from tasks.evaluation.model_based import LearnedModelEvaluator, fit_learned_model, lasting, logged_steps, windows
from tasks.files.canonical import digest_json
from tasks.models.bundles.checkpoints import Checkpoints
from tasks.models.plants.known import run_sources
from tasks.models.user_code.algorithms import algorithm_of
from tasks.references import KNOWN, Dataset, Identification, Reference
from tasks.training.checkpointing import Checkpointing, one_at_a_time
from tasks.training.data import TrainingData, mesh_for, training_data
from tasks.training.in_simulator import setting_of, without_batches
from tasks.training.start import with_start

if TYPE_CHECKING:
    from tasks.progress import CurveLog, Report


class Diverged(Refused):
    """All members of a learner diverged."""


class Identity(Reference):
    """Everything that determines the result of a training; its digest names the training's folder."""

    dataset: str
    train: Train
    evaluate: Evaluate | None
    """Set only if the learned model compares checkpoints."""
    history: dict[str, int]
    held_out: float
    seed: int
    code: str
    simulator: str | None = None
    """Digest of shield, operating domain and identified constants; None for an offline learner."""
    member: int | None = None
    """Index of a member that is trained alone."""

    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return digest_json(self.model_dump(mode="json"))


class TrainingRun(NamedTuple):
    """Everything that is needed to train a population."""

    home: Home
    run: OpenedRun
    dataset: Dataset
    algorithm: Algorithm
    config: Any
    """The algorithm's `Config`, without settings that differ between members."""
    members: list[Member]
    identity: Identity
    mesh: Mesh | None
    """Devices to spread members over; None for one."""
    data: TrainingData
    setting: Setting | None = None
    """Simulator, shield and scale of a learner that learns in the simulator; None for an offline learner."""

    @property
    def normaliser(self) -> Normaliser:
        """Scale of the policy's inputs and actions."""
        return self.setting.normaliser if self.setting else self.data.scaling.normaliser

    @property
    def key(self) -> str:
        """Short form of the identity's digest, for folders."""
        return self.identity.digest()[:16]

    @property
    def folder(self) -> Path:
        """Folder of checkpoints. The name contains the chunk's length, because a resumed run needs equal chunks."""
        return self.home.folder("checkpoints", self.run.plant, f"{self.key}-{self.data.plan.chunk}")


def learning_sources(run: OpenedRun) -> str:
    """Return the digest of the sources that determine a training."""
    known = algorithm_of(run.train)
    return digest_json([run_sources(run, "tasks.training.train"), known.sources()])


def training_run(home: Home, run: OpenedRun, dataset: Dataset, identification: Identification = KNOWN) -> TrainingRun:
    """Check the settings of a run, and open the data.

    Args:
        identification: constants of the simulator, for a learner that learns in the simulator.

    Raises:
        ValueError: if a hyper-parameter is unknown, or devices are missing.
    """
    algorithm, spec = algorithm_of(run.train).algorithm, observed_spec(run)
    config = configure(algorithm, run.train.hyperparameters, run.train.updates)
    # Each member has its own seed: members with a common seed would share its effects.
    found = [replace(each, seed=run.seed + each.index) for each in members(range(run.train.seeds), run.train.grid)]
    online = run.train.algorithm in LEARNERS
    mesh = None if online else mesh_for(run, len(found))
    # The checkpoint interval and the placement change at most the last bits of a result, unless the best checkpoint
    # ships.
    alike = {"checkpoint_every": 1, "members": "auto"} if run.train.ships == "last" else {}
    identity = Identity(
        dataset=dataset.digest,
        # The digest `code`, below, covers user code.
        train=run.train.model_copy(update={**alike, "source": None}),
        evaluate=run.evaluate if run.train.ships == "best" else None,
        history=run.history,
        held_out=run.data.held_out,
        seed=run.seed,
        code=learning_sources(run),
        simulator=digest_json(
            [run.shield.model_dump(mode="json"), run.certify.domain, identification.model_dump(mode="json")]
        )
        if online
        else None,
    )
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    data = training_data(run, store, spec, algorithm, warm_up_updates(algorithm, config))
    setting = None
    if online:
        data = without_batches(run, data, warm_up_updates(algorithm, config))
        setting = setting_of(run, data, config, identification)
        algorithm = LEARNERS[run.train.algorithm].bind(setting)
    jax.eval_shape(lambda: init_population(algorithm, spec, config, found))
    return TrainingRun(home, run, dataset, algorithm, config, found, identity, mesh, data, setting)


def train_members(
    training: TrainingRun,
    rows: TrainingRows,
    only: int | None = None,
    progress: Report | None = None,
    observe: Callable[[float, int], None] | None = None,
    log: CurveLog | None = None,
) -> tuple[RunState, float]:
    """Train all members in one program, or a single member. Other processes wait until this training has ended.

    Args:
        only: index of a single member to train. Default: all members.
        observe: called with the rate, once known, and the remaining steps; an exception ends the training.

    Returns:
        The final state as NumPy arrays, or the last good state of a single diverged member. Also the gradient steps
        per second of each member, or 0 if the run was too short to measure.

    Raises:
        Diverged: if all members were trained and every one diverged.
    """
    run, (algorithm, fresh) = training.run, _fresh(training, only)
    folder = training.folder if only is None else training.folder / f"member-{only}"
    identity = training.identity.model_copy(update={"member": only})
    with one_at_a_time(folder), Checkpoints(folder, identity.model_dump_json()) as checkpoints:
        saved = Checkpointing(
            checkpoints,
            progress,
            updates=run.train.checkpoint_every,
            score=_score(training),
            log=log,
            programs=algorithm_of(run.train).programs,
        )

        def report(state: RunState, updates: int) -> None:
            saved.report(state, updates)
            if observe and saved.rate():
                observe(saved.rate(), updates - state.done)

        settings, limit = (training.data.plan, run.train.batch_size), training.data.scaling.limit
        try:
            end = train(algorithm, fresh, rows, *settings, limit=limit, resume=saved.resume, report=report)
        except FloatingPointError as error:
            left = saved.leave()
            if only is None or saved.last is None:
                raise Diverged(f"{str(error).rstrip('.')} in 'train.hyperparameters' ({left}).") from error
            end = saved.last
        return _shipped(training, checkpoints, RunState(*on_host(end))), saved.rate()


def _fresh(training: TrainingRun, only: int | None) -> tuple[Algorithm, TrainState]:
    """Return the algorithm in the run's precision, and the initial state."""
    run, spec, algorithm = training.run, observed_spec(training.run), training.algorithm
    if only is None:
        fresh = init_population(algorithm, spec, training.config, training.members)
    else:
        member = training.members[only]
        config = training.config._replace(**member.hyperparameters)
        fresh = init_population(algorithm, spec, config, [replace(member, hyperparameters={})])
    if run.train.start is not None:
        fresh = with_start(training.home, fresh, run.train.start)
    if run.train.precision == "bfloat16" and training.setting is None:
        algorithm = mixed_precision(algorithm)
    if training.mesh is not None and only is None:
        return sharding.shard_batches(algorithm, training.mesh), sharding.shard_members(training.mesh, fresh)
    return algorithm, fresh


def _score(training: TrainingRun) -> Callable[[RunState], float] | None:
    """Return a function that scores a checkpoint by the learned model, if the best checkpoint ships."""
    run, normaliser, spec = training.run, training.data.scaling.normaliser, observed_spec(training.run)
    if run.train.ships == "last":
        return None

    @cache
    def evaluator() -> LearnedModelEvaluator:
        # A run resumed at its end compares nothing, so it fits no model.
        store = reader.StoredDataset.open(training.dataset.store, training.dataset.digest)
        # Use the selection half of the held-out episodes only; the other half estimates the gain.
        select, _ = halves(read_logs(store, store.split(run.data.held_out)[1]))
        held_out = run_history(run, store).stacked(select)
        horizon = lasting(held_out, spec.horizon)
        steps = logged_steps(windows(held_out, horizon), normaliser)
        return fit_learned_model(run, steps, normaliser, spec.history, horizon)

    return lambda state: evaluator().best(policies(training.algorithm, state.population, normaliser))


def _shipped(training: TrainingRun, checkpoints: Checkpoints, end: RunState) -> RunState:
    """Return the final state, or the final curves with the members of the best checkpoint."""
    best = checkpoints.best() if training.run.train.ships == "best" else None
    if best is None:
        return end
    state = checkpoints.restore(end._asdict(), best)
    return end._replace(population=state["population"])
