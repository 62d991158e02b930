"""What a process of ours sets for the libraries that it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.environment import no_proxy_variables

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


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        ("", "", ("127.0.0.1,localhost", "127.0.0.1,localhost")),
        ("", "plant.example", ("plant.example,127.0.0.1,localhost",) * 2),
        ("a.example, localhost", "b.example", ("a.example,localhost,127.0.0.1", "b.example,127.0.0.1,localhost")),
        ("*", "", ("*", "*")),
    ],
)
def test_no_proxy_is_asked_for_this_machines_own_servers(
    monkeypatch: pytest.MonkeyPatch, lower: str, upper: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setenv("no_proxy", lower)
    monkeypatch.setenv("NO_PROXY", upper)
    found = no_proxy_variables()
    assert (found["no_proxy"], found["NO_PROXY"]) == expected
    for name, text in found.items():
        monkeypatch.setenv(name, text)
    assert no_proxy_variables() == found
