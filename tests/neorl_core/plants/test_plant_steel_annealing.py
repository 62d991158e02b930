"""The annealing furnace against analytic conduction (Carslaw and Jaeger; Incropera and DeWitt) and its own balances."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import erfc

from neorl_core.plants import LOGGED
from neorl_core.plants.base import rollout
from neorl_core.plants.steel_annealing import furnace as physics
from neorl_core.plants.steel_annealing import plant as furnace
from tests.conftest import Truth

CONVECTIVE = furnace.NOMINAL._replace(emissivity=0.0, convection=400.0, zone_capacity=1e30)
"""Zones that hold their temperature and only convect, for which conduction has closed forms."""
DIFFUSIVITY = 27.3 / (7850.0 * 650.0)
START, ZONE = 300.0, 1200.0
ADVANCE = jax.jit(physics.advance, static_argnames="substeps")
RESET = jax.jit(furnace.PLANT.reset)


def arrays(params: physics.Params, **changes: float) -> physics.Params:
    """The same constants as arrays of the precision in force, so that one compiled program serves them all."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), params._replace(**changes))


SAMPLED = {"emissivity": 0.68, "efficiency": 0.57, "speed_sd": 0.03, "noise_sd": 2.0}
"""Constants of one furnace within the operating domain."""


def heated(thickness: float, seconds: float, cells: int, substeps: int, p: physics.Params = CONVECTIVE) -> np.ndarray:
    """Temperatures [K] of one section from 300 K in a zone of 1200 K."""
    with jax.enable_x64(True):
        start = physics.Furnace(jnp.full((1, cells), START), jnp.full((1,), ZONE))
        ended, _ = ADVANCE(start, jnp.array([thickness]), jnp.zeros(1), jnp.ones((1, 1)), seconds, substeps, arrays(p))
        return np.asarray(ended.steel)[0]


def depths(thickness: float, cells: int) -> np.ndarray:
    """Middles of the volumes [m] below the surface."""
    return (np.arange(cells) + 0.5) * thickness / 2000 / cells


def fourier(thickness: float, seconds: float, depth: np.ndarray) -> np.ndarray:
    """θ = Σ 4 sin ζ / (2 ζ + sin 2ζ) exp(−ζ² Fo) cos(ζ η), ζ tan ζ = Bi: Incropera and DeWitt, equation 5.42."""
    half = thickness / 2000
    biot, number = 400.0 * half / 27.3, DIFFUSIVITY * seconds / half**2
    roots = [brentq(lambda z: z * np.tan(z) - biot, n * np.pi, (n + 0.5) * np.pi - 1e-12) for n in range(60)]
    z = np.array(roots)[:, None]
    terms = 4 * np.sin(z) / (2 * z + np.sin(2 * z)) * np.exp(-(z**2) * number) * np.cos(z * (1 - depth / half))
    return ZONE + (START - ZONE) * terms.sum(axis=0)


def test_a_thick_slab_heats_as_a_half_space_does(truth: Truth) -> None:
    # Carslaw and Jaeger 2.7 (1), convection at the surface; in 120 s heat gets 40 mm deep, the middle is at 200 mm.
    seconds, cells = 120.0, 200
    found, y = heated(400.0, seconds, cells, 512), depths(400.0, cells)
    spread, h = 2 * np.sqrt(DIFFUSIVITY * seconds), 400.0 / 27.3
    rise = erfc(y / spread) - np.exp(h * y + h**2 * spread**2 / 4) * erfc(y / spread + h * spread / 2)
    away = np.abs(found - (START + (ZONE - START) * rise)).max()
    truth("half space under convection for 120 s, largest error [K]", 0.0, away, 0.2, "Carslaw and Jaeger 2.7 (erfc)")
    assert found[0] - START > 150


def test_a_slab_heats_as_fouriers_series_says_with_second_order_in_space(truth: Truth) -> None:
    # Volumes hold means: those of the series over each volume, by eight points in it.
    seconds, thickness, errors = 60.0, 40.0, []
    for cells in (4, 8, 16):
        points = depths(thickness, 8 * cells)
        exact = fourier(thickness, seconds, points).reshape(cells, 8).mean(axis=1)
        errors.append(np.abs(heated(thickness, seconds, cells, 512) - exact).max())
    orders = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    source = "Fourier's series, Incropera and DeWitt 5.42"
    for order in orders:
        truth("order of convergence in space", 2.0, order, 0.15, source)
    # The plant's eight volumes, under a flux as high as at its entry.
    truth("slab of 40 mm after 60 s, eight volumes, largest error [K]", 0.0, errors[1], 1.0, source)


