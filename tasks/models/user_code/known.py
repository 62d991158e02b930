"""Known algorithms; built-in ones need only the core's libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from neorl_core.algorithms import ALGORITHMS
from neorl_core.online import LEARNERS
from neorl_core.training.population import Algorithm
from tasks.files.canonical import digest_json
from tasks.files.provenance import sources_digest

if TYPE_CHECKING:
    from configs.code import UserCode


class KnownAlgorithm(NamedTuple):
    """An algorithm, and where its code comes from."""

    algorithm: Algorithm
    modules: tuple[str, ...]
    """Built-in modules of the algorithm, or those that its code imports."""
    source: UserCode | None = None
    """Code of the algorithm; None if built in."""
    isolation: str = ""
    """Restrictions of the process that executes the code; empty if built in."""
    programs: Callable[[], dict[str, str]] = dict
    """Return the digests of the programs that the code has been lowered to; none if built in."""

    def sources(self, *modules: str) -> str:
        """Return one digest of the algorithm's code, the given built-in modules, and all that they import."""
        ours = sources_digest(*modules, *self.modules)
        return digest_json([ours, self.source.digest]) if self.source else ours


def our_algorithm(name: str) -> KnownAlgorithm | None:
    """Return a built-in algorithm, or None if there is no algorithm of this name."""
    if name in LEARNERS:
        return KnownAlgorithm(LEARNERS[name].unbound, (LEARNERS.module(name),))
    return KnownAlgorithm(ALGORITHMS[name], (ALGORITHMS.module(name),)) if name in ALGORITHMS else None
