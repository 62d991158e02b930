"""Solve power flows with pandapower for benchmarks/plants/speed.py, with a Python that has pandapower 3.5.6.

    PYTHON benchmarks/peers/solve_pandapower.py CASES.npz

CASES.npz contains `open (n, 5)` lines, counted from zero, and `active` and `reactive (n, 32)` power drawn [MW, Mvar].
For each number n on standard input the script solves n cases, one `runpp` of pandapower's `case33bw` each, with default
settings and with numba if it is installed. It answers with the seconds and the lowest voltage of the last case.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandapower
import pandapower.networks


def main() -> None:
    cases = np.load(sys.argv[1], allow_pickle=False)
    net = pandapower.networks.case33bw()
    lines = np.arange(len(net.line))
    pandapower.runpp(net)
    print("ready", flush=True)
    at = 0
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            net.line["in_service"] = ~np.isin(lines, cases["open"][at])
            net.load["p_mw"], net.load["q_mvar"] = cases["active"][at], cases["reactive"][at]
            pandapower.runpp(net)
            at = (at + 1) % len(cases["open"])
        print(time.perf_counter() - started, net.res_bus.vm_pu.min(), flush=True)


if __name__ == "__main__":
    main()
