"""A pumping station: up to three equal pumps lift water into a town's tank; the price of energy varies over the day.

The pumps run in parallel on one rising main. At the flow Q, the head of n running pumps equals lift plus friction.
The tank's level follows from Q and the town's demand D:

(4/3 h₀ − (1/3) h₀ (Q / n q₀)²) · wear = lift + level + 10.67 L Q^1.852 / (C^1.852 d^4.871)
area · d(level)/dt = Q − D,  power = ρ g Q head / η

The pump curve is EPANET's for one design point (h₀, q₀); Hazen–Williams gives the friction. Each start of a pump costs
money. The reward includes the value of the water that the tank gains, at the mean cost of lifting, so emptying the tank
does not pay.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| design_head, design_flow, length, diameter, lift, area, demand, RIM, LIMITS | ours, a town of 50,000 |
| roughness | Rossman 2000, EPANET 2 Users Manual, table 3.2: ductile iron and cement, 120 to 140 |
| efficiency | Rossman 2000, the default for energy |
| density, gravity | physical constants |
| PATTERN, NIGHT, PRICES, START_COST, BEYOND_COST | ours |
| wear, wear_most, roughness_spread, demand_spread, demand_sd, noise_sd | ours |

The model is valid for steady flow in the main, because the flow settles within seconds and a step lasts half an hour. A
full tank spills, and an empty tank delivers nothing. Both cases violate the limits but do not end the episode.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.plants.base import AnyArray, Scalar, two_sided_margin
from neorl_core.plants.integrators import RK4, integrate
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, Space, Timestep

DT = 0.5
SLOTS = 48
"""Steps per day."""
SUBSTEPS = 1
"""RK4 steps per control step."""
NEWTON = 6
"""Newton iterations for the flow."""
PUMPS = 3.0
LIMITS = (1.0, 5.0)
"""Limits of the level [m]. Water below the first is the fire reserve; above the second the tank may spill."""
RIM = 6.0
"""Height of the tank [m]."""
# fmt: off
PATTERN = (
    0.57, 0.47, 0.41, 0.41, 0.47, 0.67, 1.08, 1.50, 1.55, 1.39, 1.24, 1.19,
    1.19, 1.13, 1.03, 0.98, 1.03, 1.19, 1.39, 1.44, 1.29, 1.08, 0.88, 0.42,
)
# fmt: on
"""Demand of each hour of the day, as a share of the mean."""
NIGHT = (23.0, 7.0)
"""Start and end [h] of the hours with cheap energy."""
PRICES = (0.08, 0.20)
"""Low and high price of energy [EUR/kWh]."""
START_COST = 1.0
"""Cost of each start of a pump, because starts cause wear [EUR]."""
BEYOND_COST = 200.0
"""Cost of a step per metre that the level is beyond a limit at the step's end [EUR/m]."""
MEAN_PRICE = (PRICES[0] * (24 - NIGHT[0] + NIGHT[1]) + PRICES[1] * (NIGHT[0] - NIGHT[1])) / 24
SECONDS = 3600.0


class Params(NamedTuple):
    """Constants of pumps, main (the pipe to the tank), tank and town."""

    design_head: Scalar = 60.0
    """Head of a pump at its design point, h₀ [m]."""
    design_flow: Scalar = 400.0
    """Flow of a pump at the design point, q₀ [m³/h]."""
    wear: Scalar = 1.0
    """Head of a worn pump, as a share of a new pump's head."""
    efficiency: Scalar = 0.75
    length: Scalar = 3_000.0
    """Length of the main, L [m]."""
    diameter: Scalar = 0.5
    """Diameter of the main, d [m]."""
    roughness: Scalar = 130.0
    """Hazen–Williams coefficient C of the main."""
    lift: Scalar = 40.0
    """Height of the tank floor above the source [m]."""
    area: Scalar = 1_000.0
    """Cross-section of the tank [m²]."""
    demand: Scalar = 540.0
    """Mean demand of the town [m³/h]."""
    density: Scalar = 1_000.0
    """Density of water, ρ [kg/m³]."""
    gravity: Scalar = 9.81
    """g [m/s²]."""
    demand_sd: Scalar = 0.0
    """Standard deviation of the demand around the daily pattern, as a share. A deviation lasts some hours."""
    noise_sd: Scalar = 0.0
    """Standard deviation of the noise of the level sensor [m]."""


