"""What can be wrong with a run's file is found before a server is started or a row is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from configs.errors import BadInput
from configs.home import Home
from configs.run import OpenedRun

OF_A_PROCESS = ("fallback", "support", "shadow")
"""Keys that change nothing for a simulated plant."""
OF_A_SIMULATOR = ("certify", "identify", "evaluate.rollouts")
"""Keys that change nothing for a process."""


def checked_run(config: Path) -> OpenedRun:
    """Read a run's file and hold its names against the plants, domains and algorithms that exist.

    Raises:
        BadInput: naming the key, and what it may be.
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
    """The files that a run reads where its logs are named: by a path, `.neorl/` for the home, or a dataset's digest.

    Args:
        home: holds the datasets.
        run: whose logs they are.
        named: as a person or a deployment names them.

    Raises:
        BadInput: when one names a dataset and the run has a mapping, or several datasets.
    """
    from tasks.ingest import logs_of

    mapped = run.data.mapping is not None
    return [in_home(home, logs_of(home, path, mapped)) for path in named]


def check_logs(home: Home, run: OpenedRun, logs: Sequence[Path]) -> None:
    """Refuse a log that is not there, but for the one that the run makes itself.

    Raises:
        BadInput: naming the first.
    """
    from tasks.ingest import check_there

    check_there(path for path in logs if os.path.exists(path) or not is_usual_log(home, run, path))


def in_home(home: Home, path: Path) -> Path:
    """Where a path leads: one that begins with `.neorl` is in the home, wherever that is, unless it is there as named.

    So prefect.yaml can name the logs of any home.
    """
    if path.parts[:1] == (".neorl",) and not os.path.exists(path):
        return home.root.joinpath(*path.parts[1:])
    return path


def is_usual_log(home: Home, run: OpenedRun, path: Path) -> bool:
    """Whether a path is that of the log which a run of a simulated plant makes where it is not there yet."""
    if not path.resolve().is_relative_to(home.root / "generated"):
        return False
    from tasks.data.synthetic.usual import usual_log
    from tasks.models.plants.known import plant_of

    plant = plant_of(run)
    return plant.plant is not None and path.resolve() == usual_log(home, plant).log


def check_protection(run: OpenedRun, config: Path) -> None:
    """Hold what takes over and what is certified against the plant.

    Raises:
        BadInput: naming the key of 'fallback', 'shield' or 'certify'.
    """
    from tasks.evaluation.claims import claim_of
    from tasks.log_only.protection import check_fallback
    from tasks.models.plants.known import plant_of
    from tasks.training.shielding import shield_of

    plant = plant_of(run)
    simulated = plant.plant is not None
    given = run.model_fields_set | {f"evaluate.{name}" for name in run.evaluate.model_fields_set}
    useless = [name for name in (OF_A_PROCESS if simulated else OF_A_SIMULATOR) if name in given]
    if useless:
        has = "a simulator and its own controller" if simulated else "no simulator"
        raise BadInput(
            f"expected no '{useless[0]}' in {config}, got one for {run.plant}, which has {has}: leave it out."
        )
    if plant.plant is None:
        check_fallback(run, plant.spec)
    else:
        claim_of(plant.plant, run)
        shield_of(plant.spec, run.shield)


def check_constants(run: OpenedRun) -> None:
    """Hold the constants that are to be estimated against the plant's.

    Raises:
        BadInput: naming the constant or the signal that there is none of.
    """
    from tasks.identify import unknowns_of
    from tasks.models.plants.known import plant_of

    if run.identify is not None:
        unknowns_of(run, plant_of(run).simulator())


def check_history(run: OpenedRun, config: Path) -> None:
    """Hold the history's names and numbers against the plant's.

    Raises:
        BadInput: naming what is wrong.
    """
    from tasks.data.store.histories import observed_spec

    try:
        observed_spec(run)
    except ValueError as error:
        raise BadInput(f"in {config}, 'history': {error}") from error


def check_training(run: OpenedRun, config: Path) -> None:
    """Hold the training's names against the algorithms and their settings.

    Raises:
        BadInput: naming the key, and what it may be.
    """
    from neorl_core.algorithms import check_actions
    from neorl_core.networks import body_of
    from neorl_core.training.loop import schedule
    from neorl_core.training.population import configure, in_range, warm_up_updates
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
            settings = configure(algorithm, {**learner.hyperparameters, **varied}, learner.updates)
            for name, values in learner.grid.items():
                for value in values:
                    in_range(algorithm, name, value)
            schedule(learner.updates, 1, algorithm.batches_per_update, warm_up_updates(algorithm, settings))
            asked = {name: getattr(settings, name, 0) for name in ("gru", "graph")}
            body_of(observed_spec(run), getattr(settings, "hidden", ()), **asked)
        except ValueError as error:
            raise BadInput(f"in {config}, 'train': {error}") from error


def check_reward(run: OpenedRun) -> None:
    """Refuse a mapping whose reward is the same whatever happens.

    Raises:
        BadInput: with an example of a formula.
    """
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
        one = {"degC": "K", "°C": "K", "degF": "K"}.get(unit, unit)  # a difference of temperatures is in kelvin
        raise BadInput(
            f"expected a reward that depends on what happens in {run.data.mapping}, got '{reward.text}': say what is "
            f"wanted, such as reward: {{expression: \"-abs(next.{measured} - quantity(1, '{unit}')) / "
            f'quantity(1, \'{one}\')", unit: "1"}}.'
        )
