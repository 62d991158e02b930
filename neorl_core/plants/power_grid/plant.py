"""A distribution feeder with solar inverters, batteries and switchable lines: the IEEE 33-bus feeder over one day.

Every quarter of an hour the controller sets curtailment and reactive power of each inverter, the power of each battery,
and the open line of each loop. Then load and sun change and the AC power flow is solved.

The feeder is Baran and Wu's (feeder33.py); units are in units.py. Voltages must stay within ±5 % (ANSI C84.1, range A).
The paper's case violates the lower limit (0.913 pu at full load, with 1.0 pu at the substation). Here the substation is
at 1.02 pu and the load peaks at 80 to 100 % of the paper's loads. A good choice of open lines, or reactive power, then
keeps the limits; without any action the limits are violated.

The plant's controller has a standard volt-var curve, a timetable for batteries, and a fixed topology. Over
1,000 days, the Shapley values of the tuned controller's parts are (`python -m benchmarks.tuning.levers`): batteries 418
$ a day (42 %), reactive power 486 $ (49 %), topology 81 $ (8 %). Without the tuned topology, 673 days violate a
limit; with all parts no day does.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.graph.agent_layout import Links
from neorl_core.plants.base import AnyArray, Scalar, clip_to, with_domain
from neorl_core.plants.power_grid import feeder33 as feeder
from neorl_core.plants.power_grid import units
from neorl_core.plants.power_grid.power_flow import LOWEST, Flow, holds, is_radial, magnitude, path_matrix, solve
from neorl_core.types import AgentView, Constraint, Controller, Panel, Plant, PlantSpec, Space, Timestep

_TOPS = tuple(float(len(loop) - 1) for loop in feeder.LOOP_LINES)
_TIES = tuple(f"open_line_of_loop_{loop + 1}" for loop in range(units.SWITCHES))
_VOLTAGES = len(units.UNITS) + 2
SPEC = PlantSpec(
    name="power_grid",
    observation=Space(
        names=(
            *("hour", "load_level", "clearness"),
            *(f"energy_{bus}" for bus in units.BATTERY_BUSES),
            *_TIES,
            *(f"voltage_{unit}" for unit in units.UNITS),
            *("lowest_voltage", "highest_voltage", "loss", "supplied_active", "supplied_reactive"),
        ),
        units=(
            "h",
            "1",
            "1",
            *("MWh",) * units.BATTERIES,
            *("1",) * units.SWITCHES,
            *("pu",) * _VOLTAGES,
            *("MW", "MW", "Mvar"),
        ),
        low=(*(0.0,) * (3 + units.BATTERIES + units.SWITCHES + _VOLTAGES), 0.0, -10.0, -10.0),
        high=(24.0, 2.0, 1.0, *(units.BATTERY_MWH,) * units.BATTERIES, *_TOPS, *(1.5,) * _VOLTAGES, 10.0, 10.0, 10.0),
    ),
    action=Space(
        names=(
            *(f"withheld_{unit}" for unit in units.UNITS[: units.SOLAR]),
            *(f"power_{unit}" for unit in units.UNITS[units.SOLAR :]),
            *(f"reactive_{unit}" for unit in units.UNITS),
            *_TIES,
        ),
        units=(*("MW",) * len(units.UNITS), *("Mvar",) * len(units.UNITS), *("1",) * units.SWITCHES),
        low=(
            *(0.0,) * units.SOLAR,
            *(-units.BATTERY_MW,) * units.BATTERIES,
            *(-mvar for mvar in units.REACTIVE),
            *(0.0,) * units.SWITCHES,
        ),
        high=(*(units.SOLAR_MW,) * units.SOLAR, *(units.BATTERY_MW,) * units.BATTERIES, *units.REACTIVE, *_TOPS),
    ),
    constraints=(Constraint("bus voltage", "pu", 0.95, 1.05),),
    dt=units.DT,
    time_unit="h",
    horizon=units.HORIZON,
    # 0: no action and no switching; 100: the tuned controller (1,000 and 5,317 days).
    score_range=(-685.5, 297.7),
)

_AT = {name: place for place, name in enumerate(SPEC.observation.names)}
_DOES = {name: place for place, name in enumerate(SPEC.action.names)}


def _inverter(unit: str) -> AgentView:
    seen = ("hour", "clearness", f"voltage_{unit}")
    return AgentView(unit, tuple(_AT[name] for name in seen), (_DOES[f"withheld_{unit}"], _DOES[f"reactive_{unit}"]))


def _battery(unit: str) -> AgentView:
    seen = ("hour", f"energy_{unit.rpartition('_')[2]}", f"voltage_{unit}")
    return AgentView(unit, tuple(_AT[name] for name in seen), (_DOES[f"power_{unit}"], _DOES[f"reactive_{unit}"]))


_SWITCHES = tuple(name for name in SPEC.action.names if name.startswith("open_line"))
_METERS = ("hour", "load_level", *_SWITCHES, "lowest_voltage", "highest_voltage", "loss")
AGENTS = (
    *(_inverter(unit) for unit in units.UNITS[: units.SOLAR]),
    *(_battery(unit) for unit in units.UNITS[units.SOLAR :]),
    AgentView(
        "dispatcher",
        tuple(_AT[name] for name in (*_METERS, "supplied_active", "supplied_reactive")),
        tuple(_DOES[name] for name in _SWITCHES),
    ),
)
LINKS: Links = (
    ("dispatcher", "solar_22"),
    ("dispatcher", "solar_25"),
    ("dispatcher", "battery_14"),
    ("dispatcher", "battery_31"),
    ("battery_14", "solar_18"),
    ("battery_31", "solar_33"),
    # Ties 12-22, 18-33 and 25-29.
    ("solar_22", "battery_14"),
    ("solar_18", "solar_33"),
    ("solar_25", "battery_31"),
)
"""Pairs of agents that communicate: along lines from the substation, and along ties near two units. If one link fails,
every agent can still reach all others."""


LIMIT = SPEC.constraints[0]

ITERATIONS = 20
"""Iterations of the power flow; the error is below 1e-6 pu at voltages above 0.6 pu."""


class Params(NamedTuple):
    """Physical constants and disturbances."""

    load_scale: Scalar = 0.9
    """Peak load of the day as a fraction of the paper's loads [1]."""
    bus_load: float | Float[Array, " 32"] = 1.0
    """Load of each bus relative to the paper's [1]."""
    impedance_scale: Scalar = 1.0
    """Impedance of the lines relative to the paper's [1]."""
    source_voltage: Scalar = 1.02
    """Voltage at the substation [pu], fixed by a tap changer. At the paper's 1.0, far buses violate any standard."""
    efficiency: Scalar = units.EFFICIENCY
    """Efficiency of charging and of discharging a battery [1]."""
    load_sd: Scalar = 0.0
    """Standard deviation of the load around the daily curve, as a share; the deviation changes slowly [1]."""
    load_time_constant: Scalar = 3.0
    """Time constant of the load deviation [h]."""
    clearness_mean: Scalar = 0.7
    """Mean clearness: irradiance relative to a sky without clouds [1]."""
    clearness_sd: Scalar = 0.0
    """Standard deviation of the clearness [1]."""
    clearness_time_constant: Scalar = 1.5
    """Time constant of the clearness deviation [h]."""
    start_energy_spread: Scalar = 0.0
    """Half range of the initial state of charge around 0.5 [1]."""
    voltage_noise: Scalar = 0.0
    """Standard deviation of the voltage meters' relative noise [1]."""
    meter_noise: Scalar = 0.0
    """Standard deviation of the relative noise of powers, load level and clearness [1]."""
    topologies: Scalar = 1.0
    """Number of topologies, from the start of `units.TOPOLOGIES`, with which a day may start [1]."""


