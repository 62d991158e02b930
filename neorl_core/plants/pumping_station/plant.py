"""The station's simulator: demand of the town, steps of half an hour, and measurements."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.plants.base import AnyArray
from neorl_core.plants.pumping_station.hydraulics import (
    DT,
    LIMITS,
    NOMINAL,
    PUMPS,
    SLOTS,
    Params,
    advance,
    cost,
    margins_of,
    pattern,
    price,
    slot_of,
)
from neorl_core.plants.pumping_station.switching import BY_HAND, TUNED, foreseen, switched
from neorl_core.types import Constraint, Plant, PlantSpec, Space, Timestep

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
"""Correlation of the demand deviation from step to step, ours."""


class Domain(NamedTuple):
    """The operating domain (spreads are relative half ranges)."""

    wear_most: float = 0.06
    """Largest loss of head of a pump, as a share."""
    roughness_spread: float = 0.08
    demand_spread: float = 0.1
    demand_sd: float = 0.05
    noise_sd: float = 0.02


class State(NamedTuple):
    """The true state of tank, pumps and town."""

    level: Float[Array, ""]
    pumps: Float[Array, ""]
    """Number of running pumps."""
    deviation: Float[Array, ""]
    """Deviation of the demand from its pattern, as a share."""
    slot: Int[Array, ""]
    """Step of the day."""
    step: Int[Array, ""]


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    """Draw pumps, main and town uniformly from the domain."""
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
    return _shown(state.level + noise, state.pumps, _demand(state, params), state.slot)


def _shown(
    level: Float[Array, ""], pumps: Float[Array, ""], demand: Float[Array, ""], slot: Int[Array, ""]
) -> Float[Array, " 6"]:
    turn = 2 * jnp.pi * slot.astype(level.dtype) / SLOTS
    clock = (jnp.sin(turn), jnp.cos(turn), price(slot).astype(level.dtype))
    return jnp.stack([level, pumps, demand, *clock])


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 6"]]:
    """Start at a random time of day, with the tank about half full and one or two pumps running."""
    key_level, key_pumps, key_slot, key_noise = jax.random.split(key, 4)
    level = jax.random.uniform(key_level, minval=2.0, maxval=4.0)
    pumps = jax.random.randint(key_pumps, (), 1, 3).astype(level.dtype)
    slot = jax.random.randint(key_slot, (), 0, SLOTS)
    state = State(level, pumps, jnp.zeros_like(level), slot, jnp.zeros((), jnp.int32))
    return state, _observe(state, params, params.noise_sd * jax.random.normal(key_noise))


def _running(action: Float[Array, " 1"]) -> Float[Array, ""]:
    return jnp.clip(jnp.round(action[0]), 0.0, PUMPS)


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 1"], params: Params) -> tuple[State, Timestep]:
    """Simulate half an hour with a number of running pumps, rounded to the nearest whole number."""
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
    """Predict the noise-free next observation with a constant deviation of demand, and the least margin [m]."""
    pumps, slot = _running(action), slot_of(observation)
    level, margins = advance(observation[0], pumps, observation[2], params)
    share = pattern(slot + 1) / pattern(slot)
    return _shown(level, pumps, observation[2] * share.astype(level.dtype), (slot + 1) % SLOTS), margins


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 6"], params: Params) -> tuple[State, Params]:
    """Set the measured level (with noise), pumps, demand and clock."""
    slot = slot_of(observation)
    usual = params.demand * pattern(slot).astype(observation.dtype)
    level = observation[0] - params.noise_sd * jax.random.normal(key, (), observation.dtype)
    return State(level, observation[1], observation[2] / usual - 1.0, slot, state.step), params


def applied(observation: Float[Array, " 6"]) -> Float[Array, " 1"]:
    """Number of running pumps."""
    return observation[1:2]


def logged_margins(next_observation: Float[AnyArray, "*n 6"]) -> Float[Array, "*n 1"]:
    """Margins [m] of logged rows, from the level measured after the step."""
    return margins_of(next_observation[..., 0])


def logged_reward(
    observation: Float[AnyArray, "*n 6"], action: Float[AnyArray, "*n 1"], next_observation: Float[AnyArray, "*n 6"]
) -> Float[Array, "*n"]:
    """Reward of logged rows from the measured levels, with the nominal station's power."""

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
    fallback=switched,
    fallback_params=TUNED,
    found_params=BY_HAND,
    reference=foreseen,
    reference_params=NOMINAL,
    idle=(1.0,),
)
