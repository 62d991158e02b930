"""A robot inserts a peg into a hole by impedance control, within a limit on the contact force.

The mechanics are in `peg`; see Whitney, Quasi-static assembly of compliantly supported rigid parts, ASME Journal of
Dynamic Systems 104 (1982), for jamming and wedging. The robot knows position and tilt of the hole only roughly, so the
measured pose has a constant error. An action moves the set point of the impedance controller.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from neorl_core.plants.base import AnyArray, Scalar, clip_to, with_domain
from neorl_core.plants.robot_assembly.peg import Params, advance, centre_of, free_motion, tip_of, velocity_at
from neorl_core.types import Constraint, Controller, Panel, Plant, PlantSpec, Space, Timestep

DT = 0.02
HORIZON = 250
SUBSTEPS = 100
"""Semi-implicit Euler steps of 0.2 ms, a thirtieth of the shortest period (mass m on two corners at 1e6 N/m)."""
FORCE_LIMIT = 40.0
"""Force at which the robot's protective stop trips [N]."""
FORCE_COST = 0.1
"""Cost of a step at the force limit; the cost is quadratic in the force."""
TRIP_COST = 400.0
"""Cost of a trip. An episode without a trip costs at most as much: 250 steps with at most 1.5 + 0.1 each."""
MILLI = 1e3
DEGREE = 0.017453292519943295

SPEC = PlantSpec(
    name="robot_assembly",
    observation=Space(
        names=(
            *("position_x", "position_z", "tilt"),
            *("velocity_x", "velocity_z", "tilt_rate"),
            *("force_x", "force_z", "moment"),
            *("setpoint_x", "setpoint_z", "setpoint_tilt"),
        ),
        units=("mm", "mm", "deg", "mm/s", "mm/s", "deg/s", "N", "N", "N m", "mm", "mm", "deg"),
        low=(-30.0, -60.0, -20.0, -1e3, -1e3, -1e3, -500.0, -500.0, -50.0, -60.0, -60.0, -40.0),
        high=(30.0, 60.0, 20.0, 1e3, 1e3, 1e3, 500.0, 500.0, 50.0, 60.0, 60.0, 40.0),
    ),
    action=Space(
        names=("setpoint_x_move", "setpoint_z_move", "setpoint_tilt_move"),
        units=("mm", "mm", "deg"),
        low=(-0.5, -0.8, -0.3),
        high=(0.5, 0.8, 0.3),
    ),
    constraints=(Constraint("contact force", "N", float("-inf"), FORCE_LIMIT),),
    dt=DT,
    time_unit="s",
    horizon=HORIZON,
    # 0: the set point does not move; 100: the tuned strategy (1,000 and 5,317 episodes).
    score_range=(-287.2, -64.5),
)


IN_HOLE = 0.001
"""Depth [m] that only a peg in the hole reaches: at the force limit a peg sinks only 0.4 mm into the softest block."""


class Domain(NamedTuple):
    """The operating domain: ranges of constants and half ranges of errors, in the units of `Params`."""

    friction_low: float = 0.1
    friction_high: float = 0.3
    clearance_low: float = 0.0001
    clearance_high: float = 0.0002
    contact_stiffness_low: float = 1e5
    contact_stiffness_high: float = 1e6
    offset_spread: float = 0.0015
    tilt_spread: float = 0.015
    force_noise: float = 0.2


HARDEST = Domain().contact_stiffness_high


class State(NamedTuple):
    """The true state, in the frame of the hole; see `peg`."""

    pose: Float[Array, " 3"]
    """Pose of the centre of mass: x, z [m], angle [rad]."""
    velocity: Float[Array, " 3"]
    setpoint: Float[Array, " 3"]
    """Set point of the tip's centre in the robot's coordinates, which include `error`."""
    error: Float[Array, " 3"]
    """Measured minus true pose of the peg in the hole's frame: (x [m], 0, angle [rad])."""
    bristles: Float[Array, "4 2"]
    """Deflection of the friction bristles [m]."""
    step: Int[Array, ""]


NOMINAL = Params()