class Domain(NamedTuple):
    """The operating domain: how days, feeders and batteries vary. Spreads are half ranges."""

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
    step: Int[Array, ""]
    load_level: Float[Array, ""]
    """Load relative to the paper's loads [1]."""
    clearness: Float[Array, ""]
    energy: Float[Array, " 2"]
    """Stored energy of each battery [MWh]."""
    positions: Int[Array, " 5"]
    """Switch position of each loop: the index of the open line in `feeder33.LOOP_LINES`."""


NOMINAL = Params()


def flow(
    level: Float[Array, ""],
    active: Float[Array, " 6"],
    reactive: Float[Array, " 6"],
    positions: Int[Array, " 5"],
    params: Params,
) -> Flow:
    """Return the power flow at a load level [1] and the active [MW] and reactive [Mvar] power of the six units."""
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
    """Return the command, rounded to switch positions; return `before` if the feeder would not be radial."""
    wanted = jnp.round(command).astype(before.dtype)
    return jnp.where(is_radial(wanted), wanted, before)


def _observe(state: State, solution: Flow, noise: Float[Array, " 13"]) -> Float[Array, " 21"]:
    """Return the observation with relative noise from `_noise`. The meters of a dark feeder show zero."""
    dtype = state.energy.dtype
    voltage = magnitude(solution.voltage)
    # Index by argmin: if XLA computes a voltage a second time, the gradient of jnp.min may find no equal element.
    ends = jnp.stack([voltage[jnp.argmin(voltage)], voltage[jnp.argmax(voltage)], solution.loss])
    feeder_now = jnp.concatenate([voltage[jnp.asarray(units.UNIT_BUSES)], ends, solution.supplied])
    return jnp.concatenate(
        [
            units.hour_of(state.step, dtype)[None],
            jnp.stack([state.load_level, state.clearness]) * (1 + noise[:2]),
            state.energy,
            state.positions.astype(dtype),
            jnp.where(holds(solution), feeder_now, 0.0) * (1 + noise[2:]),
        ]
    )


