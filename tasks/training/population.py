"""A run's population: what it is before any training, and its training, all together or one member alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from configs.errors import Refused
from configs.home import Home
from configs.run import RunConfig
from neorl_core.algorithms import ALGORITHMS
from neorl_core.plants import PLANTS
from neorl_core.training import sharding
from neorl_core.training.loop import Progress, Source, on_host, train
from neorl_core.training.population import Algorithm, configure, init_population, members, policies, warm_up_updates
from neorl_core.training.precision import mixed
from tasks.adapters.files.canonical import digest_json
from tasks.adapters.files.provenance import sources_digest
from tasks.adapters.models.checkpoints import Checkpoints
from tasks.adapters.store.episodes import read_logs
from tasks.adapters.store.reader import Dataset
from tasks.evaluation.model_based import Judge, judge_of, logged_steps
from tasks.progress import Report
from tasks.training.checkpointing import Keeper
from tasks.training.data import Feed, feed, mesh_for


class Population(NamedTuple):
    """A run, before any training."""

    home: Home
    run: RunConfig
    dataset: dict[str, Any]
    algorithm: Algorithm
    config: Any
    members: list[dict[str, Any]]
    identity: dict[str, Any]
    """What the results depend on."""
    key: str
    mesh: Mesh | None
    feed: Feed

    @property
    def folder(self) -> Path:
        """Of checkpoints; another cadence of saving has its own, for its chunks would not fit."""
        return self.home.folder("checkpoints", self.run.plant, f"{self.key}-{self.feed.plan.chunk}")


def learning_sources(plant: str, algorithm: str) -> tuple[str, str, str]:
    """The modules on whose source a training's result depends, as `sources_digest` takes them."""
    return "tasks.training.train", ALGORITHMS.module(algorithm), PLANTS.module(plant)


def population_of(home: Home, run: RunConfig, dataset: Mapping[str, Any]) -> Population:
    """Check what a run says, and open its data.

    Raises:
        ValueError: on an unknown hyper-parameter, or devices that are not there.
    """
    algorithm, spec = ALGORITHMS[run.train.algorithm], PLANTS[run.plant].spec
    config = configure(algorithm, run.train.hyperparameters)
    found = members([run.seed + i for i in range(run.train.seeds)], run.train.grid)
    jax.eval_shape(lambda: init_population(algorithm, spec, config, [0], run.train.grid))
    mesh = mesh_for(run, len(found))
    identity = {
        "dataset": dataset["digest"],
        "train": run.train.model_dump(mode="json", exclude={"checkpoint_every", "members"}),
        "held_out": run.data.held_out,
        "seed": run.seed,
        "code": sources_digest(*learning_sources(run.plant, run.train.algorithm)),
    }
    store = Dataset.open(Path(dataset["path"]), dataset["digest"])
    fed = feed(run, store, spec, algorithm, warm_up_updates(algorithm, config))
    key = digest_json(identity)[:16]
    return Population(home, run, dict(dataset), algorithm, config, found, identity, key, mesh, fed)


def together(
    population: Population, source: Source, progress: Report | None, watch: Callable[[float, int], None]
) -> tuple[Progress, float]:
    """All members in one program.

    Args:
        population: what to train.
        source: its data.
        progress: told of updates done.
        watch: told of the updates per second, once known, and of the updates left; what it raises ends the run.

    Returns:
        The progress at the end on the host, and updates per second of all members together.

    Raises:
        Refused: when every member's training diverged.
    """
    run, fed = population.run, population.feed
    learner, seeds = population.algorithm, [run.seed + i for i in range(run.train.seeds)]
    fresh = init_population(learner, PLANTS[run.plant].spec, population.config, seeds, run.train.grid)
    learner = mixed(learner) if run.train.precision == "bfloat16" else learner
    if population.mesh is not None:
        learner, fresh = sharding.split(learner, population.mesh), sharding.placed(population.mesh, fresh)
    with Checkpoints(population.folder, population.identity) as checkpoints:
        keeper = Keeper(checkpoints, progress, updates=run.train.checkpoint_every, score=_score(population))

        def report(state: Progress, updates: int) -> None:
            keeper.report(state, updates)
            if keeper.rate():
                watch(keeper.rate(), updates - state.done)

        try:
            end = train(learner, fresh, source, fed.plan, run.train.batch_size, resume=keeper.resume, report=report)
        except FloatingPointError as error:
            cure = f"{str(error).rstrip('.')} in 'train.hyperparameters'"
            raise Refused(f"{cure} ({keeper.leave()}).") from error
        end = _shipped(population, checkpoints, Progress(*on_host(end)))
    return end, keeper.rate() * len(population.members)


def alone(population: Population, source: Source, index: int, progress: Report | None) -> Progress:
    """One member by itself; where it diverged, its last good state, whose curves end there."""
    run, meant = population.run, population.members[index]
    config = population.config._replace(**meant["hyperparameters"])
    fresh = init_population(population.algorithm, PLANTS[run.plant].spec, config, [meant["seed"]], {})
    place = population.folder / f"member-{index}"
    with Checkpoints(place, population.identity | {"member": index}) as checkpoints:
        keeper = Keeper(checkpoints, progress, updates=run.train.checkpoint_every, score=_score(population))
        settings = (population.feed.plan, run.train.batch_size)
        try:
            end = train(population.algorithm, fresh, source, *settings, resume=keeper.resume, report=keeper.report)
        except FloatingPointError:
            keeper.leave()
            assert keeper.last is not None
            end = keeper.last
        return _shipped(population, checkpoints, Progress(*on_host(end)))


def _score(population: Population) -> Callable[[Progress], float] | None:
    """What a checkpoint's best member is worth in the held-out twin, where the run asks for it."""
    run, normaliser = population.run, population.feed.scaling.normaliser
    if run.train.ships == "last":
        return None

    @cache
    def judge() -> Judge:
        # A run that is resumed at its end has nothing to compare, and fits no twin.
        store = Dataset.open(Path(population.dataset["path"]), population.dataset["digest"])
        held_out = read_logs(store, store.split(run.data.held_out)[1])
        return judge_of(run, logged_steps(held_out, normaliser), normaliser)

    return lambda state: judge().best(policies(population.algorithm, state.population, normaliser))


def _shipped(population: Population, checkpoints: Checkpoints, end: Progress) -> Progress:
    """The end, or the curves of the end with the members of the best checkpoint."""
    best = checkpoints.best() if population.run.train.ships == "best" else None
    if best is None:
        return end
    kept, _ = checkpoints.restore(end._asdict(), best)
    return end._replace(population=kept["population"])
