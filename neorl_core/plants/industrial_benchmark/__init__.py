"""The Siemens Industrial Benchmark: a plant with delayed, noisy and bifurcating responses, of which little is seen."""

from neorl_core.plants.industrial_benchmark.plant import PLANT, SPEC, logged_margins, logged_reward

__all__ = ["PLANT", "SPEC", "logged_margins", "logged_reward"]