def _noise(key: PRNGKeyArray, params: Params) -> Float[Array, " 13"]:
    """Draw relative errors of load level and clearness, eight voltages, losses, and supplied power."""
    meter, voltage = (jnp.asarray(x, float) for x in (params.meter_noise, params.voltage_noise))
    spread = jnp.stack([meter] * 2 + [voltage] * (len(units.UNITS) + 2) + [meter] * 3)
    return spread * jax.random.normal(key, spread.shape)


def operate(
    state: State, action: Float[Array, " 17"], load_level: Float[Array, ""], clearness: Float[Array, ""], params: Params
) -> tuple[State, Flow, Float[Array, ""]]:
    """Simulate a quarter of an hour with the load and clearness of its end.

    Returns:
        The next state, the power flow, and the reward [$].
    """
    hour = units.hour_of(state.step + 1, action.dtype)
    withheld, command, reactive, wanted = jnp.split(
        clip_to(SPEC.action, action), (units.SOLAR, units.SOLAR + 2, 2 * units.SOLAR + 4)
    )
    sun = units.available(hour, clearness)
    withheld = jnp.minimum(withheld, sun)
    power = units.battery_power(state.energy, command, params.efficiency)
    active = jnp.concatenate([sun - withheld, power])
    # Active power has priority; the rest of the inverter's rating limits the reactive power.
    rating, capability = (jnp.asarray(x, action.dtype) for x in (units.RATING, units.REACTIVE))
    most = jnp.minimum(jnp.sqrt(jnp.square(rating) - jnp.square(active)), capability)
    positions = switch(state.positions, wanted)
    energy = units.charge(state.energy, power, params.efficiency)
    solution = flow(load_level, active, jnp.clip(reactive, -most, most), positions, params)
    moved = jnp.sum(positions != state.positions).astype(action.dtype)
    lit = holds(solution)
    billed = jnp.where(lit, jnp.append(solution.loss, solution.supplied), 0.0)
    reward = units.earnings(hour, billed, withheld, power, energy - state.energy, moved, ~lit)
    return State(state.step + 1, load_level, clearness, energy, positions), solution, reward


