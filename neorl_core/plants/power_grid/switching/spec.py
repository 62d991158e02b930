"""Signals, actions, limits and graph layout of a feeder with switches."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Shaped

from neorl_core.graph.layout import Layout
from neorl_core.plants.power_grid.feeder import Feeder
from neorl_core.types import Constraint, PlantSpec, Space

HORIZON = 24
LOW, HIGH = 0.95, 1.05
"""Limits of every bus voltage [pu]: ANSI C84.1, range A."""


class Seen(NamedTuple):
    """The parts of an observation."""

    hour: Shaped[Array, "*n 1"]
    active: Shaped[Array, "*n N"]
    reactive: Shaped[Array, "*n N"]
    voltage: Shaped[Array, "*n N"]
    closed: Shaped[Array, "*n L"]
    in_service: Shaped[Array, "*n L"]
    current: Shaped[Array, "*n L"]
    meshed: Shaped[Array, "*n L"]
    """Current of each line if all lines in service were closed. It is computed from the measured loads, as a control
    centre would, because no meter shows it."""
    lowest: Shaped[Array, "*n 1"]
    highest: Shaped[Array, "*n 1"]
    loss: Shaped[Array, "*n 1"]


def sizes_of(feeder: Feeder) -> tuple[int, ...]:
    """Return the length of each part of an observation, in the order of `Seen`."""
    buses, lines = len(feeder.active_load), len(feeder.ends)
    return (1, buses, buses, buses, lines, lines, lines, lines, 1, 1, 1)


def seen(feeder: Feeder, observation: Shaped[Array, "*n O"]) -> Seen:
    """Split an observation into parts."""
    ends = np.cumsum(sizes_of(feeder))
    return Seen(*(observation[..., end - size : end] for end, size in zip(ends, sizes_of(feeder), strict=True)))


def layout_of(feeder: Feeder) -> Layout:
    """Return the graph: buses are nodes, the substation first; lines are edges, present while in service."""
    columns = seen(feeder, jnp.arange(sum(sizes_of(feeder))))
    mean = feeder.resistance.mean()

    def of_buses(part: Int[Array, " N"]) -> tuple[int, ...]:
        return (-1, *map(int, part))

    closed, in_service, current, meshed = (
        tuple(map(int, part)) for part in (columns.closed, columns.in_service, columns.current, columns.meshed)
    )
    return Layout(
        nodes=len(feeder.active_load) + 1,
        edges=tuple((int(a), int(b)) for a, b in feeder.ends),
        node_observation=tuple(of_buses(part) for part in (columns.active, columns.reactive, columns.voltage)),
        edge_observation=(closed, current, meshed),
        context=tuple(int(part[0]) for part in (columns.lowest, columns.loss)),
        edge_action=(tuple(range(len(feeder.ends))),),
        node_constants=((1.0, *(0.0,) * len(feeder.active_load)),),
        edge_constants=tuple(tuple(map(float, x / mean)) for x in (feeder.resistance, feeder.reactance)),
        flags=closed + in_service,
        present=in_service,
    )


def spec_of(feeder: Feeder, score_range: tuple[float, float]) -> PlantSpec:
    """Return the spec of a feeder; buses and lines are named from 1, and the substation is bus 1."""
    buses, lines = range(2, len(feeder.active_load) + 2), range(1, len(feeder.ends) + 1)
    parts = (
        ("hour", "h", (), 0.0, 24.0),
        ("active", "MW", buses, -50.0, 50.0),
        ("reactive", "Mvar", buses, -50.0, 50.0),
        ("voltage", "pu", buses, 0.0, 1.5),
        ("closed", "1", lines, 0.0, 1.0),
        ("in_service", "1", lines, 0.0, 1.0),
        ("current", "pu", lines, 0.0, 100.0),
        ("meshed_current", "pu", lines, 0.0, 100.0),
        ("lowest_voltage", "pu", (), 0.0, 1.5),
        ("highest_voltage", "pu", (), 0.0, 1.5),
        ("loss", "MW", (), 0.0, 100.0),
    )
    rows = [
        (name if not len(places) else f"{name}_{place}", unit, low, high)
        for name, unit, places, low, high in parts
        for place in places or (0,)
    ]
    names, units, low, high = (tuple(column) for column in zip(*rows, strict=True))
    count = len(feeder.ends)
    return PlantSpec(
        name=f"switching_{feeder.name}",
        observation=Space(names, units, low, high),
        action=Space(tuple(f"open_{line}" for line in lines), ("1",) * count, (-1.0,) * count, (1.0,) * count),
        constraints=(Constraint("bus voltage", "pu", LOW, HIGH),),
        dt=1.0,
        time_unit="h",
        horizon=HORIZON,
        score_range=score_range,
        layout=layout_of(feeder),
    )
