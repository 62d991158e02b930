"""A feeder as numbers: its lines, its loads, and the loops that its tie lines close.

A feeder is a meshed network that is run as a tree: of each loop one line is open. Bus 0 is the substation; rows of the
loads are the buses 1 to N, lines count from zero, and the ties, which are open where nobody switched yet, come last.
Everything that a power flow needs of a topology follows from these arrays (`power_flow.py`, `radial.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Feeder(NamedTuple):
    """Lines, loads and ties of a feeder, in per unit of 1 MVA and its own voltage."""

    name: str
    ends: Int[np.ndarray, "L 2"]
    """The buses that each line joins; a line at the substation begins there."""
    resistance: Float[np.ndarray, " L"]
    """Per unit."""
    reactance: Float[np.ndarray, " L"]
    """Per unit."""
    active_load: Float[np.ndarray, " N"]
    """Active load at buses 1 to N [MW], at the peak."""
    reactive_load: Float[np.ndarray, " N"]
    """Reactive load at buses 1 to N [Mvar]."""
    ties: int
    """How many of the last lines are ties, T."""
    base_path: Float[np.ndarray, "L N"]
    """While the ties are open: ±1 where a line lies between the substation and a bus, 0 elsewhere, negative where the
    line's ends are named against the way from the substation."""
    loops: Float[np.ndarray, "T L"]
    """The loop that each tie closes: ±1 where a line runs with or against the tie."""


def feeder_of(
    name: str,
    kilovolts: float,
    lines: Sequence[tuple[int, int, float, float]],
    loads: Sequence[tuple[float, float]],
    ties: int,
) -> Feeder:
    """A feeder from its tables.

    Args:
        name: of the feeder.
        kilovolts: line-to-line voltage of the whole feeder [kV].
        lines: from, to, resistance [Ω], reactance [Ω]; the ties last, buses counted from zero, the substation.
        loads: active [kW] and reactive [kvar] load of buses 1 to N.
        ties: how many lines are ties.

    Raises:
        ValueError: when the lines without the ties are no tree of the buses.
    """
    ends = np.array([line[:2] for line in lines])
    ends = np.where(ends[:, 1:] == 0, ends[:, ::-1], ends)
    path = _paths(name, ends, len(lines) - ties, len(loads) + 1)
    return Feeder(
        name=name,
        ends=ends,
        resistance=np.array([line[2] for line in lines]) / kilovolts**2,
        reactance=np.array([line[3] for line in lines]) / kilovolts**2,
        active_load=np.array([load[0] for load in loads]) / 1000.0,
        reactive_load=np.array([load[1] for load in loads]) / 1000.0,
        ties=ties,
        base_path=path[:, 1:],
        loops=_loops(path, ends, ties),
    )


def _paths(name: str, ends: Int[np.ndarray, "L 2"], closed: int, buses: int) -> Float[np.ndarray, "L M"]:
    """The lines between the substation and each of all M buses, found outwards from the substation."""
    path, reached, left = np.zeros((len(ends), buses)), {0}, list(range(closed))
    while left:
        following = [line for line in left if (int(ends[line, 0]) in reached) != (int(ends[line, 1]) in reached)]
        for line in following:
            begin, end = (int(bus) for bus in ends[line])
            inner, outer, sign = (begin, end, 1.0) if begin in reached else (end, begin, -1.0)
            if outer in reached:
                break  # Two lines of this round lead to one bus: the second closes a loop.
            path[:, outer] = path[:, inner]
            path[line, outer] = sign
            reached.add(outer)
            left.remove(line)
        else:
            if following:
                continue
        break
    if left or len(reached) != buses or closed != buses - 1:
        raise ValueError(
            f"expected the lines of feeder {name} without its ties to be a tree of its {buses} buses, got {closed} "
            f"lines that reach {len(reached)}: name as ties the lines that are open, last."
        )
    return path


def _loops(path: Float[np.ndarray, "L M"], ends: Int[np.ndarray, "L 2"], ties: int) -> Float[np.ndarray, "T L"]:
    loops = np.zeros((ties, len(ends)))
    for row, tie in enumerate(range(len(ends) - ties, len(ends))):
        begin, end = ends[tie]
        loops[row] = path[:, begin] - path[:, end]
        loops[row, tie] = 1.0
    return loops
