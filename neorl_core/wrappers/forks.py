"""JAX has threads, and a process forked from one where they run hangs at its first computation: said instead."""

from __future__ import annotations

import os

from jax._src import xla_bridge  # JAX tells nowhere else whether it runs yet.

_hangs = False


def _look() -> None:
    global _hangs
    _hangs = _hangs or xla_bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look)


def check_process() -> None:
    """Hold this process against what JAX needs.

    Raises:
        RuntimeError: when it was forked from one where JAX runs.
    """
    if _hangs:
        raise RuntimeError(
            "expected a process that JAX can run in, got a fork of one where it runs already, in which it would hang: "
            "pass vector_kwargs={'context': 'spawn'} to make_vec (context='spawn' to AsyncVectorEnv, start_method to "
            "SubprocVecEnv), or leave vectorization_mode out for all plants in one compiled call."
        )
