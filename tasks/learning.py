"""Learn a policy in a run's simulator, and compare it with the plant's controller."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from configs.errors import BadInput, Refused
from configs.run import OpenedRun
from configs.run import Setting as HyperParameter
from neorl_core.algorithms import check_actions
from neorl_core.online import LEARNERS
from neorl_core.online.learner import CHUNK, Setting, composite_of, observe, without_rows
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.bounds import Interval, paired_difference_interval
from neorl_core.safety.composite import composite_controller, unshielded_controller
from neorl_core.training import loop
from neorl_core.training.population import Member, configure, init_population, policies, warm_up_updates
from neorl_core.types import Controller, Params, Plant
from tasks.models.bundles.bundle import save_bundle
from tasks.models.plants.known import plant_of
from tasks.pictures.trajectories import draw_plant
from tasks.simulate import domain_of, score
from tasks.training.in_simulator import useless
from tasks.training.shielding import shield_of
from tasks.tuning import check_returns, prefers

if TYPE_CHECKING:
    from tasks.progress import Report

EPISODES = 2_048
"""New episodes on which the policy and the plant's controller are compared."""
SEED = 20_270_000
"""Added to the seed of the episodes for the normaliser and the comparison, because training uses the seed itself."""
CONTROLLER, SHIELDED, BARE = "plant controller", "policy behind the shield", "policy without the shield"


class Compared(NamedTuple):
    """Result of a controller on the new episodes."""

    score: float
    violations: int
    gain: Interval | None
    """95 % interval of the paired gain over the plant's controller, in points; None for the controller itself."""


class Learned(NamedTuple):
    """A policy that was learned in a simulator."""

    plant: str
    digest: str
    folder: Path
    controllers: dict[str, Compared]
    taken_over: float
    """Share of the steps in which the shield's fallback acted."""
    episodes: int
    seconds: float
    """Time of the training, with compilation."""

    @property
    def better(self) -> bool:
        """Whether the policy behind the shield is better than the plant's controller, by `prefers`."""
        shielded, controller = self.controllers[SHIELDED], self.controllers[CONTROLLER]
        assert shielded.gain is not None
        return prefers(shielded.gain, shielded.violations, controller.violations, self.episodes)


class Chosen(NamedTuple):
    """A learner, with the length and the settings of its training."""

    name: str
    updates: int
    config: Any
    plan: loop.Plan


def chosen(
    run: OpenedRun,
    algorithm: str | None = None,
    updates: int | None = None,
    overrides: Mapping[str, HyperParameter] | None = None,
) -> Chosen:
    """Return the first learner in the run's file that learns in the simulator.

    If the file has none, return `ppo` for a discrete action, else `analytic_gradient`.

    Args:
        algorithm: name of another learner.
        updates: length of the training, instead of the length in the file.
        overrides: hyper-parameters, instead of those in the file.

    Raises:
        BadInput: if there is no such learner, it cannot learn the plant's action, or a setting is wrong.
    """
    spec = plant_of(run).spec
    learners = [each for each in run.train.single_learners() if each.algorithm in LEARNERS]
    usual = "analytic_gradient" if spec.choices is None else "ppo"
    name = algorithm or (learners[0].algorithm if learners else usual)
    if name not in LEARNERS:
        raise BadInput(f"{name} is no learner that learns in a simulator: choose {' or '.join(LEARNERS)}")
    learner, given = LEARNERS[name].unbound, next((each for each in learners if each.algorithm == name), None)
    if spec.choices is not None and learner.discrete is False:
        raise BadInput(f"{name} cannot learn the discrete actions of {spec.name}: choose ppo")
    length = updates or (given.updates if given else learner.usual_updates)
    try:
        check_actions(learner, spec)
        config = configure(learner, {**(given.hyperparameters if given else {}), **(overrides or {})}, length)
        LEARNERS[name].check(config)
        plan = loop.schedule(length, CHUNK, 1, warm_up_updates(learner, config))
    except ValueError as error:
        raise BadInput(str(error)) from error
    return Chosen(name, length, config, plan)


