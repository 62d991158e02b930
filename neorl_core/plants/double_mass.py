"""DMSD, the double mass-spring-damper of NeoRL-2 (arXiv 2503.19267): forces move two masses to targets.

m x1'' = −2k x1 + k x2 − 2c v1 + c v2 + F1,  m x2'' = −2k x2 + k x1 − 2c v2 + c v1 + F2,  F = 30 N · action

x are displacements, v velocities; m, k and c are mass, stiffness and damping. Explicit Euler with dt = 0.2 s integrates
the equations. The reward is Σ_i −ln(|x_i − target_i| + 0.01) after the step.
The equations reproduce the official data to single precision. Observations are (x1, x2, v1, v2, target1, target2).

| constant | source (ours: chosen by NeoRL) |
|---|---|
| mass, stiffness, damping, force, starts, targets | NeoRL-2, arXiv 2503.19267, without measurement noise |
| mass_spread, stiffness_spread, damping_spread | ours, zero by default |
| TRAVEL | ours |

The model is the benchmark itself: Euler's rule with 0.2 s is part of the definition, and springs and dampers are
linear at any displacement.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.control.lqr import LinearParams, riccati_gain, saturated_linear, setpoint_feedforward
from neorl_core.plants.base import AnyArray, Scalar, clip_to, two_sided_margin
from neorl_core.plants.integrators import EULER, explicit_step
from neorl_core.types import Constraint, Plant, PlantSpec, Space, Timestep

DT = 0.2
HORIZON = 100
REDRAW_STEP = 50
"""After this number of steps each target changes with probability one half."""
TARGET_LIMIT = 1.5
TRAVEL = 2.8
"""Limit of each mass's displacement [m], added to NeoRL-2's task. NeoRL-2's data stay within 2.63 m and the controller
`design_lqr` within 1.9 m. Uniformly random forces exceed the limit in one episode out of three."""

SPEC = PlantSpec(
    name="double_mass",
    observation=Space(
        names=("position_1", "position_2", "velocity_1", "velocity_2", "target_1", "target_2"),
        units=("m", "m", "m/s", "m/s", "m", "m"),
        low=(-5.0, -5.0, -5.0, -5.0, -TARGET_LIMIT, -TARGET_LIMIT),
        high=(5.0, 5.0, 5.0, 5.0, TARGET_LIMIT, TARGET_LIMIT),
    ),
    action=Space(names=("force_1", "force_2"), units=("1", "1"), low=(-1.0, -1.0), high=(1.0, 1.0)),
    constraints=(
        Constraint("travel of mass 1", "m", -TRAVEL, TRAVEL),
        Constraint("travel of mass 2", "m", -TRAVEL, TRAVEL),
    ),
    dt=DT,
    time_unit="s",
    horizon=HORIZON,
    score_range=(30.60, 849.51),
)


class Params(NamedTuple):
    """Physical constants."""

    mass: Scalar = 20.0
    """Each mass [kg]."""
    stiffness: Scalar = 2.0
    """Stiffness of each of the three springs [N/m]."""
    damping: Scalar = 4.0
    """Damping of each of the three dampers [N s/m]."""
    force: Scalar = 30.0
    """Force at action 1 [N]."""


class Domain(NamedTuple):
    """Relative half ranges of the constants; zero gives NeoRL-2's task."""

    stiffness_spread: float = 0.0
    damping_spread: float = 0.0
    mass_spread: float = 0.0


class State(NamedTuple):
    motion: Float[Array, " 4"]
    """(x1, x2, v1, v2)"""
    targets: Float[Array, " 2"]
    step: Int[Array, ""]


NOMINAL = Params()


def derivative(motion: Float[Array, " 4"], force: Float[Array, " 2"], params: Params) -> Float[Array, " 4"]:
    """Return d(x1, x2, v1, v2)/dt [m/s, m/s, m/s², m/s²] for two forces [N]."""
    x, v = motion[:2], motion[2:]
    spring = params.stiffness * (x[::-1] - 2 * x)
    damper = params.damping * (v[::-1] - 2 * v)
    return jnp.concatenate([v, (spring + damper + force) / params.mass])


def advance(motion: Float[Array, " 4"], action: Float[Array, " 2"], params: Params) -> Float[Array, " 4"]:
    """Return (x1, x2, v1, v2) [m, m/s] after one Euler step under an action within ±1."""
    return explicit_step(EULER, lambda y: derivative(y, params.force * action, params), motion, DT)


def margins_of(positions: Float[AnyArray, "*n 2"]) -> Float[Array, "*n 2"]:
    """Return the distance [m] of each mass to the nearer end of its travel; negative beyond the end."""
    return two_sided_margin(positions, -TRAVEL, TRAVEL)


