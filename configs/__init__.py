"""Settings: homes, runs, plants and what people write in YAML, checked before anything else is done."""

import os

# OpenBLAS divides its sums among as many threads as there are cores, so that last bits, and with them digests, would
# depend on the machine. It reads this when NumPy or SciPy loads it, which is after this package.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
