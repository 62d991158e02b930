"""Gymnasium's CartPole-v1 in JAX: a pole on a cart that is pushed left or right.

Barto, Sutton & Anderson: Neuronlike adaptive elements that can solve difficult learning control problems, IEEE Trans.
Systems, Man and Cybernetics 13(5), 1983, without friction as in Gymnasium.

θ'' = (g sin θ − cos θ f) / (l (4/3 − m cos² θ / M)),  x'' = f − m l θ'' cos θ / M,  f = (F + m l θ'² sin θ) / M

| constant | source |
|---|---|
| gravity, cart, pole, half_length, force | Barto et al. 1983, appendix |
| SECONDS, MOST_ANGLE, MOST_PLACE, START | Gymnasium 1.x, CartPole-v1 |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_are

from neorl_core.types import Constraint, Controller, Plant, PlantSpec, Space, Timestep

SECONDS = 0.02
"""Control step, which is one Euler step [s]."""
MOST_ANGLE = 12 * 2 * math.pi / 360
"""Angle at which the pole has fallen [rad]."""
MOST_PLACE = 2.4
"""End of the track [m]."""
START = 0.05
"""Initial values are uniform between minus and plus this number."""
HORIZON = 500

SPEC = PlantSpec(
    name="cart_pole",
    observation=Space(
        ("place", "speed", "angle", "turning"),
        ("m", "m/s", "rad", "rad/s"),
        (-4.8, -9.0, -0.42, -9.0),
        (4.8, 9.0, 0.42, 9.0),
    ),
    action=Space(("push",), ("1",), (0.0,), (1.0,)),
    constraints=(
        Constraint("place", "m", -MOST_PLACE, MOST_PLACE),
        Constraint("angle", "rad", -MOST_ANGLE, MOST_ANGLE),
    ),
    dt=SECONDS,
    time_unit="s",
    horizon=HORIZON,
    score_range=(0.0, float(HORIZON)),
    choices=("left", "right"),
)


class Params(NamedTuple):
    """Constants of cart and pole."""

    gravity: float = 9.8
    """[m/s²]"""
    cart: float = 1.0
    """Mass of the cart [kg]."""
    pole: float = 0.1
    """Mass of the pole [kg]."""
    half_length: float = 0.5
    """Half length of the pole [m]."""
    force: float = 10.0
    """Force of a push [N]."""


class State(NamedTuple):
    """Place [m], speed [m/s], angle [rad] and angular velocity [rad/s]."""

    motion: jax.Array
    step: jax.Array


def advance(motion: jax.Array, push: jax.Array, params: Params) -> jax.Array:
    """Return the motion one step later. A push of 0 goes left, 1 goes right."""
    _, speed, angle, turning = motion
    total, moment = params.cart + params.pole, params.pole * params.half_length
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    pushed = ((2.0 * push - 1.0) * params.force + moment * turning**2 * sine) / total
    inertia = params.half_length * (4.0 / 3.0 - params.pole * cosine**2 / total)
    spin = (params.gravity * sine - cosine * pushed) / inertia
    return motion + SECONDS * jnp.stack([speed, pushed - moment * spin * cosine / total, turning, spin])


def margins_of(motion: jax.Array) -> jax.Array:
    """Return the distances of place [m] and angle [rad] to their limits."""
    return jnp.stack([MOST_PLACE - jnp.abs(motion[..., 0]), MOST_ANGLE - jnp.abs(motion[..., 2])], axis=-1)


def reset(key: jax.Array, params: Params) -> tuple[State, jax.Array]:
    """Start nearly upright and at rest."""
    motion = jax.random.uniform(key, (4,), minval=-START, maxval=START)
    return State(motion, jnp.zeros((), jnp.int32)), motion


def step(key: jax.Array, state: State, action: jax.Array, params: Params) -> tuple[State, Timestep]:
    """Advance by one push. The reward of every push is 1, also of the push after which the pole falls."""
    motion = advance(state.motion, jnp.round(action[0]), params)
    margins = margins_of(motion)
    following = State(motion, state.step + 1)
    return following, Timestep(
        observation=motion,
        reward=jnp.ones_like(motion[0]),
        margins=margins,
        terminated=jnp.any(margins < 0),
        truncated=following.step >= HORIZON,
    )


def predict(observation: jax.Array, action: jax.Array, params: Params) -> tuple[jax.Array, jax.Array]:
    """Return the next observation and the margins."""
    motion = advance(observation, jnp.round(action[0]), params)
    return motion, margins_of(motion)


def regulator(params: Params) -> tuple[float, ...]:
    """Return the gains of the linear-quadratic regulator. The sign of gains · observation decides the push."""
    with jax.enable_x64(True):
        upright = jnp.zeros(4)
        a, b = jax.jacfwd(lambda m, p: advance(m, p, params), (0, 1))(upright, jnp.asarray(0.5))
    a, b = np.asarray(a), np.asarray(b)[:, None]
    p = solve_discrete_are(a, b, np.diag([1.0, 0.1, 10.0, 0.1]), np.eye(1))
    return tuple(float(x) for x in np.linalg.solve(np.eye(1) + b.T @ p @ b, b.T @ p @ a)[0])


balance = Controller(
    lambda gain, observation: (),
    lambda gain, state, observation, applied: (state, (observation @ jnp.asarray(gain) < 0)[None].astype(jnp.float32)),
)
"""Controller that pushes to the side that the regulator chooses."""

PLANT = Plant(
    spec=SPEC,
    params=Params(),
    domain=Params(),
    sample_params=lambda key, domain: domain,
    reset=reset,
    step=step,
    predict=predict,
    applied=lambda observation: jnp.zeros(1, observation.dtype),
    fallback=balance,
    fallback_params=regulator(Params()),
)
