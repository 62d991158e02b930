"""A distribution feeder with solar inverters, batteries and switchable lines: the IEEE 33-bus feeder over one day.

Every quarter of an hour the controller sets what each inverter withholds and its reactive power, what each battery
gives or takes, and which line of each loop is open; then load and sun move on and the AC power flow is solved.

Feeder and flow: feeder33.py and power_flow.py. Daily load: IEEE Reliability Test System (1979), table 4, weekday in
summer. Sun: Haurwitz's clear sky (J. Meteorology 2, 1945) times a clearness that wanders. Volt-var curve: IEEE
1547-2018, table 8, category B. Voltages must stay within ±5 % (ANSI C84.1, range A); the paper gives no current limits.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.plants import feeder33 as feeder
from neorl_core.plants.base import AnyArray, clip_to
from neorl_core.plants.power_flow import Flow, is_radial, magnitude, path_matrix, solve
from neorl_core.types import AgentView, Constraint, Controller, Plant, PlantSpec, Space, Timestep

DT = 0.25
HORIZON = 96
ITERATIONS = 10
"""Within 1e-8 of the fixed point at Baran and Wu's full load."""

SOLAR_BUSES = (18, 22, 25, 33)
BATTERY_BUSES = (14, 31)
"""In the paper's count, the substation being bus 1."""
UNITS = tuple(f"solar_{bus}" for bus in SOLAR_BUSES) + tuple(f"battery_{bus}" for bus in BATTERY_BUSES)
UNIT_BUSES = tuple(bus - 2 for bus in SOLAR_BUSES + BATTERY_BUSES)
"""Rows of the feeder's arrays."""
SOLAR, BATTERIES, SWITCHES = len(SOLAR_BUSES), len(BATTERY_BUSES), feeder.TIES
SOLAR_MW = 0.8
SOLAR_MVA = 0.88
BATTERY_MW = 0.5
BATTERY_MVA = 0.6
BATTERY_MWH = 2.0
RATING = (SOLAR_MVA,) * SOLAR + (BATTERY_MVA,) * BATTERIES

LATITUDE, DECLINATION = 0.59, 0.35
"""Radians: the sun over 34 degrees north in late May."""
# Percent of the daily peak at the full hours 0 to 24; the table's first hour ends at 1.
DAILY_LOAD = (
    *(72, 64, 60, 58, 56, 56, 58, 64, 76, 87, 95, 99, 100),
    *(99, 100, 100, 97, 96, 96, 93, 92, 92, 93, 87, 72),
)
# $/MWh, by the hour in which an interval ends: a flat tariff with a dear evening and a cheap night.
NIGHT_PRICE, DAY_PRICE, EVENING_PRICE = 60.0, 100.0, 200.0
STORED_VALUE = 100.0
"""$/MWh in a battery, so that emptying it before the day ends is no profit."""
WEAR = 10.0
"""$/MWh that a battery gives or takes."""
SWITCHING_COST = 2.0
"""$ per line opened and closed."""

_TOPS = tuple(float(len(loop) - 1) for loop in feeder.LOOP_LINES)
_TIES = tuple(f"open_line_of_loop_{loop + 1}" for loop in range(SWITCHES))
SPEC = PlantSpec(
    name="power_grid",
    observation=Space(
        names=(
            *("hour", "load_level", "clearness"),
            *(f"energy_{bus}" for bus in BATTERY_BUSES),
            *_TIES,
            *(f"voltage_{unit}" for unit in UNITS),
            *("lowest_voltage", "highest_voltage", "loss"),
        ),
        units=("h", "1", "1", *("MWh",) * BATTERIES, *("1",) * SWITCHES, *("pu",) * (len(UNITS) + 2), "MW"),
        low=(0.0, 0.0, 0.0, *(0.0,) * BATTERIES, *(0.0,) * SWITCHES, *(0.0,) * (len(UNITS) + 2), 0.0),
        high=(24.0, 2.0, 1.0, *(BATTERY_MWH,) * BATTERIES, *_TOPS, *(1.5,) * (len(UNITS) + 2), 10.0),
    ),
    action=Space(
        names=(
            *(f"withheld_{unit}" for unit in UNITS[:SOLAR]),
            *(f"power_{unit}" for unit in UNITS[SOLAR:]),
            *(f"reactive_{unit}" for unit in UNITS),
            *_TIES,
        ),
        units=(*("MW",) * len(UNITS), *("Mvar",) * len(UNITS), *("1",) * SWITCHES),
        low=(*(0.0,) * SOLAR, *(-BATTERY_MW,) * BATTERIES, *(-mva for mva in RATING), *(0.0,) * SWITCHES),
        high=(*(SOLAR_MW,) * SOLAR, *(BATTERY_MW,) * BATTERIES, *RATING, *_TOPS),
    ),
    constraints=(Constraint("bus voltage", "pu", 0.95, 1.05),),
    dt=DT,
    time_unit="h",
    horizon=HORIZON,
    score_range=(0.0, 1.0),
)
LIMIT = SPEC.constraints[0]


