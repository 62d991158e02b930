"""A continuous stirred-tank reactor with an exothermic reaction A → B, cooled by a jacket.

dCa/dt = q (Cf − Ca) − r,  dT/dt = q (Tf − T) + β r + κ (Tc − T),  r = k0 exp(−E/T) Ca

Ca is the concentration of A and T the temperature in the reactor; `Params` defines the constants. The action is the
jacket temperature Tc. Slightly above 333 K the reactor runs away, so it trips outside 316 ≤ T ≤ 332 K.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| flow_rate, feed_concentration, feed_temperature, reaction_rate, activation_temperature | pc-gym, arXiv 2410.22093 |
| heat_of_reaction, cooling_rate, ERROR_SCALE | pc-gym 0.1.8 |
| feed_sd, feed_time_constant, feed_clip, reaction_spread, cooling_spread, noise_sd | ours |
| setpoint_temperature_low, setpoint_temperature_high | ours, within the limits |
| start_temperature_spread, start_concentration_spread, TRIP_COST, limits of the temperature | ours |
| feed_concentration_sd | ours, zero by default |

The model is valid within the limits, for a jacket that follows its command at once. A trip ends the episode.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.control.mpc import MPCParams, single_shooting
from neorl_core.control.pid import PIDParams, pid
from neorl_core.plants.base import AnyArray, Scalar, clip_to, two_sided_margin, with_domain
from neorl_core.plants.integrators import RK4, integrate
from neorl_core.types import Constraint, Plant, PlantSpec, Space, Timestep

DT = 26.0 / 60.0
HORIZON = 60
SETPOINT_STEPS = 20
"""Steps between two changes of the set point."""
STRETCHES = -(-HORIZON // SETPOINT_STEPS)
SUBSTEPS = 5
"""RK4 steps per control step; the error is below 2e-7 K at Tc = 302 K."""
ERROR_SCALE = 0.3
"""Concentration error [mol/L] with a cost of 1 per step."""
TRIP_COST = 10.0
"""Cost of a trip. Set points lie within 0.11 mol/L of the steady states at 316 and 332 K, so an episode inside the
limits costs at most 60 (0.11/0.3)² = 8. A trip costs more, so ending an episode early does not pay."""

SPEC = PlantSpec(
    name="chemical_reactor",
    observation=Space(
        names=("concentration", "temperature", "coolant_temperature", "concentration_setpoint"),
        units=("mol/L", "K", "K", "mol/L"),
        low=(0.0, 273.15, 290.0, 0.0),
        high=(1.5, 500.0, 310.0, 1.5),
    ),
    action=Space(names=("coolant_temperature",), units=("K",), low=(290.0,), high=(310.0,)),
    constraints=(Constraint("reactor temperature", "K", 316.0, 332.0),),
    dt=DT,
    time_unit="min",
    horizon=HORIZON,
    # 0: the best constant coolant temperature; 100: NMPC (over 1,000 episodes each).
    score_range=(-0.0805, -0.0057),
)
LIMIT = SPEC.constraints[0]


class Params(NamedTuple):
    """Physical constants, size of the disturbances, and ranges of set points and initial states."""

    flow_rate: Scalar = 1.0
    """q/V [1/min]."""
    feed_concentration: Scalar = 1.0
    """Cf [mol/L]."""
    feed_temperature: Scalar = 350.0
    """Tf [K]."""
    reaction_rate: Scalar = 7.2e10
    """k0 [1/min]."""
    activation_temperature: Scalar = 8750.0
    """E/R [K]."""
    heat_of_reaction: Scalar = 5e4 / 239.0
    """β = −ΔH/(ρ cp) [K L/mol]."""
    cooling_rate: Scalar = 5e4 / 23900.0
    """κ = UA/(ρ cp V) [1/min]."""
    feed_sd: Scalar = 0.0
    """Standard deviation of the feed temperature around its mean [K]; the temperature varies slowly."""
    feed_time_constant: Scalar = 5.0
    """Time constant of the variation of feed temperature and feed concentration [min]."""
    feed_clip: Scalar = 1.5
    """Largest deviation of the feed temperature from its mean [K]."""
    feed_concentration_sd: Scalar = 0.0
    """Standard deviation of the feed concentration around its mean [mol/L]. The deviation varies slowly and is clipped
    at three standard deviations."""
    noise_sd: Scalar = 0.0
    """Standard deviation of the noise of the temperature sensor [K]; the measured concentration has no noise."""
    setpoint_temperature_low: Scalar = 322.0
    """Set points are the nominal reactor's steady concentrations at temperatures between these two values [K]."""
    setpoint_temperature_high: Scalar = 326.0
    start_temperature_spread: Scalar = 0.5
    """Half range of the initial temperature around a steady state [K]."""
    start_concentration_spread: Scalar = 0.005
    """Half range of the initial concentration around a steady state [mol/L]."""