def display_units(si: Float[Array, " 3"]) -> Float[Array, " 3"]:
    """Convert (m, m, rad) to (mm, mm, degrees)."""
    return jnp.stack([si[0] * MILLI, si[1] * MILLI, si[2] / DEGREE])


def si_units(seen: Float[Array, " 3"]) -> Float[Array, " 3"]:
    """Convert (mm, mm, degrees) to (m, m, rad)."""
    return jnp.stack([seen[0] / MILLI, seen[1] / MILLI, seen[2] * DEGREE])


def _observe(state: State, wrench: Float[Array, " 3"], p: Params) -> Float[Array, " 12"]:
    tip = tip_of(state.pose, p)
    moving = jnp.append(velocity_at(tip[:2], state.pose, state.velocity), state.velocity[2])
    return jnp.concatenate(
        [display_units(tip + state.error), display_units(moving), wrench, display_units(state.setpoint)]
    )


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    friction, clearance, hardness = jax.random.uniform(key, (3,))
    low, high = domain.contact_stiffness_low, domain.contact_stiffness_high
    return with_domain(
        NOMINAL,
        domain,
        friction=domain.friction_low + (domain.friction_high - domain.friction_low) * friction,
        clearance=domain.clearance_low + (domain.clearance_high - domain.clearance_low) * clearance,
        contact_stiffness=low * (high / low) ** hardness,
    )


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 12"]]:
    """Draw an initial state: peg at rest, 3 to 6 mm above the block, within 0.5 mm and 0.3° of the measured hole."""
    drawn = jax.random.uniform(key, (5,), minval=-1.0, maxval=1.0)
    error = jnp.stack([params.offset_spread * drawn[0], jnp.zeros_like(drawn[0]), params.tilt_spread * drawn[1]])
    seen = jnp.stack([0.0005 * drawn[2], 0.0045 + 0.0015 * drawn[3], 0.3 * DEGREE * drawn[4]])
    pose = centre_of(seen - error, params)
    state = State(pose, jnp.zeros_like(pose), seen, error, jnp.zeros((4, 2), pose.dtype), jnp.int32(0))
    return state, _observe(state, jnp.zeros_like(pose), params)


def cost(height: Float[AnyArray, "*n"], force: Float[AnyArray, "*n"]) -> Float[Array, "*n"]:
    """Return max(0, 1 + z / depth) + 0.1 (f / limit)² at the height z [mm] of the tip and the contact force f [N]."""
    depth = NOMINAL.depth * MILLI
    left = jnp.maximum(depth + height, 0.0) / depth
    return left + FORCE_COST * jnp.square(force / FORCE_LIMIT)


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 3"], params: Params) -> tuple[State, Timestep]:
    """Move the set point by the clipped action [mm, mm, degrees] and simulate 20 ms.

    A contact force beyond the limit trips the protective stop and terminates the episode.
    """
    setpoint = state.setpoint + si_units(clip_to(SPEC.action, action))
    target = setpoint - state.error
    nothing = jnp.zeros_like(target)
    before = state.pose, state.velocity, state.bristles
    pose, velocity, bristles, wrenches = advance(*before, target, nothing, DT, SUBSTEPS, params)
    margin = FORCE_LIMIT - jnp.max(jnp.hypot(wrenches[:, 0], wrenches[:, 1]))
    tripped = ~(margin >= 0)
    next_state = State(pose, velocity, setpoint, state.error, bristles, state.step + 1)
    noise = params.force_noise * jax.random.normal(key, (3,), action.dtype) * jnp.array([1.0, 1.0, 0.01], action.dtype)
    wrench = wrenches[-1]
    observation = _observe(next_state, wrench + noise, params)
    return next_state, Timestep(
        observation=observation,
        reward=-cost(observation[1], jnp.hypot(wrench[0], wrench[1])) - jnp.where(tripped, TRIP_COST, 0.0),
        margins=margin[None],
        terminated=tripped,
        truncated=next_state.step >= HORIZON,
    )


