"""Check a run's file before any server is started and any data are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from configs.errors import BadInput
from configs.home import Home
from configs.run import Learner, OpenedRun

LOG_ONLY_KEYS = ("fallback", "support", "shadow")
"""Keys of a run's file that have no effect on a simulated plant."""
SIMULATOR_KEYS = ("certify", "identify", "evaluate.rollouts")
"""Keys of a run's file that have no effect on a log-only plant."""


def checked_run(config: Path) -> OpenedRun:
    """Read a run's file, and check that the settings fit the plant and the algorithms.

    Raises:
        BadInput: if a setting is wrong; the message names the key and the allowed values.
    """
    from tasks.models.plants.opening import open_run

    run = open_run(config)
    check_protection(run, config)
    check_constants(run)
    check_reward(run)
    check_history(run, config)
    check_training(run, config)
    return run


def logs_at(home: Home, run: OpenedRun, named: Sequence[Path]) -> list[Path]:
    """Return the log files that `named` gives as paths or dataset digests; for `.neorl/...` see `in_home`."""
    from tasks.ingest import logs_of

    mapped = run.data.mapping is not None
    return [in_home(home, logs_of(home, path, mapped)) for path in named]


def check_logs(home: Home, run: OpenedRun, logs: Sequence[Path]) -> None:
    """Raise a BadInput if a log file is missing, except for the synthetic log that the run generates."""
    from tasks.ingest import check_there

    check_there(path for path in logs if os.path.exists(path) or not is_default_log(home, run, path))


def in_home(home: Home, path: Path) -> Path:
    """Return the path; if it is `.neorl/...` and does not exist, return the same path in the home.

    The same prefect.yaml therefore works with every home.
    """
    if path.parts[:1] == (".neorl",) and not os.path.exists(path):
        return home.root.joinpath(*path.parts[1:])
    return path


def is_default_log(home: Home, run: OpenedRun, path: Path) -> bool:
    """Return whether the path is the synthetic log of a simulated plant. A run generates this log if it is missing."""
    if not path.resolve().is_relative_to(home.root / "generated"):
        return False
    from tasks.data.synthetic.default_log import default_log
    from tasks.models.plants.known import plant_of

    plant = plant_of(run)
    return plant.plant is not None and path.resolve() == default_log(home, plant).log


def check_protection(run: OpenedRun, config: Path) -> None:
    """Check that 'fallback', 'shield' and 'certify' fit the plant."""
    from tasks.evaluation.claims import claim_of
    from tasks.log_only.protection import check_fallback
    from tasks.models.plants.known import plant_of
    from tasks.training.shielding import shield_of

    plant = plant_of(run)
    simulated = plant.plant is not None
    given = run.model_fields_set | {f"evaluate.{name}" for name in run.evaluate.model_fields_set}
    useless = [name for name in (LOG_ONLY_KEYS if simulated else SIMULATOR_KEYS) if name in given]
    if useless:
        reason = "has a simulator and its own controller" if simulated else "has no simulator"
        raise BadInput(f"'{useless[0]}' has no effect in {config}, because {run.plant} {reason}: remove the key.")
    if plant.plant is None:
        check_fallback(run, plant.spec)
    else:
        claim_of(plant.plant, run)
        shield_of(plant.spec, run.shield)


def check_constants(run: OpenedRun) -> None:
    """Check that the plant has the constants under 'identify'."""
    from tasks.identify import unknowns_of
    from tasks.models.plants.known import plant_of

    if run.identify is not None:
        unknowns_of(run, plant_of(run).simulator())


def check_history(run: OpenedRun, config: Path) -> None:
    """Check that the plant has the signals under 'history', and that the lengths are allowed."""
    from tasks.data.store.histories import observed_spec

    try:
        observed_spec(run)
    except ValueError as error:
        raise BadInput(f"in {config}, 'history': {error}") from error


def check_training(run: OpenedRun, config: Path) -> None:
    """Check that the settings under 'train' fit the algorithms and the plant."""
    from neorl_core.algorithms import check_actions
    from neorl_core.networks import make_body
    from neorl_core.online import LEARNERS
    from neorl_core.training.loop import schedule
    from neorl_core.training.population import check_range, configure, warm_up_updates
    from tasks.data.store.histories import observed_spec
    from tasks.models.plants.known import plant_of
    from tasks.models.user_code.algorithms import algorithm_of

    spec = plant_of(run).spec
    shared = [run.train.model_copy(update=dict(run.shared.pooled()))] if run.shared else []
    for learner in (*run.train.single_learners(), *shared):
        try:
            varied = {name: values[0] for name, values in learner.grid.items()}
            algorithm = algorithm_of(learner).algorithm
            check_actions(algorithm, spec)
            if learner.algorithm in LEARNERS:
                check_online(run, learner, learner in shared)
            settings = configure(algorithm, {**learner.hyperparameters, **varied}, learner.updates)
            for name, values in learner.grid.items():
                for value in values:
                    check_range(algorithm, name, value)
            schedule(learner.updates, 1, algorithm.batches_per_update, warm_up_updates(algorithm, settings))
            networks = {name: getattr(settings, name, 0) for name in ("gru", "graph")}
            make_body(observed_spec(run), getattr(settings, "hidden", ()), **networks)
        except ValueError as error:
            raise BadInput(f"in {config}, 'train': {error}") from error


def check_online(run: OpenedRun, learner: Learner, shared: bool) -> None:
    """Raise a ValueError if the run cannot have a learner that learns in the simulator."""
    from tasks.models.plants.known import plant_of

    share = learner.best_episodes
    unusable = {
        f"{run.plant} has no simulator": plant_of(run).plant is None,
        "it cannot train the policy that the sites of a fleet share": shared,
        "train.ships is best, which compares checkpoints by logs": run.train.ships == "best",
        f"best_episodes is {share:g}, which selects episodes of logs": share < 1,
    }
    if reason := next((reason for reason, holds in unusable.items() if holds), None):
        raise ValueError(f"{learner.algorithm} learns in the simulator, but {reason}: choose an offline learner")


def check_reward(run: OpenedRun) -> None:
    """Raise a BadInput if the mapping's reward formula is wrong or contains no signal."""
    from tasks.models.plants.known import plant_of
    from tasks.models.plants.opening import mapping_of

    mapping = mapping_of(run)
    if mapping is None or mapping.reward is None:
        return
    spec = plant_of(run).spec
    try:
        _, reward = mapping.formulas(spec)
    except ValueError as error:
        raise BadInput(f"{error}: correct the mapping of plant {spec.name}.") from error
    if reward is not None and not reward.names:
        measured, unit = spec.observation.names[0], spec.observation.units[0]
        difference = {"degC": "K", "°C": "K", "degF": "K"}.get(unit, unit)  # temperature differences are in kelvin
        raise BadInput(
            f"the reward in {run.data.mapping} is constant ('{reward.text}'): use measured signals, for example "
            f"reward: {{expression: \"-abs(next.{measured} - quantity(1, '{unit}')) / "
            f'quantity(1, \'{difference}\')", unit: "1"}}.'
        )
