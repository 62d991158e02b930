"""Cooling of a house with three zones through a hot summer day, with a tariff and comfort to keep.

    Ca_i dTa_i/dt = Uao_i (To − Ta_i) + Uam_i (Tm_i − Ta_i) + Σ_j Uzz (Ta_j − Ta_i) + A w_i I + G_i − Q_i
    Cm_i dTm_i/dt = Uam_i (Ta_i − Tm_i) + Umo_i (To − Tm_i)

An air node and a node of walls and furniture in each zone (Bacher and Madsen, Energy and Buildings 43(7), 2011). The
house as a whole is CityLearn's, identified by benchmarks/identify/hvac.py: each zone has its share of it, so that the
mean of the zones, weighted by their shares, moves as the identified house does. How it is divided, the doors between
zones and the way of the sun are assumed. The heat pump's coefficient of performance is CityLearn's (Vázquez-Canteli et
al., BuildSys 2019).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.control.receding import RecedingParams, receding
from neorl_core.plants.base import AnyArray, clip_to, two_sided_margin
from neorl_core.plants.hvac_control import weather
from neorl_core.plants.hvac_control.thermostat import ThermostatParams, comfort_band, thermostat
from neorl_core.plants.hvac_control.weather import DT, HORIZON, Weather, WeatherParams
from neorl_core.plants.integrators import RK4, integrate
from neorl_core.types import AgentView, Constraint, Plant, PlantSpec, Space, Timestep

ZONES = ("east", "core", "west")
SHARES = (0.35, 0.3, 0.35)
"""Share of each zone in the house's floor, capacity, losses, gains and cooling [1]."""
THERMOMETERS = 7
"""Measured with noise: the outdoors, and air and walls of each zone."""
SUBSTEPS = 2
"""RK4 steps in a quarter of an hour: within 3e-4 K of the exact answer to a step of full cooling."""
COOLING = 12.0
"""kW (thermal) of the whole house at most; the record's largest demand is 10.6."""
# kW of the whole house in each hour of the day: people and appliances, as identified, on the mean day.
INTERNAL_GAIN = (
    *(0.728, 0.731, 0.731, 0.731, 0.737, 0.740, 0.707, 0.669, 0.649, 0.624, 0.648, 0.637),
    *(0.673, 0.651, 0.656, 0.654, 0.691, 0.703, 0.719, 0.731, 0.754, 0.767, 0.726, 0.726),
)
SUPPLY = 8.0
"""°C of the chilled side, CityLearn's."""
NIGHT_PRICE, DAY_PRICE = 0.12, 0.36
"""$/kWh, the latter from 14 to 20 h: made up."""
DISCOMFORT = 0.2
"""$/(K² h) outside the comfort band."""

SPEC = PlantSpec(
    name="hvac_control",
    observation=Space(
        names=(
            *("hour", "outdoor_temperature", "irradiance", "clearness"),
            *(f"air_{zone}" for zone in ZONES),
            *(f"mass_{zone}" for zone in ZONES),
            *(f"cooling_{zone}" for zone in ZONES),
        ),
        units=("h", "°C", "kW/m²", "1", *("°C",) * 6, *("kW",) * 3),
        low=(0.0, 0.0, 0.0, 0.0, *(0.0,) * 6, *(0.0,) * 3),
        high=(24.0, 60.0, 1.5, 1.2, *(60.0,) * 6, *(COOLING * share for share in SHARES)),
    ),
    action=Space(
        names=tuple(f"cooling_{zone}" for zone in ZONES),
        units=("kW",) * 3,
        low=(0.0,) * 3,
        high=tuple(COOLING * share for share in SHARES),
    ),
    constraints=tuple(Constraint(f"air temperature, {zone}", "°C", 18.0, 30.0) for zone in ZONES),
    dt=DT,
    time_unit="h",
    horizon=HORIZON,
    # 0: the best constant cooling; 100: planning. Over 1000 days each.
    score_range=(-7.27, -4.09),
)
LIMIT = SPEC.constraints[0]


