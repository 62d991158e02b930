"""Parameters of which the default suite takes a few and `make test-slow` the rest."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet

FEW_ALGORITHMS = ("bptt", "cql", "discrete_cql", "iql", "td3_bc")
"""One that learns within a model, conservative ones, one whose targets need no actions, and the default."""
FEW_PLANTS = ("chemical_reactor", "double_mass", "industrial_benchmark", "supply_chain")
"""Those that compile in a second; the tests of each plant hold the others' physics."""


def sampled(names: Iterable[str], few: tuple[str, ...]) -> list[ParameterSet]:
    """All names as parameters, those not among the few marked as slow."""
    return [pytest.param(name, marks=() if name in few else pytest.mark.slow) for name in names]
