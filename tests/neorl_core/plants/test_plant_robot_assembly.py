"""The peg in the hole against mechanics: momentum, energy, F/k, and Whitney's jamming and wedging (1982)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from neorl_core.plants import LOGGED
from neorl_core.plants.base import rollout
from neorl_core.plants.robot_assembly import peg as mechanics
from neorl_core.plants.robot_assembly import plant as robot
from tests.conftest import Truth

FREE = robot.NOMINAL._replace(stiffness=0.0, damping=0.0, turning_stiffness=0.0, turning_damping=0.0)
"""No impedance: the peg moves freely."""
IDEAL = {"contact_damping": 0.0, "friction": 0.0}
ADVANCE = jax.jit(mechanics.advance, static_argnames="substeps")
UNBENT = np.zeros((4, 2))
"""Bristles at rest."""


def peg(x: float, z: float, angle: float, p: mechanics.Params = robot.NOMINAL) -> jax.Array:
    """Pose of the centre of mass of a peg with a given tip pose."""
    return mechanics.centre_of(jnp.array([x, z, angle]), p)


def test_momentum_changes_by_contact_impulse() -> None:
    # A free peg falls on the hole's right edge and turns: momenta about the hole's middle against the acting forces.
    h, n = 1e-4, 400
    with jax.enable_x64(True):
        start = (peg(0.004, 0.002, 0.05, FREE), jnp.array([0.02, -0.15, 0.3]), jnp.asarray(UNBENT))

        @jax.jit
        def flight(start: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            def substep(carry: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], jax.Array]:
                pose, velocity, bristles = carry
                touch = mechanics.contacts(pose, velocity, bristles, h, FREE)
                total = mechanics.wrench_about(pose[:2], touch.point, touch.force)
                moved = mechanics.semi_implicit_step(pose, velocity, total, h, FREE)
                return (*moved, touch.bristles), mechanics.wrench_about(jnp.zeros(2), touch.point, touch.force)

            (pose, velocity, _), wrenches = jax.lax.scan(substep, start, None, n)
            return jnp.stack([pose, velocity]), h * jnp.sum(wrenches, axis=0)

        (pose, velocity), impulse = flight(start)

        def momenta(pose: jax.Array, velocity: jax.Array) -> np.ndarray:
            x, z, _ = np.asarray(pose)
            vx, vz, rate = np.asarray(velocity)
            return np.array([2.0 * vx, 2.0 * vz, 2.0 * (x * vz - z * vx) + 0.01 * rate])

        change = momenta(pose, velocity) - momenta(*start[:2])
        impulse = np.asarray(impulse)
    assert np.abs(impulse).min() > 1e-5
    assert impulse[1] > 0.1
    # About a fixed point the semi-implicit step moves the lever arm by h v between force and momentum.
    np.testing.assert_allclose(change, impulse, rtol=1e-2)
    np.testing.assert_allclose(change[:2], impulse[:2], rtol=1e-9)


def bounced(substeps: int, **changes: float) -> tuple[np.ndarray, np.ndarray]:
    """Energies [J] every 2 ms of a peg pushed onto the block by the spring, and the pose after 30 ms."""
    p = robot.NOMINAL._replace(damping=0.0, turning_damping=0.0, **changes)
    with jax.enable_x64(True):
        setpoint = jnp.array([0.003, -0.004, 0.0])
        start = peg(0.003, 0.001, 0.03), jnp.array([0.0, -0.1, 0.0]), jnp.asarray(UNBENT)
        found, pose = _bounces(start, setpoint, p, substeps)
        return np.asarray(found), np.asarray(pose)


@partial(jax.jit, static_argnames="substeps")
def _bounces(start: tuple[jax.Array, ...], setpoint: jax.Array, p: mechanics.Params, substeps: int) -> tuple:
    def onwards(carry: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], jax.Array]:
        now = mechanics.advance(*carry, setpoint, jnp.zeros(3), 0.002, substeps, p)[:3]
        return now, mechanics.energy(*now, setpoint, p)

    (pose, *_), found = jax.lax.scan(onwards, start, None, 15)
    return jnp.append(mechanics.energy(*start, setpoint, p), found), pose


def test_energy_is_conserved_without_friction() -> None:
    # The semi-implicit step conserves energy to first order in the step.
    kept = [bounced(n, **IDEAL)[0] for n in (40, 160)]
    drift = [np.abs(found / found[0] - 1).max() for found in kept]
    assert drift[0] < 0.02
    assert drift[1] < drift[0] / 3
    lost, _ = bounced(40)
    assert np.all(np.diff(lost) < 0.01 * lost[0])
    assert lost[-1] < 0.9 * lost[0]


def test_motion_converges_with_the_time_step() -> None:
    exact = bounced(640)[1]
    errors = [np.abs(bounced(n)[1] - exact).max() for n in (10, 40, 160)]
    # 10 are the plant's own steps of 0.2 ms; first order, so the reference has an error of the same size.
    assert robot.SUBSTEPS * 0.002 / robot.DT == 10
    assert errors[0] < 2e-4
    assert 3.5 < errors[0] / errors[1] < 5.5
    assert 3.5 < errors[1] / errors[2] < 6.0


def test_penetration_of_rest_and_impact(truth: Truth) -> None:
    down = jnp.array([0.0, -30.0, 0.0])
    with jax.enable_x64(True):
        # Beside the hole, both corners flush on the block, 30 N on two springs, after the motion has decayed.
        damped = FREE._replace(damping=400.0, turning_damping=2.0)
        rest = peg(0.05, 0.0, 0.0), jnp.zeros(3), jnp.asarray(UNBENT)
        pose, velocity, bristles, _ = ADVANCE(*rest, jnp.zeros(3), down, 0.3, 1500, damped)
        depth = np.asarray(mechanics.contacts(pose, velocity, bristles, 0.0, damped).depth)
        for corner in depth[:2]:
            truth("penetration under 15 N [µm]", 50.0, corner * 1e6, 0.05, "F/k")
        # No damping, 0.2 m/s: kinetic energy into two springs, v √(m / 2k), and the force is k times that.
        hard = FREE._replace(**IDEAL)
        thrown = peg(0.05, 1e-4, 0.0), jnp.array([0.0, -0.2, 0.0]), jnp.asarray(UNBENT)
        wrenches = np.asarray(ADVANCE(*thrown, jnp.zeros(3), jnp.zeros(3), 0.01, 1500, hard)[3])
    bound = 0.2 * np.sqrt(2.0 * 6e5)
    truth("highest force of an impact [N]", bound, wrenches[:, 1].max(), 1e-2 * bound, "v √(2 m k), energy")


def test_friction_sticks_below_cone_and_slides_above(truth: Truth) -> None:
    # Flush on the block under 10 N, pushed sideways at the tip's height: below μ N it moves by the bristles' F / (2 kt)
    # and stops; above μ N the excess force accelerates the mass.
    p = FREE._replace(turning_stiffness=300.0, turning_damping=3.0, friction=0.3)
    tangential = 0.82 * 3e5

    @jax.jit
    def pushed(share: jax.Array) -> tuple[jax.Array, jax.Array]:
        sideways = jnp.stack([share * 0.3 * 10.0, -10.0 + 0 * share, 0 * share])
        start = peg(0.05, -10.0 / 6e5, 0.0), jnp.zeros(3), jnp.asarray(UNBENT)
        soon = mechanics.advance(*start, jnp.zeros(3), sideways, 0.1, 1000, p)[:3]
        late = mechanics.advance(*soon, jnp.zeros(3), sideways, 0.5, 5000, p)[:3]
        return jnp.stack([soon[0][0], late[0][0]]) - 0.05, jnp.stack([soon[1][0], late[1][0]])

    with jax.enable_x64(True):
        (soon, late), (_, still) = (np.asarray(x) for x in pushed(jnp.asarray(0.9)))
        _, speeds = (np.asarray(x) for x in pushed(jnp.asarray(1.2)))
    assert abs(late - soon) < 1e-9
    assert abs(still) < 1e-9
    # The centre of mass also leans with the peg, whose turning spring is 300 N m/rad.
    truth("give of a peg that sticks under 2.7 N [µm]", 2.7 / (2 * tangential) * 1e6, late * 1e6, 0.6, "F / (2 kt)")
    source = "(F − μ N) / m"
    truth("acceleration of a peg pushed with 1.2 μ N [m/s²]", 0.3, np.diff(speeds)[0] / 0.5, 0.01, source)


MU, DEEP = 0.3, 0.02
LAMBDA = DEEP / (2 * 0.01 * MU)


def test_peg_jams_as_in_whitneys_diagram(truth: Truth) -> None:
    # A peg 20 mm deep under Fx, Fz and M at its tip slides in where |M/(r Fz) + μ (1 + λ) Fx/Fz| < λ, λ = l / (2 r μ),
    # and |Fx/Fz| < 1/μ (Whitney 1982, figure 8), tested 20 % on both sides of the boundary.
    # Damped, so that the peg comes to rest.
    p = FREE._replace(friction=MU, depth=1.0, length=0.2, damping=200.0, turning_damping=1.0)
    p = p._replace(clearance=5e-5)
    cases, slides = [], []
    for sideways in (-2.0, -1.0, 0.0, 1.0, 2.0):
        for share in (-1.2, -0.8, 0.8, 1.2):
            cases.append((sideways, share * LAMBDA - MU * (1 + LAMBDA) * sideways))
            slides.append(abs(share) < 1)
    for sideways, inside in ((-1.2 / MU, False), (-0.8 / MU, True), (0.8 / MU, True), (1.2 / MU, False)):
        cases.append((sideways, -MU * (1 + LAMBDA) * sideways))
        slides.append(inside)
    force = 5.0
    wrench = np.array([(fx * force, -force, m * 0.01 * force) for fx, m in cases])
    with jax.enable_x64(True):
        start = peg(0.0, -DEEP, 0.0), jnp.zeros(3), jnp.asarray(UNBENT)
        pushed = jax.jit(jax.vmap(lambda w: mechanics.advance(*start, jnp.zeros(3), w, 0.2, 4000, p)[:3]))
        later = jax.jit(jax.vmap(lambda s, w: mechanics.advance(*s, jnp.zeros(3), w, 0.2, 4000, p)[0]))
        met = pushed(jnp.asarray(wrench))
        way = -np.asarray(later(met, jnp.asarray(wrench)) - met[0])[:, 1]
    # A sliding peg moves at some mm/s against the damping; a jammed peg does not even creep.
    away = sum(bool(w > 1e-4) != s for w, s in zip(way, slides, strict=True))
    truth("cases of 24 on the wrong side of the jamming diagram", 0, away, 0, "Whitney 1982, figure 8")
    creep = max(abs(w) for w, s in zip(way, slides, strict=True) if not s)
    truth("way of a jammed peg in 0.2 s [µm]", 0.0, creep * 1e6, 0.01, "a peg that sticks stays")


@pytest.mark.parametrize(("depth", "wedged"), [(0.0042, True), (0.0085, False)])
def test_peg_wedges_as_whitney_says(depth: float, wedged: bool) -> None:
    # Squeezed between a wall and the opposite edge without external force, the peg stays if both friction cones contain
    # the line between the contacts, l / (2 r) < μ (Whitney 1982, equation 16), here 6 mm.
    squeeze, clearance = 1e-5, 2e-5
    p = FREE._replace(friction=MU, clearance=clearance, contact_damping=0.0)
    hole, r = 0.01 + clearance, 0.01
    lean = brentq(lambda t: 2 * r * np.cos(t) + depth * np.sin(t) - 2 * (hole + squeeze), 1e-6, 0.05)
    with jax.enable_x64(True):
        pose = peg(r * np.cos(lean) - hole - squeeze, -depth, -lean, p)
        still = jnp.zeros(3), jnp.asarray(UNBENT)
        before = mechanics.contacts(pose, *still, 0.0, p)
        pose, velocity, bristles, _ = ADVANCE(pose, *still, jnp.zeros(3), jnp.zeros(3), 0.2, 10000, p)
        after = np.asarray(mechanics.contacts(pose, velocity, bristles, 0.0, p).depth)
    before = np.asarray(before.depth)
    assert np.count_nonzero(before) == 2
    np.testing.assert_allclose(before[[0, 3]], squeeze, rtol=0.3)
    assert (after[[0, 3]].min() > 0.7 * squeeze) == wedged
    assert (after.max() < 0.1 * squeeze) == (not wedged)


@pytest.fixture(scope="module")
def inserted() -> tuple[object, object]:
    """Episodes of the strategy in the operating domain."""
    plant = robot.PLANT

    @jax.jit
    def episodes(keys: jax.Array) -> object:
        def one(key: jax.Array) -> object:
            drawn, run = jax.random.split(key)
            return rollout(plant, plant.fallback, plant.fallback_params, run, robot.sample_params(drawn, plant.domain))

        return jax.vmap(one)(keys)

    return episodes(jax.random.split(jax.random.key(0), 8)), plant


@pytest.mark.slow
def test_strategy_inserts_within_force_limit(inserted: tuple) -> None:
    trajectory, plant = inserted
    assert bool(jnp.all(trajectory.margins > 0))
    assert np.sum(np.asarray(trajectory.next_observations)[:, -1, 1] < -29.0) >= 7
    # The wrist force at the end of a step is at most the largest in the step, up to noise.
    logged = LOGGED["robot_assembly"]
    rows = (trajectory.observations, trajectory.actions, trajectory.next_observations)
    assert float(jnp.min(logged.margins(rows[2]) - trajectory.margins)) > -2.0
    assert float(jnp.abs(logged.reward(*rows) - trajectory.rewards).max()) < 0.05
    # In the air the shield's model is exact; in contact friction and hole take a part of the set point.
    seen, margins = jax.jit(jax.vmap(jax.vmap(lambda o, a: plant.predict(o, a, plant.params))))(*rows[:2])
    air = np.asarray(jnp.all(jnp.abs(rows[0][..., 6:8]) < 0.7, axis=-1) & (rows[0][..., 1] > 1.5))
    assert air.sum() > 50
    gap = np.abs(np.asarray(seen - rows[2]))[air]
    assert gap[:, :3].max() < 0.02
    assert gap[:, 9:].max() < 1e-4
    assert np.mean(np.asarray(margins - trajectory.margins)[..., 0] < 5.0) > 0.95


def test_measured_pose_includes_error() -> None:
    params = robot.sample_params(jax.random.key(3), robot.PLANT.domain)
    state, observation = jax.jit(robot.reset)(jax.random.key(7), params)
    tip = mechanics.tip_of(state.pose, params)
    np.testing.assert_allclose(observation[:3], robot.display_units(tip + state.error), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(observation[9:], observation[:3], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(robot.si_units(robot.display_units(tip)), tip, rtol=1e-6)
    assert 0 < abs(float(state.error[0])) <= 0.0015
    assert 3.0 <= float(observation[1]) <= 6.0


def test_contact_stiffness_range() -> None:
    # Log-uniform from Wilson and Pham's aluminium to the stiffest industrial arms.
    draw = jax.jit(jax.vmap(robot.sample_params, (0, None)))
    drawn = np.log10(draw(jax.random.split(jax.random.key(0), 2000), robot.PLANT.domain).contact_stiffness)
    assert drawn.min() == pytest.approx(5.0, abs=0.01)
    assert drawn.max() == pytest.approx(6.0, abs=0.01)
    assert drawn.mean() == pytest.approx(5.5, abs=0.02)


def test_gradients_reach_through_contact() -> None:
    with jax.enable_x64(True):
        pose = peg(0.05, -5e-5, 0.0)

        def height(setpoint: jax.Array) -> jax.Array:
            still = jnp.zeros(3), jnp.asarray(UNBENT)
            return mechanics.advance(pose, *still, setpoint, jnp.zeros(3), 0.02, 100, robot.NOMINAL)[0][1]

        at = jnp.array([0.05, -0.006, 0.0])
        slope = jax.jit(jax.grad(height))(at)
        bump = (height(at.at[1].add(1e-6)) - height(at.at[1].add(-1e-6))) / 2e-6
        slope, bump = np.asarray(slope), float(bump)
    assert float(slope[1]) == pytest.approx(bump, rel=1e-4)
    assert float(slope[1]) > 0