def predict(
    observation: Float[Array, " 12"], action: Float[Array, " 3"], params: Params
) -> tuple[Float[Array, " 12"], Float[Array, " 1"]]:
    """Predict the next observation and force limit minus force [N]. The pose of the hole is unknown.

    Without contact, the tip moves freely. In contact, the tip stays, so the wrist force changes by the stiffness times
    the move of the set point. In both cases an impact |v| √(k m) on the domain's hardest block is added to the force.
    """
    moves = clip_to(SPEC.action, action)
    setpoint = observation[9:12] + moves
    tip, moving = si_units(observation[:3]), si_units(observation[3:6])
    pose = centre_of(tip, params)
    # velocity_at is linear in the velocity, so this moves the reference point from the tip to the centre.
    velocity = jnp.append(velocity_at(pose[:2], tip, moving), moving[2])
    free, speed = free_motion(pose, velocity, si_units(setpoint), DT, SUBSTEPS, params)
    free_tip = tip_of(free, params)
    free_speed = jnp.append(velocity_at(free_tip[:2], free, speed), speed[2])

    wrench = observation[6:9]
    touched = jnp.hypot(wrench[0], wrench[1]) > TOUCH
    stiffness = jnp.stack(
        [jnp.asarray(x, tip.dtype) for x in (params.stiffness, params.stiffness, params.turning_stiffness)]
    )
    borne = wrench - stiffness * si_units(moves)
    impact = jnp.hypot(moving[0], moving[1]) * jnp.sqrt(HARDEST * params.mass)
    force = jnp.where(touched, jnp.hypot(borne[0], borne[1]), 0.0) + impact
    next_observation = jnp.where(
        touched,
        jnp.concatenate([observation[:3], jnp.zeros_like(moves), borne]),
        jnp.concatenate([display_units(free_tip), display_units(free_speed), jnp.zeros_like(wrench)]),
    )
    return jnp.concatenate([next_observation, setpoint]), (FORCE_LIMIT - force)[None]


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 12"], params: Params) -> tuple[State, Params]:
    """Return `state` with the logged pose, velocity and set point, and with the sensor error that gives this pose.

    If the peg is in the hole, the clearance limits how large the error can be. Otherwise the error does not change.
    """
    seen, moving = si_units(observation[:3]), si_units(observation[3:6])
    inside = -seen[1] > IN_HOLE
    least = jnp.asarray(params.clearance, seen.dtype)
    play = jnp.stack([least, jnp.zeros_like(least), 2 * least / jnp.maximum(-seen[1], IN_HOLE)])
    error = jnp.where(inside, seen - jnp.clip(seen - state.error, -play, play), state.error).at[1].set(0.0)
    pose = centre_of(seen - error, params)
    velocity = jnp.append(velocity_at(pose[:2], seen - error, moving), moving[2])
    return State(pose, velocity, si_units(observation[9:12]), error, state.bristles, state.step), params


def applied(observation: Float[Array, " 12"]) -> Float[Array, " 3"]:
    """Return zero moves, because the observation does not contain the last move of the set point."""
    return jnp.zeros_like(observation[:3])


def logged_margins(next_observation: Float[AnyArray, "*n 12"]) -> Float[Array, "*n 1"]:
    """Return force limit minus wrist force [N] at the end of the step, for logged rows."""
    return FORCE_LIMIT - jnp.hypot(next_observation[..., 6:7], next_observation[..., 7:8])


def logged_reward(
    observation: Float[AnyArray, "*n 12"], action: Float[AnyArray, "*n 3"], next_observation: Float[AnyArray, "*n 12"]
) -> Float[Array, "*n"]:
    """Return the rewards of logged rows. A step counts as a trip if the final force exceeds the limit."""
    force = jnp.hypot(next_observation[..., 6], next_observation[..., 7])
    return -cost(next_observation[..., 1], force) - jnp.where(force > FORCE_LIMIT, TRIP_COST, 0.0)


TOUCH = 1.0
"""Measured force [N] above which `predict` assumes contact."""


