"""The identity of a simulator in policies and certificates: the digest of the lowered program of its step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.errors import Refused
from neorl_core.safety.program import ImpureProgram, Program, simulator_program
from neorl_core.types import Plant

COUNT = 64
"""Number of recorded steps."""


@lru_cache(maxsize=8)
def step_digest(plant: Plant) -> str:
    """Return the digest of the lowered program of a simulator's step over the plant's default domain.

    Raises:
        Refused: if the program calls the host.
    """
    return step_program(plant).digest


def step_program(plant: Plant) -> Program:
    """Lower a simulator's step over the plant's default domain.

    Raises:
        Refused: if the program calls the host.
    """
    try:
        return simulator_program(plant, plant.domain)
    except ImpureProgram as error:
        raise Refused(f"plant {plant.spec.name} cannot be certified: {error}") from error


def drawn_inputs(plant: Plant) -> dict[str, np.ndarray]:
    """Return inputs of a simulator's step: keys (64, 2), actions (64, A), and the values of the default domain."""
    draws, action = np.random.default_rng(0), plant.spec.action
    domain = {f"domain_{i:03d}": np.asarray(jnp.asarray(leaf)) for i, leaf in enumerate(jax.tree.leaves(plant.domain))}
    return {
        "keys": draws.integers(0, 2**32, (COUNT, 2), np.uint32),
        "actions": draws.uniform(action.low, action.high, (COUNT, action.size)).astype(np.float32),
        **domain,
    }


def computed_steps(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a program of `step_program` on each of N inputs, and return the outputs (N, ...) by position."""
    call: Any = jax.jit(program.exported.call)
    domain = [inputs[name] for name in sorted(inputs) if name.startswith("domain_")]
    rows = [call(key, *domain, action) for key, action in zip(inputs["keys"], inputs["actions"], strict=True)]
    columns = zip(*rows, strict=True)
    return {f"{i:03d}": np.stack([_numbers(leaf) for leaf in leaves]) for i, leaves in enumerate(columns)}


def _numbers(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
