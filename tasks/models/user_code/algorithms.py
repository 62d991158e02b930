"""Look up algorithms: built-in, user code, or installed packages. A process of its own executes user code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from configs.code import UserCode
from configs.errors import BadInput, nearest
from configs.run import Learner
from configs.strict import NAME
from neorl_core.algorithms import ALGORITHMS
from neorl_core.online import LEARNERS
from tasks.files.provenance import modules_of
from tasks.models.user_code.isolated import isolated_algorithm
from tasks.models.user_code.known import KnownAlgorithm, our_algorithm
from tasks.models.user_code.loading import ALGORITHM, find_code, find_installed, installed, is_code, tree_of


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
        f"{nearest(reference, [*ALGORITHMS, *LEARNERS, *installed(ALGORITHM)])}"
    )


def opened_learner(learner: Learner, project: Path) -> Learner:
    """Look up a learner's algorithm; an opened learner is returned unchanged.

    Raises:
        BadInput: if there is no such algorithm.
    """
    if learner.source is not None or learner.algorithm in ALGORITHMS or learner.algorithm in LEARNERS:
        return learner
    found = algorithm_at(learner.algorithm, project)
    return learner.model_copy(update={"algorithm": found.algorithm.name, "source": found.source})


@cache
def algorithm_of_code(code: UserCode) -> KnownAlgorithm:
    """Check a user's algorithm in a process of its own, after verifying the digest of its code.

    Raises:
        BadInput: if the algorithm violates the contract, or has the name of a built-in algorithm.
        Refused: if the code has changed.
    """
    isolated = isolated_algorithm(code)
    tree = tree_of(code)
    reached = (name for name in modules_of(code.module, tree=tree) if tree.file(name) is None)
    return KnownAlgorithm(isolated.algorithm, tuple(reached), code, isolated.isolation, isolated.programs)