def learn(run: OpenedRun, folder: Path, seed: int, by: Chosen, progress: Report | None = None) -> Learned:
    """Learn a policy over the run's operating domain, store it behind the run's shield, and compare it.

    The policy moves the set points of the plant's controller if the plant declares any, and its action otherwise. The
    last updates run the policy behind the shield.

    Args:
        folder: new folder for the bundle and the picture.
        seed: determines the policy.
        by: the learner.

    Raises:
        BadInput: if the folder exists, or the shield's settings are wrong.
        Refused: if the plant has no simulator, its simulator has no useful gradients, or a return is not finite.
    """
    known = plant_of(run)
    plant = known.simulator()
    if folder.exists():
        raise BadInput(f"{folder} exists: name another folder with --out, or remove it")
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK):
        raise BadInput(f"cannot write {folder}: name a folder in an existing folder that you may write")
    plant = plant._replace(domain=domain_of(plant, run))
    shield, started = shield_of(plant.spec, run.shield), time.monotonic()
    observing, comparing = jax.random.split(jax.random.key(SEED + seed))
    setting = Setting(plant, shield, observe(plant, observing), by.config)
    keys = jax.random.split(comparing, EPISODES)
    before = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain)
    check_returns(known.name, before.ret)
    learner, plan = LEARNERS[by.name].bind(setting), by.plan

    def report(state: loop.RunState, updates: int) -> None:
        done = state.done
        if done:
            first, last = (done - plan.chunk) // plan.log_every, done // plan.log_every
            means = {name: float(curve[0, first:last].mean()) for name, curve in state.curves.items()}
            if reason := useless(known.name, means):
                raise Refused(reason)
        if progress:
            progress(done, updates, "updates")

    fresh = init_population(learner, plant.spec, by.config, [Member(0, seed, {})])
    try:
        trained = loop.train(learner, fresh, without_rows(plant.spec), plan, 1, limit=math.inf, report=report)
    except FloatingPointError as error:
        raise Refused(
            f"no episode of {known.name} has a finite return: correct the simulator, or narrow the operating domain"
        ) from error
    (policy,) = policies(learner, trained.population, setting.normaliser)
    composite = composite_of(policy.params, setting)
    jax.block_until_ready(composite)  # type: ignore[no-untyped-call]
    seconds = time.monotonic() - started
    shielded = composite_controller(plant)
    controllers: dict[str, tuple[Controller, Params]] = {
        CONTROLLER: (plant.fallback, plant.fallback_params),
        SHIELDED: (shielded, composite),
        BARE: (unshielded_controller(plant), composite),
    }
    compared, taken_over = _compared(plant, controllers, keys, before)
    shown = {"learned": (shielded, composite), CONTROLLER: controllers[CONTROLLER]}
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
        digest = save_bundle(Path(staging) / "bundle", composite, known)
        draw_plant(plant, Path(staging) / "bundle" / "episode.png", seed, 1, shown)
        os.rename(Path(staging) / "bundle", folder)
    return Learned(known.name, digest, folder, compared, taken_over, EPISODES, seconds)


def _compared(
    plant: Plant, controllers: dict[str, tuple[Controller, Params]], keys: jax.Array, before: EpisodeResult
) -> tuple[dict[str, Compared], float]:
    """Run all controllers on the same new episodes; also return the share of steps that the fallback took over."""
    taken_over = 0.0
    points: dict[str, np.ndarray] = {}
    found: dict[str, Compared] = {}
    for who, (controller, params) in controllers.items():
        result = before
        if who != CONTROLLER:
            result = rollouts(plant, controller, params, keys, plant.domain, trace=who == SHIELDED)
        check_returns(plant.spec.name, result.ret)
        points[who] = np.asarray([score(plant.spec, ret) for ret in np.asarray(result.ret, np.float64)])
        if result.trajectory is not None:
            taken_over = float(np.sum(result.trajectory.handed_over) / np.sum(result.length))
        gain = None if who == CONTROLLER else paired_difference_interval(points[who], points[CONTROLLER])
        found[who] = Compared(float(points[who].mean()), int(np.sum(result.violated)), gain)
    return found, taken_over