def drift(state: State, draw: Float[Array, " 2"], params: Params) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the next load level and clearness: deviations d change to φ d + sd √(1 − φ²) w with φ = exp(−dt/τ)."""
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
    key_day, key_buses = jax.random.split(key)
    day = jax.random.uniform(key_day, (4,))
    buses = jax.random.uniform(key_buses, (feeder.BUSES,), minval=-1.0, maxval=1.0)
    return with_domain(
        NOMINAL,
        domain,
        load_scale=domain.load_scale_low + (domain.load_scale_high - domain.load_scale_low) * day[0],
        bus_load=1 + domain.bus_load_spread * buses,
        impedance_scale=1 + domain.impedance_spread * (2 * day[1] - 1),
        efficiency=NOMINAL.efficiency + domain.efficiency_spread * (2 * day[2] - 1),
        clearness_mean=domain.clearness_mean_low + (domain.clearness_mean_high - domain.clearness_mean_low) * day[3],
    )


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 21"]]:
    """Draw an initial state at midnight, with batteries about half full and one of the first `topologies`."""
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
    solution = flow(state.load_level, idle, idle, state.positions, params)
    return state, _observe(state, solution, _noise(key_noise, params))


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 17"], params: Params) -> tuple[State, Timestep]:
    """Simulate a quarter of an hour. The episode terminates if no power flow exists or voltages trip units (outage)."""
    key_day, key_noise = jax.random.split(key)
    load_level, clearness = drift(state, jax.random.normal(key_day, (2,), action.dtype), params)
    next_state, solution, reward = operate(state, action, load_level, clearness, params)
    noise = _noise(key_noise, params)
    return next_state, Timestep(
        observation=_observe(next_state, solution, noise),
        reward=reward,
        margins=logged_margins(_observe(next_state, solution, jnp.zeros_like(noise))),
        terminated=~holds(solution),
        truncated=next_state.step >= units.HORIZON,
    )


def state_of(observation: Float[Array, " 21"]) -> State:
    """Return the state that an observation shows, with the noise of load level and clearness. Hour 24 is midnight."""
    hour, load_level, clearness = observation[:3]
    positions = jnp.round(observation[5:10]).astype(jnp.int32)
    return State(jnp.round(hour / units.DT).astype(jnp.int32), load_level, clearness, observation[3:5], positions)


def predict(
    observation: Float[Array, " 21"], action: Float[Array, " 17"], params: Params
) -> tuple[Float[Array, " 21"], Float[Array, " 1"]]:
    """Predict the next observation for the expected load and clearness, and the margin [pu] after the step."""
    state = state_of(observation)
    next_state, solution, _ = operate(state, action, *drift(state, jnp.zeros(2, observation.dtype), params), params)
    observation = _observe(next_state, solution, jnp.zeros(13, observation.dtype))
    return observation, logged_margins(observation)


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 21"], params: Params) -> tuple[State, Params]:
    load_level, clearness = observation[1:3] / (1 + _noise(key, params)[:2])
    return state_of(observation)._replace(load_level=load_level, clearness=clearness), params


def applied(observation: Float[Array, " 21"]) -> Float[Array, " 17"]:
    """Return an action with zero powers and the present switch positions; powers are not observed."""
    return jnp.concatenate([jnp.zeros_like(observation[: 2 * len(units.UNITS)]), observation[5:10]])


def logged_margins(next_observation: Float[AnyArray, "*n 21"]) -> Float[Array, "*n 1"]:
    """Return min(lowest voltage − 0.95, 1.05 − highest voltage) [pu] after the step, for logged rows."""
    lowest, highest = next_observation[..., 16], next_observation[..., 17]
    return jnp.minimum(jnp.asarray(lowest) - LIMIT.low, LIMIT.high - jnp.asarray(highest))[..., None]


def logged_reward(
    observation: Float[AnyArray, "*n 21"], action: Float[AnyArray, "*n 17"], next_observation: Float[AnyArray, "*n 21"]
) -> Float[Array, "*n"]:
    """Return the rewards [$] of logged rows, with the batteries' nominal efficiency."""
    hour, clearness, feeder_now = next_observation[..., 0], next_observation[..., 2], next_observation[..., 18:21]
    withheld = jnp.minimum(action[..., : units.SOLAR], units.available(hour, clearness)[..., None])
    power = units.battery_power(
        observation[..., 3:5], action[..., units.SOLAR : units.SOLAR + units.BATTERIES], NOMINAL.efficiency
    )
    stored = jnp.asarray(next_observation[..., 3:5]) - observation[..., 3:5]
    moved = jnp.sum(next_observation[..., 5:10] != observation[..., 5:10], -1).astype(stored.dtype)
    dark = next_observation[..., 16] < LOWEST
    return units.earnings(hour, feeder_now, withheld, power, stored, moved, dark)


