"""A distribution feeder with solar inverters, batteries and switchable lines: the IEEE 33-bus feeder over one day.

Every quarter of an hour the controller sets what each inverter withholds and its reactive power, what each battery
gives or takes, and which line of each loop is open; then load and sun move on and the AC power flow is solved.

The feeder is Baran and Wu's (feeder33.py), the flow is that of power_flow.py, what is connected to it stands in
units.py. Voltages must stay within ±5 % (ANSI C84.1, range A), which the paper's own case (0.913 at full load and
1.0 at the substation) does not hold: here the substation is at 1.02 and days peak at 80 to 100 % of the paper's loads,
which the feeder holds with the right lines open, or with reactive power, and not at rest. The paper gives no current
limits, and none are made up.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.plants.base import AnyArray, clip_to
from neorl_core.plants.power_grid import feeder33 as feeder
from neorl_core.plants.power_grid import units
from neorl_core.plants.power_grid.agents import AGENTS
from neorl_core.plants.power_grid.control import TUNED, VoltVarParams, volt_var
from neorl_core.plants.power_grid.power_flow import LOWEST, Flow, holds, is_radial, magnitude, path_matrix, solve
from neorl_core.plants.power_grid.spec import SPEC
from neorl_core.types import Panel, Plant, Timestep

LIMIT = SPEC.constraints[0]

ITERATIONS = 20
"""Iterations of the power flow: within 1e-6 pu of its fixed point wherever voltages are above 0.6 pu."""


class Params(NamedTuple):
    """Physical constants and disturbances."""

    load_scale: float | Float[Array, ""] = 0.9
    """The day's peak as a fraction of the paper's loads."""
    bus_load: float | Float[Array, " 32"] = 1.0
    """Each bus's share, relative to the paper's [1]."""
    impedance_scale: float | Float[Array, ""] = 1.0
    """Lines' impedance relative to the paper's [1]."""
    source_voltage: float | Float[Array, ""] = 1.02
    """Voltage at the substation [pu], held by a tap changer; the paper's 1.0 leaves far buses below any standard."""
    efficiency: float | Float[Array, ""] = units.EFFICIENCY
    """Efficiency of a battery's charging, and again of its discharging [1]."""
    load_sd: float | Float[Array, ""] = 0.0
    """Standard deviation of the load's slow relative deviation from the daily curve [1]."""
    load_time_constant: float | Float[Array, ""] = 3.0
    """The deviation's time constant [h]."""
    clearness_mean: float | Float[Array, ""] = 0.7
    """Part of the clear sky's irradiance that arrives [1]."""
    clearness_sd: float | Float[Array, ""] = 0.0
    """Standard deviation of its slow deviation [1]."""
    clearness_time_constant: float | Float[Array, ""] = 1.5
    """The deviation's time constant [h]."""
    start_energy_spread: float | Float[Array, ""] = 0.0
    """Half range of what batteries hold at midnight, around one half [1]."""
    voltage_noise: float | Float[Array, ""] = 0.0
    """Standard deviation of measured voltages, relative [1]."""
    meter_noise: float | Float[Array, ""] = 0.0
    """Standard deviation of measured powers, of the load level and of the sky's clearness, relative [1]."""
    topologies: float | Float[Array, ""] = 1.0
    """How many of `units.TOPOLOGIES`, from the first, a day may begin with [1]."""


class Domain(NamedTuple):
    """The operating domain: how far days, feeders and batteries differ."""

    load_scale_low: float = 0.8
    load_scale_high: float = 1.0
    bus_load_spread: float = 0.1
    impedance_spread: float = 0.03
    efficiency_spread: float = 0.01
    load_sd: float = 0.03
    clearness_mean_low: float = 0.5
    clearness_mean_high: float = 0.9
    clearness_sd: float = 0.15
    start_energy_spread: float = 0.2
    voltage_noise: float = 0.001
    meter_noise: float = 0.005
    topologies: float = 5.0


class State(NamedTuple):
    """The true state of the day, the feeder and the batteries."""

    step: Int[Array, ""]
    load_level: Float[Array, ""]
    """Load level, as a share of the paper's loads [1]."""
    clearness: Float[Array, ""]
    energy: Float[Array, " 2"]
    """MWh in each battery."""
    positions: Int[Array, " 5"]
    """Which line of each loop is open."""


NOMINAL = Params()


def flow(
    level: Float[Array, ""],
    active: Float[Array, " 6"],
    reactive: Float[Array, " 6"],
    positions: Int[Array, " 5"],
    params: Params,
) -> Flow:
    """The power flow under a load level [1] with the units feeding in active [MW] and reactive [Mvar] power.

    Args:
        level: load, as a share of the paper's [1].
        active: (6,), fed in by each unit [MW].
        reactive: (6,), fed in by each unit [Mvar].
        positions: (5,), which line of each loop is open.
        params: constants of the plant.
    """
    dtype = active.dtype
    where = jnp.asarray(units.UNIT_BUSES)
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


