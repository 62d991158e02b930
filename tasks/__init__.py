"""Tasks: the steps that flows run in order, and the code that stores the results of each step."""

import configs  # noqa: F401  # sets environment variables that NumPy and SciPy read when they are loaded
