"""Parameters of which the default suite uses a few and `make test-slow` all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet

FEW_ALGORITHMS = ("bptt", "cql", "discrete_cql", "iql", "td3_bc")
"""A learner with a model, conservative ones, one without target actions, and the default."""
FEW_PLANTS = ("chemical_reactor", "double_mass", "industrial_benchmark", "supply_chain")
"""Plants that compile in a second; the tests of each plant cover the physics of the others."""


def sampled(names: Iterable[str], few: tuple[str, ...]) -> list[ParameterSet]:
    """Return all names as parameters; names outside the few are marked as slow."""
    return [pytest.param(name, marks=() if name in few else pytest.mark.slow) for name in names]
