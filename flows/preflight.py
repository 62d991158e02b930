"""Checks of a run's file that need no server and read no data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from configs.errors import BadInput
from configs.home import Home
from configs.run import OpenedRun

LOG_ONLY_KEYS = ("fallback", "support", "shadow")
"""Keys without effect on a simulated plant."""
SIMULATOR_KEYS = ("certify", "identify", "evaluate.rollouts")
"""Keys without effect on a log-only plant."""


def checked_run(config: Path) -> OpenedRun:
    """Read a run's file and check the names against the known plants, domains and algorithms.

    Raises:
        BadInput: naming the key and the allowed values.
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
    """Return the log files for paths or dataset digests; `.neorl/...` means the home's folder."""
    from tasks.ingest import logs_of

    mapped = run.data.mapping is not None
    return [in_home(home, logs_of(home, path, mapped)) for path in named]


def check_logs(home: Home, run: OpenedRun, logs: Sequence[Path]) -> None:
    """Reject missing log files, except the synthetic log that the run generates itself."""
    from tasks.ingest import check_there

    check_there(path for path in logs if os.path.exists(path) or not is_default_log(home, run, path))


def in_home(home: Home, path: Path) -> Path:
    """Resolve `.neorl/...` to the home's folder, unless the path exists as written.

    With this, one prefect.yaml names the logs of any home.
    """
    if path.parts[:1] == (".neorl",) and not os.path.exists(path):
        return home.root.joinpath(*path.parts[1:])
    return path


def is_default_log(home: Home, run: OpenedRun, path: Path) -> bool:
    """Return whether the path is the synthetic log that a run of a simulated plant generates if it is missing."""
    if not path.resolve().is_relative_to(home.root / "generated"):
        return False
    from tasks.data.synthetic.default_log import default_log
    from tasks.models.plants.known import plant_of

    plant = plant_of(run)
    return plant.plant is not None and path.resolve() == default_log(home, plant).log


def check_protection(run: OpenedRun, config: Path) -> None:
    """Check 'fallback', 'shield' and 'certify' against the plant."""
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
    """Check the constants under 'identify' against the plant's."""
    from tasks.identify import unknowns_of
    from tasks.models.plants.known import plant_of

    if run.identify is not None:
        unknowns_of(run, plant_of(run).simulator())


def check_history(run: OpenedRun, config: Path) -> None:
    """Check the signals and lengths under 'history' against the plant."""
    from tasks.data.store.histories import observed_spec

    try:
        observed_spec(run)
    except ValueError as error:
        raise BadInput(f"in {config}, 'history': {error}") from error


def check_training(run: OpenedRun, config: Path) -> None:
    """Check 'train' against the algorithms and their settings."""
    from neorl_core.algorithms import check_actions
    from neorl_core.networks import make_body
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
            settings = configure(algorithm, {**learner.hyperparameters, **varied}, learner.updates)
            for name, values in learner.grid.items():
                for value in values:
                    check_range(algorithm, name, value)
            schedule(learner.updates, 1, algorithm.batches_per_update, warm_up_updates(algorithm, settings))
            networks = {name: getattr(settings, name, 0) for name in ("gru", "graph")}
            make_body(observed_spec(run), getattr(settings, "hidden", ()), **networks)
        except ValueError as error:
            raise BadInput(f"in {config}, 'train': {error}") from error


def check_reward(run: OpenedRun) -> None:
    """Reject a constant reward formula."""
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
