"""Settings: homes, runs, plants and what people write in YAML, checked before anything else is done."""

import os

# OpenBLAS divides its sums among as many threads as there are cores, so that last bits, and with them digests, would
# depend on the machine. It reads this when NumPy or SciPy loads it, which is after this package.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# XLA makes another program for one thread than for several, and last bits of episodes differ; for two threads or more
# it makes the same one. So a process of one core has two threads, too. JAX reads this when it first computes.
if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1:
    os.environ.setdefault("PJRT_NPROC", "2")
