"""Initial weights of trainings, stored in the home by digest."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from configs.errors import Refused
from configs.home import Home
from neorl_core.training.parameters import parameters_of, start_from
from neorl_core.training.population import TrainState
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import file_sha256, sha256_hex, write_atomic

FOLDER = "starts"


def save_start(home: Home, state: TrainState) -> str:
    """Store the weights of a population's first member in `starts/`.

    Args:
        state: final state of a training, with a leading axis on every array.

    Returns:
        The digest of the weights.
    """
    found = parameters_of(jax.tree.map(lambda x: np.asarray(x)[0], state.learner))
    data = npz_bytes({name: np.asarray(x) for name, x in found.items()})
    digest = sha256_hex(data)
    write_atomic(start_file(home, digest), data)
    return digest


def start_file(home: Home, digest: str) -> Path:
    """Return the path of the weights with this digest."""
    return home.folder(FOLDER) / f"{digest}.npz"


def with_start(home: Home, fresh: TrainState, digest: str) -> TrainState:
    """Replace the initial weights of a population by stored weights.

    Raises:
        Refused: if the weights are missing, altered, or of different networks.
    """
    path = start_file(home, digest)
    got = file_sha256(path) if path.is_file() else "no file"
    if got != digest:
        raise Refused(f"the weights {digest} at {path} are unusable ({got}): run 'neorl fleet retrain' for all sites")
    try:
        return start_from(fresh, read_npz(path))  # type: ignore[arg-type]
    except ValueError as error:
        raise Refused(f"{error}, in {path}: give the sites' learner the layers of the shared policy") from error
