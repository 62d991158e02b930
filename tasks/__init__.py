"""The steps of a retraining, and all that they keep; flows chain them."""

import configs  # noqa: F401  # what it sets must be set before NumPy and SciPy are loaded