NOMINAL = Params()


def friction(params: Params) -> Float[Array, ""]:
    """Return K = 10.67 L / (C^1.852 d^4.871), which gives the friction loss K Q^1.852 [m] at a flow Q [m³/s]."""
    return jnp.asarray(10.67 * params.length / (params.roughness**1.852 * params.diameter**4.871))


def flow(pumps: Float[Array, ""], level: Float[Array, ""], params: Params) -> Float[Array, ""]:
    """Return the total flow [m³/h] of `pumps` running pumps at a level of the tank [m], by Newton's method.

    Head minus losses is concave in the flow, so each step comes closer.
    """
    running = jnp.maximum(pumps, 1.0)
    wanted = params.lift + level
    shut_off, fall = 4.0 / 3.0 * params.design_head * params.wear, params.design_head * params.wear / 3.0
    loss = friction(params).astype(level.dtype)
    # Pumps too worn to reach the tank deliver almost nothing; the bound avoids the root of a negative number.
    most = running * params.design_flow * jnp.sqrt(jnp.maximum((shut_off - wanted) / fall, 1e-6))

    def newton(q: Float[Array, ""], _: None) -> tuple[Float[Array, ""], None]:
        share = q / (running * params.design_flow)
        left = shut_off - fall * share**2 - wanted - loss * (q / SECONDS) ** 1.852
        slope = -2.0 * fall * share / (running * params.design_flow) - 1.852 * loss * (q / SECONDS) ** 0.852 / SECONDS
        return jnp.maximum(q - left / slope, 1e-3 * most), None

    solution = jax.lax.scan(newton, most, None, length=NEWTON)[0]
    return jnp.where(pumps > 0.5, solution, 0.0)


def power(pumps: Float[Array, ""], level: Float[Array, ""], params: Params) -> Float[Array, ""]:
    """Return the power ρ g Q H / η [kW] of all running pumps, with the head H from the pump curve."""
    q = flow(pumps, level, params)
    share = q / (jnp.maximum(pumps, 1.0) * params.design_flow)
    head = params.design_head * params.wear * (4.0 - share**2) / 3.0
    return params.density * params.gravity * (q / SECONDS) * head / params.efficiency / 1e3


