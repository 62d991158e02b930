"""Offline RL algorithms, each a tuple of pure functions."""

from neorl_core.algorithms.awac import AWAC
from neorl_core.algorithms.bc import BC
from neorl_core.algorithms.bptt import BPTT
from neorl_core.algorithms.combo import COMBO
from neorl_core.algorithms.cql import CQL
from neorl_core.algorithms.edac import EDAC
from neorl_core.algorithms.iql import IQL
from neorl_core.algorithms.mopo import MOPO
from neorl_core.algorithms.rebrac import REBRAC
from neorl_core.algorithms.sac_n import SAC_N
from neorl_core.algorithms.td3_bc import TD3_BC

ALGORITHMS = {
    algorithm.name: algorithm for algorithm in (BC, TD3_BC, REBRAC, IQL, AWAC, SAC_N, EDAC, CQL, BPTT, MOPO, COMBO)
}

__all__ = ["ALGORITHMS", "AWAC", "BC", "BPTT", "COMBO", "CQL", "EDAC", "IQL", "MOPO", "REBRAC", "SAC_N", "TD3_BC"]