def _observe(state: State, found: Flow, noise: Float[Array, " 13"]) -> Float[Array, " 21"]:
    """What is measured, with relative noise as `_noise` has it; of a feeder that went dark nothing but zeros."""
    dtype = state.energy.dtype
    voltage = magnitude(found.voltage)
    # By their places, for where a voltage is computed anew in another kernel the gradient of a minimum finds none.
    ends = jnp.stack([voltage[jnp.argmin(voltage)], voltage[jnp.argmax(voltage)], found.loss])
    feeder_now = jnp.concatenate([voltage[jnp.asarray(units.UNIT_BUSES)], ends, found.supplied])
    return jnp.concatenate(
        [
            units.hour_of(state.step, dtype)[None],
            jnp.stack([state.load_level, state.clearness]) * (1 + noise[:2]),
            state.energy,
            state.positions.astype(dtype),
            jnp.where(holds(found), feeder_now, 0.0) * (1 + noise[2:]),
        ]
    )


def _noise(key: PRNGKeyArray, params: Params) -> Float[Array, " 13"]:
    """Relative errors of load level and clearness, of eight voltages, and of losses and what is supplied."""
    meter, voltage = (jnp.asarray(x, float) for x in (params.meter_noise, params.voltage_noise))
    spread = jnp.stack([meter] * 2 + [voltage] * (len(units.UNITS) + 2) + [meter] * 3)
    return spread * jax.random.normal(key, spread.shape)


def operate(
    state: State, action: Float[Array, " 17"], load_level: Float[Array, ""], clearness: Float[Array, ""], params: Params
) -> tuple[State, Flow, Float[Array, ""]]:
    """A quarter of an hour under an action, with the load and the sky that it ends with.

    Args:
        state: true state before the step.
        action: (17,), powers [MW, Mvar] and switch positions.
        load_level: load at the end of the step, as a share of the paper's [1].
        clearness: clearness of the sky at the end of the step [1].
        params: constants of the plant.

    Returns:
        The state after it, its power flow, and the reward [$].
    """
    hour = units.hour_of(state.step + 1, action.dtype)
    withheld, command, reactive, wanted = jnp.split(
        clip_to(SPEC.action, action), (units.SOLAR, units.SOLAR + 2, 2 * units.SOLAR + 4)
    )
    sun = units.available(hour, clearness)
    withheld = jnp.minimum(withheld, sun)
    power = units.battery_power(state.energy, command, params.efficiency)
    active = jnp.concatenate([sun - withheld, power])
    # Active power has priority: what it leaves of the inverter's rating bounds the reactive power.
    rating, capability = (jnp.asarray(x, action.dtype) for x in (units.RATING, units.REACTIVE))
    most = jnp.minimum(jnp.sqrt(jnp.square(rating) - jnp.square(active)), capability)
    positions = switch(state.positions, wanted)
    energy = units.charge(state.energy, power, params.efficiency)
    found = flow(load_level, active, jnp.clip(reactive, -most, most), positions, params)
    moved = jnp.sum(positions != state.positions).astype(action.dtype)
    lit = holds(found)
    billed = jnp.where(lit, jnp.append(found.loss, found.supplied), 0.0)
    reward = units.earnings(hour, billed, withheld, power, energy - state.energy, moved, ~lit)
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
    phi = jnp.exp(-units.DT / taus)
    now, then = (params.load_scale * units.daily_load(units.hour_of(state.step + k, dtype)) for k in (0, 1))
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
        voltage_noise=domain.voltage_noise,
        meter_noise=domain.meter_noise,
        topologies=domain.topologies,
    )


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 21"]]:
    """Midnight, batteries about half full, in one of the topologies that a dispatcher may have left."""
    key_weather, key_energy, key_topology, key_noise = jax.random.split(key, 4)
    load, sky = jax.random.normal(key_weather, (2,))
    half = 0.5 + params.start_energy_spread * jax.random.uniform(
        key_energy, (units.BATTERIES,), minval=-1.0, maxval=1.0
    )
    chosen = jnp.floor(params.topologies * jax.random.uniform(key_topology)).astype(jnp.int32)
    state = State(
        step=jnp.zeros((), jnp.int32),
        load_level=params.load_scale * (units.DAILY_LOAD[0] / 100) * (1 + params.load_sd * load),
        clearness=jnp.clip(params.clearness_mean + params.clearness_sd * sky, 0.05, 1.0),
        energy=units.BATTERY_MWH * half,
        positions=jnp.asarray(units.TOPOLOGIES, jnp.int32)[jnp.clip(chosen, 0, units.SUNNY - 1)],
    )
    idle = jnp.zeros((len(units.UNITS),))
    found = flow(state.load_level, idle, idle, state.positions, params)
    return state, _observe(state, found, _noise(key_noise, params))


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 17"], params: Params) -> tuple[State, Timestep]:
    """A quarter of an hour; where no power flow exists, or units trip, the feeder is dark and the episode ends.

    Args:
        key: randomness of the step.
        state: true state before the step.
        action: (17,), powers [MW, Mvar] and switch positions.
        params: constants of the plant.
    """
    key_day, key_noise = jax.random.split(key)
    load_level, clearness = drift(state, jax.random.normal(key_day, (2,), action.dtype), params)
    following, found, reward = operate(state, action, load_level, clearness, params)
    noise = _noise(key_noise, params)
    return following, Timestep(
        observation=_observe(following, found, noise),
        reward=reward,
        margins=logged_margins(_observe(following, found, jnp.zeros_like(noise))),
        terminated=~holds(found),
        truncated=following.step >= units.HORIZON,
    )