def tracking_reward(positions: Float[AnyArray, "*n 2"], targets: Float[AnyArray, "*n 2"]) -> Float[Array, "*n"]:
    """Return Σ_i −ln(|x_i − target_i| + 0.01) for positions x and targets [m]."""
    return -jnp.sum(jnp.log(jnp.abs(positions - targets) + 0.01), axis=-1)


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    stiffness, damping, mass = jax.random.uniform(key, (3,), minval=-1.0, maxval=1.0)
    return NOMINAL._replace(
        mass=NOMINAL.mass * (1 + domain.mass_spread * mass),
        stiffness=NOMINAL.stiffness * (1 + domain.stiffness_spread * stiffness),
        damping=NOMINAL.damping * (1 + domain.damping_spread * damping),
    )


def _observe(state: State) -> Float[Array, " 6"]:
    return jnp.concatenate([state.motion, state.targets])


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 6"]]:
    """Draw the initial state uniformly: x in ±0.25 m, v in ±0.1 m/s, targets in ±1.5 m (NeoRL-2)."""
    drawn = jax.random.uniform(key, (6,), minval=-1.0, maxval=1.0)
    drawn = drawn * jnp.array([0.25, 0.25, 0.1, 0.1, TARGET_LIMIT, TARGET_LIMIT])
    state = State(drawn[:4], drawn[4:], jnp.zeros((), jnp.int32))
    return state, _observe(state)


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 2"], params: Params) -> tuple[State, Timestep]:
    """Simulate one step under two forces, clipped to ±1. The targets may change at the end of the step.

    An episode never terminates, as in NeoRL-2.
    """
    motion = advance(state.motion, clip_to(SPEC.action, action), params)
    drawn = jax.random.uniform(key, (4,), motion.dtype)
    redraw = (drawn[:2] < 0.5) & (state.step + 1 == REDRAW_STEP)
    next_state = State(motion, jnp.where(redraw, TARGET_LIMIT * (2 * drawn[2:] - 1), state.targets), state.step + 1)
    return next_state, Timestep(
        observation=_observe(next_state),
        reward=tracking_reward(motion[:2], next_state.targets),
        margins=margins_of(motion[:2]),
        terminated=jnp.asarray(False),
        truncated=next_state.step >= HORIZON,
    )


def predict(
    observation: Float[Array, " 6"], action: Float[Array, " 2"], params: Params
) -> tuple[Float[Array, " 6"], Float[Array, " 2"]]:
    """Predict the next observation with unchanged targets, and the distances [m] to the limits after the step."""
    motion = advance(observation[:4], clip_to(SPEC.action, action), params)
    return jnp.concatenate([motion, observation[4:]]), margins_of(motion[:2])


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 6"], params: Params) -> tuple[State, Params]:
    """Return `state` with the logged motion and targets."""
    return state._replace(motion=observation[:4], targets=observation[4:]), params


def applied(observation: Float[Array, " 6"]) -> Float[Array, " 2"]:
    """Return zero forces, because the observation does not contain the applied forces."""
    return jnp.zeros_like(observation[:2])


def logged_margins(next_observation: Float[AnyArray, "*n 6"]) -> Float[Array, "*n 2"]:
    return margins_of(next_observation[..., :2])


def logged_reward(
    observation: Float[AnyArray, "*n 6"], action: Float[AnyArray, "*n 2"], next_observation: Float[AnyArray, "*n 6"]
) -> Float[Array, "*n"]:
    return tracking_reward(next_observation[..., :2], next_observation[..., 4:])


def linear_model(params: Params = NOMINAL) -> tuple[Float[np.ndarray, "4 4"], Float[np.ndarray, "4 2"]]:
    """Return A (4, 4) and B (4, 2) of the exact step: next (x1, x2, v1, v2) = A (x1, x2, v1, v2) + B action."""
    k, c, m = (float(x) for x in (params.stiffness, params.damping, params.mass))
    coupling = np.array([[-2.0, 1.0], [1.0, -2.0]])
    rate = np.block([[np.zeros((2, 2)), np.eye(2)], [k / m * coupling, c / m * coupling]])
    push = np.vstack([np.zeros((2, 2)), float(params.force) / m * np.eye(2)])
    return np.eye(4) + DT * rate, DT * push


def design_lqr(
    position_weight: float, velocity_weight: float, action_weight: float, params: Params = NOMINAL
) -> LinearParams:
    """Return parameters of `saturated_linear`: a linear-quadratic regulator with feedforward of the targets.

    Args:
        position_weight: cost of the squared position error [1/m²].
        velocity_weight: cost of the squared velocity [s²/m²].
        action_weight: cost of the squared action [1].
    """
    a, b = linear_model(params)
    q = np.diag([position_weight, position_weight, velocity_weight, velocity_weight])
    k, _ = riccati_gain(a, b, q, action_weight * np.eye(2))
    f = setpoint_feedforward(a, b, np.eye(2, 4), k)
    # Tuples are hashable and so allowed as static arguments of jit.
    gain = tuple(map(tuple, np.hstack([-k, f]).tolist()))
    return LinearParams(gain, (0.0, 0.0), SPEC.action.low, SPEC.action.high)


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
    fallback=saturated_linear,
    fallback_params=design_lqr(position_weight=1.0, velocity_weight=0.1, action_weight=0.01),
)
