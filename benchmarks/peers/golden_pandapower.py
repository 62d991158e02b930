"""Make tests/golden/pandapower.npz: power flows of pandapower on random radial topologies of the IEEE 33-bus feeder.

Development only, in an environment with pandapower 3.5.6:

    PYTHON benchmarks/peers/golden_pandapower.py

In each case five lines are open, so that the rest is a tree, and every bus draws or feeds in random power. The feeder
is pandapower's `case33bw`, so the comparison also checks NeoRL's lines. The file contains for each case: `open (5,)`
lines, counted from zero; `active` and `reactive` power drawn at buses 1 to 32 [MW, Mvar]; `voltage` [pu] and `angle`
[degree] there; and `loss` [MW]. `config` has the settings as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandapower
import pandapower.networks

CASES, SEED, TOLERANCE = 20, 0, 1e-10
LOWEST = 0.8
"""Least voltage [pu]. Cases with a lower voltage are drawn again, because they are close to voltage collapse."""


def is_tree(ends: np.ndarray) -> bool:
    """Return whether 32 lines with these ends (32, 2) connect all 33 buses."""
    group = list(range(33))

    def root(bus: int) -> int:
        while group[bus] != bus:
            bus = group[bus]
        return bus

    for begin, end in ends:
        a, b = root(int(begin)), root(int(end))
        if a == b:
            return False
        group[a] = b
    return True


def main() -> None:
    rng = np.random.default_rng(SEED)
    net = pandapower.networks.case33bw()
    ends = net.line[["from_bus", "to_bus"]].to_numpy()
    active, reactive = net.load.p_mw.to_numpy(), net.load.q_mvar.to_numpy()
    found: dict[str, list[object]] = {key: [] for key in ("open", "active", "reactive", "voltage", "angle", "loss")}
    while len(found["loss"]) < CASES:
        lines = np.sort(rng.choice(len(ends), 5, replace=False))
        if not is_tree(np.delete(ends, lines, 0)):
            continue
        p, q = active * rng.uniform(0.2, 1.0, 32), reactive * rng.uniform(0.2, 1.0, 32)
        feeding = rng.random(32) < 0.2
        p, q = p - feeding * rng.uniform(0, 0.5, 32), q - feeding * rng.uniform(-0.2, 0.2, 32)
        net.line["in_service"] = ~np.isin(np.arange(len(ends)), lines)
        net.load["p_mw"], net.load["q_mvar"] = p, q
        try:
            pandapower.runpp(net, tolerance_mva=TOLERANCE, max_iteration=50)
        except pandapower.LoadflowNotConverged:
            continue
        voltage = net.res_bus.vm_pu.to_numpy()[1:]
        if voltage.min() < LOWEST:
            continue
        for key, value in (
            ("open", lines),
            ("active", p),
            ("reactive", q),
            ("voltage", voltage),
            ("angle", net.res_bus.va_degree.to_numpy()[1:]),
            ("loss", net.res_line.pl_mw.sum()),
        ):
            found[key].append(np.array(value))
    config = {
        "pandapower": pandapower.__version__,
        "case": "case33bw",
        "seed": SEED,
        "tolerance_mva": TOLERANCE,
        "lowest": LOWEST,
    }
    path = Path(__file__).parents[2] / "tests" / "golden" / "pandapower.npz"
    np.savez_compressed(path, config=json.dumps(config), **{key: np.stack(value) for key, value in found.items()})
    print(path, {key: np.stack(value).shape for key, value in found.items()}, np.min(found["voltage"]))


if __name__ == "__main__":
    main()
