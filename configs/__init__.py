"""Settings: homes, runs, plants and what people write in YAML, checked before anything else is done."""

import os

# OpenBLAS divides its sums among as many threads as there are cores, so that last bits, and with them digests, would
# depend on the machine. It reads this when NumPy or SciPy loads it, which is after this package.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# With one thread XLA adds up some sums in another order than with several, so that last bits of episodes differ; of two
# threads or more they were measured to be the same. So a process that would have one has two. JAX reads this when it
# first computes.
_one_core = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1
if _one_core or os.environ.get("NPROC") == "1":
    os.environ.setdefault("PJRT_NPROC", "2")
