"""Units on the feeder and conditions of a day: inverters, batteries, load, sun and tariff.

Daily load: IEEE Reliability Test System (IEEE Trans. Power Apparatus and Systems 98(6), 1979), hourly table,
weekday in summer. Sun: Haurwitz's clear sky (J. Meteorology 2, 1945). Reactive power: category B inverters supply or
absorb 44 % of the rating (IEEE 1547-2018, table 7). A medium-voltage customer in France pays about 2 c€ for each kvarh
above 0.4 of the active energy (TURPE 6 HTA). Sizes of units, tariff of active energy and cost of an outage are
assumed.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from neorl_core.plants.base import AnyArray, Scalar
from neorl_core.plants.power_grid import feeder33 as feeder

DT = 0.25
HORIZON = 96

SOLAR_BUSES = (18, 22, 25, 33)
BATTERY_BUSES = (14, 31)
"""Bus numbers as in the paper: the substation is bus 1."""
UNITS = tuple(f"solar_{bus}" for bus in SOLAR_BUSES) + tuple(f"battery_{bus}" for bus in BATTERY_BUSES)
UNIT_BUSES = tuple(bus - 2 for bus in SOLAR_BUSES + BATTERY_BUSES)
"""Index of each unit's bus in arrays of the buses without the substation."""
SOLAR, BATTERIES, SWITCHES = len(SOLAR_BUSES), len(BATTERY_BUSES), feeder.TIES
SOLAR_MW = 0.6
SOLAR_MVA = 0.66
BATTERY_MW = 0.5
BATTERY_MVA = 0.6
BATTERY_MWH = 2.0
EFFICIENCY = 0.95
"""Nominal efficiency of charging and of discharging [1]."""
RATING = (SOLAR_MVA,) * SOLAR + (BATTERY_MVA,) * BATTERIES
REACTIVE = tuple(0.44 * mva for mva in RATING)
"""Largest reactive power of each inverter in both directions [Mvar]."""

LATITUDE, DECLINATION = 0.59, 0.35
"""Position of the sun [rad], for 34 degrees north in late May."""
# Percent of the daily peak at the full hours 0 to 24.
DAILY_LOAD = (
    *(72, 64, 60, 58, 56, 56, 58, 64, 76, 87, 95, 99, 100),
    *(99, 100, 100, 97, 96, 96, 93, 92, 92, 93, 87, 72),
)
# Prices [$/MWh] by the end of the interval: flat, with an expensive evening and a cheap night.
NIGHT_PRICE, DAY_PRICE, EVENING_PRICE = 60.0, 100.0, 200.0
STORED_VALUE = 100.0
"""Value of stored energy [$/MWh], so that emptying the batteries at the end of the day does not pay."""
WEAR = 10.0
"""Cost of battery wear, per energy charged or discharged [$/MWh]."""
SWITCHING_COST = 2.0
"""Cost of one change of a switch position [$]: one line opens and one line closes."""
REACTIVE_PRICE = 20.0
"""Price of reactive energy from or to the substation, above the free share [$/Mvarh]."""
FREE_REACTIVE = 0.4
"""Free reactive power, as a share of the active power [1]."""
OUTAGE_COST = 20_000.0
"""Cost of an outage [$]: about two hours of 3 MW at 3,500 $/MWh. A day without an outage always costs less."""

TOPOLOGIES = tuple(
    feeder.positions_of(lines)
    for lines in (
        *((32, 33, 34, 35, 36), (6, 13, 8, 31, 36), (6, 13, 9, 31, 27)),
        *((3, 33, 34, 35, 36), (32, 33, 34, 35, 22)),
        (6, 33, 8, 16, 36),
    )
)
"""Topologies, written by their open lines, counted from zero. A day starts with one of the first five: the paper's
initial and best topologies (139.55 kW at full load), one near the best, and two with a trunk line open (4 or 23 in the
paper's count). The last has the least losses over a day with sun, batteries and reactive power, of all 50,751 trees of
the feeder."""
SUNNY = len(TOPOLOGIES) - 1
"""Index of the last topology. No day starts with this topology."""


def hour_of(step: Int[Array, ""], dtype: jnp.dtype) -> Float[Array, ""]:
    """Return the hour of the day [h] at `step` steps after midnight."""
    return DT * (step % HORIZON).astype(dtype)


