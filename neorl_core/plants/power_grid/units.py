"""What is connected to the feeder and what a day brings: inverters, batteries, load, sun and tariff.

Daily load: IEEE Reliability Test System (IEEE Trans. Power Apparatus and Systems 98(6), 1979), hourly table,
weekday in summer. Sun: Haurwitz's clear sky (J. Meteorology 2, 1945). Reactive power: inverters of category B give and
take 44 % of their rating (IEEE 1547-2018, table 7); a customer at medium voltage in France pays about 2 c€ per kvarh
beyond 0.4 of the active energy (TURPE 6 HTA). The units' sizes, the tariff of active energy and the cost of an
outage are ours.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from neorl_core.plants.base import AnyArray
from neorl_core.plants.power_grid import feeder33 as feeder

DT = 0.25
HORIZON = 96

SOLAR_BUSES = (18, 22, 25, 33)
BATTERY_BUSES = (14, 31)
"""Buses as the paper counts them, the substation being bus 1."""
UNITS = tuple(f"solar_{bus}" for bus in SOLAR_BUSES) + tuple(f"battery_{bus}" for bus in BATTERY_BUSES)
UNIT_BUSES = tuple(bus - 2 for bus in SOLAR_BUSES + BATTERY_BUSES)
"""Rows of the feeder's arrays."""
SOLAR, BATTERIES, SWITCHES = len(SOLAR_BUSES), len(BATTERY_BUSES), feeder.TIES
SOLAR_MW = 0.6
SOLAR_MVA = 0.66
BATTERY_MW = 0.5
BATTERY_MVA = 0.6
BATTERY_MWH = 2.0
EFFICIENCY = 0.95
"""Nominal efficiency of charging, and again of discharging [1]."""
RATING = (SOLAR_MVA,) * SOLAR + (BATTERY_MVA,) * BATTERIES
REACTIVE = tuple(0.44 * mva for mva in RATING)
"""Reactive power that each inverter gives or takes at most [Mvar]."""

LATITUDE, DECLINATION = 0.59, 0.35
"""Radians: of the sun over 34 degrees north in late May."""
# Percent of the daily peak at the full hours 0 to 24; the table's first hour ends at 1.
DAILY_LOAD = (
    *(72, 64, 60, 58, 56, 56, 58, 64, 76, 87, 95, 99, 100),
    *(99, 100, 100, 97, 96, 96, 93, 92, 92, 93, 87, 72),
)
# $/MWh, by the hour in which an interval ends: a flat tariff with a dear evening and a cheap night.
NIGHT_PRICE, DAY_PRICE, EVENING_PRICE = 60.0, 100.0, 200.0
STORED_VALUE = 100.0
"""Worth of energy in a battery [$/MWh], so that emptying it before the day ends is no profit."""
WEAR = 10.0
"""$/MWh that a battery gives or takes."""
SWITCHING_COST = 2.0
"""$ per line opened and closed."""
REACTIVE_PRICE = 20.0
"""$/Mvarh that the feeder takes from, or gives to, the substation beyond what is free."""
FREE_REACTIVE = 0.4
"""Reactive power that is free, as a share of the active power [1]."""
OUTAGE_COST = 20_000.0
"""$ of a feeder that went dark, some two hours of 3 MW at 3,500 $/MWh: more than a day without an outage can cost."""

TOPOLOGIES = tuple(
    feeder.positions_of(lines)
    for lines in (
        *((32, 33, 34, 35, 36), (6, 13, 8, 31, 36), (6, 13, 9, 31, 27)),
        *((3, 33, 34, 35, 36), (32, 33, 34, 35, 22)),
        (6, 33, 8, 16, 36),
    )
)
"""Open lines, counted from zero. A day begins with one of the first five: the paper's first and its best (139.55 kW at
full load), one near that, and two that work on a trunk line (4 or 23 in the paper's count) left. The last loses least
over a day with sun, batteries and reactive power, of all 50,751 trees of the feeder."""
SUNNY = len(TOPOLOGIES) - 1
"""The one that no day begins with."""


