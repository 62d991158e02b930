"""Offline RL algorithms, each a tuple of pure functions. A module is imported when its algorithm is first used."""

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


def default_algorithm(spec: PlantSpec) -> str:
    """Return the name of the default algorithm for a plant."""
    return "td3_bc" if spec.choices is None else "discrete_cql"


def check_actions(algorithm: Algorithm, spec: PlantSpec) -> None:
    """Check that an algorithm and a plant have the same kind of actions, discrete or continuous.

    Raises:
        ValueError: if they differ; the message lists the algorithms that fit.
    """
    discrete = spec.choices is not None
    if algorithm.discrete in (None, discrete):
        return
    kind, names = ("discrete", DISCRETE) if discrete else ("continuous", CONTINUOUS)
    raise ValueError(
        f"{algorithm.name} cannot learn the {kind} actions of {spec.name}: choose one of {', '.join(names)}."
    )


def __getattr__(name: str) -> Algorithm:
    """Return the algorithm for an attribute such as `neorl_core.algorithms.TD3_BC`."""
    if name.isupper() and name.lower() in NAMES:
        return ALGORITHMS[name.lower()]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ALGORITHMS", "NAMES", "check_actions", "default_algorithm"]
