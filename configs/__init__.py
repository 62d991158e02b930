"""Strict models of all YAML files, environment variables and the home."""

import os

# OpenBLAS splits sums over its threads, so results and their digests would depend on the number of cores. It reads this
# variable when NumPy or SciPy loads it, after this package.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# With one thread XLA sums in a different order than with several; with two or more threads results were measured to be
# identical. Therefore a process always has at least two. JAX reads this variable at its first computation.
_one_core = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1
if _one_core or os.environ.get("NPROC") == "1":
    os.environ.setdefault("PJRT_NPROC", "2")