class VoltVarParams(NamedTuple):
    """Volt-var curve, timetable for batteries, and topology."""

    voltages: tuple[float, ...] | Float[Array, " 4"] = (0.96, 1.0, 1.0, 1.04)
    """Corners of the curve [pu]: IEEE 1547-2018, table 8, category B, without dead band and 1.5 times as steep, which
    the table allows."""
    reactive: tuple[float, ...] | Float[Array, " 4"] = (0.44, 0.0, 0.0, -0.44)
    """Reactive power at the corners, relative to the inverter's rating [1]; 0.44 is the maximum."""
    response: Scalar = 0.5
    """Share of the distance to the curve by which reactive power changes per step [1]. At 1, inverters oscillate."""
    charge_power: Scalar = 0.2
    """Charging power of each battery at night [MW]."""
    discharge_power: Scalar = 0.4
    """Discharging power of each battery in the evening [MW]."""
    topology: Scalar = 1.0
    """Index into `units.TOPOLOGIES`, rounded down; below 0 the switches do not move. The default is the paper's best
    topology, for a feeder without sun."""


def _volt_var(
    params: VoltVarParams, state: tuple[()], observation: Float[Array, " 21"], applied: Float[Array, " 17"]
) -> tuple[tuple[()], Float[Array, " 17"]]:
    corners, values = (jnp.asarray(x, observation.dtype) for x in params[:2])
    before = applied[len(units.UNITS) : 2 * len(units.UNITS)]
    curve = jnp.asarray(units.RATING, observation.dtype) * jnp.interp(observation[10:16], corners, values)
    ahead = units.price(observation[0] + units.DT)
    power = jnp.where(ahead == units.NIGHT_PRICE, -params.charge_power, 0.0)
    power = jnp.broadcast_to(jnp.where(ahead == units.EVENING_PRICE, params.discharge_power, power), (units.BATTERIES,))
    withheld, reactive = jnp.zeros((units.SOLAR,), observation.dtype), before + params.response * (curve - before)
    kept = jnp.clip(jnp.floor(jnp.asarray(params.topology)), 0, len(units.TOPOLOGIES) - 1).astype(jnp.int32)
    switches = jnp.asarray(units.TOPOLOGIES, observation.dtype)[kept]
    switches = jnp.where(jnp.asarray(params.topology) < 0, observation[5:10], switches)
    return state, jnp.concatenate([withheld, power, reactive, switches])


TUNED = VoltVarParams(
    voltages=(1.0265, 1.0382, 1.0406, 1.0523),
    reactive=(0.866, 0.0, 0.0, -0.866),
    response=0.193,
    charge_power=0.427,
    discharge_power=0.482,
    topology=float(units.SUNNY),
)
"""Found by `python -m benchmarks.tuning power_grid`. Inverters supply all reactive power that they can, and less if the
voltage approaches the upper limit."""

volt_var = Controller(lambda params, observation: (), _volt_var)
"""Reactive power follows each inverter's voltage, batteries follow a timetable, and the topology is fixed."""

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
