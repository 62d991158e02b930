"""The Siemens Industrial Benchmark: a plant with delayed, noisy and bifurcating responses, mostly hidden.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| setpoint, setpoint_low, setpoint_high, noise, all equations | Siemens Industrial Benchmark, arXiv 1709.09480 |
| limits of fatigue, limits of consumption | ours |

The model is the authors' benchmark, for set points from 0 to 100 that are constant during an episode. The benchmark
resembles gas turbines but has no physical units.
"""

from neorl_core.plants.industrial_benchmark.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