class Params(NamedTuple):
    """Physical constants and disturbances."""

    load_scale: float | Float[Array, ""] = 0.8
    """The day's peak as a fraction of the paper's loads."""
    bus_load: float | Float[Array, " 32"] = 1.0
    """Each bus's share, relative to the paper's [1]."""
    impedance_scale: float | Float[Array, ""] = 1.0
    """Lines' impedance relative to the paper's [1]."""
    source_voltage: float | Float[Array, ""] = 1.02
    """At the substation [pu], where a tap changer holds it; the paper's 1.0 leaves its far buses below any standard."""
    efficiency: float | Float[Array, ""] = 0.95
    """Of a battery's charging, and again of its discharging [1]."""
    load_sd: float | Float[Array, ""] = 0.0
    """Standard deviation of the load's slow relative deviation from the daily curve [1]."""
    load_time_constant: float | Float[Array, ""] = 3.0
    """Its time constant [h]."""
    clearness_mean: float | Float[Array, ""] = 0.7
    """Part of the clear sky's irradiance that arrives [1]."""
    clearness_sd: float | Float[Array, ""] = 0.0
    """Standard deviation of its slow deviation [1]."""
    clearness_time_constant: float | Float[Array, ""] = 1.5
    """Its time constant [h]."""
    start_energy_spread: float | Float[Array, ""] = 0.0
    """Half range of what batteries hold at midnight, around one half [1]."""
    topologies: float | Float[Array, ""] = 1.0
    """How many of the topologies in `STARTS` a day may begin with [1]."""


class Domain(NamedTuple):
    """The operating domain: how far days, feeders and batteries differ."""

    load_scale_low: float = 0.7
    load_scale_high: float = 0.8
    bus_load_spread: float = 0.1
    impedance_spread: float = 0.03
    efficiency_spread: float = 0.01
    load_sd: float = 0.03
    clearness_mean_low: float = 0.5
    clearness_mean_high: float = 0.9
    clearness_sd: float = 0.15
    start_energy_spread: float = 0.2
    topologies: float = 3.0


class State(NamedTuple):
    step: Int[Array, ""]
    load_level: Float[Array, ""]
    """Of the paper's loads [1]."""
    clearness: Float[Array, ""]
    energy: Float[Array, " 2"]
    """MWh in each battery."""
    positions: Int[Array, " 5"]
    """Of each loop, which of its lines is open."""


NOMINAL = Params()
STARTS = tuple(feeder.positions_of(lines) for lines in ((32, 33, 34, 35, 36), (6, 13, 8, 31, 36), (6, 13, 9, 31, 27)))
"""Topologies that a dispatcher may have left: the paper's, its best by one exchange after another, and the best one."""


def hour_of(step: Int[Array, ""], dtype: jnp.dtype) -> Float[Array, ""]:
    """Hour of the day [h] after a number of steps from midnight."""
    return DT * (step % HORIZON).astype(dtype)


