"""Learners with the network sizes of a default retraining, and precisions of matrix products."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neorl_core.algorithms import ALGORITHMS
from neorl_core.training.population import Algorithm, Metrics, Update, phase, wrap_updates
from neorl_core.training.precision import PRODUCTS, mixed_precision
from neorl_core.types import Transition

BATCH = 256
_FAST: dict[str, Any] = {"actor_lr": 1e-3, "critic_lr": 1e-3}
LEARNERS: dict[str, dict[str, Any]] = {
    "td3_bc": {**_FAST, "critics": 4, "discount": 0.97, "alpha": 2.5},
    "iql": {**_FAST, "beta": 10.0, "expectile": 0.9},
    "edac": {},
    "cql": {},
    "bptt": {"support": 0.3},
}
"""Hyper-parameters of each learner: the first grid point of the default population in configs/run.py. This module must
not import configs/run.py, which needs the pipeline's packages; a test compares both."""
UPDATES = {"bptt": 4_000, "td3_bc": 16_000}
"""Gradient steps of the two learners that are trained and scored, as in the default population."""
PRECISIONS: dict[str, str | None] = {"float32": None, "bfloat16": PRODUCTS, "float32, exact": "highest"}
"""Precision of matrix products. None is JAX's default, which lets the device choose: a CPU computes in float32, NVIDIA
GPUs since Ampere round operands to TF32 (10 bits of mantissa)."""


@lru_cache(maxsize=16)
def at_precision(algorithm: Algorithm, precision: str) -> Algorithm:
    """Return the algorithm with a precision in `PRECISIONS`; equal arguments give the same object."""
    if precision in ("float32", "bfloat16"):
        return mixed_precision(algorithm) if precision == "bfloat16" else algorithm

    def wrap(update: Update) -> Update:
        def exact(state: Any, batches: Transition, key: jax.Array) -> tuple[Any, Metrics]:
            with jax.default_matmul_precision(PRECISIONS[precision]):
                return update(state, batches, key)

        return exact

    return wrap_updates(algorithm, wrap)


class Program(NamedTuple):
    """A learner's program that is compiled and measured separately."""

    algorithm: str
    warming: bool
    """Whether this is the warm-up: `bptt` first trains its model."""

    @property
    def words(self) -> str:
        if ALGORITHMS[self.algorithm].warm_up is None:
            return self.algorithm
        return f"{self.algorithm}, its {'model' if self.warming else 'policy'}"

    def learner(self, precision: str) -> Algorithm:
        return phase(at_precision(ALGORITHMS[self.algorithm], precision), self.warming)


def programs() -> list[Program]:
    """Return all timed programs in the order of the tables."""
    return [
        Program(name, warming)
        for name in LEARNERS
        for warming in ((False,) if ALGORITHMS[name].warm_up is None else (True, False))
    ]


def product_error(precision: str) -> float:
    """Return the relative error of a layer's product on this device: norm of the error / norm of the result."""
    random = np.random.default_rng(0)
    x, kernel = (random.standard_normal(shape, np.float32) for shape in ((BATCH, 64), (64, 64)))
    with jax.default_matmul_precision(PRECISIONS[precision]):
        found = np.asarray(jax.jit(jnp.matmul)(x, kernel), np.float64)
    exact = x.astype(np.float64) @ kernel.astype(np.float64)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
