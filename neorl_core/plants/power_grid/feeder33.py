"""Data of the IEEE 33-bus feeder: lines, loads, and the loops closed by the tie lines.

M. E. Baran, F. F. Wu: Network reconfiguration in distribution systems for loss reduction and load balancing,
IEEE Trans. Power Delivery 4(2), 1989, table II, with the correction of line 7-8 that MATPOWER's and pandapower's
`case33bw` use (0.7114 + 0.2351j Ω). Currents have no limits, as in the paper.

Numbers of buses and lines start at 0 here and at 1 in the paper. Bus 0 is the substation, line 0 joins buses 0 and 1,
and lines 32 to 36 are the ties.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from neorl_core.plants.power_grid.feeder import Feeder, feeder_of

BASE_KV = 12.66

# from, to, resistance [Ω], reactance [Ω]
_LINES = (
    *((0, 1, 0.0922, 0.0470), (1, 2, 0.4930, 0.2511), (2, 3, 0.3660, 0.1864), (3, 4, 0.3811, 0.1941)),
    *((4, 5, 0.8190, 0.7070), (5, 6, 0.1872, 0.6188), (6, 7, 0.7114, 0.2351), (7, 8, 1.0300, 0.7400)),
    *((8, 9, 1.0440, 0.7400), (9, 10, 0.1966, 0.0650), (10, 11, 0.3744, 0.1238), (11, 12, 1.4680, 1.1550)),
    *((12, 13, 0.5416, 0.7129), (13, 14, 0.5910, 0.5260), (14, 15, 0.7463, 0.5450), (15, 16, 1.2890, 1.7210)),
    *((16, 17, 0.7320, 0.5740), (1, 18, 0.1640, 0.1565), (18, 19, 1.5042, 1.3554), (19, 20, 0.4095, 0.4784)),
    *((20, 21, 0.7089, 0.9373), (2, 22, 0.4512, 0.3083), (22, 23, 0.8980, 0.7091), (23, 24, 0.8960, 0.7011)),
    *((5, 25, 0.2030, 0.1034), (25, 26, 0.2842, 0.1447), (26, 27, 1.0590, 0.9337), (27, 28, 0.8042, 0.7006)),
    *((28, 29, 0.5075, 0.2585), (29, 30, 0.9744, 0.9630), (30, 31, 0.3105, 0.3619), (31, 32, 0.3410, 0.5302)),
    *((20, 7, 2.0000, 2.0000), (8, 14, 2.0000, 2.0000), (11, 21, 2.0000, 2.0000), (17, 32, 0.5000, 0.5000)),
    (24, 28, 0.5000, 0.5000),
)
# active [kW] and reactive [kvar] load of buses 1 to 32
_LOADS = (
    *((100, 60), (90, 40), (120, 80), (60, 30), (60, 20), (200, 100), (200, 100), (60, 20)),
    *((60, 20), (45, 30), (60, 35), (60, 35), (120, 80), (60, 10), (60, 20), (60, 20)),
    *((90, 40), (90, 40), (90, 40), (90, 40), (90, 40), (90, 50), (420, 200), (420, 200)),
    *((60, 25), (60, 25), (60, 20), (120, 70), (200, 600), (150, 70), (210, 100), (60, 40)),
)

FEEDER: Feeder = feeder_of("case33bw", BASE_KV, _LINES, _LOADS, ties=5)

LINES = len(_LINES)
BUSES = len(_LOADS)
"""Number of buses without the substation."""
TIES = FEEDER.ties
ENDS: Int[np.ndarray, "37 2"] = FEEDER.ends
RESISTANCE: Float[np.ndarray, " 37"] = FEEDER.resistance
"""Resistance of the lines [pu]."""
REACTANCE: Float[np.ndarray, " 37"] = FEEDER.reactance
ACTIVE_LOAD: Float[np.ndarray, " 32"] = FEEDER.active_load
"""Active load at buses 1 to 32 [MW], the paper's peak values."""
REACTIVE_LOAD: Float[np.ndarray, " 32"] = FEEDER.reactive_load
"""Reactive load at buses 1 to 32 [Mvar]."""
BASE_PATH: Float[np.ndarray, "37 32"] = FEEDER.base_path
LOOPS: Float[np.ndarray, "5 37"] = FEEDER.loops
LOOP_LINES: tuple[tuple[int, ...], ...] = tuple(
    (LINES - TIES + row, *(int(line) for line in np.flatnonzero(LOOPS[row, : LINES - TIES]))) for row in range(TIES)
)
"""Lines of each loop, the tie first. A switch position is the index of the open line in this tuple."""


def positions_of(lines: tuple[int, ...]) -> tuple[int, ...]:
    """Return the switch positions, one per loop, that open these five lines (from 0, in the order of the loops).

    Raises:
        ValueError: if a line is not on its loop.
    """
    return tuple(loop.index(line) for loop, line in zip(LOOP_LINES, lines, strict=True))
