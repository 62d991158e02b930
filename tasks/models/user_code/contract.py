"""Load a user's algorithm and check its contract. Only the isolated process calls this."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np

from configs.code import UserCode
from configs.errors import BadInput
from configs.strict import NAME
from neorl_core.algorithms import ALGORITHMS
from neorl_core.networks import actor_apply, mlp_apply
from neorl_core.online import LEARNERS
from neorl_core.training.population import Algorithm, configure, phase
from neorl_core.types import PlantSpec, Space, Transition
from tasks.models.user_code.loading import import_code, tree_of

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


def load_algorithm(code: UserCode) -> Algorithm:
    """Import a user's algorithm and check its contract.

    Raises:
        BadInput: if the algorithm violates the contract, or has the name of a built-in algorithm.
        Refused: if the code has changed.
    """
    module = import_code(code)
    place = f"{tree_of(code).file(code.module)}: {code.attribute}"
    algorithm = getattr(module, code.attribute, None)
    if not isinstance(algorithm, Algorithm):
        raise BadInput(
            f"{place} must be a neorl_core.training.population.Algorithm, got {type(algorithm).__name__}: build one "
            "under that name"
        )
    check_algorithm(algorithm, place)
    return algorithm


def check_algorithm(algorithm: Algorithm, place: str) -> None:
    """Check an algorithm's contract on a plant with three signals and two actions.

    Raises:
        BadInput: if the name is invalid.
        ValueError: if a function violates the contract. Exceptions of the functions pass through.
    """
    name = algorithm.name
    if not isinstance(name, str) or not re.fullmatch(NAME, name, re.ASCII):
        raise BadInput(
            f"{place} must have a name of lower-case letters, digits and underscores, got {name!r}: rename it"
        )
    if name in ALGORITHMS or name in LEARNERS:
        raise BadInput(f"{place} has the name of the built-in algorithm '{name}': rename it")
    plant = CHOSEN if algorithm.discrete else TRIED
    state = algorithm.init(jax.random.key(0), plant, configure(algorithm, {}))
    _check_arrays(state)
    for warming in (False, True) if algorithm.warm_up else (False,):
        _check_update(phase(algorithm, warming), state)
    _check_actions(algorithm, state)


def _check_arrays(state: object) -> None:
    """Check that a checkpoint can store the state."""
    for path, leaf in jax.tree.leaves_with_path(state):
        place = f"the state has {{}} at state{jax.tree_util.keystr(path)}"
        if jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key):
            raise ValueError(
                f"{place.format('a typed random key')}, which is not stored: keep jax.random.key_data(key)"
            )
        if 0 in np.shape(leaf):
            shown = place.format(f"an empty array of shape {np.shape(leaf)}")
            raise ValueError(f"{shown}, which is not stored: leave it out")


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
