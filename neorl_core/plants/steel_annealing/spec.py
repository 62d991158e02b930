"""Signals, actions, limits and costs of the furnace."""

from __future__ import annotations

import math

from neorl_core.plants.steel_annealing.furnace import ZONES
from neorl_core.plants.steel_annealing.steel import CELSIUS
from neorl_core.types import Constraint, PlantSpec, Space

DT = 1.0
HORIZON = 180
SUBSTEPS = 6
PRODUCT_SECTIONS = 16
"""Sections per product; at the start the furnace is full of the first product."""
PRODUCTS = 12
POWER = 8.0
"""Full power of a zone's burners [MW]."""
ERROR_SCALE = 10.0
"""Error of the core temperature at the exit [K] with a cost of 1 per step."""
SOAK_BAND, SOAK_PER_MM, SOAK_SCALE = 20.0, 0.2, 2.0
"""Band below the target in which a core soaks [K]; required soaking time [min/mm]; shortfall with a cost of 1 [min]."""
FUEL_COST = 0.2
"""Cost of a step with all zones at full power."""
NAMES = tuple(range(1, ZONES + 1))

SPEC = PlantSpec(
    name="steel_annealing",
    observation=Space(
        names=(
            *(f"zone_temperature_{z}" for z in NAMES),
            *(f"burner_power_{z}" for z in NAMES),
            *(f"surface_temperature_{z}" for z in NAMES),
            "thickness_entry",
            *(f"thickness_{z}" for z in NAMES),
            "target_entry",
            *(f"target_{z}" for z in NAMES),
            "speed",
            *("core_temperature", "soak"),
        ),
        units=(
            *(*["degC"] * ZONES, *["MW"] * ZONES, *["degC"] * ZONES, *["mm"] * 5, *["degC"] * 5),
            *("m/min", "degC", "min"),
        ),
        low=(*[0.0] * (3 * ZONES), *[5.0] * 5, *[700.0] * 5, 0.0, 0.0, 0.0),
        high=(*[1400.0] * ZONES, *[POWER] * ZONES, *[1400.0] * ZONES, *[60.0] * 5, *[1000.0] * 5, 2.0, 1400.0, 60.0),
    ),
    action=Space(
        names=tuple(f"burner_power_{z}" for z in NAMES),
        units=("MW",) * ZONES,
        low=(0.0,) * ZONES,
        high=(POWER,) * ZONES,
    ),
    constraints=(
        Constraint("steel surface temperature", "K", -math.inf, 940.0 + CELSIUS),
        Constraint("temperature difference across half the thickness", "K", -math.inf, 30.0),
        Constraint("zone temperature", "K", -math.inf, 1150.0 + CELSIUS),
    ),
    dt=DT,
    time_unit="min",
    horizon=HORIZON,
    # 0: the burners keep their initial powers; 100: the best gains known (1,000 episodes each, half widths of the 95 %
    # intervals 65 and 6).
    score_range=(-2346.1, -197.8),
)

EXIT_TARGET = SPEC.observation.names.index(f"target_{ZONES}")
EXIT_THICKNESS = SPEC.observation.names.index(f"thickness_{ZONES}")
SPEED, CORE, SOAK = (SPEC.observation.names.index(name) for name in ("speed", "core_temperature", "soak"))
"""Indices in the observation: the speed, and the furnace model's core temperature and soaking time at the exit."""
