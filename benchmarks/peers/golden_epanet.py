"""Make tests/golden/epanet.npz: a day of the pumping station in EPANET 2.2, with given pumps and demand.

Development only, in an environment with wntr 1.5.0, which includes EPANET's solver:

    PYTHON benchmarks/peers/golden_epanet.py

The file contains flows, levels and pumping energy per half-hour, the schedule, and under `config` the network.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import wntr

OUT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "epanet.npz"
CONFIG = {
    "wntr": wntr.__version__,
    "design_head": 60.0,
    "design_flow": 400.0,
    "length": 3000.0,
    "diameter": 0.5,
    "roughness": 130.0,
    "lift": 40.0,
    "area": 1000.0,
    "efficiency": 0.75,
    "level": 3.0,
}
SCHEDULE = np.asarray([1] * 6 + [3] * 5 + [2] * 5 + [0] * 6 + [1] * 8 + [2] * 8 + [0] * 4 + [1] * 6)
"""Running pumps in each half-hour."""
DEMAND = 540.0 * (1.0 + 0.4 * np.sin(2 * np.pi * (np.arange(48) // 2) / 24))
"""Demand [m³/h] in each half-hour."""
STEP = 60
"""Seconds of EPANET's hydraulic steps, which integrate the tank by Euler's method."""


def network() -> wntr.network.WaterNetworkModel:
    """Build the network: reservoir, three pumps, main, tank and town."""
    found = wntr.network.WaterNetworkModel()
    hourly = DEMAND / DEMAND.mean()
    found.add_reservoir("source", base_head=0.0)
    found.add_junction("station", elevation=0.0)
    found.add_tank(
        "tank",
        elevation=CONFIG["lift"],
        init_level=CONFIG["level"],
        min_level=0.0,
        max_level=6.0,
        diameter=math.sqrt(4 * CONFIG["area"] / math.pi),
    )
    found.add_pattern("town", list(hourly))
    found.add_junction("town", base_demand=DEMAND.mean() / 3600, demand_pattern="town", elevation=0.0)
    found.add_pipe("main", "station", "tank", CONFIG["length"], CONFIG["diameter"], CONFIG["roughness"])
    found.add_pipe("street", "tank", "town", 1.0, 2.0, 140.0)
    found.add_curve("pump", "HEAD", [(CONFIG["design_flow"] / 3600, CONFIG["design_head"])])
    for i in range(3):
        found.add_pump(f"pump_{i}", "source", "station", "HEAD", "pump")
        pump = found.get_link(f"pump_{i}")
        pump.initial_status = "Open" if SCHEDULE[0] > i else "Closed"
        for k, running in enumerate(SCHEDULE):
            if k and (running > i) != (SCHEDULE[k - 1] > i):
                action = wntr.network.controls.ControlAction(pump, "status", int(running > i))
                when = wntr.network.controls.SimTimeCondition(found, "=", k * 1800)
                found.add_control(f"{i}-{k}", wntr.network.controls.Control(when, action))
    found.options.hydraulic.headloss = "H-W"
    found.options.hydraulic.accuracy = 1e-8
    found.options.energy.global_efficiency = 100 * CONFIG["efficiency"]
    found.options.time.duration = 24 * 3600
    found.options.time.hydraulic_timestep = found.options.time.report_timestep = STEP
    found.options.time.pattern_timestep = 1800
    return found


def main() -> None:
    model = network()
    with tempfile.TemporaryDirectory() as folder:
        found = wntr.sim.EpanetSimulator(model).run_sim(file_prefix=str(Path(folder) / "day"))
    flows = np.stack([found.link["flowrate"][f"pump_{i}"].to_numpy() for i in range(3)]).sum(axis=0) * 3600
    heads = found.node["head"]["station"].to_numpy()
    level = found.node["head"]["tank"].to_numpy() - CONFIG["lift"]
    power = 9.81 * flows / 3600 * heads / CONFIG["efficiency"]
    each = 1800 // STEP
    np.savez_compressed(
        OUT,
        schedule=SCHEDULE,
        demand=DEMAND,
        level=level[::each],
        flow=flows[::each][:48],
        energy=power[:-1].reshape(48, each).mean(axis=1) / 2,
        config=np.array(json.dumps(CONFIG, indent=1)),
    )
    print(f"{OUT.name}: {OUT.stat().st_size} bytes, levels {level.min():.3f} to {level.max():.3f} m")


if __name__ == "__main__":
    main()
