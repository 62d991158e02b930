"""Peg, hole and impedance controller: a planar rigid body with Coulomb friction and compliant contact.

m v' = F + Σ f,  J ω' = M + Σ (x − c) × f,  F = K (p* − p) + D (p*' − p'), and likewise the moment M
f = k δ max(0, 1 + β δ') along the normal (Hunt and Crossley, Journal of Applied Mechanics 42, 1975)
s⁺ = clip(s + h v, ±μ f / kt),  ft = clip(−kt s⁺ − √(kt m) v, ±μ f) along the face

c is the centre of mass, p the tip's centre and p* its set point; a contact at x has force f and penetration δ. A
friction bristle with deflection s sticks, and slides at the friction limit (Cundall and Strack, Géotechnique 29, 1979).
It is elasto-plastic (Dupont et al., IEEE Trans. Automatic Control 47(5), 2002), so that sticking contacts do not creep.
The peg's corners touch the block, and the hole's edges touch the peg. The robot carries the weight. Coordinates are in
the hole's frame: x across, z up from the block's face, angles counter-clockwise.

In all functions, `pose` is the pose of the centre of mass (x, z [m], angle [rad]), `velocity` its rate [m/s, m/s,
rad/s], `bristles` the deflection of the friction bristles [m], and `setpoint` the tip's set point (x, z [m], angle
[rad]).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.plants.base import Scalar


class Params(NamedTuple):
    """Geometry, stiffness, friction, and uncertainty of the hole's pose."""

    mass: Scalar = 2.0
    """m, apparent mass of peg and hand under the impedance controller [kg]."""
    inertia: Scalar = 0.01
    """J, moment of inertia about the centre of mass [kg m²]."""
    centre: Scalar = 0.05
    """Height of the centre of mass above the tip [m]."""
    half_width: Scalar = 0.010
    """r, half width of the peg [m]."""
    length: Scalar = 0.08
    """Length of the peg [m]."""
    clearance: Scalar = 0.00015
    """Gap between peg and hole on each side [m]: a clearance ratio of 0.015."""
    depth: Scalar = 0.03
    """Depth of the hole [m]."""
    friction: Scalar = 0.2
    """Coefficient of friction μ [1]."""
    contact_stiffness: Scalar = 3e5
    """k, stiffness of arm, tool, peg and block in series [N/m]."""
    bristle_stiffness: Scalar = 0.82
    """kt / k [1]."""
    contact_damping: Scalar = 5.0
    """β [s/m]."""
    stiffness: Scalar = 1500.0
    """K, stiffness of the impedance [N/m]."""
    damping: Scalar = 100.0
    """D, damping of the impedance [N s/m]."""
    turning_stiffness: Scalar = 30.0
    """Rotational stiffness of the impedance [N m/rad]."""
    turning_damping: Scalar = 1.0
    """Rotational damping of the impedance [N m s/rad]."""
    offset_spread: Scalar = 0.0
    """Half range of the error of the hole's position [m]."""
    tilt_spread: Scalar = 0.0
    """Half range of the error of the hole's tilt [rad]."""
    force_noise: Scalar = 0.0
    """Standard deviation of the wrist sensor's force noise [N]; the moment's noise is a hundredth [N m]."""


def axes(angle: Float[Array, ""]) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
    """Return the unit vectors (2,) across and along a peg at `angle` [rad]."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([c, s]), jnp.stack([-s, c])


def tip_of(pose: Float[Array, " 3"], p: Params) -> Float[Array, " 3"]:
    """Return the pose of the tip's centre for a pose of the centre of mass."""
    return pose - p.centre * jnp.append(axes(pose[2])[1], 0.0)


def centre_of(tip: Float[Array, " 3"], p: Params) -> Float[Array, " 3"]:
    """Return the pose of the centre of mass for a pose of the tip: the inverse of `tip_of`."""
    return tip + p.centre * jnp.append(axes(tip[2])[1], 0.0)


def velocity_at(point: Float[Array, "*n 2"], pose: Float[Array, " 3"], velocity: Float[Array, " 3"]) -> Any:
    """Return the velocity [m/s] of the peg at points (..., 2) [m]."""
    arm = point - jnp.broadcast_to(pose[:2], point.shape)
    turning = velocity[2] * jnp.stack([-arm[..., 1], arm[..., 0]], axis=-1)
    return jnp.broadcast_to(velocity[:2], point.shape) + turning