def test_time_is_of_second_order_with_radiation_and_the_plants_substeps_suffice() -> None:
    radiating = furnace.NOMINAL._replace(zone_capacity=1e30)
    exact = heated(30.0, 60.0, furnace.CELLS, 512, radiating)
    errors = [np.abs(heated(30.0, 60.0, furnace.CELLS, n, radiating) - exact).max() for n in (6, 24, 48)]
    assert np.log2(errors[1] / errors[2]) == pytest.approx(2.0, abs=0.2)
    assert furnace.SUBSTEPS == 6
    assert errors[0] < 0.5


def test_surface_temperature_solves_its_equation() -> None:
    with jax.enable_x64(True):
        outer, cell = jnp.array([293.15, 700.0, 1300.0]), jnp.array([1.25e-3, 2.5e-3, 2.5e-3])
        zones, share = jnp.array([1400.0, 1000.0]), jnp.array([[0.5, 0.0], [0.3, 0.7], [0.0, 1.0]])
        skin, flux = physics.surface(outer, cell, zones, share, furnace.NOMINAL)
        radiation = 0.7 * 5.670374419e-8 * (zones**4 - skin[:, None] ** 4)
        expected = np.asarray(jnp.sum(share * (radiation + 20.0 * (zones - skin[:, None])), axis=1))
    np.testing.assert_allclose(flux, expected, rtol=1e-9)
    assert expected[2] < 0 < expected[0]


@pytest.fixture(scope="module")
def started() -> tuple[furnace.State, jax.Array, physics.Params]:
    params = arrays(furnace.NOMINAL, **SAMPLED)
    return *RESET(jax.random.key(1), params), params


@jax.jit
def audited(state: furnace.State, p: physics.Params) -> dict[str, jax.Array]:
    """Forty minutes under given powers [MW]: heat [MJ] by where it comes from and goes to, in each of them."""
    per_kelvin = p.density * p.heat_capacity * furnace.SECTION * p.width / 1e9

    def stored(s: furnace.State) -> tuple[jax.Array, jax.Array]:
        return physics.stored_heat(s.furnace, s.thickness, p)

    def moved(s: furnace.State) -> tuple[furnace.State, jax.Array]:
        after = furnace.carried(s, furnace.DT / 2, p)
        change = per_kelvin * (
            after.thickness[0] * (p.ambient + 273.15) - s.thickness[-1] * jnp.mean(s.furnace.steel[-1])
        )
        return after, jnp.where(after.entered > s.entered, change, 0.0)

    def minute(s: furnace.State, t: jax.Array) -> tuple[furnace.State, dict[str, jax.Array]]:
        power = jnp.stack([5.0 + 0 * t, 4.0 - 0.05 * t, 2.0 + 0 * t, 0.1 * t])
        following, _ = furnace.step(jax.random.key(0), s, power, p)
        middle, came = moved(s)
        share = physics.overlap(middle.offset)
        hot, passage = physics.advance(
            middle.furnace, middle.thickness, power, share, furnace.SECONDS, furnace.SUBSTEPS, p
        )
        heated = middle._replace(furnace=hot)
        after, went = moved(heated)
        return following, {
            "steel": stored(heated)[0] - stored(middle)[0],
            "zones": stored(heated)[1] - stored(middle)[1],
            "absorbed": jnp.sum(passage.absorbed),
            "supplied": jnp.sum(passage.supplied),
            "carried": came + went,
            "change": sum(stored(following)) - sum(stored(s)),
            "apart": jnp.max(jnp.abs(after.furnace.steel - following.furnace.steel)),
            "entered": following.entered,
        }

    return jax.lax.scan(minute, state, jnp.arange(40.0))[1]


@pytest.mark.slow
def test_heat_is_accounted_for_to_1e_6(truth: Truth) -> None:
    # Steel and zones gain what burners supply less what walls lose, and what sections carry in and out.
    with jax.enable_x64(True):
        params = arrays(furnace.NOMINAL, **SAMPLED)
        state, _ = RESET(jax.random.key(1), params)
        found = {name: np.asarray(x) for name, x in audited(state, params).items()}
    assert found["entered"][-1] > 10
    assert found["apart"].max() < 1e-9
    np.testing.assert_allclose(found["steel"], found["absorbed"], rtol=1e-6)
    np.testing.assert_allclose(found["supplied"] - found["zones"], found["absorbed"], rtol=1e-6)
    np.testing.assert_allclose(found["change"], found["supplied"] + found["carried"], rtol=1e-6, atol=1e-6)
    away = np.abs(found["absorbed"] / found["steel"] - 1).max()
    truth("heat that the steel gains against heat that it absorbs, relative", 0.0, away, 1e-6, "energy's conservation")


