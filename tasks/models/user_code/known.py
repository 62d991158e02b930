"""What is known of an algorithm; of ours without any library that is not the core's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neorl_core.algorithms import ALGORITHMS
from neorl_core.training.population import Algorithm
from tasks.files.canonical import digest_json
from tasks.files.provenance import sources_digest

if TYPE_CHECKING:
    from configs.code import UserCode


class KnownAlgorithm(NamedTuple):
    """What is known of an algorithm."""

    algorithm: Algorithm
    modules: tuple[str, ...]
    """Those of ours that it is made of, or that its own code imports."""
    source: UserCode | None = None
    """Where it comes from; None of one of ours."""

    def sources(self, *modules: str) -> str:
        """Digest of the algorithm's code together with modules of ours, and of all that these import."""
        ours = sources_digest(*modules, *self.modules)
        return digest_json([ours, self.source.digest]) if self.source else ours


def our_algorithm(name: str) -> KnownAlgorithm | None:
    """One of ours by its name; None where there is none."""
    return KnownAlgorithm(ALGORITHMS[name], (ALGORITHMS.module(name),)) if name in ALGORITHMS else None
