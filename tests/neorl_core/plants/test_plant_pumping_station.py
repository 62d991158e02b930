"""The pumping station against EPANET 2.2, and the planner against a second implementation of dynamic programming."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from neorl_core.plants import PLANTS
from neorl_core.plants import pumping_station as station
from neorl_core.plants.base import rollouts
from tests.conftest import Truth

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "epanet.npz", allow_pickle=False)
CONFIG = json.loads(str(GOLDEN["config"]))
EPANET = "EPANET 2.2"
ONE = station.NOMINAL._replace(
    **{name: CONFIG[name] for name in station.Params._fields if name in CONFIG}  # type: ignore[arg-type]
)
PLANT = PLANTS["pumping_station"]


def test_a_day_in_epanet(truth: Truth) -> None:
    """The same schedule and demand: flows, levels and energy, half-hour by half-hour."""

    def step(level: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        pumps, demand = row
        following, _ = station.advance(level, pumps, demand, ONE)
        energy = station.DT * station.power(pumps, level, ONE)
        return following, (level, station.flow(pumps, level, ONE), energy)

    with jax.enable_x64(True):
        rows = jnp.asarray(GOLDEN["schedule"], float), jnp.asarray(GOLDEN["demand"])
        found = jax.jit(lambda: jax.lax.scan(step, jnp.asarray(CONFIG["level"]), rows))()
    end, (levels, flows, energy) = jax.tree.map(np.asarray, found)
    for pumps in (1, 2, 3):
        here = GOLDEN["schedule"] == pumps
        theirs, ours = GOLDEN["flow"][here][0], flows[here][0]
        # EPANET's Hazen–Williams coefficient differs in the last digit.
        truth(f"flow of {pumps} pump(s) [m³/h]", theirs, ours, 0.1, EPANET)
    away = np.abs(np.append(levels, end) - GOLDEN["level"]).max()
    # EPANET uses the flow at the start of each minute.
    truth("largest difference of a level in a day [m]", 0.0, away, 2e-3, EPANET)
    truth("energy of a day [kWh]", GOLDEN["energy"].sum(), energy.sum(), 3.0, EPANET)


def test_flow_balances_heads() -> None:
    # The equations of the module's docstring, solved by bisection.
    params = station.NOMINAL._replace(wear=0.95, roughness=120.0)
    for pumps, level in ((1, 0.0), (2, 3.0), (3, 6.0)):

        def left(q: float, pumps: int = pumps, level: float = level) -> float:
            head = (4 / 3 * 60 - 60 / 3 * (q / (pumps * 400)) ** 2) * 0.95
            return head - 40 - level - 10.67 * 3000 / (120**1.852 * 0.5**4.871) * (q / 3600) ** 1.852

        with jax.enable_x64(True):
            found = station.flow(jnp.asarray(float(pumps)), jnp.asarray(level), params)
        assert float(found) == pytest.approx(brentq(left, 1.0, 2_000.0, xtol=1e-10), rel=1e-9)
    assert station.flow(jnp.float32(0), jnp.float32(3), params) == 0.0
    # Pumps that cannot reach the tank deliver almost nothing, and no NaN.
    assert 0.0 <= float(station.flow(jnp.float32(3), jnp.float32(3), params._replace(wear=0.5))) < 2.0


def test_water_and_money_by_hand() -> None:
    # Without pumps: half an hour of 540 m³/h from 1,000 m² is 0.27 m.
    level, margins = station.advance(jnp.float32(1.2), jnp.float32(0), jnp.float32(540), station.NOMINAL)
    assert float(level) == pytest.approx(0.93, abs=1e-6)
    assert margins.tolist() == [pytest.approx(-0.07, abs=1e-6)]
    # Lifting 1 m³ by 40 m at 75 %: 9810 · 40 / 0.75 / 3.6e6 = 0.14533 kWh; mean price (8 · 0.08 + 16 · 0.20) / 24.
    worth = 1000 * 0.145333 * (8 * 0.08 + 16 * 0.20) / 24
    spent = station.cost(*(jnp.float32(x) for x in (1.2, 2, 0, 0.93, 0.2)), station.NOMINAL)
    assert float(spent) == pytest.approx(0.27 * worth + station.BEYOND_COST * 0.07, rel=1e-4)
    one = station.cost(*(jnp.float32(x) for x in (3, 0, 1, 3, 0.08)), station.NOMINAL)
    assert float(one) == pytest.approx(
        0.5 * float(station.power(jnp.float32(1), jnp.float32(3), station.NOMINAL)) * 0.08 + 1
    )
    # The level stays between floor and rim.
    assert station.advance(jnp.float32(5.9), jnp.float32(3), jnp.float32(0), station.NOMINAL)[0] == station.RIM
    assert station.advance(jnp.float32(0.1), jnp.float32(0), jnp.float32(900), station.NOMINAL)[0] == 0.0


def test_clock_and_tariff() -> None:
    slots = jnp.arange(station.SLOTS)
    shown = jax.vmap(lambda s: station._signals(jnp.float32(3), jnp.float32(1), jnp.float32(500), s))(slots)
    np.testing.assert_array_equal(station.slot_of(shown), slots)
    cheap = np.asarray(station.price(slots)) == np.float32(station.PRICES[0])
    assert cheap.nonzero()[0].tolist() == [*range(14), 46, 47]
    assert np.mean(station.PATTERN) == pytest.approx(1.0)
    assert station.price(slots).mean() == pytest.approx(station.MEAN_PRICE)


def test_staged_control_by_hand() -> None:
    params = station.Hysteresis(dear=3.0, cheap=4.0, stage=0.5, gap=0.4)

    def asked(level: float, running: float, tariff: float = 0.2) -> float:
        seen = jnp.asarray([level, running, 500.0, 0.0, 1.0, tariff])
        return float(station.two_point.act(params, (), seen, jnp.asarray([running]))[1][0])

    # Below 3 m the first pump starts, below 2.5 m the second; it stops 0.4 m higher.
    assert [asked(x, 0) for x in (3.1, 2.9, 2.6, 2.4)] == [0, 1, 1, 2]
    assert [asked(x, 2) for x in (2.4, 2.85, 2.95, 3.3, 3.45)] == [2, 2, 1, 1, 0]
    assert asked(3.1, 0, 0.08) == 2.0


@pytest.mark.slow
def test_plan_solves_bellman_equation() -> None:
    costs = station.plan(station.NOMINAL)
    levels = np.linspace(0.0, station.RIM, station.LEVELS)
    rng = np.random.default_rng(0)
    gaps = []
    for slot in (3, 20, 40):
        for at in rng.integers(25, 60, 4):
            totals = []
            for pumps in range(4):
                level, running, demand = (jnp.float32(x) for x in (levels[at], pumps, 540 * station.PATTERN[slot // 2]))
                following, _ = station.advance(level, running, demand, station.NOMINAL)
                tariff = station.price(jnp.asarray(slot))
                own = station.cost(level, jnp.float32(1), running, following, tariff, station.NOMINAL)
                totals.append(float(own) + np.interp(float(following), levels, costs[(slot + 1) % 48, :, pumps]))
            gaps.append(min(totals) - costs[slot, at, 1])
    # Up to the constant subtracted in each step, which is the same for all states of a slot.
    gaps = np.reshape(gaps, (3, 4))
    assert np.abs(gaps - gaps.mean(axis=1, keepdims=True)).max() < 0.5
    keys = jax.random.split(jax.random.key(1), 128)
    found = [
        rollouts(PLANT, controller, params, keys, PLANT.domain)
        for controller, params in (
            (PLANT.fallback, station.BY_HAND),
            (PLANT.fallback, station.TUNED),
            (PLANT.reference, PLANT.reference_params),
        )
    ]
    means = [float(each.ret.mean()) for each in found]
    assert means[0] + 50 < means[1]
    assert means[1] < means[2]
    assert not any(np.any(each.violated) for each in found)
