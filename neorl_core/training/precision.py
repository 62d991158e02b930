"""Mixed precision: matrix products of bf16 numbers, everything else as it was."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax

from neorl_core.training.population import Algorithm, Metrics, Update, wrapped
from neorl_core.types import Transition

PRODUCTS = "BF16_BF16_F32"
"""Operands of every product are rounded to bf16 (8 bits of mantissa), and the products summed in float32."""


@lru_cache(maxsize=16)
def mixed(algorithm: Algorithm) -> Algorithm:
    """The algorithm whose updates multiply matrices in bf16; parameters, optimisers and losses stay float32.

    For accelerators with bf16 units (GPUs since Ampere, TPUs). The small layers of a default retrain gain nothing by it
    (docs/studies/accelerators.md). A CPU's XLA computes such products in float32 where it can compile them, and ends the
    process on those of `bptt`'s model (JAX 0.10.2 and 0.11.2).
    """

    def wrap(update: Update) -> Update:
        def rounded(state: Any, batches: Transition, key: jax.Array) -> tuple[Any, Metrics]:
            with jax.default_matmul_precision(PRODUCTS):
                return update(state, batches, key)

        return rounded

    return wrapped(algorithm, wrap)
