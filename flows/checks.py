"""What can be wrong with a run's file is found before a server is started or a row is read."""

from __future__ import annotations

from pathlib import Path

from configs.errors import BadInput
from configs.load import load_run
from configs.run import RunConfig
from flows.cli.console import known_plant


def checked_run(config: Path) -> RunConfig:
    """Read a run's file and hold its names against the plants, domains and algorithms that exist.

    Raises:
        BadInput: naming the key, and what it may be.
    """
    from neorl_core.algorithms import ALGORITHMS
    from neorl_core.plants import PLANTS
    from neorl_core.training.population import configure
    from tasks.certify import claim_of
    from tasks.ingest import mapping_of, plant_spec

    run = load_run(config)
    claim_of(PLANTS[known_plant(run.plant)], run)
    plant_spec(run.plant, mapping_of(run))
    if run.train.algorithm not in ALGORITHMS:
        raise BadInput(
            f"expected train.algorithm in {config} among {', '.join(ALGORITHMS)}, got '{run.train.algorithm}': "
            "correct the name."
        )
    try:
        varied = {name: values[0] for name, values in run.train.grid.items()}
        configure(ALGORITHMS[run.train.algorithm], {**run.train.hyperparameters, **varied})
    except ValueError as error:
        raise BadInput(f"in {config}, 'train': {error}") from error
    return run
