"""Learn a policy in a run's simulator by analytic gradients, and compare it with the plant's controller."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from configs.errors import BadInput, Refused
from configs.run import OpenedRun
from neorl_core.online import LEARNERS
from neorl_core.online.learner import CHUNK, Setting, composite_of, observe, without_rows
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.bounds import Interval, paired_difference_interval
from neorl_core.safety.composite import composite_controller, unshielded_controller
from neorl_core.training import loop
from neorl_core.training.population import Member, init_population, policies
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


def learn(
    run: OpenedRun, folder: Path, seed: int, updates: int, config: Any, progress: Report | None = None
) -> Learned:
    """Learn a policy over the run's operating domain, store it behind the run's shield, and compare it.

    The policy corrects the action of the plant's controller. The last updates run the policy behind the shield.

    Args:
        folder: new folder for the bundle and the picture.
        seed: determines the policy.
        updates: gradient steps.
        config: settings of the learner.

    Raises:
        BadInput: if the folder exists, or the shield's settings are wrong.
        Refused: if the plant has no simulator, its action is discrete, its simulator has no useful gradients, or a
            return is not finite.
    """
    known = plant_of(run)
    plant = known.simulator()
    if plant.spec.choices is not None:
        raise Refused(
            f"the action of {known.name} is one of {len(plant.spec.choices)} choices, which has no gradient: learn "
            "from logs with 'neorl retrain'"
        )
    if folder.exists():
        raise BadInput(f"{folder} exists: name another folder with --out, or remove it")
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK):
        raise BadInput(f"cannot write {folder}: name a folder in an existing folder that you may write")
    plant = plant._replace(domain=domain_of(plant, run))
    shield, started = shield_of(plant.spec, run.shield), time.monotonic()
    observing, comparing = jax.random.split(jax.random.key(SEED + seed))
    setting = Setting(plant, shield, observe(plant, observing), config)
    keys = jax.random.split(comparing, EPISODES)
    before = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain)
    check_returns(known.name, before.ret)
    learner = LEARNERS["analytic_gradient"].bind(setting)
    plan = loop.schedule(updates, CHUNK, 1, config.warm_up_updates)

    def report(state: loop.RunState, updates: int) -> None:
        done = state.done
        if done:
            first, last = (done - plan.chunk) // plan.log_every, done // plan.log_every
            means = {name: float(curve[0, first:last].mean()) for name, curve in state.curves.items()}
            if reason := useless(known.name, means):
                raise Refused(reason)
        if progress:
            progress(done, updates, "updates")

    fresh = init_population(learner, plant.spec, config, [Member(0, seed, {})])
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