def test_the_start_is_a_steady_state(started: tuple[furnace.State, jax.Array, physics.Params]) -> None:
    # Under the powers that `steady` gives, and one product, the zones stay and the exit meets the table's target.
    with jax.enable_x64(True):
        fixed = {"thickness_low": 30.0, "thickness_high": 30.0, "target_low": 870.0, "target_high": 870.0}
        params = arrays(furnace.NOMINAL, **fixed)
        state, observation = RESET(jax.random.key(0), params)
        observation = np.asarray(observation)
        assert observation[furnace.EXIT] == pytest.approx(870.0, abs=3.0)
        _, now = jax.jit(
            lambda state: jax.lax.scan(
                lambda state, _: furnace.step(jax.random.key(0), state, state.power, params), state, None, 60
            )
        )(state)
    zones = np.asarray(now.observation)[:, : furnace.ZONES]
    assert np.abs(zones - observation[: furnace.ZONES]).max() < 1.0
    assert np.abs(np.asarray(now.observation)[:, furnace.EXIT] - 870.0).max() < 2.0


def test_sections_keep_their_product_and_come_out_in_order() -> None:
    nominal = arrays(furnace.NOMINAL)
    state, _ = RESET(jax.random.key(3), nominal)

    @jax.jit
    def carried(state: furnace.State) -> tuple[furnace.State, tuple[jax.Array, jax.Array]]:
        def minute(s: furnace.State, _: None) -> tuple[furnace.State, tuple[jax.Array, jax.Array]]:
            way = furnace.line_speed(s.thickness, s.deviation, nominal)
            s = furnace.carried(s, 1.0, nominal)
            return s, (s.thickness[0], way)

        return jax.lax.scan(minute, state, None, 40)

    state, (seen, way) = carried(state)
    seen, distance = np.asarray(seen).tolist(), float(np.sum(way))
    assert int(state.entered) == int(distance // furnace.SECTION)
    assert float(state.offset) == pytest.approx(distance % furnace.SECTION, abs=1e-4)
    # Sixteen sections of each product in the order of the schedule.
    entered = [x for i, x in enumerate(seen) if i == 0 or x != seen[i - 1]]
    expected = [float(x) for x in state.schedule[0]]
    assert entered == expected[: len(entered)]
    shares = np.asarray(physics.overlap(jnp.float32(0.7)))
    np.testing.assert_allclose(shares.sum(axis=0), physics.PER_ZONE, rtol=1e-6)
    np.testing.assert_allclose(shares.sum(axis=1)[1:-1], 1.0, rtol=1e-6)


@pytest.mark.slow
def test_the_pi_loops_hold_the_limits_and_the_models_agree(
    started: tuple[furnace.State, jax.Array, physics.Params],
) -> None:
    plant = furnace.PLANT
    run = jax.jit(partial(rollout, plant, plant.fallback, plant.fallback_params))
    trajectory = run(jax.random.key(0), started[2])
    assert np.all(np.asarray(trajectory.margins) > 0)
    trajectory = jax.tree.map(np.asarray, trajectory)
    error = trajectory.next_observations[:, furnace.EXIT] - trajectory.next_observations[:, furnace.EXIT_TARGET]
    assert np.sqrt(np.mean(error**2)) < 20.0
    # What the log tells, with the pyrometers' noise of 2 K and the entry's flux taken as steady.
    rows = (trajectory.observations, trajectory.actions, trajectory.next_observations)
    reward = jax.jit(LOGGED["steel_annealing"].reward)(*rows)
    assert np.abs(np.asarray(reward) - np.asarray(trajectory.rewards)).mean() < 0.5
    margins = jax.jit(LOGGED["steel_annealing"].margins)(trajectory.next_observations)
    assert np.all(np.abs(np.mean(margins - trajectory.margins, axis=0)) < [25.0, 4.0, 3.0])
    # The shield's model from the observation alone, against the true state's next step.
    seen, predicted = jax.jit(jax.vmap(lambda o, a: plant.predict(o, a, plant.params)))(*rows[:2])
    off = np.sqrt(np.mean((np.asarray(seen) - np.asarray(rows[2])) ** 2, axis=0))
    assert off[: furnace.ZONES].max() < 8.0
    assert off[furnace.EXIT] < 8.0
    assert np.all(np.abs(np.mean(predicted - trajectory.margins, axis=0)) < [15.0, 3.0, 3.0])


def test_gradients_reach_through_an_advance(started: tuple[furnace.State, jax.Array, physics.Params]) -> None:
    state, observation, params = started
    share = physics.overlap(state.offset)

    @jax.jit
    def later(power: jax.Array) -> tuple[jax.Array, jax.Array]:
        def hottest(power: jax.Array) -> jax.Array:
            place = (state.furnace, state.thickness, power, share, furnace.SECONDS, furnace.SUBSTEPS, params)
            return physics.advance(*place)[0].zones[0]

        return jax.value_and_grad(hottest)(power)

    power = furnace.applied(observation)
    value, slope = later(power)
    # 1 MW for 60 s is 33 MJ after the flue, less what steel and walls take of it, into 6 MJ/K.
    bump = float(later(power + jnp.array([0.1, 0, 0, 0]))[0] - value) / 0.1
    assert float(slope[0]) == pytest.approx(bump, rel=0.02)
    assert 0.6 * 5.5 < float(slope[0]) < 5.5