class Domain(NamedTuple):
    """The operating domain. `reaction_spread` and `cooling_spread` are relative half ranges; see also `Params`."""

    feed_sd: float = 0.5
    feed_time_constant: float = 5.0
    feed_clip: float = 1.5
    reaction_spread: float = 0.01
    cooling_spread: float = 0.01
    noise_sd: float = 0.1
    setpoint_temperature_low: float = 322.0
    setpoint_temperature_high: float = 326.0
    start_temperature_spread: float = 0.5
    start_concentration_spread: float = 0.005
    feed_concentration_sd: float = 0.0


class State(NamedTuple):
    """The true state. The feed deviations and the noise-free temperature are not observed."""

    concentration: Float[Array, ""]
    temperature: Float[Array, ""]
    coolant: Float[Array, ""]
    feed_deviation: Float[Array, ""]
    setpoints: Float[Array, " S"]
    """One set point per `SETPOINT_STEPS` steps; the last one stays."""
    step: Int[Array, ""]
    feed_concentration_deviation: Float[Array, ""]
    """Deviation of the feed concentration [mol/L]."""


NOMINAL = Params()


def derivative(y: Float[Array, " 2"], coolant: Scalar, feed_deviation: Scalar, params: Params) -> Float[Array, " 2"]:
    """Return dy/dt [1/min] of y = (Ca, T) [mol/L, K], at Tc = `coolant` [K] and a feed at Tf + `feed_deviation` [K]."""
    concentration, temperature = y
    rate = params.reaction_rate * jnp.exp(-params.activation_temperature / temperature) * concentration
    diluted = params.flow_rate * (params.feed_concentration - concentration)
    warmed = params.flow_rate * (params.feed_temperature + feed_deviation - temperature)
    cooled = params.cooling_rate * (coolant - temperature)
    return jnp.stack([diluted - rate, warmed + params.heat_of_reaction * rate + cooled])


def advance(
    y: Float[Array, " 2"], coolant: Scalar, feed_deviation: Scalar, params: Params, substeps: int = SUBSTEPS
) -> tuple[Float[Array, " 2"], Float[Array, " 1"]]:
    """Return (Ca, T) [mol/L, K] after a step with constant inputs [K], and the least distance [K] of T to a limit."""
    path = integrate(RK4, lambda y: derivative(y, coolant, feed_deviation, params), y, DT, substeps)
    temperatures = jnp.concatenate([y[1:], path[:, 1]])
    return path[-1], jnp.min(two_sided_margin(temperatures, LIMIT.low, LIMIT.high))[None]


def steady_concentration(temperature: Float[Array, "*n"] | float, params: Params) -> Float[Array, "*n"]:
    """Return the steady concentration Ca = q Cf / (q + k0 exp(−E/T)) [mol/L] at T [K], from dCa/dt = 0."""
    rate = params.reaction_rate * jnp.exp(-params.activation_temperature / jnp.asarray(temperature))
    return params.flow_rate * params.feed_concentration / (params.flow_rate + rate)


def steady_coolant(temperature: Float[Array, "*n"] | float, params: Params) -> Float[Array, "*n"]:
    """Return the coolant temperature [K] that keeps a reactor temperature [K], from dT/dt = 0 and dCa/dt = 0."""
    temperature = jnp.asarray(temperature)
    heat = params.heat_of_reaction * params.flow_rate
    heat = heat * (params.feed_concentration - steady_concentration(temperature, params))
    return temperature - (params.flow_rate * (params.feed_temperature - temperature) + heat) / params.cooling_rate