class Contacts(NamedTuple):
    """Contacts: left and right corner of the peg, left and right edge of the hole. Values are zero without contact."""

    point: Float[Array, "4 2"]
    depth: Float[Array, " 4"]
    """Penetration [m]."""
    force: Float[Array, "4 2"]
    """Forces on the peg [N]."""
    bristles: Float[Array, "4 2"]
    """Deflection of the friction bristles [m]."""


def contacts(
    pose: Float[Array, " 3"], velocity: Float[Array, " 3"], bristles: Float[Array, "4 2"], h: float, p: Params
) -> Contacts:
    """Return the contacts, with bristles advanced by `h` [s]. The nearer face pushes a point out of the block."""
    across, up = axes(pose[2])
    tip = tip_of(pose, p)[:2]
    sides = jnp.array([-1.0, 1.0], pose.dtype)
    hole = p.half_width + p.clearance

    corner = tip[None] + p.half_width * sides[:, None] * across[None]
    x, z = corner[:, 0], corner[:, 1]
    beside, wall = jnp.abs(x) > hole, jnp.abs(x) - hole
    sideways = beside & (wall < -z)
    corner_depth = jnp.where(beside, jnp.minimum(-z, wall), -p.depth - z)
    inwards = jnp.stack([-jnp.sign(x), jnp.zeros_like(x)], axis=1)
    upwards = jnp.stack([jnp.zeros_like(x), jnp.ones_like(x)], axis=1)
    corner_normal = jnp.where(sideways[:, None], inwards, upwards)

    edge = jnp.stack([hole * sides, jnp.zeros_like(sides)], axis=1)
    a, b = (edge - tip[None]) @ across, (edge - tip[None]) @ up
    side = p.half_width - jnp.abs(a)
    inside = (side > 0) & (b > 0) & (b < p.length)
    edge_depth = jnp.where(inside, jnp.minimum(side, b), 0.0)
    edge_normal = jnp.where((side < b)[:, None], -jnp.sign(a)[:, None] * across[None], up[None])

    point = jnp.concatenate([corner, edge])
    depth = jnp.maximum(jnp.concatenate([corner_depth, edge_depth]), 0.0)
    normal = jnp.concatenate([corner_normal, edge_normal])
    moving = velocity_at(point, pose, velocity)
    closing = -jnp.sum(moving * normal, axis=1)
    squeezed = depth * jnp.maximum(0.0, 1.0 + p.contact_damping * closing)
    pressed = p.contact_stiffness * squeezed
    tangent = jnp.stack([-normal[:, 1], normal[:, 0]], axis=1)
    slip = jnp.sum(moving * tangent, axis=1)
    stiffness = p.bristle_stiffness * p.contact_stiffness
    most, furthest = p.friction * pressed, p.friction * squeezed / p.bristle_stiffness
    # A bristle keeps its component along the present face, and is zero without a normal force.
    bent = jnp.clip(jnp.sum(bristles * tangent, axis=1) + h * slip, -furthest, furthest)
    rubbed = jnp.clip(-stiffness * bent - jnp.sqrt(stiffness * p.mass) * slip, -most, most)
    force = pressed[:, None] * normal + rubbed[:, None] * tangent
    return Contacts(point, depth, force, bent[:, None] * tangent)


def wrench_about(
    point: Float[Array, " 2"], where: Float[Array, "n 2"], force: Float[Array, "n 2"]
) -> Float[Array, " 3"]:
    """Return the wrench about `point` (2,) [m] of forces (n, 2) [N] that act at places `where` (n, 2) [m]."""
    arm = where - point[None]
    return jnp.append(jnp.sum(force, axis=0), jnp.sum(arm[:, 0] * force[:, 1] - arm[:, 1] * force[:, 0]))