class Params(NamedTuple):
    """Physical constants of the whole house, as identified where nothing else is said, and the weather."""

    air_capacity: float | Float[Array, ""] = 0.852
    """Heat capacity of the air [kWh/K]."""
    mass_capacity: float | Float[Array, ""] = 5.867
    """Heat capacity of the walls [kWh/K]."""
    air_loss: float | Float[Array, ""] = 0.112
    """Heat conductance from air to outdoors [kW/K]."""
    air_to_mass: float | Float[Array, ""] = 1.633
    """Heat conductance from air to walls [kW/K]."""
    mass_loss: float | Float[Array, ""] = 0.362
    """Heat conductance from walls to outdoors [kW/K]."""
    aperture: float | Float[Array, ""] = 1.0
    """Area that lets the sun in [m²], assumed: see benchmarks/identify/hvac.py."""
    gain_scale: float | Float[Array, ""] = 1.0
    """Internal gains, relative to the mean day [1]."""
    doors: float | Float[Array, ""] = 0.1
    """Heat conductance between the core and each other zone [kW/K], assumed."""
    swing: float | Float[Array, ""] = 0.6
    """How much of its share of the sun the east gets more in the morning, and the west in the evening [1], assumed."""
    carnot: float | Float[Array, ""] = 0.25
    """Performance of the heat pump relative to Carnot's [1], CityLearn's middle."""
    noise_sd: float | Float[Array, ""] = 0.0
    """Standard deviation of what thermometers show, of the air, the walls and the outdoors [K]."""
    start_temperature: float | Float[Array, ""] = 23.5
    """Temperature at midnight [°C]: the record's mean there."""
    start_spread: float | Float[Array, ""] = 0.0
    """Half range of zones' temperatures at midnight [K]."""
    weather: WeatherParams = WeatherParams()


class Domain(NamedTuple):
    """The operating domain (spreads are relative half ranges unless a unit is given)."""

    capacity_spread: float = 0.1
    loss_spread: float = 0.1
    gain_spread: float = 0.2
    aperture_low: float = 0.5
    aperture_high: float = 2.0
    noise_sd: float = 0.1
    start_spread: float = 0.5
    outdoor_mean_spread: float = 1.5
    """K; the file has one month, so this stands for the season."""
    outdoor_sd: float = 1.908
    """K, as fitted."""
    clearness_sd: float = 0.166
    """Standard deviation of the clearness, as fitted [1]."""


class State(NamedTuple):
    """The true state of the house and the weather."""

    step: Int[Array, ""]
    weather: Weather
    air: Float[Array, " 3"]
    """Air temperature of each zone [°C]."""
    mass: Float[Array, " 3"]
    """Wall temperature of each zone [°C]."""
    cooling: Float[Array, " 3"]
    """Cooling in force during the last step [kW]."""


NOMINAL = Params()


def exposure(hour: Float[Array, ""], params: Params) -> Float[Array, " 3"]:
    """The part of the house's sun in each zone: the east's is larger in the morning; they add up to 1."""
    east_of_noon = weather.sun(hour)[1]
    turn = params.swing * east_of_noon * jnp.asarray((1.0, 0.0, -1.0), hour.dtype)
    return jnp.asarray(SHARES, hour.dtype) * (1 + turn)


