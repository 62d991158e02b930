"""The power grid against Baran and Wu's losses (shared truth 1.5), pandapower's power flow, and Kirchhoff's laws."""

from __future__ import annotations

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.plants.base import rollout
from neorl_core.plants.power_grid import feeder33 as feeder
from neorl_core.plants.power_grid import plant as grid
from neorl_core.plants.power_grid import units
from neorl_core.plants.power_grid.power_flow import Flow, is_radial, magnitude, open_lines, path_matrix, solve
from tests.conftest import Truth

GOLDEN = Path(__file__).parents[2] / "golden" / "pandapower.npz"
IMPEDANCE = np.stack([feeder.RESISTANCE, feeder.REACTANCE], -1)


def flows(positions: np.ndarray, active: np.ndarray, reactive: np.ndarray, iterations: int = 60) -> Flow:
    """Power flows (n cases) in 64 bits."""

    def one(positions: jax.Array, active: jax.Array, reactive: jax.Array) -> Flow:
        return solve(path_matrix(positions, active.dtype), active, reactive, jnp.asarray(IMPEDANCE), iterations)

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(*map(jnp.asarray, (positions, active, reactive))))


def positions_for(lines: np.ndarray) -> tuple[int, ...]:
    """Switch positions that open a set of five lines, found by trying which loop opens which."""
    for order in itertools.permutations(int(line) for line in lines):
        if all(line in loop for line, loop in zip(order, feeder.LOOP_LINES, strict=True)):
            found = feeder.positions_of(order)
            if bool(is_radial(jnp.asarray(found))):
                return found
    raise AssertionError(f"expected switch positions that open lines {lines}, found none")


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN, allow_pickle=False) as data:
        return {key: data[key] for key in data.files if key != "config"}


@pytest.fixture(scope="module")
def found(golden: dict[str, np.ndarray]) -> tuple[np.ndarray, Flow]:
    """Switch positions and flows of the golden cases."""
    positions = np.array([positions_for(lines) for lines in golden["open"]])
    return positions, flows(positions, golden["active"], golden["reactive"])


def test_losses_and_lowest_voltages_of_baran_and_wu(truth: Truth) -> None:
    # Truth 1.5. In the paper's count the best topology opens lines 7-9-14-32-37, and the lowest voltage is at bus 18.
    positions = np.array([feeder.positions_of((32, 33, 34, 35, 36)), feeder.positions_of((6, 13, 8, 31, 36))])
    load = np.tile(feeder.ACTIVE_LOAD, (2, 1)), np.tile(feeder.REACTIVE_LOAD, (2, 1))
    got = flows(positions, *load)
    voltages = np.hypot(*np.moveaxis(got.voltage, -1, 0))
    source = "Baran and Wu 1989, pandapower"
    for i, (lines, loss, lowest) in enumerate(
        (("base topology", 202.677, 0.91309), ("lines 7-9-14-32-37 open", 139.551, 0.93782))
    ):
        truth(f"loss, {lines} [kW]", loss, got.loss[i] * 1e3, 1e-3, source)
        truth(f"lowest voltage, {lines} [pu]", lowest, voltages.min(1)[i], 5e-6, source)
    assert voltages[0].argmin() + 2 == 18
    # The plant's own number of iterations is enough there.
    few = flows(positions, *load, iterations=grid.ITERATIONS)
    assert np.abs(few.voltage - got.voltage).max() < 1e-10


def test_flows_on_random_topologies_are_pandapowers(
    golden: dict[str, np.ndarray], found: tuple[np.ndarray, Flow], truth: Truth
) -> None:
    got = found[1]
    e, f = np.moveaxis(got.voltage, -1, 0)
    source = f"pandapower 3.5.6, {len(golden['loss'])} random topologies and loads"
    for quantity, away, allowed in (
        ("largest error of a voltage [pu]", np.hypot(e, f) - golden["voltage"], 1e-6),
        ("largest error of an angle [degree]", np.degrees(np.arctan2(f, e)) - golden["angle"], 1e-4),
        ("largest error of a loss [MW]", got.loss - golden["loss"], 1e-6),
    ):
        truth(quantity, 0.0, np.abs(away).max(), allowed, source)
    # Cases differ: some feed in, and no two share a topology.
    assert len(np.unique(golden["open"], axis=0)) == len(golden["open"])
    assert (golden["active"] < 0).any(1).all()


