"""Offline RL algorithms, each a tuple of pure functions. An algorithm's module is imported when it is asked for."""

from __future__ import annotations

from neorl_core.table import Table
from neorl_core.training.population import Algorithm
from neorl_core.types import PlantSpec

CONTINUOUS = ("bc", "td3_bc", "rebrac", "iql", "awac", "sac_n", "edac", "cql", "bptt", "mopo", "combo")
DISCRETE = ("discrete_bc", "discrete_iql", "discrete_cql", "double_dqn")
NAMES = CONTINUOUS + DISCRETE

ALGORITHMS: Table[Algorithm] = Table(
    __name__, NAMES, lambda module: getattr(module, module.__name__.rpartition(".")[2].upper())
)


def usual(spec: PlantSpec) -> str:
    """The algorithm of ours that learns where nobody names one."""
    return "td3_bc" if spec.choices is None else "discrete_cql"


def check_actions(algorithm: Algorithm, spec: PlantSpec) -> None:
    """Refuse an algorithm of another kind of actions than a plant's.

    Raises:
        ValueError: naming ours that fit.
    """
    discrete = spec.choices is not None
    if algorithm.discrete == discrete:
        return
    kind, names = ("discrete", DISCRETE) if discrete else ("continuous", CONTINUOUS)
    got = "which learns continuous ones" if discrete else "which chooses among named choices"
    raise ValueError(
        f"expected an algorithm of {kind} actions for {spec.name}, such as {', '.join(names)}, got {algorithm.name}, "
        f"{got}: name one that fits."
    )


def __getattr__(name: str) -> Algorithm:
    """`neorl_core.algorithms.TD3_BC` and the like."""
    if name.isupper() and name.lower() in NAMES:
        return ALGORITHMS[name.lower()]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ALGORITHMS", "NAMES", "check_actions", "usual"]