def derivative(
    y: Float[Array, " 6"],
    outdoor: Float[Array, ""],
    heat: Float[Array, " 3"],
    params: Params,
) -> Float[Array, " 6"]:
    """d(Ta, Tm)/dt [K/h] of the three zones, under an outdoor temperature [°C] and heat put into the air [kW].

    Args:
        y: (6,), temperatures of air and walls in three zones [°C].
        outdoor: outdoor temperature [°C].
        heat: (3,), heat put into each zone's air [kW].
        params: constants of the plant.
    """
    air, mass = y[:3], y[3:]
    share = jnp.asarray(SHARES, y.dtype)
    inward = params.air_to_mass * (mass - air)
    core = params.doors * (air - air[1])
    between = jnp.stack([-core[0], core[0] + core[2], -core[2]])
    into_air = share * (params.air_loss * (outdoor - air) + inward) + between + heat
    into_mass = share * (params.mass_loss * (outdoor - mass) - inward)
    return jnp.concatenate([into_air / (share * params.air_capacity), into_mass / (share * params.mass_capacity)])


def advance(
    y: Float[Array, " 6"], cooling: Float[Array, " 3"], hour: Float[Array, ""], now: Weather, params: Params
) -> tuple[Float[Array, " 6"], Float[Array, " 3"]]:
    """A quarter of an hour around an hour of the day, with the weather and cooling [kW] held.

    Args:
        y: (6,), temperatures of air and walls in three zones [°C].
        cooling: (3,), cooling of each zone [kW].
        hour: hour of the day [h].
        now: weather of the step.
        params: constants of the plant.

    Returns:
        (Ta, Tm) [°C] after it, and each zone's least margin [K] over its start and all substeps.
    """
    people = jnp.asarray(INTERNAL_GAIN, y.dtype)[jnp.floor(hour).astype(jnp.int32)] * params.gain_scale
    sun = params.aperture * now.irradiance * exposure(hour, params)
    heat = sun + people * jnp.asarray(SHARES, y.dtype) - cooling
    path = integrate(RK4, lambda y: derivative(y, now.outdoor, heat, params), y, DT, SUBSTEPS)
    temperatures = jnp.concatenate([y[None, :3], path[:, :3]])
    return path[-1], jnp.min(two_sided_margin(temperatures, LIMIT.low, LIMIT.high), 0)


def performance(outdoor: Float[AnyArray, "*n"], params: Params) -> Float[Array, "*n"]:
    """Heat removed per electricity [1]: η (8 °C in K) / (To − 8 °C), CityLearn's, at most 10."""
    lift = jnp.maximum(jnp.asarray(outdoor) - SUPPLY, 1.0)
    return jnp.minimum(params.carnot * (SUPPLY + 273.15) / lift, 10.0)