def test_kirchhoffs_laws_hold_on_every_topology(golden: dict[str, np.ndarray], found: tuple[np.ndarray, Flow]) -> None:
    got = found[1]
    current, voltage = (x[..., 0] + 1j * x[..., 1] for x in (got.current, got.voltage))
    voltage = np.hstack([np.ones((len(voltage), 1)), voltage])
    incidence = np.zeros((feeder.LINES, feeder.BUSES + 1))
    incidence[np.arange(feeder.LINES), feeder.ENDS[:, 0]] = 1
    incidence[np.arange(feeder.LINES), feeder.ENDS[:, 1]] = -1
    # Current law: what arrives at a bus is what its load draws, S = V conj(I).
    drawn = voltage * np.conj(-current @ incidence)
    power = golden["active"] + 1j * golden["reactive"]
    assert np.abs(drawn[:, 1:] - power).max() < 1e-9
    # Voltage law: V falls by Z J along closed lines, and open ones carry nothing.
    opened = np.zeros((len(voltage), feeder.LINES), bool)
    np.put_along_axis(opened, golden["open"], True, 1)
    assert not current[opened].any()
    fall = voltage @ incidence.T - current * (IMPEDANCE[:, 0] + 1j * IMPEDANCE[:, 1])
    assert np.abs(fall[~opened]).max() < 1e-12
    # Energy: the substation feeds loads and losses.
    assert np.abs(-drawn[:, 0].real - golden["active"].sum(1) - got.loss).max() < 1e-8


def test_switch_positions_are_refused_exactly_where_no_tree_is_left() -> None:
    # The second way to tell: walk the closed lines from the substation and count the buses reached.
    rng = np.random.default_rng(0)
    positions = np.stack([rng.integers(0, len(loop), 300) for loop in feeder.LOOP_LINES], 1)
    radial = np.asarray(jax.jit(jax.vmap(is_radial))(positions))
    lines = np.asarray(jax.jit(jax.vmap(open_lines))(positions))
    for ours, opened in zip(radial, lines, strict=True):
        closed, reached = np.delete(feeder.ENDS, opened, 0), {0}
        for _ in range(feeder.BUSES):
            reached |= {int(b) for a, b in closed if int(a) in reached} | {
                int(a) for a, b in closed if int(b) in reached
            }
        assert ours == (len(reached) == 33 and len(closed) == 32)
    assert 0.1 < radial.mean() < 0.5
    before = jnp.asarray(grid.units.STARTS[1], jnp.int32)
    refused = grid.switch(before, jnp.asarray(positions[~radial][0], jnp.float32))
    np.testing.assert_array_equal(refused, before)
    np.testing.assert_array_equal(
        grid.switch(before, jnp.asarray(positions[radial][0], jnp.float32)), positions[radial][0]
    )


def test_the_flow_has_the_gradient_of_its_finite_difference() -> None:
    with jax.enable_x64(True):
        path = path_matrix(jnp.asarray(units.STARTS[1]), jnp.dtype(float))
        active = jnp.asarray(feeder.ACTIVE_LOAD)

        def loss(reactive: jax.Array) -> jax.Array:
            found = solve(path, active, reactive, jnp.asarray(IMPEDANCE), grid.ITERATIONS)
            return found.loss + jnp.min(magnitude(found.voltage))

        loss = jax.jit(loss)
        reactive = jnp.asarray(feeder.REACTIVE_LOAD)
        slope = np.asarray(jax.jit(jax.grad(loss))(reactive))
        for bus in (5, 17, 31):
            push = jnp.zeros(feeder.BUSES).at[bus].set(1e-5)
            difference = float(loss(reactive + push) - loss(reactive - push)) / 2e-5
            assert slope[bus] == pytest.approx(difference, rel=1e-6)


