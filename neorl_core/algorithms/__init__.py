"""Offline RL algorithms, each a tuple of pure functions."""

from neorl_core.algorithms.awac import AWAC
from neorl_core.algorithms.bc import BC
from neorl_core.algorithms.iql import IQL
from neorl_core.algorithms.rebrac import REBRAC
from neorl_core.algorithms.td3_bc import TD3_BC

ALGORITHMS = {algorithm.name: algorithm for algorithm in (BC, TD3_BC, IQL, AWAC, REBRAC)}

__all__ = ["ALGORITHMS", "AWAC", "BC", "IQL", "REBRAC", "TD3_BC"]
