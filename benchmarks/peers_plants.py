"""The peers' side of benchmarks/plants.py, run by a Python that has pandapower and pc-gym (NEORL_PEERS_PYTHON).

It prints "ready", reads a name on each line, works for about a second, and answers with steps per second.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

WINDOW = 1.0
"""Seconds of a window."""


def pandapower() -> Callable[[], None]:
    """One AC power flow of the IEEE 33-bus feeder at new loads, pandapower's own fastest settings."""
    import pandapower as pp
    import pandapower.networks as networks

    net = networks.case33bw()
    loads, rng = net.load["p_mw"].to_numpy(copy=True), np.random.default_rng(0)

    def step() -> None:
        net.load["p_mw"] = loads * rng.uniform(0.5, 1.2, len(loads))
        pp.runpp(net, init="results" if "res_bus" in net and len(net.res_bus) else "flat", numba=True)

    step()
    return step


def pcgym() -> Callable[[], None]:
    """One step of pc-gym's reactor."""
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


MAKERS = {"pandapower": pandapower, "pcgym": pcgym}


def main() -> None:
    warnings.simplefilter("ignore")
    made: dict[str, Callable[[], None]] = {}
    answers, sys.stdout = sys.stdout, sys.stderr
    missing = {}
    for name, maker in MAKERS.items():
        try:
            made[name] = maker()
        except ImportError as error:
            missing[name] = str(error)
    print(json.dumps({"ready": sorted(made), "missing": missing}), file=answers, flush=True)
    for line in sys.stdin:
        step, count, started = made[line.strip()], 0, time.perf_counter()
        while time.perf_counter() - started < WINDOW:
            step()
            count += 1
        print(count / (time.perf_counter() - started), file=answers, flush=True)


if __name__ == "__main__":
    main()