def price(hour: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """$/kWh in the interval that ends at this hour."""
    hour = jnp.asarray(hour)
    return jnp.where((hour > 14.0) & (hour <= 20.0), DAY_PRICE, NIGHT_PRICE).astype(hour.dtype)


def reward_of(
    hour: Float[AnyArray, "*n"],
    outdoor: Float[AnyArray, "*n"],
    air: Float[AnyArray, "*n 3"],
    cooling: Float[AnyArray, "*n 3"],
    params: Params,
) -> Float[Array, "*n"]:
    """Reward [$] of an interval: −dt (price Σ Q / COP + discomfort Σ share (K outside the comfort band)²).

    Args:
        hour: in which it ends; outdoor: temperature in it [°C]; air: zones' temperatures at its end [°C]; cooling:
        in force [kW]; params: of the heat pump.
    """
    low, high = comfort_band(hour)
    outside = jnp.maximum(low[..., None] - air, 0.0) + jnp.maximum(jnp.asarray(air) - high[..., None], 0.0)
    share = jnp.asarray(SHARES, outside.dtype)
    electricity = jnp.sum(jnp.asarray(cooling), -1) / performance(outdoor, params)
    return -DT * (price(hour) * electricity + DISCOMFORT * (jnp.square(outside) @ share))


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    """A house and a kind of weather drawn uniformly from the domain."""
    key_house, key_weather = jax.random.split(key)
    drawn = jax.random.uniform(key_house, (6,))
    away = 2 * drawn - 1
    spreads = jnp.stack([jnp.asarray(domain.outdoor_sd, float), jnp.asarray(domain.clearness_sd, float)])
    return NOMINAL._replace(
        air_capacity=NOMINAL.air_capacity * (1 + domain.capacity_spread * away[0]),
        mass_capacity=NOMINAL.mass_capacity * (1 + domain.capacity_spread * away[1]),
        air_loss=NOMINAL.air_loss * (1 + domain.loss_spread * away[2]),
        mass_loss=NOMINAL.mass_loss * (1 + domain.loss_spread * away[3]),
        gain_scale=1 + domain.gain_spread * away[4],
        aperture=domain.aperture_low + (domain.aperture_high - domain.aperture_low) * drawn[5],
        noise_sd=domain.noise_sd,
        start_spread=domain.start_spread,
        weather=weather.sample_weather(key_weather, NOMINAL.weather, domain.outdoor_mean_spread, spreads),
    )


def _observe(state: State, noise: Float[Array, " 7"]) -> Float[Array, " 13"]:
    """Noise in K on the thermometers: outdoors, then air and walls of the zones."""
    hour = DT * (state.step % HORIZON).astype(state.air.dtype)
    seen = state.weather._replace(outdoor=state.weather.outdoor + noise[0])
    return jnp.concatenate(
        [jnp.stack([hour, *seen]), state.air + noise[1:4], state.mass + noise[4:], state.cooling],
    )


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 13"]]:
    """Midnight: air and walls near the temperature at which the house was held, and the cooling that holds it."""
    key_weather, key_zones, key_noise = jax.random.split(key, 3)
    now = weather.begin(jax.random.normal(key_weather, (2,)), params.weather)
    air = params.start_temperature + params.start_spread * jax.random.uniform(key_zones, (3,), minval=-1.0, maxval=1.0)
    # Walls lie between the air and the outdoors, as they do at rest.
    part = params.mass_loss / (params.mass_loss + params.air_to_mass)
    mass = air + part * (now.outdoor - air)
    need = params.air_loss * (now.outdoor - air) + params.air_to_mass * (mass - air)
    need = need + INTERNAL_GAIN[0] * params.gain_scale
    cooling = clip_to(SPEC.action, jnp.asarray(SHARES) * need)
    state = State(jnp.zeros((), jnp.int32), now, air, mass, cooling)
    return state, _observe(state, params.noise_sd * jax.random.normal(key_noise, (THERMOMETERS,)))


def operate(
    state: State, action: Float[Array, " 3"], now: Weather, params: Params
) -> tuple[State, Float[Array, " 3"], Float[Array, ""]]:
    """A quarter of an hour of given weather under cooling [kW]: the state after it, the margins [K], the reward [$].

    Args:
        state: true state before the step.
        action: (3,), cooling of each zone [kW].
        now: weather of the step.
        params: constants of the plant.
    """
    cooling = clip_to(SPEC.action, action)
    hour = weather.middle(state.step + 1, action.dtype)
    y, margins = advance(jnp.concatenate([state.air, state.mass]), cooling, hour, now, params)
    following = State(state.step + 1, now, y[:3], y[3:], cooling)
    ending = DT * (following.step % HORIZON).astype(action.dtype)
    return following, margins, reward_of(ending, now.outdoor, y[:3], cooling, params)


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 3"], params: Params) -> tuple[State, Timestep]:
    """A quarter of an hour; a zone outside its limits is a violation but no end, and its discomfort is paid.

    Args:
        key: randomness of the step.
        state: true state before the step.
        action: (3,), cooling of each zone [kW].
        params: constants of the plant.
    """
    draw = jax.random.normal(key, (2 + THERMOMETERS,), action.dtype)
    now = weather.follow(state.weather, state.step + 1, draw[:2], params.weather)
    following, margins, reward = operate(state, action, now, params)
    return following, Timestep(
        observation=_observe(following, params.noise_sd * draw[2:]),
        reward=reward,
        margins=margins,
        terminated=jnp.asarray(False),
        truncated=following.step >= HORIZON,
    )


def predict(
    observation: Float[Array, " 13"], action: Float[Array, " 3"], params: Params
) -> tuple[Float[Array, " 13"], Float[Array, " 3"]]:
    """The next observation with the weather on its expected course, and the least margins [K] on the way.

    Args:
        observation: (13,), the observation, in its space's units.
        action: (3,), cooling of each zone [kW].
        params: constants of the plant.
    """
    hour, *sky = observation[:4]
    air, mass, cooling = jnp.split(observation[4:], 3)
    state = State(jnp.round(hour / DT).astype(jnp.int32), Weather(*sky), air, mass, cooling)
    now = weather.follow(state.weather, state.step + 1, jnp.zeros(2, observation.dtype), params.weather)
    following, margins, _ = operate(state, action, now, params)
    return _observe(following, jnp.zeros(THERMOMETERS, observation.dtype)), margins


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 13"], params: Params) -> tuple[State, Params]:
    """Hour, weather, temperatures and cooling are measured, temperatures with noise."""
    air, mass, cooling = jnp.split(observation[4:], 3)
    noise = params.noise_sd * jax.random.normal(key, (THERMOMETERS,), observation.dtype)
    now = jnp.round(observation[0] / DT).astype(jnp.int32)
    outdoor, irradiance, clearness = observation[1:4]
    sky = Weather(outdoor - noise[0], irradiance, clearness)
    return State(now, sky, air - noise[1:4], mass - noise[4:], cooling), params


def applied(observation: Float[Array, " 13"]) -> Float[Array, " 3"]:
    """The cooling [kW] in force."""
    return observation[10:13]


def logged_margins(next_observation: Float[AnyArray, "*n 13"]) -> Float[Array, "*n 3"]:
    """Margins [K] of logged rows: what the measured temperatures after the step left to their limits."""
    return two_sided_margin(next_observation[..., 4:7], LIMIT.low, LIMIT.high)


def logged_reward(
    observation: Float[AnyArray, "*n 13"], action: Float[AnyArray, "*n 3"], next_observation: Float[AnyArray, "*n 13"]
) -> Float[Array, "*n"]:
    """The plant's reward [$] of logged rows, from measured temperatures and the cooling that was in force.

    Args:
        observation: (..., 13), the observation, in its space's units.
        action: (..., 3), cooling of each zone [kW].
        next_observation: (..., 13), what was observed a step later.
    """
    hour, outdoor = next_observation[..., 0], next_observation[..., 1]
    return reward_of(hour, outdoor, next_observation[..., 4:7], next_observation[..., 10:13], NOMINAL)


def _plan_cost(
    observation: Float[Array, " 13"],
    action: Float[Array, " 3"],
    following: Float[Array, " 13"],
    margins: Float[Array, " 3"],
) -> Float[Array, ""]:
    """What a planned interval costs [$], small margins included."""
    short = jnp.maximum(1.0 - margins, 0.0)
    return jnp.sum(short**2) - logged_reward(observation, action, following)


planner = receding(lambda seen, action: predict(seen, action, NOMINAL), _plan_cost, horizon=40, steps=20)
"""Model predictive control over ten hours with the nominal house, which knows the mean weather and the tariff."""

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
    fallback=thermostat,
    # By benchmarks.tuning: half a kelvin above the comfort band, whose discomfort costs less than its electricity.
    fallback_params=ThermostatParams(kp=1.5, ki=0.35, below=-0.53, ahead=5.9),
    found_params=ThermostatParams(),
    reference=planner,
    reference_params=RecedingParams(rate=0.02, low=SPEC.action.low, high=SPEC.action.high),
    idle=(1.24, 1.08, 1.26),
    agents=tuple(AgentView(zone, (0, 1, 2, 3, 4 + k, 7 + k, 10 + k), (k,)) for k, zone in enumerate(ZONES)),
)