def state_of(observation: Float[Array, " 21"]) -> State:
    """The state, all of which is observed, but for noise; at 24 h it is midnight again."""
    hour, load_level, clearness = observation[:3]
    positions = jnp.round(observation[5:10]).astype(jnp.int32)
    return State(jnp.round(hour / units.DT).astype(jnp.int32), load_level, clearness, observation[3:5], positions)


def predict(
    observation: Float[Array, " 21"], action: Float[Array, " 17"], params: Params
) -> tuple[Float[Array, " 21"], Float[Array, " 1"]]:
    """The next observation with load and sky on their expected course, and the margin [pu] then.

    Args:
        observation: (21,), the observation, in its space's units.
        action: (17,), powers [MW, Mvar] and switch positions.
        params: constants of the plant.
    """
    state = state_of(observation)
    following, found, _ = operate(state, action, *drift(state, jnp.zeros(2, observation.dtype), params), params)
    observation = _observe(following, found, jnp.zeros(13, observation.dtype))
    return observation, logged_margins(observation)


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 21"], params: Params) -> tuple[State, Params]:
    """The whole state is measured, load level and clearness with noise."""
    load_level, clearness = observation[1:3] / (1 + _noise(key, params)[:2])
    return state_of(observation)._replace(load_level=load_level, clearness=clearness), params


def applied(observation: Float[Array, " 21"]) -> Float[Array, " 17"]:
    """The resting action with the switches as they are."""
    return jnp.concatenate([jnp.zeros_like(observation[: 2 * len(units.UNITS)]), observation[5:10]])


def logged_margins(next_observation: Float[AnyArray, "*n 21"]) -> Float[Array, "*n 1"]:
    """Distance [pu] of the lowest and highest voltage after the step to the nearer limit."""
    lowest, highest = next_observation[..., 16], next_observation[..., 17]
    return jnp.minimum(jnp.asarray(lowest) - LIMIT.low, LIMIT.high - jnp.asarray(highest))[..., None]


def logged_reward(
    observation: Float[AnyArray, "*n 21"], action: Float[AnyArray, "*n 17"], next_observation: Float[AnyArray, "*n 21"]
) -> Float[Array, "*n"]:
    """The plant's reward [$] of logged rows, with the batteries' nominal efficiency.

    Args:
        observation: (..., 21), the observation, in its space's units.
        action: (..., 17), powers [MW, Mvar] and switch positions.
        next_observation: (..., 21), what was observed a step later.
    """
    hour, clearness, feeder_now = next_observation[..., 0], next_observation[..., 2], next_observation[..., 18:21]
    withheld = jnp.minimum(action[..., : units.SOLAR], units.available(hour, clearness)[..., None])
    power = units.battery_power(
        observation[..., 3:5], action[..., units.SOLAR : units.SOLAR + units.BATTERIES], NOMINAL.efficiency
    )
    stored = jnp.asarray(next_observation[..., 3:5]) - observation[..., 3:5]
    moved = jnp.sum(next_observation[..., 5:10] != observation[..., 5:10], -1).astype(stored.dtype)
    dark = next_observation[..., 16] < LOWEST
    return units.earnings(hour, feeder_now, withheld, power, stored, moved, dark)


PLANT = Plant(
    spec=SPEC,
    params=NOMINAL,
    domain=Domain(),
    sample_params=sample_params,
    reset=reset,
    step=step,
    predict=predict,
    applied=applied,
    resume=resume,
    fallback=volt_var,
    fallback_params=TUNED,
    found_params=VoltVarParams(),
    agents=AGENTS,
    drawn=(Panel("lowest and highest voltage", ("lowest_voltage", "highest_voltage"), limit=LIMIT.name),),
)
