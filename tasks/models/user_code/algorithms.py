"""The one place where an algorithm is looked up: ours, a user's own, or an installed package's."""

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
"""Transitions in a batch that an algorithm is tried on."""
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
"""A plant of three signals and two actions, on which the shapes of an algorithm's functions are looked at."""
CHOSEN = TRIED._replace(action=Space(("u",), ("1",), (0.0,), (1.0,)), choices=("u", "v"))
"""The same with two choices, which learners see as two numbers as well."""


def algorithm_of(learner: Learner) -> KnownAlgorithm:
    """The algorithm of a learner of an opened run.

    Raises:
        BadInput: when there is none of its name, or its code cannot be used.
        Refused: when its code has changed since the run was opened.
    """
    if learner.source is not None:
        return algorithm_of_code(learner.source)
    return algorithm_at(learner.algorithm, Path.cwd())


def algorithm_at(reference: str, project: Path) -> KnownAlgorithm:
    """An algorithm as a run or a command names it.

    Args:
        reference: the name of one of ours, or of one that an installed package offers in the entry-point group
            `neorl.algorithms`; else a file of the project, or `package.module:NAME`.
        project: the folder in which its code is looked up.

    Raises:
        BadInput: when there is none.
    """
    if (ours := our_algorithm(reference)) is not None:
        return ours
    if is_code(reference):
        return algorithm_of_code(find_code(reference, project, ALGORITHM))
    if re.fullmatch(NAME, reference, re.ASCII) and (found := find_installed(reference, ALGORITHM)) is not None:
        return algorithm_of_code(found)
    raise BadInput(
        f"expected an algorithm among {', '.join(ALGORITHMS)}, or a file of your own, got '{reference[:80]}': "
        f"{nearest(reference, [*ALGORITHMS, *installed(ALGORITHM)])}"
    )


def opened_learner(learner: Learner, project: Path) -> Learner:
    """The learner with its algorithm's name and where that comes from; one that was opened before stays as it is.

    Raises:
        BadInput: when there is no such algorithm.
    """
    if learner.source is not None or learner.algorithm in ALGORITHMS:
        return learner
    found = algorithm_at(learner.algorithm, project)
    return learner.model_copy(update={"algorithm": found.algorithm.name, "source": found.source})


@cache
def algorithm_of_code(code: UserCode) -> KnownAlgorithm:
    """A user's own algorithm, once its code has been held against its digest, and what it builds against the contract.

    Raises:
        BadInput: when it does not keep the contract, or has the name of one of ours.
        Refused: when its code has changed.
    """
    module, tree = import_code(code), tree_of(code)
    place = f"{tree.file(code.module)}: {code.attribute}"
    algorithm = getattr(module, code.attribute, None)
    if not isinstance(algorithm, Algorithm):
        raise BadInput(
            f"expected a neorl_core.training.population.Algorithm as {place}, got {type(algorithm).__name__}: build "
            "one under that name."
        )
    check_algorithm(algorithm, place)
    reached = (name for name in modules_of(code.module, tree=tree) if tree.file(name) is None)
    return KnownAlgorithm(algorithm, tuple(reached), code)


def check_algorithm(algorithm: Algorithm, place: str) -> None:
    """Hold an algorithm against the contract, on a plant of three signals and two actions.

    Args:
        algorithm: as its module builds it.
        place: where that is, for messages.

    Raises:
        BadInput: one sentence on the first thing that is not as it must be.
    """
    name = algorithm.name
    if not isinstance(name, str) or not re.fullmatch(NAME, name, re.ASCII):
        raise BadInput(f"expected a name of small letters, digits and underscores in {place}, got {name!r}: rename it.")
    if name in ALGORITHMS:
        raise BadInput(f"expected another name than that of one of ours in {place}, got '{name}': rename it.")
    try:
        plant = CHOSEN if algorithm.discrete else TRIED
        state = algorithm.init(jax.random.key(0), plant, configure(algorithm, {}))
        for warming in (False, True) if algorithm.warm_up else (False,):
            _check_update(phase(algorithm, warming), state)
        _check_actions(algorithm, state)
    except NeoRLError:
        raise
    except Exception as error:
        # Whatever a user's code raises is about that code.
        text = " ".join(str(error).split())[:300].rstrip(".")
        raise BadInput(f"in {place}, {type(error).__name__}: {text}: correct it.") from error


def _check_update(algorithm: Algorithm, state: object) -> None:
    """An update gives a state like the one it was given, and metrics that are numbers."""
    shape = (algorithm.batches_per_update, ROWS)
    one, two, many = jnp.zeros(shape), jnp.zeros((*shape, 2)), jnp.zeros((*shape, 3))
    batches = Transition(many, two, one, one, many, one, two)
    after, metrics = jax.eval_shape(algorithm.update, state, batches, jax.random.key(1))
    before = jax.eval_shape(lambda: state)
    if jax.tree.map(_kind, before) != jax.tree.map(_kind, after):
        raise ValueError("expected update to return a state of the same arrays as it is given, got others")
    wrong = [name for name, value in metrics.items() if value.shape]
    if not metrics or wrong:
        raise ValueError(f"expected update to return metrics, each a number, got {', '.join(wrong) or 'none'}")


def _check_actions(algorithm: Algorithm, state: object) -> None:
    """What ships, the actor's weights, acts as the algorithm does."""
    observation = jnp.linspace(-1.0, 1.0, 15).reshape(5, 3)
    acted = np.asarray(algorithm.act(state, observation))
    if acted.shape != (5, 2):
        raise ValueError(f"expected act to give actions of shape (5, 2) for observations (5, 3), got {acted.shape}")
    if not np.isfinite(acted).all() or (np.abs(acted).max() > 1.0 and not algorithm.discrete):
        raise ValueError("expected act to give finite actions within [-1, 1], got others")
    apply = mlp_apply if algorithm.discrete else actor_apply
    if not np.allclose(acted, apply(algorithm.actor(state), observation), atol=1e-6):
        raise ValueError(f"expected {apply.__name__} of actor's weights to act as act does, got another action")


def _kind(array: jax.ShapeDtypeStruct) -> str:
    return f"{array.shape} {array.dtype}"
