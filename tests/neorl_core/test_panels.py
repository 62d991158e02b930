"""Panels of pictures, against hand-worked numbers and the margin formulas of the plants."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neorl_core.panels import curve, limited_signals, make_panels, set_points, unit_of
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.types import Constraint, Panel, PlantSpec, Space

KETTLE = PlantSpec(
    name="kettle",
    observation=Space(("wall", "core", "core_setpoint"), ("degC", "degC", "degC"), (0.0,) * 3, (500.0,) * 3),
    action=Space(("power",), ("kW",), (0.0,), (2.0,)),
    constraints=(
        Constraint("wall temperature", "K", 223.15, 573.15),
        Constraint("stress", "MPa", -math.inf, 80.0),
        Constraint("balance", "1", -1.0, 1.0),
    ),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 1.0),
)
SEEN = np.array([[100.0, 90.0, 95.0], [200.0, 150.0, 95.0]])
MARGINS = np.array([[200.0, 30.0, 0.5], [100.0, -5.0, 0.25]])


def test_kelvin_and_celsius_are_drawn_in_one_unit() -> None:
    found = curve(Panel("wall", ("wall", "core"), "core_setpoint", "wall temperature"), KETTLE, SEEN, None)
    assert found is not None
    np.testing.assert_allclose(found.values, SEEN[:, :2])
    assert found.set_point is not None
    np.testing.assert_allclose(found.set_point, np.array([95.0, 95.0]))
    # The lower limit of -50 degC is below what the sensor shows: it cannot bind, and would only widen the picture.
    assert found.low == -math.inf
    assert found.high == pytest.approx(300.0)
    in_kelvin = curve(Panel("wall", ("wall",), limit="wall temperature", unit="K"), KETTLE, SEEN, None)
    assert in_kelvin is not None
    np.testing.assert_allclose(in_kelvin.values[:, 0], SEEN[:, 0] + 273.15)
    assert in_kelvin.high == 573.15


def test_unmeasured_quantity_follows_from_margin() -> None:
    stress = curve(Panel("stress", limit="stress"), KETTLE, SEEN, MARGINS)
    balance = curve(Panel("balance", limit="balance"), KETTLE, SEEN, MARGINS)
    assert stress is not None
    assert balance is not None
    np.testing.assert_allclose(stress.values[:, 0], [50.0, 85.0])
    assert (stress.low, stress.high) == (-math.inf, 80.0)
    np.testing.assert_allclose(balance.values[:, 0], [0.5, 0.25])
    assert (balance.low, balance.high) == (0.0, math.inf)
    assert curve(Panel("stress", limit="stress"), KETTLE, SEEN, None) is None


def test_panels_are_derived_from_names_and_units() -> None:
    # No sensor shares unit and words with the limits: each is drawn by its margin.
    assert make_panels(KETTLE) == (
        Panel("wall temperature", limit="wall temperature"),
        Panel("stress", limit="stress"),
        Panel("balance", limit="balance"),
        Panel("core", ("core",), "core_setpoint"),
    )
    reactor, masses = PLANTS["chemical_reactor"].spec, PLANTS["double_mass"].spec
    assert set_points(reactor) == {"concentration": "concentration_setpoint"}
    assert set_points(masses) == {"position_1": "target_1", "position_2": "target_2"}
    # The coolant is a temperature in kelvin too; the limit is on the reactor's.
    assert {name: c.name for name, c in limited_signals(reactor).items()} == {"temperature": "reactor temperature"}
    assert make_panels(masses)[1] == Panel("position_2", ("position_2",), "target_2", "travel of mass 2")
    bare = KETTLE._replace(constraints=(), observation=KETTLE.observation._replace(names=("a", "b", "c")))
    assert [panel.signals for panel in make_panels(bare)] == [("a",), ("b",), ("c",)]


@pytest.mark.parametrize(
    ("panel", "says"),
    [
        (Panel("wall", ("wal",)), r"panel 'wall' must show signals or limits of kettle, got \['wal'\]"),
        (Panel("wall", limit="heat"), r"got \['heat'\]"),
        (Panel("wall"), "got an empty panel"),
        (Panel("wall", ("wall",), limit="stress"), "a panel must have one unit, got MPa and degC"),
    ],
)
def test_invalid_panels_are_rejected(panel: Panel, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_panels(KETTLE, (panel,))


@pytest.mark.parametrize("name", PLANTS)
def test_drawn_distance_to_limits_equals_margins(name: str) -> None:
    plant = PLANTS[name]
    low, high = (np.array(x) for x in (plant.spec.observation.low, plant.spec.observation.high))
    seen = np.random.default_rng(0).uniform(low, high, (64, plant.spec.observation.size)).astype(np.float32)
    if name == "power_grid":
        seen[:, 16:18].sort(axis=1)  # the lowest voltage is below the highest
    margins = np.asarray(LOGGED[name].margins(seen), float)
    named = [limit.name for limit in plant.spec.constraints]
    drawn = set()
    for panel in make_panels(plant.spec, plant.drawn):
        found = curve(panel, plant.spec, seen, margins)
        assert found is not None
        assert unit_of(panel, plant.spec)
        assert found.values.shape[0] == 64
        if panel.limit:
            drawn.add(panel.limit)
            left = np.minimum(found.values - found.low, found.high - found.values).min(axis=1)
            told = margins[:, named.index(panel.limit)]
            # The margin may depend on several readings, so the drawn distance may be larger but not smaller.
            assert (left >= told - 1e-2).all()
    assert drawn == set(named)


def test_binding_limits_are_drawn() -> None:
    rng = np.random.default_rng(1)
    for name, panel, expected in (
        ("robot_assembly", 0, lambda x: np.hypot(x["force_x"], x["force_z"])),
        ("power_grid", 0, lambda x: np.stack([x["lowest_voltage"], x["highest_voltage"]], axis=-1)),
        ("steel_annealing", 2, lambda x: np.max([x[f"zone_temperature_{z}"] for z in range(1, 5)], axis=0)),
    ):
        plant = PLANTS[name]
        space = plant.spec.observation
        seen = rng.uniform(space.low, space.high, (16, space.size)).astype(np.float32)
        found = curve(
            make_panels(plant.spec, plant.drawn)[panel], plant.spec, seen, np.asarray(LOGGED[name].margins(seen))
        )
        assert found is not None
        wanted = expected(dict(zip(space.names, seen.T, strict=True)))
        np.testing.assert_allclose(found.values, wanted.reshape(found.values.shape), rtol=1e-4, atol=1e-2)
