"""What a process of ours sets for the libraries that it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
THREADS = """
import {first}
import json
import scipy.linalg
from threadpoolctl import threadpool_info
print(json.dumps([library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]))
"""


@pytest.mark.parametrize("first", ["flows.cli.main", "flows.retrain", "tasks.evaluation.estimators"])
def test_sums_do_not_depend_on_the_number_of_cores(first: str) -> None:
    words = [sys.executable, "-c", THREADS.format(first=first)]
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "4", "PYTHONPATH": str(PROJECT)}
    told = json.loads(subprocess.run(words, env=variables, capture_output=True, text=True, check=True).stdout)
    assert told
    assert set(told) == {1}