def impedance_wrench(
    pose: Float[Array, " 3"], velocity: Float[Array, " 3"], setpoint: Float[Array, " 3"], p: Params
) -> Any:
    """Return the impedance controller's wrench about the centre of mass; the set point does not move."""
    tip = tip_of(pose, p)
    stiffness = jnp.stack([jnp.asarray(x, pose.dtype) for x in (p.stiffness, p.stiffness, p.turning_stiffness)])
    damping = jnp.stack([jnp.asarray(x, pose.dtype) for x in (p.damping, p.damping, p.turning_damping)])
    moving = jnp.append(velocity_at(tip[:2], pose, velocity), velocity[2])
    pull = stiffness * (setpoint - tip) - damping * moving
    return wrench_about(pose[:2], tip[None, :2], pull[None, :2]).at[2].add(pull[2])


def semi_implicit_step(
    pose: Float[Array, " 3"], velocity: Float[Array, " 3"], wrench: Float[Array, " 3"], h: float, p: Params
) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
    """Return pose q + h v⁺ and velocity v⁺ = v + h M⁻¹ f after `h` [s], for the wrench f and mass matrix M."""
    inertia = jnp.stack([jnp.asarray(x, pose.dtype) for x in (p.mass, p.mass, p.inertia)])
    velocity = velocity + h * wrench / inertia
    return pose + h * velocity, velocity


def advance(
    pose: Float[Array, " 3"],
    velocity: Float[Array, " 3"],
    bristles: Float[Array, "4 2"],
    setpoint: Float[Array, " 3"],
    external: Float[Array, " 3"],
    seconds: float,
    substeps: int,
    p: Params,
) -> tuple[Float[Array, " 3"], Float[Array, " 3"], Float[Array, "4 2"], Float[Array, "n 3"]]:
    """Return pose, velocity, bristles and contact forces after `seconds` with a constant set point and wrench.

    Args:
        external: (3,), external wrench about the tip [N, N, N m].

    Returns:
        Pose, velocity and bristles at the end, and the contact wrench about the tip [N, N, N m] in each substep.
    """
    h = seconds / substeps

    def substep(carry: Any, _: None) -> tuple[Any, Any]:
        pose, velocity, bristles = carry
        touch = contacts(pose, velocity, bristles, h, p)
        tip = tip_of(pose, p)[:2]
        pushed = wrench_about(pose[:2], tip[None], external[None, :2]).at[2].add(external[2])
        total = (
            wrench_about(pose[:2], touch.point, touch.force) + impedance_wrench(pose, velocity, setpoint, p) + pushed
        )
        moved = semi_implicit_step(pose, velocity, total, h, p)
        return (*moved, touch.bristles), wrench_about(tip, touch.point, touch.force)

    (pose, velocity, bristles), wrenches = jax.lax.scan(substep, (pose, velocity, bristles), None, substeps)
    return pose, velocity, bristles, wrenches


def free_motion(
    pose: Float[Array, " 3"],
    velocity: Float[Array, " 3"],
    setpoint: Float[Array, " 3"],
    seconds: float,
    substeps: int,
    p: Params,
) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
    """Return pose and velocity after `seconds` with a constant set point of the tip, without contacts."""

    def substep(carry: Any, _: None) -> tuple[Any, None]:
        pose, velocity = carry
        return semi_implicit_step(
            pose, velocity, impedance_wrench(pose, velocity, setpoint, p), seconds / substeps, p
        ), None

    return jax.lax.scan(substep, (pose, velocity), None, substeps)[0]


def energy(
    pose: Float[Array, " 3"],
    velocity: Float[Array, " 3"],
    bristles: Float[Array, "4 2"],
    setpoint: Float[Array, " 3"],
    p: Params,
) -> Float[Array, ""]:
    """Return the kinetic energy plus the elastic energy of contacts, bristles and impedance [J]."""
    touch = contacts(pose, velocity, bristles, 0.0, p)
    strain = setpoint - tip_of(pose, p)
    kinetic = p.mass * jnp.sum(velocity[:2] ** 2) + p.inertia * velocity[2] ** 2
    springs = p.stiffness * jnp.sum(strain[:2] ** 2) + p.turning_stiffness * strain[2] ** 2
    bent = jnp.sum(touch.depth**2) + p.bristle_stiffness * jnp.sum(touch.bristles**2)
    return 0.5 * (kinetic + springs + p.contact_stiffness * bent)
