"""Look up algorithms: built-in, user code, or installed packages."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from configs.code import UserCode
from configs.errors import BadInput, NeoRLError, nearest
from configs.run import Learner
from configs.strict import NAME
from neorl_core.algorithms import ALGORITHMS
from neorl_core.networks import actor_apply, mlp_apply
from neorl_core.training.population import Algorithm, configure, phase
from neorl_core.types import PlantSpec, Space, Transition
from tasks.files.provenance import modules_of
from tasks.models.user_code.known import KnownAlgorithm, our_algorithm
from tasks.models.user_code.loading import (
    ALGORITHM,
    find_code,
    find_installed,
    import_code,
    installed,
    is_code,
    tree_of,
)

ROWS = 4
TRIED = PlantSpec(
    name="tried",
    observation=Space(("x", "y", "z"), ("1",) * 3, (-1.0,) * 3, (1.0,) * 3),
    action=Space(("u", "v"), ("1",) * 2, (-1.0,) * 2, (1.0,) * 2),
    constraints=(),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 1.0),
)
"""A plant with three signals and two actions for checking the shapes of an algorithm's functions."""
CHOSEN = TRIED._replace(action=Space(("u",), ("1",), (0.0,), (1.0,)), choices=("u", "v"))
"""The same plant with two choices, which learners also see as two numbers."""


def algorithm_of(learner: Learner) -> KnownAlgorithm:
    """Return the algorithm of a learner, from a run that `open_run` has opened.

    Raises:
        BadInput: if the name is unknown, or the code cannot be used.
        Refused: if the code has changed since the run was opened.
    """
    if learner.source is not None:
        return algorithm_of_code(learner.source)
    return algorithm_at(learner.algorithm, Path.cwd())


def algorithm_at(reference: str, project: Path) -> KnownAlgorithm:
    """Return an algorithm by name or code.

    Args:
        reference: name of a built-in algorithm or of an installed one (entry-point group `neorl.algorithms`), a file of
            the project, or `package.module:NAME`.

    Raises:
        BadInput: if there is none.
    """
    if (ours := our_algorithm(reference)) is not None:
        return ours
    if is_code(reference):
        return algorithm_of_code(find_code(reference, project, ALGORITHM))
    if re.fullmatch(NAME, reference, re.ASCII) and (found := find_installed(reference, ALGORITHM)) is not None:
        return algorithm_of_code(found)
    raise BadInput(
        f"unknown algorithm '{reference[:80]}', and no Python file has this name: "
        f"{nearest(reference, [*ALGORITHMS, *installed(ALGORITHM)])}"
    )


def opened_learner(learner: Learner, project: Path) -> Learner:
    """Look up a learner's algorithm; an opened learner is returned unchanged.

    Raises:
        BadInput: if there is no such algorithm.
    """
    if learner.source is not None or learner.algorithm in ALGORITHMS:
        return learner
    found = algorithm_at(learner.algorithm, project)
    return learner.model_copy(update={"algorithm": found.algorithm.name, "source": found.source})


@cache
def algorithm_of_code(code: UserCode) -> KnownAlgorithm:
    """Load a user's algorithm, after verifying the digest of its code and the contract.

    Raises:
        BadInput: if the algorithm violates the contract, or has the name of a built-in algorithm.
        Refused: if the code has changed.
    """
    module, tree = import_code(code), tree_of(code)
    place = f"{tree.file(code.module)}: {code.attribute}"
    algorithm = getattr(module, code.attribute, None)
    if not isinstance(algorithm, Algorithm):
        raise BadInput(
            f"{place} must be a neorl_core.training.population.Algorithm, got {type(algorithm).__name__}: build one "
            "under that name"
        )
    check_algorithm(algorithm, place)
    reached = (name for name in modules_of(code.module, tree=tree) if tree.file(name) is None)
    return KnownAlgorithm(algorithm, tuple(reached), code)


def check_algorithm(algorithm: Algorithm, place: str) -> None:
    """Check an algorithm's contract on a plant with three signals and two actions.

    Raises:
        BadInput: if the algorithm violates the contract.
    """
    name = algorithm.name
    if not isinstance(name, str) or not re.fullmatch(NAME, name, re.ASCII):
        raise BadInput(
            f"{place} must have a name of lower-case letters, digits and underscores, got {name!r}: rename it"
        )
    if name in ALGORITHMS:
        raise BadInput(f"{place} has the name of the built-in algorithm '{name}': rename it")
    try:
        plant = CHOSEN if algorithm.discrete else TRIED
        state = algorithm.init(jax.random.key(0), plant, configure(algorithm, {}))
        for warming in (False, True) if algorithm.warm_up else (False,):
            _check_update(phase(algorithm, warming), state)
        _check_actions(algorithm, state)
    except NeoRLError:
        raise
    except Exception as error:
        # Any exception of user code is a fault of that code.
        text = " ".join(str(error).split())[:300].rstrip(".")
        raise BadInput(f"in {place}, {type(error).__name__}: {text}: correct it") from error


def _check_update(algorithm: Algorithm, state: object) -> None:
    """Check that an update keeps the state's structure, and returns numeric metrics."""
    shape = (algorithm.batches_per_update, ROWS)
    one, two, many = jnp.zeros(shape), jnp.zeros((*shape, 2)), jnp.zeros((*shape, 3))
    batches = Transition(many, two, one, one, many, one, two)
    after, metrics = jax.eval_shape(algorithm.update, state, batches, jax.random.key(1))
    before = jax.eval_shape(lambda: state)
    if jax.tree.map(_kind, before) != jax.tree.map(_kind, after):
        raise ValueError(f"update of {algorithm.name} must return a state with the same arrays as its argument")
    wrong = [name for name, value in metrics.items() if value.shape]
    if not metrics or wrong:
        raise ValueError(f"update must return numeric metrics, got {', '.join(wrong) or 'no metrics'}")


def _check_actions(algorithm: Algorithm, state: object) -> None:
    """Check that the actor's weights give the same actions as the algorithm's `act`."""
    observation = jnp.linspace(-1.0, 1.0, 15).reshape(5, 3)
    acted = np.asarray(algorithm.act(state, observation))
    if acted.shape != (5, 2):
        raise ValueError(f"act must return actions of shape (5, 2) for observations (5, 3), got {acted.shape}")
    if not np.isfinite(acted).all() or (np.abs(acted).max() > 1.0 and not algorithm.discrete):
        raise ValueError(f"act must return finite actions within [-1, 1], got {np.asarray(acted).ravel()[:4]}")
    apply = mlp_apply if algorithm.discrete else actor_apply
    if not np.allclose(acted, apply(algorithm.actor(state), observation), atol=1e-6):
        raise ValueError(f"{apply.__name__} with actor's weights must return the actions of act")


def _kind(array: jax.ShapeDtypeStruct) -> str:
    return f"{array.shape} {array.dtype}"
