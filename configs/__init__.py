"""Strict models of all YAML files, environment variables and the home."""

import os

# OpenBLAS splits sums over its threads, so results and their digests would depend on the number of cores. OpenBLAS
# reads the variable when NumPy or SciPy is imported, after this package.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# XLA sums in one order with one thread, and in a different order with two or more threads. All processes use at least
# two threads, so that results are the same on all machines. JAX reads the variable at its first computation.
_one_core = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1
if _one_core or os.environ.get("NPROC") == "1":
    os.environ.setdefault("PJRT_NPROC", "2")
