"""The Siemens Industrial Benchmark: a plant with delayed, noisy and bifurcating responses, of which little is seen.

| constant | source |
|---|---|
| setpoint, setpoint_low, setpoint_high, noise, the whole of its law | Siemens Industrial Benchmark, arXiv 1709.09480 |
| limits of fatigue, limits of consumption | ours |

Valid as the authors' sequence for set points from 0 to 100 that stand still during an episode; it is a likeness of gas
turbines, of which it has no unit.
"""

from neorl_core.plants.industrial_benchmark.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