def cost(concentration: Float[AnyArray, "*n"], setpoint: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Return ((Ca − SP) / 0.3)² for concentration Ca and set point SP [mol/L]; pc-gym also penalises action changes."""
    return jnp.square((concentration - setpoint) / ERROR_SCALE)


def start(
    concentration: Scalar, temperature: Scalar, coolant: Scalar, setpoints: Float[Array, " S"]
) -> tuple[State, Float[Array, " 4"]]:
    """Return an undisturbed state at Ca [mol/L], T [K] and a coolant temperature [K], and its noise-free observation.

    Args:
        setpoints: (S,), concentrations [mol/L], each used for `SETPOINT_STEPS` steps.
    """
    *y, still = (jnp.asarray(x, setpoints.dtype) for x in (concentration, temperature, coolant, 0.0))
    state = State(y[0], y[1], y[2], still, setpoints, jnp.zeros((), jnp.int32), still)
    return state, _observe(state, still)


def _setpoint(state: State) -> Float[Array, ""]:
    return state.setpoints[jnp.minimum(state.step // SETPOINT_STEPS, state.setpoints.shape[0] - 1)]


def _observe(state: State, noise: Float[Array, ""]) -> Float[Array, " 4"]:
    return jnp.stack([state.concentration, state.temperature + noise, state.coolant, _setpoint(state)])


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    reaction, cooling = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
    return with_domain(
        NOMINAL,
        domain,
        reaction_rate=NOMINAL.reaction_rate * (1 + domain.reaction_spread * reaction),
        cooling_rate=NOMINAL.cooling_rate * (1 + domain.cooling_spread * cooling),
    )


def _concentration_draw(key: PRNGKeyArray, dtype: Any) -> Float[Array, ""]:
    """Draw a standard normal number, clipped at ±3."""
    return jnp.clip(jax.random.normal(jax.random.fold_in(key, 1), (), dtype), -3.0, 3.0)


def _slow(before: Float[Array, ""], push: Float[Array, ""], sd: Scalar, phi: Float[Array, ""]) -> Float[Array, ""]:
    """Return the next deviation φ d + sd √(1 − φ²) w of an AR(1) sequence with standard deviation sd."""
    return phi * before + sd * jnp.sqrt(1 - phi**2) * push


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 4"]]:
    """Draw an initial state near a steady state. Set points are random steady states of the nominal reactor."""
    key_place, key_noise = jax.random.split(key)
    low, high = params.setpoint_temperature_low, params.setpoint_temperature_high
    drawn = jax.random.uniform(key_place, (STRETCHES + 3,))
    settled, *wanted = low + (high - low) * drawn[: STRETCHES + 1]
    away = 2 * drawn[STRETCHES + 1 :] - 1
    state, _ = start(
        steady_concentration(settled, params) + params.start_concentration_spread * away[0],
        settled + params.start_temperature_spread * away[1],
        clip_to(SPEC.action, steady_coolant(settled, params)[None])[0],
        steady_concentration(jnp.stack(wanted), NOMINAL),
    )
    feed, noise = jax.random.normal(key_noise, (2,))
    state = state._replace(
        feed_deviation=jnp.clip(params.feed_sd * feed, -params.feed_clip, params.feed_clip),
        feed_concentration_deviation=params.feed_concentration_sd * _concentration_draw(key_noise, feed.dtype),
    )
    return state, _observe(state, params.noise_sd * noise)


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 1"], params: Params) -> tuple[State, Timestep]:
    """Simulate one control step under a coolant temperature [K], clipped to 290 to 310 K.

    The reward uses the set point after the step, as in pc-gym. A controller sees a change only after this reward.
    """
    push, noise = jax.random.normal(key, (2,), action.dtype)
    coolant = clip_to(SPEC.action, action)[0]
    fed = params._replace(feed_concentration=params.feed_concentration + state.feed_concentration_deviation)
    y, margins = advance(jnp.stack([state.concentration, state.temperature]), coolant, state.feed_deviation, fed)
    tripped = ~jnp.all(margins >= 0)
    phi = jnp.exp(-DT / jnp.asarray(params.feed_time_constant, y.dtype))
    deviation = _slow(state.feed_deviation, push, params.feed_sd, phi)
    sd = params.feed_concentration_sd
    richness = _slow(state.feed_concentration_deviation, _concentration_draw(key, y.dtype), sd, phi)
    next_state = State(
        concentration=y[0],
        temperature=y[1],
        coolant=coolant,
        feed_deviation=jnp.clip(deviation, -params.feed_clip, params.feed_clip),
        setpoints=state.setpoints,
        step=state.step + 1,
        feed_concentration_deviation=jnp.clip(richness, -3.0 * sd, 3.0 * sd),
    )
    return next_state, Timestep(
        observation=_observe(next_state, params.noise_sd * noise),
        reward=-cost(y[0], _setpoint(next_state)) - jnp.where(tripped, TRIP_COST, 0.0),
        margins=margins,
        terminated=tripped,
        truncated=next_state.step >= HORIZON,
    )


def predict(
    observation: Float[Array, " 4"], action: Float[Array, " 1"], params: Params
) -> tuple[Float[Array, " 4"], Float[Array, " 1"]]:
    """Predict the noise-free next observation without feed deviation, and the least distance [K] to a limit."""
    coolant = clip_to(SPEC.action, action)[0]
    y, margins = advance(observation[:2], coolant, 0.0, params)
    return jnp.stack([y[0], y[1], coolant, observation[3]]), margins


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 4"], params: Params) -> tuple[State, Params]:
    """Return `state` with the logged measurements, minus random sensor noise."""
    temperature = observation[1] - params.noise_sd * jax.random.normal(key, (), observation.dtype)
    at = state._replace(concentration=observation[0], temperature=temperature, coolant=observation[2])
    return at._replace(setpoints=jnp.full_like(state.setpoints, observation[3])), params


def applied(observation: Float[Array, " 4"]) -> Float[Array, " 1"]:
    return observation[2:3]


def logged_margins(next_observation: Float[AnyArray, "*n 4"]) -> Float[Array, "*n 1"]:
    return two_sided_margin(next_observation[..., 1:2], LIMIT.low, LIMIT.high)


def logged_reward(
    observation: Float[AnyArray, "*n 4"], action: Float[AnyArray, "*n 1"], next_observation: Float[AnyArray, "*n 4"]
) -> Float[Array, "*n"]:
    tripped = logged_margins(next_observation)[..., 0] < 0
    return -cost(next_observation[..., 0], next_observation[..., 3]) - jnp.where(tripped, TRIP_COST, 0.0)


def _tracking_residuals(
    observation: Float[Array, " 4"], margins: Float[Array, " 1"], action: Float[Array, " 1"], before: Float[Array, " 1"]
) -> Float[Array, " 2"]:
    """Tracking error, and a penalty within 1 K of the trip limits."""
    error = (observation[0] - observation[3]) / ERROR_SCALE
    return jnp.stack([error, jnp.maximum(1.0 - margins[0], 0.0)])


nmpc = single_shooting(predict, applied, _tracking_residuals, holds=(1,) * 17, iterations=5)
"""Nonlinear model predictive control with pc-gym's horizon. Action changes cost nothing; set points stay constant."""

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
    fallback=pid(measurement=0, setpoint=3, dt=DT),
    # Found by benchmarks.tuning. At 295 K and at 302 K the reactor has a stable steady state inside the limits.
    fallback_params=PIDParams(kp=-270.0, ki=-500.0, kd=-130.0, low=295.0, high=302.0),
    # Cautious lambda tuning, as is common in plants. At 324 K the gain is −0.0143 (mol/L)/K, and the time constants sum
    # to 1.5 min. A closed-loop time constant of 4.5 min needs ki = 1/(gain · 4.5 min), kp = 1.5 min · ki (rounded).
    found_params=PIDParams(kp=-20.0, ki=-15.0, kd=0.0, low=295.0, high=302.0),
    reference=nmpc,
    reference_params=MPCParams(NOMINAL, SPEC.action.low, SPEC.action.high, (0.2, 0.2, 0.0, 0.0)),
    idle=(299.7,),
)
