"""Arrays that describe a feeder: lines, loads, and the loops closed by the tie lines.

A feeder is a meshed network operated as a tree: one line of each loop is open. Bus 0 is the substation. Loads are
listed for buses 1 to N. Line numbers start at 0. The last lines are the ties, which are open by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Feeder(NamedTuple):
    """Lines, loads and ties of a feeder, in per unit of 1 MVA and the feeder's voltage."""

    name: str
    ends: Int[np.ndarray, "L 2"]
    """Start bus and end bus of each line. A line at the substation starts at the substation."""
    resistance: Float[np.ndarray, " L"]
    """Resistance of each line [pu]."""
    reactance: Float[np.ndarray, " L"]
    """Reactance of each line [pu]."""
    active_load: Float[np.ndarray, " N"]
    """Peak active load at buses 1 to N [MW]."""
    reactive_load: Float[np.ndarray, " N"]
    """Peak reactive load at buses 1 to N [Mvar]."""
    ties: int
    """T, the number of ties, which are the last lines."""
    base_path: Float[np.ndarray, "L N"]
    """Paths from the substation to the buses if all ties are open: 1 if a line is on the path, −1 if the line is on the
    path in reverse direction, else 0."""
    loops: Float[np.ndarray, "T L"]
    """Loop that each tie closes: 1 if a line is in the loop in the tie's direction, −1 if in reverse, else 0."""


def feeder_of(
    name: str,
    kilovolts: float,
    lines: Sequence[tuple[int, int, float, float]],
    loads: Sequence[tuple[float, float]],
    ties: int,
) -> Feeder:
    """Return a feeder, built from tables of lines and loads.

    Args:
        kilovolts: line-to-line voltage of the feeder [kV].
        lines: from bus, to bus, resistance [Ω], reactance [Ω]; ties last. Bus 0 is the substation.
        loads: active [kW] and reactive [kvar] load of buses 1 to N.

    Raises:
        ValueError: if the lines without the ties do not form a tree of all buses.
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
    """Return the path from the substation to each of M buses, as in `Feeder.base_path`."""
    path, reached, left = np.zeros((len(ends), buses)), {0}, list(range(closed))
    while left:
        next_lines = [line for line in left if (int(ends[line, 0]) in reached) != (int(ends[line, 1]) in reached)]
        for line in next_lines:
            begin, end = (int(bus) for bus in ends[line])
            inner, outer, sign = (begin, end, 1.0) if begin in reached else (end, begin, -1.0)
            if outer in reached:
                break  # Two lines of this round lead to the same bus: the second closes a loop.
            path[:, outer] = path[:, inner]
            path[line, outer] = sign
            reached.add(outer)
            left.remove(line)
        else:
            if next_lines:
                continue
        break
    if left or len(reached) != buses or closed != buses - 1:
        raise ValueError(
            f"the {closed} lines of feeder {name} without ties must be a tree of all {buses} buses, but they have a "
            f"loop or a gap ({len(reached)} buses reached): list the ties last and set `ties` to the number of ties"
        )
    return path


def _loops(path: Float[np.ndarray, "L M"], ends: Int[np.ndarray, "L 2"], ties: int) -> Float[np.ndarray, "T L"]:
    loops = np.zeros((ties, len(ends)))
    for row, tie in enumerate(range(len(ends) - ties, len(ends))):
        begin, end = ends[tie]
        loops[row] = path[:, begin] - path[:, end]
        loops[row, tie] = 1.0
    return loops
