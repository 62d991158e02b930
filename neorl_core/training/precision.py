"""Mixed precision: matrix products in bf16, everything else in float32."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax

from neorl_core.training.population import Algorithm, Metrics, Update, wrap_updates
from neorl_core.types import Transition

PRODUCTS = "BF16_BF16_F32"
"""Round operands to bf16 (8-bit mantissa) and accumulate in float32."""


@lru_cache(maxsize=16)
def mixed_precision(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with bf16 matrix products in its updates; parameters, optimisers and losses stay float32.

    Useful on accelerators with bf16 units (GPUs since Ampere, TPUs); the small layers of a default run gain nothing
    (docs/studies/accelerators.md). On CPUs, XLA computes such products in float32, and crashes on those of `bptt`'s
    model (JAX 0.10.2 and 0.11.2).
    """

    def wrap(update: Update) -> Update:
        def rounded(state: Any, batches: Transition, key: jax.Array) -> tuple[Any, Metrics]:
            with jax.default_matmul_precision(PRODUCTS):
                return update(state, batches, key)

        return rounded

    return wrap_updates(algorithm, wrap)
