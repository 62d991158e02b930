"""Mixed precision: matrix products in bf16 (bfloat16), all other computations in float32."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax

from neorl_core.training.population import Algorithm, Metrics, Update, wrap_updates
from neorl_core.types import Transition

PRODUCTS = "BF16_BF16_F32"
"""JAX's name for matrix products with factors in bf16 and sums in float32."""


@lru_cache(maxsize=16)
def mixed_precision(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with bf16 matrix products in its updates. Weights, optimisers and losses stay in float32.

    Large layers train faster on accelerators with bf16 units (TPUs, GPUs since Ampere). The small layers of a default
    run gain nothing (docs/studies/accelerators.md). On CPUs, XLA computes in float32 instead, and crashes if the
    algorithm is `bptt` (JAX 0.10.2 and 0.11.2).
    """

    def wrap(update: Update) -> Update:
        def rounded(state: Any, batches: Transition, key: jax.Array) -> tuple[Any, Metrics]:
            with jax.default_matmul_precision(PRODUCTS):
                return update(state, batches, key)

        return rounded

    return wrap_updates(algorithm, wrap)