class InsertionParams(NamedTuple):
    approach: Scalar
    """Descent of the set point before contact [mm per step]."""
    press: Scalar
    """Force while searching [N]."""
    sweep: Scalar
    """Lateral move of the set point while searching [mm per step]."""
    reach: Scalar
    """Half width of the first sweep [mm]. Each change of direction adds the same value."""
    found: Scalar
    """Depth [mm] from which the strategy assumes that the peg is in the hole."""
    push: Scalar
    """Force while inserting [N]."""
    yielding: Scalar
    """Share of the lateral force and of the moment that a move of the set point removes per step [1]."""
    landing: Scalar
    """Depth [mm] from which the peg moves slowly, because the hole ends at 30 mm."""
    gentle: Scalar
    """Force from the depth `landing` on [N]. Force divided by damping is the speed at the bottom of the hole."""


class InsertionState(NamedTuple):
    touched: Bool[Array, ""]
    face: Float[Array, ""]
    """Height of the first contact [mm]."""
    middle: Float[Array, ""]
    """Lateral set point at the first contact [mm]."""
    direction: Float[Array, ""]
    """Direction of the sweep, ±1."""
    width: Float[Array, ""]
    """Half width of the sweep [mm]."""


def _insertion_init(params: InsertionParams, observation: Float[Array, " 12"]) -> InsertionState:
    zero = jnp.zeros_like(observation[0])
    return InsertionState(jnp.asarray(False), zero, observation[9], zero + 1, zero + params.reach)


def _insertion_act(
    params: InsertionParams, state: InsertionState, observation: Float[Array, " 12"], applied: Float[Array, " 3"]
) -> tuple[InsertionState, Float[Array, " 3"]]:
    z = observation[1]
    force_x, force_z, moment = observation[6:9]
    setpoint = observation[9:12]
    touches = jnp.hypot(force_x, force_z) > 3 * TOUCH
    new = touches & ~state.touched
    touched = state.touched | touches
    face, middle = jnp.where(new, z, state.face), jnp.where(new, setpoint[0], state.middle)
    found = touched & (face - z > params.found)

    beyond = (setpoint[0] - middle) * state.direction > state.width
    direction = jnp.where(beyond, -state.direction, state.direction)
    width = jnp.where(beyond, state.width + params.reach, state.width)

    # The set point leads the tip downwards by the wanted force divided by the impedance's stiffness.
    inserting_force = jnp.where(state.face - z > params.landing, params.gentle, params.push)
    wanted = jnp.where(found, inserting_force, params.press) / NOMINAL.stiffness * MILLI
    press = z - wanted - setpoint[1]
    turn = NOMINAL.turning_stiffness * DEGREE
    aside = params.yielding * force_x / NOMINAL.stiffness * MILLI
    searching = jnp.stack([direction * params.sweep, press, jnp.zeros_like(z)])
    inserting = jnp.stack([aside, press, params.yielding * moment / turn])
    coming = jnp.stack([jnp.zeros_like(z), jnp.zeros_like(z) - params.approach, jnp.zeros_like(z)])
    move = jnp.where(found, inserting, jnp.where(touched, searching, coming))
    return InsertionState(touched, face, middle, direction, width), clip_to(SPEC.action, move)


insertion = Controller(_insertion_init, _insertion_act)
"""Descends to contact, sweeps across with light pressure until the peg drops in, then pushes and yields sideways."""

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
    fallback=insertion,
    # Found by `python -m benchmarks.tuning robot_assembly`. Only `landing` and `gentle` are more careful: the values of
    # the search, 28.5 mm and 2.03 N, trip in 9 of 5,317 episodes, on the hardest blocks.
    fallback_params=InsertionParams(
        approach=0.316,
        press=1.24,
        sweep=0.28,
        reach=1.47,
        found=0.456,
        push=5.61,
        yielding=0.26,
        landing=27.5,
        gentle=1.5,
    ),
    found_params=InsertionParams(
        approach=0.2, press=2.0, sweep=0.2, reach=0.5, found=0.8, push=8.0, yielding=0.15, landing=26.0, gentle=1.3
    ),
    drawn=(
        Panel("contact force |f|", limit=SPEC.constraints[0].name),
        Panel("position_x", ("position_x",), "setpoint_x"),
        Panel("position_z", ("position_z",), "setpoint_z"),
        Panel("tilt", ("tilt",), "setpoint_tilt"),
    ),
)
