"""Offline RL algorithms, each a tuple of pure functions."""

from neorl_core.algorithms.bc import BC
from neorl_core.algorithms.td3_bc import TD3_BC

ALGORITHMS = {algorithm.name: algorithm for algorithm in (BC, TD3_BC)}

__all__ = ["ALGORITHMS", "BC", "TD3_BC"]
