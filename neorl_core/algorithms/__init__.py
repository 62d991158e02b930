"""Offline RL algorithms, each a tuple of pure functions."""

from neorl_core.algorithms.bc import BC
from neorl_core.algorithms.cql import CQL
from neorl_core.algorithms.edac import EDAC
from neorl_core.algorithms.sac_n import SAC_N
from neorl_core.algorithms.td3_bc import TD3_BC

ALGORITHMS = {algorithm.name: algorithm for algorithm in (BC, CQL, EDAC, SAC_N, TD3_BC)}

__all__ = ["ALGORITHMS", "BC", "CQL", "EDAC", "SAC_N", "TD3_BC"]