def pattern(slot: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Return the usual demand in step `slot` (0 to 47) of the day, as a share of the mean demand."""
    return jnp.asarray(PATTERN)[slot // 2 % 24]


def price(slot: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Return the price of energy [EUR/kWh] in step `slot` of the day."""
    turn, (dusk, dawn) = slot % SLOTS, (round(hour / DT) for hour in NIGHT)
    return jnp.where((turn >= dusk) | (turn < dawn), *PRICES)


def slot_of(observation: Float[AnyArray, "*n 6"]) -> Int[Array, "*n"]:
    """Return the step of the day, 0 to 47, from an observation."""
    turn = jnp.arctan2(observation[..., 3], observation[..., 4]) / (2 * jnp.pi)
    return jnp.round(turn * SLOTS).astype(jnp.int32) % SLOTS


def margins_of(level: Float[AnyArray, "*n"]) -> Float[Array, "*n 1"]:
    """Return the distance [m] of the level to the nearer limit; negative beyond a limit."""
    return two_sided_margin(level, *LIMITS)[..., None]


def advance(
    level: Float[Array, ""], pumps: Float[Array, ""], demand: Float[Array, ""], params: Params
) -> tuple[Float[Array, ""], Float[Array, " 1"]]:
    """Return the level [m] after a step at constant pumps and demand [m³/h], and the least margin [m] of the step."""

    def rise(h: Float[Array, " 1"]) -> Float[Array, " 1"]:
        return (flow(pumps, h[0], params)[None] - demand) / params.area

    path = integrate(RK4, rise, level[None], DT, SUBSTEPS)[:, 0]
    every = jnp.concatenate([level[None], path])
    return jnp.clip(path[-1], 0.0, RIM), jnp.min(margins_of(every), axis=0)


def cost(
    level: Float[Array, ""],
    before: Float[Array, ""],
    pumps: Float[Array, ""],
    after: Float[Array, ""],
    tariff: Float[Array, ""],
    params: Params,
) -> Float[Array, ""]:
    """Return the cost of a step [EUR]: energy, pump starts and limit violation, minus the value of the water gained.

    Args:
        level: level at the start of the step [m].
        after: level at the end of the step [m].
        tariff: price of energy [EUR/kWh].
    """
    energy = DT * power(pumps, level, params)
    lifting = params.density * params.gravity * params.lift / params.efficiency / 3.6e6
    gained = MEAN_PRICE * lifting * params.area * (after - level)
    beyond = jnp.maximum(-margins_of(after)[..., 0], 0.0)
    return tariff * energy + START_COST * jnp.maximum(pumps - before, 0.0) + BEYOND_COST * beyond - gained


class Hysteresis(NamedTuple):
    """Levels [m] at which pumps start and stop."""

    dear: Scalar
    """The first pump starts below this level while energy is expensive."""
    cheap: Scalar
    """The first pump starts below this level while energy is cheap."""
    stage: Scalar
    """Difference between the start levels of one pump and the next pump."""
    gap: Scalar
    """Difference between the stop level and the start level of a pump."""


def _two_point(
    params: Hysteresis, state: tuple[()], observation: Float[Array, " 6"], applied: Float[Array, " 1"]
) -> tuple[tuple[()], Float[Array, " 1"]]:
    start = jnp.where(observation[5] < MEAN_PRICE, params.cheap, params.dear)
    least, most = (jnp.ceil((start + gap - observation[0]) / params.stage) for gap in (0.0, params.gap))
    return (), jnp.clip(jnp.clip(applied, least, most), 0.0, PUMPS)


two_point = Controller(lambda params, observation: (), _two_point)
"""Two-point control of the level: n pumps become `clip(n, ⌈(start − level)/stage⌉, ⌈(start + gap − level)/stage⌉)`."""
BY_HAND = Hysteresis(dear=3.0, cheap=3.0, stage=0.5, gap=0.5)
"""Settings as an operator might choose them: the same levels at both prices."""
TUNED = Hysteresis(dear=2.8, cheap=4.4, stage=1.45, gap=0.3)
"""Found by benchmarks.tuning, for the operating domain."""

LEVELS = 81
"""Grid points of the level in the value function."""
RESERVE = 0.35
"""Distance to the limits [m] that the planner keeps for unforeseen demand."""


@cache
def plan(params: Params, days: int = 12) -> npt.NDArray[np.float64]:
    """Return the least future cost [EUR] at the usual demand, up to a constant, by backward induction.

    `J(slot, level, before) = min_n cost(…) + J(slot + 1, level', n)` (Bellman 1957, Dynamic Programming, chapter III).

    Args:
        days: days to compute; after 12 days, cost differences are the same every day.

    Returns:
        (48, L, 4), future cost by step of the day, level, and number of pumps that ran before.
    """
    levels, pumps = np.linspace(0.0, RIM, LEVELS), np.arange(PUMPS + 1)

    def lifted(level: Float[Array, ""], running: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return flow(running, level, params), power(running, level, params)

    every = jax.vmap(jax.vmap(lifted, (None, 0)), (0, None))
    # The caller may be tracing another program.
    with jax.ensure_compile_time_eval():
        curves = every(jnp.asarray(levels, float), jnp.asarray(pumps, float))
        slots = jnp.arange(SLOTS)
        flows, powers, shares, prices = (np.asarray(x, np.float64) for x in (*curves, pattern(slots), price(slots)))
    lifting = params.density * params.gravity * params.lift / params.efficiency / 3.6e6
    starts = START_COST * np.maximum(pumps[None, :] - pumps[:, None], 0.0)  # (before, now)
    costs: npt.NDArray[np.float64] = np.zeros((SLOTS, LEVELS, len(pumps)))
    after = np.zeros((LEVELS, len(pumps)))
    for slot in reversed(range(days * SLOTS)):
        slot = slot % SLOTS
        reached = levels[:, None] + DT * (flows - params.demand * shares[slot]) / np.asarray(params.area)
        beyond = np.maximum(np.maximum(LIMITS[0] + RESERVE - reached, reached - LIMITS[1] + RESERVE), 0.0)
        here = prices[slot] * DT * powers + BEYOND_COST * beyond
        here -= MEAN_PRICE * np.asarray(lifting * params.area) * (reached - levels[:, None])
        here += np.stack([np.interp(reached[:, n], levels, after[:, n]) for n in range(len(pumps))], axis=1)
        after = (here[:, None, :] + starts).min(axis=2)
        after -= after.mean()
        costs[slot] = after
    return costs


def _plan_action(
    params: Params, state: tuple[()], observation: Float[Array, " 6"], applied: Float[Array, " 1"]
) -> tuple[tuple[()], Float[Array, " 1"]]:
    slot, level = slot_of(observation), observation[0]
    grid = jnp.linspace(0.0, RIM, LEVELS, dtype=level.dtype)
    costs = jnp.asarray(plan(NOMINAL), level.dtype)[(slot + 1) % SLOTS]

    def total(pumps: Float[Array, ""]) -> Float[Array, ""]:
        after, _ = advance(level, pumps, observation[2], params)
        beyond = jnp.maximum(RESERVE - margins_of(after)[0], 0.0)
        own = cost(level, applied[0], pumps, after, observation[5], params)
        return own + BEYOND_COST * beyond + jnp.interp(after, grid, costs[:, pumps.astype(jnp.int32)])

    return (), jnp.argmin(jax.vmap(total)(jnp.arange(PUMPS + 1, dtype=level.dtype)))[None].astype(level.dtype)


planner = Controller(lambda params, observation: (), _plan_action)
"""Dynamic programming: minimises the cost of the step plus the future cost from `plan`."""


HORIZON = 96

SPEC = PlantSpec(
    name="pumping_station",
    observation=Space(
        names=("level", "pumps", "demand", "hour_sin", "hour_cos", "price"),
        units=("m", "1", "m3/h", "1", "1", "EUR/kWh"),
        low=(-0.5, 0.0, 0.0, -1.0, -1.0, 0.0),
        high=(6.5, PUMPS, 3_000.0, 1.0, 1.0, 1.0),
    ),
    action=Space(names=("pumps",), units=("1",), low=(0.0,), high=(PUMPS,)),
    constraints=(Constraint("level", "m", *LIMITS),),
    dt=DT,
    time_unit="h",
    horizon=HORIZON,
    # 0: the best constant number of pumps; 100: dynamic programming (1,000 episodes).
    score_range=(-2_176.0, -662.9),
    choices=("none", "one", "two", "three"),
)


MEMORY = 0.85
"""Correlation of the demand deviation between successive steps, chosen by NeoRL."""


class Domain(NamedTuple):
    """The operating domain (spreads are relative half ranges)."""

    wear_most: float = 0.06
    """Largest loss of head of a pump, as a share."""
    roughness_spread: float = 0.08
    demand_spread: float = 0.1
    demand_sd: float = 0.05
    noise_sd: float = 0.02


class State(NamedTuple):
    level: Float[Array, ""]
    pumps: Float[Array, ""]
    deviation: Float[Array, ""]
    """Deviation of the demand from its pattern, as a share."""
    slot: Int[Array, ""]
    step: Int[Array, ""]


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    key_wear, key_pipe, key_town = jax.random.split(key, 3)
    worn = jax.random.uniform(key_wear)
    pipe, town = (jax.random.uniform(k, minval=-1.0, maxval=1.0) for k in (key_pipe, key_town))
    return NOMINAL._replace(
        wear=1.0 - domain.wear_most * worn,
        roughness=NOMINAL.roughness * (1.0 + domain.roughness_spread * pipe),
        demand=NOMINAL.demand * (1.0 + domain.demand_spread * town),
        demand_sd=domain.demand_sd,
        noise_sd=domain.noise_sd,
    )


def _demand(state: State, params: Params) -> Float[Array, ""]:
    return params.demand * pattern(state.slot).astype(state.level.dtype) * (1.0 + state.deviation)


def _observe(state: State, params: Params, noise: Float[Array, ""]) -> Float[Array, " 6"]:
    return _signals(state.level + noise, state.pumps, _demand(state, params), state.slot)


def _signals(
    level: Float[Array, ""], pumps: Float[Array, ""], demand: Float[Array, ""], slot: Int[Array, ""]
) -> Float[Array, " 6"]:
    turn = 2 * jnp.pi * slot.astype(level.dtype) / SLOTS
    clock = (jnp.sin(turn), jnp.cos(turn), price(slot).astype(level.dtype))
    return jnp.stack([level, pumps, demand, *clock])


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 6"]]:
    """Draw an initial state: any time of day, a level of 2 to 4 m, and one or two running pumps."""
    key_level, key_pumps, key_slot, key_noise = jax.random.split(key, 4)
    level = jax.random.uniform(key_level, minval=2.0, maxval=4.0)
    pumps = jax.random.randint(key_pumps, (), 1, 3).astype(level.dtype)
    slot = jax.random.randint(key_slot, (), 0, SLOTS)
    state = State(level, pumps, jnp.zeros_like(level), slot, jnp.zeros((), jnp.int32))
    return state, _observe(state, params, params.noise_sd * jax.random.normal(key_noise))


def _running(action: Float[Array, " 1"]) -> Float[Array, ""]:
    return jnp.clip(jnp.round(action[0]), 0.0, PUMPS)


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 1"], params: Params) -> tuple[State, Timestep]:
    """Simulate half an hour; the action is the number of running pumps and is rounded to a whole number."""
    key_town, key_noise = jax.random.split(key)
    pumps = _running(action)
    level, margins = advance(state.level, pumps, _demand(state, params), params)
    fresh = params.demand_sd * (1 - MEMORY**2) ** 0.5 * jax.random.normal(key_town, (), level.dtype)
    deviation = jnp.clip(MEMORY * state.deviation + fresh, -0.9, 3.0)
    next_state = State(level, pumps, deviation, (state.slot + 1) % SLOTS, state.step + 1)
    tariff = price(state.slot).astype(level.dtype)
    return next_state, Timestep(
        observation=_observe(next_state, params, params.noise_sd * jax.random.normal(key_noise, (), level.dtype)),
        reward=-cost(state.level, state.pumps, pumps, level, tariff, params),
        margins=margins,
        terminated=jnp.asarray(False),
        truncated=next_state.step >= HORIZON,
    )


def predict(
    observation: Float[Array, " 6"], action: Float[Array, " 1"], params: Params
) -> tuple[Float[Array, " 6"], Float[Array, " 1"]]:
    """Predict the noise-free next observation and the least distance [m] to a limit; demand follows the pattern."""
    pumps, slot = _running(action), slot_of(observation)
    level, margins = advance(observation[0], pumps, observation[2], params)
    share = pattern(slot + 1) / pattern(slot)
    return _signals(level, pumps, observation[2] * share.astype(level.dtype), (slot + 1) % SLOTS), margins


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 6"], params: Params) -> tuple[State, Params]:
    slot = slot_of(observation)
    usual = params.demand * pattern(slot).astype(observation.dtype)
    level = observation[0] - params.noise_sd * jax.random.normal(key, (), observation.dtype)
    return State(level, observation[1], observation[2] / usual - 1.0, slot, state.step), params


def applied(observation: Float[Array, " 6"]) -> Float[Array, " 1"]:
    return observation[1:2]


def logged_margins(next_observation: Float[AnyArray, "*n 6"]) -> Float[Array, "*n 1"]:
    return margins_of(next_observation[..., 0])


def logged_reward(
    observation: Float[AnyArray, "*n 6"], action: Float[AnyArray, "*n 1"], next_observation: Float[AnyArray, "*n 6"]
) -> Float[Array, "*n"]:
    """Return the rewards of logged rows: minus `cost`, from the measured levels and the nominal constants."""

    def one(o: Float[Array, " 6"], a: Float[Array, " 1"], n: Float[Array, " 6"]) -> Float[Array, ""]:
        return -cost(o[0], o[1], _running(a), n[0], o[5], NOMINAL)

    rows = [jnp.asarray(x) for x in (observation, action, next_observation)]
    flat = [x.reshape(-1, x.shape[-1]) for x in rows]
    return jax.vmap(one)(*flat).reshape(rows[0].shape[:-1])


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
    fallback=two_point,
    fallback_params=TUNED,
    found_params=BY_HAND,
    reference=planner,
    reference_params=NOMINAL,
    idle=(1.0,),
)