def hour_of(step: Int[Array, ""], dtype: jnp.dtype) -> Float[Array, ""]:
    """Hour of the day [h] after a number of steps from midnight."""
    return DT * (step % HORIZON).astype(dtype)


def daily_load(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """The daily curve, 1 at its peak, linear between full hours."""
    hour = jnp.asarray(hour)
    return jnp.interp(hour, jnp.arange(25, dtype=hour.dtype), jnp.asarray(DAILY_LOAD, hour.dtype) / 100)


def price(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Price of energy [$/MWh] in the interval that ends at this hour."""
    hour = jnp.asarray(hour)
    night = jnp.where((hour > 7.0) & (hour <= 23.0), DAY_PRICE, NIGHT_PRICE)
    return jnp.where((hour > 17.0) & (hour <= 21.0), EVENING_PRICE, night).astype(hour.dtype)


def clear_sky(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Irradiance [kW/m²] without clouds, 1.098 c exp(−0.057/c) with c the cosine of the sun's distance from zenith."""
    angle = jnp.pi / 12 * (jnp.asarray(hour) - 12.0)
    height = jnp.sin(LATITUDE) * jnp.sin(DECLINATION) + jnp.cos(LATITUDE) * jnp.cos(DECLINATION) * jnp.cos(angle)
    up = jnp.maximum(height, 1e-3)
    return 1.098 * up * jnp.exp(-0.057 / up)


def available(hour: Float[AnyArray, "*n"], clearness: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """What each solar inverter could feed in [MW]."""
    return SOLAR_MW * jnp.minimum(clear_sky(hour) * clearness, 1.0)


def battery_power(
    energy: Float[AnyArray, "*n 2"], command: Float[AnyArray, "*n 2"], efficiency: float | Float[Array, ""]
) -> Float[Array, "*n 2"]:
    """What batteries really give (+) or take (−) during a step [MW], as what they hold [MWh] allows.

    Args:
        energy: (..., 2), what each battery holds [MWh].
        command: (..., 2), power asked for [MW].
        efficiency: efficiency of charging, and again of discharging [1].
    """
    most = jnp.asarray(energy) * efficiency / DT
    least = -(BATTERY_MWH - jnp.asarray(energy)) / (efficiency * DT)
    return jnp.clip(command, least, most)


def charge(
    energy: Float[AnyArray, "*n 2"], power: Float[AnyArray, "*n 2"], efficiency: float | Float[Array, ""]
) -> Float[Array, "*n 2"]:
    """E⁺ = E − dt (max(P, 0)/η + η min(P, 0)) [MWh].

    Args:
        energy: (..., 2), what each battery holds [MWh].
        power: (..., 2), power given [MW].
        efficiency: efficiency of charging, and again of discharging [1].
    """
    change = jnp.maximum(power, 0.0) / efficiency + efficiency * jnp.minimum(power, 0.0)
    # The bounds are those of `battery_power`, but for rounding.
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
    """Reward [$] of a step: −price (loss + Σ withheld − Σ power) dt − 20 max(|Q| − 0.4 |P|, 0) dt + value Σ ΔE − wear
    Σ |power| dt − switching, and the cost of an outage where nothing is supplied.

    The energy bought beyond load less sun, which no action changes, at the price of its hour.

    Args:
        hour: in which the step ends; feeder: losses of the lines [MW] and what the substation supplies, P [MW] and
        Q [Mvar]; withheld: solar power not taken [MW]; power: of the batteries [MW]; stored: change of what they hold
        [MWh]; moved: switch positions changed; dark: whether the feeder is.
    """
    loss, active, reactive = (jnp.asarray(feeder)[..., k] for k in range(3))
    bought = price(hour) * DT * (loss + jnp.sum(withheld, -1) - jnp.sum(power, -1))
    billed = REACTIVE_PRICE * DT * jnp.maximum(jnp.abs(reactive) - FREE_REACTIVE * jnp.abs(active), 0.0)
    worn = WEAR * DT * jnp.sum(jnp.abs(power), -1)
    outage = jnp.where(dark, OUTAGE_COST, 0.0)
    return STORED_VALUE * jnp.sum(stored, -1) - bought - billed - worn - SWITCHING_COST * moved - outage
