"""The annealing furnace against analytic conduction (Carslaw and Jaeger; Incropera and DeWitt), EN 1993-1-2, and
balances of heat and mass."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import erfc

from neorl_core.plants import LOGGED
from neorl_core.plants.base import rollout
from neorl_core.plants.steel_annealing import furnace as physics
from neorl_core.plants.steel_annealing import plant as furnace
from neorl_core.plants.steel_annealing import steel
from tests.conftest import Truth

CONVECTIVE = furnace.NOMINAL._replace(emissivity=0.0, convection=400.0, zone_capacity=1e30)
"""Zones that hold their temperature and only convect, for which conduction has closed forms."""
DIFFUSIVITY = 27.3 / (7850.0 * 650.0)
START, ZONE = 1190.0, 1460.0
"""Between 900 °C and 1200 °C the standard's steel has one conductivity and one specific heat."""
ADVANCE = jax.jit(physics.advance, static_argnames="substeps")
RESET = jax.jit(furnace.PLANT.reset)


def arrays(params: physics.Params, **changes: float) -> physics.Params:
    """Constants as arrays of the current precision, so that one compiled program serves all of them."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), params._replace(**changes))


SAMPLED = {"emissivity": 0.68, "efficiency": 0.57, "speed_sd": 0.03, "noise_sd": 2.0}
"""Constants of one furnace within the operating domain."""


def heated(
    thickness: float,
    seconds: float,
    cells: int,
    substeps: int,
    p: physics.Params = CONVECTIVE,
    start: float = START,
    zone: float = ZONE,
) -> np.ndarray:
    """Temperatures [K] of one section, from one temperature [K], in a zone of another."""
    with jax.enable_x64(True):
        begun = physics.Furnace(steel.enthalpy(jnp.full((1, cells), start)), jnp.full((1,), zone))
        ended, _ = ADVANCE(begun, jnp.array([thickness]), jnp.zeros(1), jnp.ones((1, 1)), seconds, substeps, arrays(p))
        return np.asarray(steel.temperature(ended.heat)[0])[0]


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


@pytest.mark.parametrize(
    ("celsius", "conductivity", "specific_heat"),
    [
        # EN 1993-1-2, 3.4.1.2 and 3.4.1.3 by hand: 425 + .773·20 − .00169·400 + 2.22e-6·8000, and so on.
        (20.0, 53.334, 439.80),
        (400.0, 40.68, 605.88),
        (599.9999, 34.02, 759.92),
        (700.0, 30.69, 666 + 13002 / 38),
        (734.9999, 29.5245, 5000.0),
        (735.0001, 29.5245, 5000.0),
        (799.999, 27.36, 545 + 17820 / 69),
        (800.001, 27.3, 545 + 17820 / 69),
        (900.0001, 27.3, 650.0),
        (1200.0, 27.3, 650.0),
    ],
)
def test_steel_properties_match_standard(
    celsius: float, conductivity: float, specific_heat: float, truth: Truth
) -> None:
    with jax.enable_x64(True):
        found = float(steel.conductivity(jnp.asarray(celsius + steel.CELSIUS)))
    source = "EN 1993-1-2, 3.4.1"
    truth(f"conductivity at {celsius:g} °C [W/(m K)]", conductivity, found, 1e-4, source)
    allowed = 0.4 if abs(celsius - 735) < 1 else 0.01
    slope = (steel.integral(celsius + 5e-5) - steel.integral(celsius - 5e-5)) / 1e-4
    truth(f"specific heat at {celsius:g} °C [J/(kg K)]", specific_heat, float(slope), allowed, source)


def specific_heat_of(celsius: float | np.ndarray) -> np.ndarray:
    """c [J/(kg K)] at a temperature [°C] (EN 1993-1-2, 3.4.1.2): a cubic, and a hyperbola on each side of 735 °C."""
    t = np.asarray(celsius, float)
    cubic = 425.0 + 0.773 * t - 1.69e-3 * t**2 + 2.22e-6 * t**3
    rising, falling = (666.0 + 13002.0 / np.maximum(738.0 - t, 3.0)), 545.0 + 17820.0 / np.maximum(t - 731.0, 4.0)
    return np.select([t < 600.0, t < 735.0, t < 900.0], [cubic, rising, falling], 650.0)


def test_enthalpy_integrates_specific_heat() -> None:
    for end in (100.0, 599.0, 700.0, 734.0, 740.0, 899.0, 1150.0):
        expected = quad(lambda t: float(specific_heat_of(t)), 0.0, end, points=[600.0, 735.0, 900.0], limit=500)[0]
        assert float(steel.integral(end)) == pytest.approx(expected, rel=1e-7)
    with jax.enable_x64(True):
        celsius = np.linspace(1.0, 1390.0, 5001)
        kelvin, slope = jax.jit(steel.temperature)(jnp.asarray(steel.integral(celsius)))
        assert np.abs(np.asarray(kelvin) - steel.CELSIUS - celsius).max() < 2e-3
        np.testing.assert_allclose(1 / np.asarray(slope), specific_heat_of(celsius), rtol=0.12)
        back = jax.jit(lambda x: steel.temperature(steel.enthalpy(x))[0])(jnp.asarray(celsius + steel.CELSIUS))
    np.testing.assert_allclose(back, celsius + steel.CELSIUS, rtol=1e-12)


def test_standard_steel_leaves_colder_than_constant_steel(truth: Truth) -> None:
    # Zones at 870 °C plus 54 K times (1, .8, .4, .1).
    zones = 870.0 + steel.CELSIUS + 54.0 * np.array([1.0, 0.8, 0.4, 0.1])
    with jax.enable_x64(True):

        @jax.jit
        def through(thickness: jax.Array) -> tuple[jax.Array, jax.Array]:
            heat, _ = physics.steady(thickness, jnp.asarray(zones), furnace.NOMINAL)
            kelvin = steel.temperature(heat)[0]
            cell = jnp.full(len(heat), thickness / 2000 / furnace.CELLS)
            share = physics.overlap(jnp.zeros(()))
            skin, _ = physics.surface(kelvin[:, 0], cell, jnp.asarray(zones), share, furnace.NOMINAL)
            return skin[-1] - steel.CELSIUS, jnp.max(skin - kelvin[:, -1])

        found = [tuple(map(float, through(jnp.asarray(x)))) for x in (20.0, 30.0, 40.0)]
    # Truth 5 has 9.8, 14.7 and 19.5 K across, and exits 16 to 17 K colder. SciPy's BDF, with the standard's k and c
    # written a second time, has 10.25, 15.33 and 20.39 K, with 8 volumes as with 48, and 15.4, 16.3 and 17.1 K where
    # the plate leaves (here observed halfway through the last section). The plant is compared with SciPy.
    source = "the same equations in temperature by SciPy's BDF, tolerance 1e-6"
    known = ((20, 851.157, 10.250), (30, 850.269, 15.332), (40, 849.375, 20.387))
    for (thickness, exit_there, difference), (leaving, across) in zip(known, found, strict=True):
        truth(f"largest difference across half of {thickness} mm [K]", difference, across, 0.05, source)
        truth(f"exit of {thickness} mm [°C]", exit_there, leaving, 0.1, source)
        # Constants for above 800 °C, used from 20 °C on, gave 18 to 36 K across and 870 °C.
        assert 870.0 - leaving > 15.0


@pytest.mark.slow
def test_thick_slab_heats_like_half_space(truth: Truth) -> None:
    # Carslaw and Jaeger 2.7 (1), convection at the surface; in 120 s heat gets 40 mm deep, the middle is at 200 mm.
    seconds, cells = 120.0, 200
    found, y = heated(400.0, seconds, cells, 512), depths(400.0, cells)
    spread, h = 2 * np.sqrt(DIFFUSIVITY * seconds), 400.0 / 27.3
    rise = erfc(y / spread) - np.exp(h * y + h**2 * spread**2 / 4) * erfc(y / spread + h * spread / 2)
    away = np.abs(found - (START + (ZONE - START) * rise)).max()
    truth("half space under convection for 120 s, largest error [K]", 0.0, away, 0.2, "Carslaw and Jaeger 2.7 (erfc)")
    assert found[0] - START > 45


@pytest.mark.slow
def test_slab_converges_to_fourier_series(truth: Truth) -> None:
    # Volumes have means: those of the series over each volume, by eight points per volume.
    seconds, thickness, errors = 60.0, 40.0, []
    for cells in (4, 8, 16):
        points = depths(thickness, 8 * cells)
        exact = fourier(thickness, seconds, points).reshape(cells, 8).mean(axis=1)
        errors.append(np.abs(heated(thickness, seconds, cells, 512) - exact).max())
    orders = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    source = "Fourier's series, Incropera and DeWitt 5.42"
    for order in orders:
        truth("order of convergence in space", 2.0, order, 0.15, source)
    # The plant's eight volumes, under a flux as high as at the entry.
    truth("slab of 40 mm after 60 s, eight volumes, largest error [K]", 0.0, errors[1], 1.0, source)


@pytest.mark.slow
def test_time_integration_is_second_order() -> None:
    radiating = furnace.NOMINAL._replace(zone_capacity=1e30)
    exact = heated(30.0, 60.0, furnace.CELLS, 1024, radiating, 300.0)
    errors = [np.abs(heated(30.0, 60.0, furnace.CELLS, n, radiating, 300.0) - exact).max() for n in (6, 24, 48)]
    assert np.log2(errors[1] / errors[2]) == pytest.approx(2.0, abs=0.2)
    assert furnace.SUBSTEPS == 6
    assert errors[0] < 0.5
    # Through the peak of the specific heat, six minutes of the plant's own steps.
    found, exact = (heated(30.0, 360.0, furnace.CELLS, n, radiating, 950.0, 1300.0) for n in (36, 2048))
    assert exact.min() > 738.0 + steel.CELSIUS
    assert np.abs(found - exact).max() < 0.5


def test_surface_temperature_solves_its_equation() -> None:
    with jax.enable_x64(True):
        outer, cell = jnp.array([293.15, 700.0, 1300.0]), jnp.array([1.25e-3, 2.5e-3, 2.5e-3])
        zones, share = jnp.array([1400.0, 1000.0]), jnp.array([[0.5, 0.0], [0.3, 0.7], [0.0, 1.0]])
        skin, flux = physics.surface(outer, cell, zones, share, furnace.NOMINAL)
        radiation = 0.7 * 5.670374419e-8 * (zones**4 - skin[:, None] ** 4)
        assert float(flux[2]) == pytest.approx(2 * 27.3 / 2.5e-3 * float(skin[2] - outer[2]), rel=1e-9)
        expected = np.asarray(jnp.sum(share * (radiation + 20.0 * (zones - skin[:, None])), axis=1))
    np.testing.assert_allclose(flux, expected, rtol=1e-9)
    assert expected[2] < 0 < expected[0]


@pytest.fixture(scope="module")
def started() -> tuple[furnace.State, jax.Array, physics.Params]:
    params = arrays(furnace.NOMINAL, **SAMPLED)
    return *RESET(jax.random.key(1), params), params


@jax.jit
def audited(state: furnace.State, p: physics.Params) -> dict[str, jax.Array]:
    """Heat [MJ] by source and sink in each of forty minutes under given powers [MW]."""
    per_heat = p.density * p.heat_capacity * furnace.SECTION * p.width / 1e9
    cold = steel.enthalpy(p.ambient + 273.15)

    def stored(s: furnace.State) -> tuple[jax.Array, jax.Array]:
        """Heat [MJ] in the steel above 0 °C and in the zones above 0 K."""
        volume = s.thickness / 1000 * furnace.SECTION * p.width
        heat = jnp.sum(p.density * p.heat_capacity * volume * jnp.mean(s.furnace.heat, axis=1)) / 1e6
        return heat, p.zone_capacity * jnp.sum(s.furnace.zones)

    def moved(s: furnace.State) -> tuple[furnace.State, jax.Array]:
        after = furnace.transport(s, furnace.DT / 2, p)
        change = per_heat * (after.thickness[0] * cold - s.thickness[-1] * jnp.mean(s.furnace.heat[-1]))
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
            "apart": jnp.max(jnp.abs(after.furnace.heat - following.furnace.heat)),
            "entered": following.entered,
        }

    return jax.lax.scan(minute, state, jnp.arange(40.0))[1]


@pytest.mark.slow
def test_heat_balance_closes_to_1e_6(truth: Truth) -> None:
    # Steel and zones gain the burners' heat minus wall losses, plus the net heat of sections moving in and out.
    with jax.enable_x64(True):
        params = arrays(furnace.NOMINAL, **SAMPLED)
        state, _ = RESET(jax.random.key(1), params)
        found = {name: np.asarray(x) for name, x in audited(state, params).items()}
    assert found["entered"][-1] > 10
    assert found["apart"].max() < 1e-6
    np.testing.assert_allclose(found["steel"], found["absorbed"], rtol=1e-6)
    np.testing.assert_allclose(found["supplied"] - found["zones"], found["absorbed"], rtol=1e-6)
    np.testing.assert_allclose(found["change"], found["supplied"] + found["carried"], rtol=1e-6, atol=1e-6)
    away = np.abs(found["absorbed"] / found["steel"] - 1).max()
    truth("heat that the steel gains against heat that it absorbs, relative", 0.0, away, 1e-6, "energy's conservation")


@pytest.mark.slow
def test_start_is_a_steady_state(started: tuple[furnace.State, jax.Array, physics.Params]) -> None:
    # Under the powers of `steady` and one product, the zones are constant and the exit is at the table's target.
    with jax.enable_x64(True):
        fixed = {"thickness_low": 30.0, "thickness_high": 30.0, "target_low": 870.0, "target_high": 870.0}
        params = arrays(furnace.NOMINAL, **fixed)
        state, observation = RESET(jax.random.key(0), params)
        observation = np.asarray(observation)
        assert observation[furnace.CORE] == pytest.approx(870.0, abs=3.0)
        _, now = jax.jit(
            lambda state: jax.lax.scan(
                lambda state, _: furnace.step(jax.random.key(0), state, state.power, params), state, None, 60
            )
        )(state)
    zones = np.asarray(now.observation)[:, : furnace.ZONES]
    assert np.abs(zones - observation[: furnace.ZONES]).max() < 1.0
    assert np.abs(np.asarray(now.observation)[:, furnace.CORE] - 870.0).max() < 2.0


@pytest.mark.slow
def test_products_leave_in_order() -> None:
    nominal = arrays(furnace.NOMINAL)
    state, _ = RESET(jax.random.key(3), nominal)

    @jax.jit
    def transport(state: furnace.State) -> tuple[furnace.State, tuple[jax.Array, jax.Array]]:
        def minute(s: furnace.State, _: None) -> tuple[furnace.State, tuple[jax.Array, jax.Array]]:
            way = furnace.line_speed(s.thickness, s.deviation, nominal)
            s = furnace.transport(s, 1.0, nominal)
            return s, (s.thickness[0], way)

        return jax.lax.scan(minute, state, None, 40)

    state, (seen, way) = transport(state)
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
def test_pi_loops_keep_limits_and_models_agree(
    started: tuple[furnace.State, jax.Array, physics.Params],
) -> None:
    plant = furnace.PLANT
    run = jax.jit(partial(rollout, plant, plant.fallback, plant.fallback_params))
    trajectory = run(jax.random.key(0), started[2])
    assert np.all(np.asarray(trajectory.margins) > 0)
    trajectory = jax.tree.map(np.asarray, trajectory)
    error = trajectory.next_observations[:, furnace.CORE] - trajectory.next_observations[:, furnace.EXIT_TARGET]
    assert np.sqrt(np.mean(error**2)) < 20.0
    # Margins from the log, with the pyrometers' noise of 2 K and a steady flux at the entry.
    rows = (trajectory.observations, trajectory.actions, trajectory.next_observations)
    reward = jax.jit(LOGGED["steel_annealing"].reward)(*rows)
    assert np.abs(np.asarray(reward) - np.asarray(trajectory.rewards)).mean() < 0.5
    margins = jax.jit(LOGGED["steel_annealing"].margins)(trajectory.next_observations)
    assert np.all(np.abs(np.mean(margins - trajectory.margins, axis=0)) < [25.0, 4.0, 3.0])
    # The shield's prediction from the observation alone, against the next step of the true state.
    seen, predicted = jax.jit(jax.vmap(lambda o, a: plant.predict(o, a, plant.params)))(*rows[:2])
    off = np.sqrt(np.mean((np.asarray(seen) - np.asarray(rows[2])) ** 2, axis=0))
    assert off[: furnace.ZONES].max() < 8.0
    assert off[furnace.CORE] < 8.0
    assert np.all(np.abs(np.mean(predicted - trajectory.margins, axis=0)) < [15.0, 3.0, 3.0])


def test_soaking_time_of_hot_and_cold_sections(
    started: tuple[furnace.State, jax.Array, physics.Params],
) -> None:
    # In the steady state of one product, the soaking time at the exit is the time since the core entered the band.
    params = arrays(furnace.NOMINAL, thickness_low=30.0, thickness_high=30.0, target_low=870.0, target_high=870.0)
    state, observation = RESET(jax.random.key(0), params)
    core = np.asarray(steel.temperature(state.furnace.heat)[0])[:, -1] - steel.CELSIUS
    hot = core >= 870.0 - furnace.SOAK_BAND
    assert hot[-1]
    assert not hot[:8].any()
    np.testing.assert_allclose(state.soak, np.cumsum(hot) * 2.0 / 1.2, rtol=1e-5)
    assert float(observation[furnace.SOAK]) == pytest.approx(float(state.soak[-1]), rel=1e-5)
    # By hand: core 5 K off, 30 mm needs 6 minutes and had 4, full power.
    row = np.zeros(25)
    row[[furnace.CORE, furnace.EXIT_TARGET, furnace.EXIT_THICKNESS, furnace.SOAK]] = 865.0, 870.0, 30.0, 4.0
    assert float(furnace.cost(row, np.full(4, 8.0))) == pytest.approx(0.25 + 1.0 + 0.2)
    row[furnace.SOAK] = 9.0
    assert float(furnace.cost(row, np.zeros(4))) == pytest.approx(0.25)
    # A step later a hot section has soaked one minute more, and an entering section has not.
    later = jax.jit(lambda s: furnace.step(jax.random.key(0), s, s.power, params)[0])
    after = later(later(state))
    assert int(after.entered) == 1
    assert float(after.soak[0]) == 0.0
    assert float(after.soak[-1]) == pytest.approx(float(state.soak[-2]) + 2.0, abs=0.35)


@pytest.mark.slow
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
    # 1 MW for 60 s is 33 MJ after flue losses, minus the share of steel and walls, into 6 MJ/K.
    bump = float(later(power + jnp.array([0.1, 0, 0, 0]))[0] - value) / 0.1
    assert float(slope[0]) == pytest.approx(bump, rel=0.02)
    assert 0.6 * 5.5 < float(slope[0]) < 5.5
