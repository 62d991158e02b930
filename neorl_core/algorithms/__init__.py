"""Offline RL algorithms, each a tuple of pure functions. An algorithm's module is imported when it is asked for."""

from __future__ import annotations

from neorl_core.table import Table
from neorl_core.training.population import Algorithm

NAMES = ("bc", "td3_bc", "rebrac", "iql", "awac", "sac_n", "edac", "cql", "bptt", "mopo", "combo")

ALGORITHMS: Table[Algorithm] = Table(
    __name__, NAMES, lambda module: getattr(module, module.__name__.rpartition(".")[2].upper())
)


def __getattr__(name: str) -> Algorithm:
    """`neorl_core.algorithms.TD3_BC` and the like."""
    if name.isupper() and name.lower() in NAMES:
        return ALGORITHMS[name.lower()]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ALGORITHMS", "NAMES"]