def daily_load(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Return the load relative to the daily peak [1] at an hour [h], linear between full hours."""
    hour = jnp.asarray(hour)
    return jnp.interp(hour, jnp.arange(25, dtype=hour.dtype), jnp.asarray(DAILY_LOAD, hour.dtype) / 100)


def price(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Return the price of energy [$/MWh] in the interval that ends at this hour."""
    hour = jnp.asarray(hour)
    night = jnp.where((hour > 7.0) & (hour <= 23.0), DAY_PRICE, NIGHT_PRICE)
    return jnp.where((hour > 17.0) & (hour <= 21.0), EVENING_PRICE, night).astype(hour.dtype)


def clear_sky(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Return the irradiance without clouds 1.098 c exp(−0.057/c) [kW/m²]; c is the sine of the sun's elevation."""
    angle = jnp.pi / 12 * (jnp.asarray(hour) - 12.0)
    height = jnp.sin(LATITUDE) * jnp.sin(DECLINATION) + jnp.cos(LATITUDE) * jnp.cos(DECLINATION) * jnp.cos(angle)
    up = jnp.maximum(height, 1e-3)
    return 1.098 * up * jnp.exp(-0.057 / up)


def available(hour: Float[AnyArray, "*n"], clearness: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Return the largest power [MW] of each solar inverter at an hour [h] and clearness [1]."""
    return SOLAR_MW * jnp.minimum(clear_sky(hour) * clearness, 1.0)


def battery_power(
    energy: Float[AnyArray, "*n 2"], command: Float[AnyArray, "*n 2"], efficiency: Scalar
) -> Float[Array, "*n 2"]:
    """Return the part of the commanded powers [MW] that the stored energy allows for a step; charging is negative."""
    most = jnp.asarray(energy) * efficiency / DT
    least = -(BATTERY_MWH - jnp.asarray(energy)) / (efficiency * DT)
    return jnp.clip(command, least, most)


def charge(energy: Float[AnyArray, "*n 2"], power: Float[AnyArray, "*n 2"], efficiency: Scalar) -> Float[Array, "*n 2"]:
    """Return the stored energy E − dt (max(P, 0)/η + η min(P, 0)) [MWh] after a step at power P [MW]."""
    change = jnp.maximum(power, 0.0) / efficiency + efficiency * jnp.minimum(power, 0.0)
    # `battery_power` keeps these bounds up to rounding.
    return jnp.clip(energy - DT * change, 0.0, BATTERY_MWH)


def earnings(
    hour: Float[AnyArray, "*n"],
    feeder: Float[AnyArray, "*n 3"],
    withheld: Float[AnyArray, "*n 4"],
    power: Float[AnyArray, "*n 2"],
    stored: Float[AnyArray, "*n 2"],
    moved: Float[AnyArray, "*n"],
    dark: Bool[AnyArray, "*n"],
) -> Float[Array, "*n"]:
    """Return the reward [$] of a step, without the cost of load minus available sun, which actions cannot change.

    100 Σ stored − (price (loss + Σ withheld − Σ power) + 20 max(|Q| − 0.4|P|, 0) + 10 Σ|power|) dt − 2 moved − 2e4 dark

    Args:
        hour: (...), end of the step [h].
        feeder: (..., 3), losses of the lines [MW], and P [MW] and Q [Mvar] supplied by the substation.
        withheld: (..., 4), curtailed solar power [MW].
        power: (..., 2), discharging power of the batteries [MW].
        stored: (..., 2), change of the stored energy [MWh].
        moved: (...), number of changed switch positions.
        dark: (...), whether the feeder has an outage.
    """
    loss, active, reactive = (jnp.asarray(feeder)[..., k] for k in range(3))
    bought = price(hour) * DT * (loss + jnp.sum(withheld, -1) - jnp.sum(power, -1))
    billed = REACTIVE_PRICE * DT * jnp.maximum(jnp.abs(reactive) - FREE_REACTIVE * jnp.abs(active), 0.0)
    worn = WEAR * DT * jnp.sum(jnp.abs(power), -1)
    outage = jnp.where(dark, OUTAGE_COST, 0.0)
    return STORED_VALUE * jnp.sum(stored, -1) - bought - billed - worn - SWITCHING_COST * moved - outage