def daily_load(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """The daily curve, 1 at its peak, linear between full hours."""
    hour = jnp.asarray(hour)
    return jnp.interp(hour, jnp.arange(25, dtype=hour.dtype), jnp.asarray(DAILY_LOAD, hour.dtype) / 100)


def price(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """$/MWh in the interval that ends at this hour."""
    hour = jnp.asarray(hour)
    night = jnp.where((hour > 7.0) & (hour <= 22.0), DAY_PRICE, NIGHT_PRICE)
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
    """What batteries really give (+) or take (−) during a step [MW], as what they hold [MWh] allows."""
    most = jnp.asarray(energy) * efficiency / DT
    least = -(BATTERY_MWH - jnp.asarray(energy)) / (efficiency * DT)
    return jnp.clip(command, least, most)


def charge(
    energy: Float[AnyArray, "*n 2"], power: Float[AnyArray, "*n 2"], efficiency: float | Float[Array, ""]
) -> Float[Array, "*n 2"]:
    """E⁺ = E − dt (max(P, 0)/η + η min(P, 0)) [MWh]."""
    change = jnp.maximum(power, 0.0) / efficiency + efficiency * jnp.minimum(power, 0.0)
    # The bounds are those of `battery_power`, but for rounding.
    return jnp.clip(energy - DT * change, 0.0, BATTERY_MWH)


def earnings(
    hour: Float[AnyArray, "*n"],
    loss: Float[AnyArray, "*n"],
    withheld: Float[AnyArray, "*n 4"],
    power: Float[AnyArray, "*n 2"],
    stored: Float[AnyArray, "*n 2"],
    moved: Float[AnyArray, "*n"],
) -> Float[Array, "*n"]:
    """Reward [$] of a step: −price (loss + Σ withheld − Σ power) dt + value Σ ΔE − wear Σ |power| dt − switching.

    The energy bought beyond load less sun, which no action changes, at the price of its hour.

    Args:
        hour: in which the step ends; loss: of the lines [MW]; withheld: solar power not taken [MW]; power: of the
        batteries [MW]; stored: change of what they hold [MWh]; moved: switch positions changed.
    """
    bought = price(hour) * DT * (loss + jnp.sum(withheld, -1) - jnp.sum(power, -1))
    worn = WEAR * DT * jnp.sum(jnp.abs(power), -1)
    return STORED_VALUE * jnp.sum(stored, -1) - bought - worn - SWITCHING_COST * moved


def flow(
    level: Float[Array, ""],
    active: Float[Array, " 6"],
    reactive: Float[Array, " 6"],
    positions: Int[Array, " 5"],
    params: Params,
) -> Flow:
    """The power flow under a load level [1] with the units feeding in active [MW] and reactive [Mvar] power."""
    dtype = active.dtype
    where = jnp.asarray(UNIT_BUSES)
    load = level * jnp.asarray(params.bus_load, dtype)
    impedance = jnp.stack([jnp.asarray(feeder.RESISTANCE, dtype), jnp.asarray(feeder.REACTANCE, dtype)], -1)
    return solve(
        path_matrix(positions, dtype),
        (load * jnp.asarray(feeder.ACTIVE_LOAD, dtype)).at[where].add(-active),
        (load * jnp.asarray(feeder.REACTIVE_LOAD, dtype)).at[where].add(-reactive),
        impedance * params.impedance_scale,
        ITERATIONS,
        params.source_voltage,
    )


def switch(before: Int[Array, " 5"], command: Float[Array, " 5"]) -> Int[Array, " 5"]:
    """Positions after a command, rounded; one that would not leave a radial feeder is refused and nothing moves."""
    wanted = jnp.round(command).astype(before.dtype)
    return jnp.where(is_radial(wanted), wanted, before)


def _observe(state: State, found: Flow) -> Float[Array, " 19"]:
    dtype = state.energy.dtype
    voltage = magnitude(found.voltage)
    return jnp.concatenate(
        [
            jnp.stack([hour_of(state.step, dtype), state.load_level, state.clearness]),
            state.energy,
            state.positions.astype(dtype),
            voltage[jnp.asarray(UNIT_BUSES)],
            jnp.stack([jnp.min(voltage), jnp.max(voltage), found.loss]),
        ]
    )


def operate(
    state: State, action: Float[Array, " 17"], load_level: Float[Array, ""], clearness: Float[Array, ""], params: Params
) -> tuple[State, Flow, Float[Array, ""]]:
    """A quarter of an hour under an action, with the load and the sky that it ends with.

    Returns:
        The state after it, its power flow, and the reward [$].
    """
    hour = hour_of(state.step + 1, action.dtype)
    withheld, command, reactive, wanted = jnp.split(clip_to(SPEC.action, action), (SOLAR, SOLAR + 2, 2 * SOLAR + 4))
    sun = available(hour, clearness)
    withheld = jnp.minimum(withheld, sun)
    power = battery_power(state.energy, command, params.efficiency)
    active = jnp.concatenate([sun - withheld, power])
    # Active power has priority: what it leaves of the inverter's rating bounds the reactive power.
    most = jnp.sqrt(jnp.square(jnp.asarray(RATING, action.dtype)) - jnp.square(active))
    positions = switch(state.positions, wanted)
    energy = charge(state.energy, power, params.efficiency)
    found = flow(load_level, active, jnp.clip(reactive, -most, most), positions, params)
    moved = jnp.sum(positions != state.positions).astype(action.dtype)
    reward = earnings(hour, found.loss, withheld, power, energy - state.energy, moved)
    return State(state.step + 1, load_level, clearness, energy, positions), found, reward


def drift(state: State, draw: Float[Array, " 2"], params: Params) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Load level and clearness a step later: deviations are AR(1), d⁺ = φ d + sd √(1 − φ²) w, φ = exp(−dt/τ).

    Args:
        state: now; draw: two standard normal numbers w, zero for the expected course.
    """
    dtype = state.energy.dtype
    taus = jnp.stack(
        [jnp.asarray(params.load_time_constant, dtype), jnp.asarray(params.clearness_time_constant, dtype)]
    )
    spreads = jnp.stack([jnp.asarray(params.load_sd, dtype), jnp.asarray(params.clearness_sd, dtype)])
    phi = jnp.exp(-DT / taus)
    now, then = (params.load_scale * daily_load(hour_of(state.step + k, dtype)) for k in (0, 1))
    deviation = jnp.stack([state.load_level / now - 1, state.clearness - params.clearness_mean])
    deviation = phi * deviation + spreads * jnp.sqrt(1 - phi**2) * draw
    return then * (1 + deviation[0]), jnp.clip(params.clearness_mean + deviation[1], 0.05, 1.0)


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    """A day, a feeder and batteries drawn uniformly from the domain."""
    key_day, key_buses = jax.random.split(key)
    day = jax.random.uniform(key_day, (4,))
    buses = jax.random.uniform(key_buses, (feeder.BUSES,), minval=-1.0, maxval=1.0)
    return NOMINAL._replace(
        load_scale=domain.load_scale_low + (domain.load_scale_high - domain.load_scale_low) * day[0],
        bus_load=1 + domain.bus_load_spread * buses,
        impedance_scale=1 + domain.impedance_spread * (2 * day[1] - 1),
        efficiency=NOMINAL.efficiency + domain.efficiency_spread * (2 * day[2] - 1),
        load_sd=domain.load_sd,
        clearness_mean=domain.clearness_mean_low + (domain.clearness_mean_high - domain.clearness_mean_low) * day[3],
        clearness_sd=domain.clearness_sd,
        start_energy_spread=domain.start_energy_spread,
        topologies=domain.topologies,
    )


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 19"]]:
    """Midnight, batteries about half full, in one of the topologies that a dispatcher may have left."""
    key_weather, key_energy, key_topology = jax.random.split(key, 3)
    load, sky = jax.random.normal(key_weather, (2,))
    half = 0.5 + params.start_energy_spread * jax.random.uniform(key_energy, (BATTERIES,), minval=-1.0, maxval=1.0)
    chosen = jnp.floor(params.topologies * jax.random.uniform(key_topology)).astype(jnp.int32)
    state = State(
        step=jnp.zeros((), jnp.int32),
        load_level=params.load_scale * (DAILY_LOAD[0] / 100) * (1 + params.load_sd * load),
        clearness=jnp.clip(params.clearness_mean + params.clearness_sd * sky, 0.05, 1.0),
        energy=BATTERY_MWH * half,
        positions=jnp.asarray(STARTS, jnp.int32)[jnp.clip(chosen, 0, len(STARTS) - 1)],
    )
    idle = jnp.zeros((len(UNITS),))
    return state, _observe(state, flow(state.load_level, idle, idle, state.positions, params))


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 17"], params: Params) -> tuple[State, Timestep]:
    """A quarter of an hour; a collapse of the voltage is a violation but no end, and its loss is paid."""
    load_level, clearness = drift(state, jax.random.normal(key, (2,), action.dtype), params)
    following, found, reward = operate(state, action, load_level, clearness, params)
    observation = _observe(following, found)
    return following, Timestep(
        observation=observation,
        reward=reward,
        margins=logged_margins(observation),
        terminated=jnp.asarray(False),
        truncated=following.step >= HORIZON,
    )


def state_of(observation: Float[Array, " 19"]) -> State:
    """The state, all of which is observed; at 24 h it is midnight again."""
    hour, load_level, clearness = observation[:3]
    positions = jnp.round(observation[5:10]).astype(jnp.int32)
    return State(jnp.round(hour / DT).astype(jnp.int32), load_level, clearness, observation[3:5], positions)


def predict(
    observation: Float[Array, " 19"], action: Float[Array, " 17"], params: Params
) -> tuple[Float[Array, " 19"], Float[Array, " 1"]]:
    """The next observation with load and sky on their expected course, and the margin [pu] then."""
    state = state_of(observation)
    load_level, clearness = drift(state, jnp.zeros(2, observation.dtype), params)
    following, found, _ = operate(state, action, load_level, clearness, params)
    observation = _observe(following, found)
    return observation, logged_margins(observation)


def applied(observation: Float[Array, " 19"]) -> Float[Array, " 17"]:
    """The resting action with the switches as they are."""
    return jnp.concatenate([jnp.zeros_like(observation[: 2 * len(UNITS)]), observation[5:10]])


def logged_margins(next_observation: Float[AnyArray, "*n 19"]) -> Float[Array, "*n 1"]:
    """Distance [pu] of the lowest and highest voltage after the step to the nearer limit."""
    lowest, highest = next_observation[..., 16], next_observation[..., 17]
    return jnp.minimum(jnp.asarray(lowest) - LIMIT.low, LIMIT.high - jnp.asarray(highest))[..., None]


def logged_reward(
    observation: Float[AnyArray, "*n 19"], action: Float[AnyArray, "*n 17"], next_observation: Float[AnyArray, "*n 19"]
) -> Float[Array, "*n"]:
    """The plant's reward [$] of logged rows, with the batteries' nominal efficiency."""
    hour, clearness, loss = (next_observation[..., k] for k in (0, 2, 18))
    withheld = jnp.minimum(action[..., :SOLAR], available(hour, clearness)[..., None])
    power = battery_power(observation[..., 3:5], action[..., SOLAR : SOLAR + BATTERIES], NOMINAL.efficiency)
    stored = jnp.asarray(next_observation[..., 3:5]) - observation[..., 3:5]
    moved = jnp.sum(next_observation[..., 5:10] != observation[..., 5:10], -1).astype(stored.dtype)
    return earnings(hour, loss, withheld, power, stored, moved)


class VoltVarParams(NamedTuple):
    """A droop for reactive power and a timetable for batteries."""

    voltages: tuple[float, ...] | Float[Array, " 4"] = (0.92, 0.98, 1.02, 1.08)
    """Corners of the curve [pu]: IEEE 1547-2018, table 8, category B, around 1 pu."""
    reactive: tuple[float, ...] | Float[Array, " 4"] = (0.44, 0.0, 0.0, -0.44)
    """Reactive power fed in at the corners, of the inverter's rating [1]."""
    charge_power: float | Float[Array, ""] = 0.3
    """MW that each battery takes by night."""
    discharge_power: float | Float[Array, ""] = 0.4
    """MW that each battery gives in the evening."""


def _act(
    params: VoltVarParams, state: tuple[()], observation: Float[Array, " 19"], applied: Float[Array, " 17"]
) -> tuple[tuple[()], Float[Array, " 17"]]:
    corners, values = (jnp.asarray(x, observation.dtype) for x in params[:2])
    rating = jnp.asarray(RATING, observation.dtype)
    reactive = rating * jnp.interp(observation[10:16], corners, values)
    ahead = price(observation[0] + DT)
    power = jnp.where(ahead == NIGHT_PRICE, -params.charge_power, 0.0)
    power = jnp.where(ahead == EVENING_PRICE, params.discharge_power, power)
    withheld = jnp.zeros((SOLAR,), observation.dtype)
    return state, jnp.concatenate([withheld, jnp.broadcast_to(power, (BATTERIES,)), reactive, observation[5:10]])


volt_var = Controller(lambda params, observation: (), _act)
"""Each inverter's reactive power follows its own voltage, batteries a timetable, and switches stay as they are."""

_COMMON = (0, 1, 2)
AGENTS = (
    *(AgentView(UNITS[k], (*_COMMON, 10 + k), (k, 6 + k)) for k in range(SOLAR)),
    *(AgentView(UNITS[SOLAR + k], (*_COMMON, 3 + k, 14 + k), (SOLAR + k, 10 + k)) for k in range(BATTERIES)),
    AgentView("dispatcher", tuple(range(SPEC.observation.size)), tuple(range(12, 17))),
)

PLANT = Plant(
    spec=SPEC,
    params=NOMINAL,
    domain=Domain(),
    sample_params=sample_params,
    reset=reset,
    step=step,
    predict=predict,
    applied=applied,
    fallback=volt_var,
    fallback_params=VoltVarParams(),
    agents=AGENTS,
)
