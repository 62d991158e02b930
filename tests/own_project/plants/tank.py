"""A tank that a valve fills and that drains through a hole: a plant of a user's own, as the tests give it to NeoRL."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from plants.physics.outflow import velocity

from neorl_core.control.pid import PIDParams, pid
from neorl_core.plants.base import clip_to, two_sided_margin
from neorl_core.plants.integrators import RK4, integrate
from neorl_core.types import Constraint, Plant, PlantSpec, Space, Timestep

DT = 5.0
HORIZON = 40
LOWEST, HIGHEST = 0.1, 1.8

SPEC = PlantSpec(
    name="tank",
    observation=Space(("level", "valve", "set_point"), ("m", "1", "m"), (0.0, 0.0, 0.0), (2.0, 1.0, 2.0)),
    action=Space(("valve",), ("1",), (0.0,), (1.0,)),
    constraints=(Constraint("level", "m", LOWEST, HIGHEST),),
    dt=DT,
    time_unit="s",
    horizon=HORIZON,
    score_range=(-40.0, -2.0),
)


class Params(NamedTuple):
    area: float = 0.1
    """Of the floor [m²]."""
    hole: float = 1e-3
    """Of the hole [m²]."""
    inflow: float = 8e-3
    """With an open valve [m³/s]."""


class Domain(NamedTuple):
    inflow_spread: float = 0.05
    noise: float = 2e-3
    """Of the level in each step [m], standard deviation."""


class State(NamedTuple):
    level: jax.Array
    valve: jax.Array
    set_point: jax.Array
    step: jax.Array


NOMINAL, DOMAIN = Params(), Domain()


def sample_params(key, domain):
    return NOMINAL._replace(inflow=NOMINAL.inflow * (1 + domain.inflow_spread * jax.random.uniform(key, (), minval=-1)))


def advance(level, valve, params):
    """The level [m] after a control period; A dh/dt = q u − a sqrt(2 g h)."""
    rate = lambda h: (params.inflow * valve - params.hole * velocity(h)) / params.area  # noqa: E731
    return jnp.maximum(integrate(RK4, rate, level[None], DT, 10)[-1, 0], 0.0)


def observe(state):
    return jnp.stack([state.level, state.valve, state.set_point])


def reset(key, params):
    first, second = jax.random.split(key)
    level = jax.random.uniform(first, (), minval=0.6, maxval=1.2)
    set_point = jax.random.uniform(second, (), minval=0.6, maxval=1.2)
    state = State(level, jnp.full((), 0.5), set_point, jnp.zeros((), jnp.int32))
    return state, observe(state)


def step(key, state, action, params):
    valve = clip_to(SPEC.action, action)[0]
    level = advance(state.level, valve, params) + DOMAIN.noise * jax.random.normal(key, ())
    following = State(level, valve, state.set_point, state.step + 1)
    return following, Timestep(
        observation=observe(following),
        reward=-jnp.abs(level - state.set_point),
        margins=two_sided_margin(level, LOWEST, HIGHEST)[None],
        terminated=jnp.asarray(False),
        truncated=following.step >= HORIZON,
    )


def predict(observation, action, params):
    valve = clip_to(SPEC.action, action)[0]
    level = advance(observation[0], valve, params)
    return jnp.stack([level, valve, observation[2]]), two_sided_margin(level, LOWEST, HIGHEST)[None]


def applied(observation):
    return observation[1:2]


def logged_reward(observation, action, next_observation):
    return -jnp.abs(next_observation[..., 0] - observation[..., 2])


def logged_margins(next_observation):
    return two_sided_margin(next_observation[..., :1], LOWEST, HIGHEST)


PLANT = Plant(
    spec=SPEC,
    params=NOMINAL,
    domain=DOMAIN,
    sample_params=sample_params,
    reset=reset,
    step=step,
    predict=predict,
    applied=applied,
    fallback=pid(0, 2, DT),
    fallback_params=PIDParams(kp=1.5, ki=0.02, kd=0.0, low=0.0, high=1.0),
)

TUNABLE = {"kp": (0.3, 10.0), "ki": (0.0, 0.1), "kd": (0.0, 20.0)}