def test_a_battery_keeps_its_energy() -> None:
    # What is drawn is stored times η, what is stored is given times η, and a full cycle loses 1 − η².
    with jax.enable_x64(True):
        commands = jnp.asarray([[-0.5, 0.5]] * 12 + [[0.5, -0.5]] * 24)

        def step(energy: jax.Array, command: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            power = units.battery_power(energy, command, 0.9)
            energy = units.charge(energy, power, 0.9)
            return energy, (energy, power)

        energy, power = (np.asarray(x) for x in jax.lax.scan(step, jnp.asarray([0.5, 1.5]), commands)[1])
    start = np.array([0.5, 1.5])
    taken, given = (-np.minimum(power, 0).sum(0) * units.DT, np.maximum(power, 0).sum(0) * units.DT)
    np.testing.assert_allclose(energy[-1] - start, 0.9 * taken - given / 0.9, atol=1e-12)
    assert energy.min() >= 0
    assert energy.max() <= units.BATTERY_MWH
    # The first fills up and is emptied, the second the other way round: they end at a bound and give no more.
    np.testing.assert_allclose(energy[-1], [0.0, units.BATTERY_MWH], atol=1e-12)
    np.testing.assert_allclose(given[0], 0.9 * (0.5 + 0.9 * taken[0]), atol=1e-12)
    assert power[-1] == pytest.approx(0.0, abs=1e-12)


def test_an_inverter_stays_within_its_rating_and_withholds_no_more_than_the_sun_gives() -> None:
    state = grid.State(
        jnp.asarray(47, jnp.int32),
        jnp.asarray(0.8),
        jnp.asarray(0.7),
        jnp.asarray([1.0, 1.0]),
        jnp.asarray(units.STARTS[0]),
    )
    operate = jax.jit(grid.operate)
    sun = float(units.available(12.0, 0.7))

    def after(action: np.ndarray) -> tuple[grid.Flow, float]:
        _, found, reward = operate(
            state, jnp.asarray(action, jnp.float32), state.load_level, state.clearness, grid.NOMINAL
        )
        return found, float(reward)

    full = np.zeros(17)
    full[6:10] = units.SOLAR_MVA
    limited = full.copy()
    limited[6:10] = np.sqrt(units.SOLAR_MVA**2 - sun**2)
    np.testing.assert_allclose(after(full)[0].voltage, after(limited)[0].voltage, atol=1e-6)
    # At noon 1 MWh costs 100 $: withholding all the sun costs 4 × 0.25 h of it, and the change in losses.
    idle, dark = np.zeros(17), np.zeros(17)
    dark[:4] = units.SOLAR_MW
    (kept, most), (lost, least) = after(idle), after(dark)
    assert most - least == pytest.approx(100.0 * 0.25 * (4 * sun + float(lost.loss - kept.loss)), rel=1e-4)
    assert float(lost.loss) > float(kept.loss)


@pytest.mark.slow
def test_the_reference_holds_the_voltage_and_earns_more_than_the_curve() -> None:
    plant = grid.PLANT
    days = jax.vmap(plant.sample_params, (0, None))(jax.random.split(jax.random.key(0), 4), plant.domain)
    keys = jax.random.split(jax.random.key(1), 4)
    runs = {
        name: jax.jit(jax.vmap(lambda key, day, c=controller, p=params: rollout(plant, c, p, key, day)))(keys, days)
        for name, controller, params in (
            ("curve", plant.fallback, plant.fallback_params),
            ("flow", plant.oracle, plant.oracle_params),
        )
    }
    assert all((run.margins > 0).all() for run in runs.values())
    assert (runs["flow"].rewards.sum(1) > runs["curve"].rewards.sum(1) + 50.0).all()
    losses = {name: np.asarray(run.next_observations[..., 18]).sum(1) for name, run in runs.items()}
    assert (losses["flow"] < 0.9 * losses["curve"]).all()


def test_every_action_belongs_to_one_agent() -> None:
    moved = sorted(k for agent in grid.PLANT.agents for k in agent.action)
    assert moved == list(range(grid.SPEC.action.size))
    for agent in grid.PLANT.agents[:-1]:
        assert all(grid.SPEC.action.names[k].endswith(agent.name) for k in agent.action)
        assert f"voltage_{agent.name}" in [grid.SPEC.observation.names[k] for k in agent.observation]
