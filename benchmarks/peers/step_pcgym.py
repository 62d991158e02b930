"""Step pc-gym's reactor for benchmarks/plants/speed.py, with a Python that has pc-gym 0.1.8 (NEORL_PEERS_PYTHON).

The script prints "ready". For every line on standard input it steps for about one second and prints the steps per
second.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

WINDOW = 1.0
"""Seconds of a time window."""


def pcgym() -> Callable[[], None]:
    """Make one step of pc-gym's reactor."""
    import pcgym as gym

    steps = 60
    settings = {
        "N": steps,
        "tsim": 26,
        "SP": {"Ca": [0.85] * 20 + [0.9] * 20 + [0.87] * 21},
        "o_space": {"low": np.array([0.7, 300, 0.8]), "high": np.array([1, 350, 0.9])},
        "a_space": {"low": np.array([295]), "high": np.array([302])},
        "x0": np.array([0.8, 330, 0.8]),
        "model": "cstr",
        "r_scale": {"Ca": 1e3},
        "normalise_a": True,
        "normalise_o": True,
        "noise": False,
        "integration_method": "casadi",
    }
    env = gym.make_env(settings)
    count, action = 0, np.zeros(1)

    def step() -> None:
        nonlocal count
        if count % (steps - 1) == 0:
            env.reset()
        env.step(action)
        count += 1

    return step


def main() -> None:
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    step = pcgym()
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < WINDOW:
            step()
            count += 1
        print(count / (time.perf_counter() - started), file=answers, flush=True)


if __name__ == "__main__":
    main()
