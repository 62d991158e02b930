"""The plants against outside values: pc-gym's reactor (shared truth 1.1) and NeoRL-2's double mass (truth 1.4)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from neorl_core.plants import LOGGED, PLANTS
from neorl_core.plants import chemical_reactor as reactor
from neorl_core.plants import double_mass as masses
from neorl_core.plants.base import clip_to, rollout
from neorl_core.plants.integrators import EULER, RK4, Tableau, explicit_step, integrate
from neorl_core.types import Controller, Plant
from tests.conftest import Truth
from tests.sampled import FEW_PLANTS, sampled

STEP = {name: jax.jit(plant.step) for name, plant in PLANTS.items()}
RESET = {name: jax.jit(jax.vmap(plant.reset)) for name, plant in PLANTS.items()}
JACOBIAN = jax.jit(jax.jacobian(reactor.derivative))


SAMPLED = jax.jit(jax.vmap(reactor.sample_params, (0, None)))(
    jax.random.split(jax.random.key(0), 1000), reactor.Domain()
)


def steady(temperature: float) -> np.ndarray:
    return np.array([float(reactor.steady_concentration(temperature, reactor.NOMINAL)), temperature])


def reactor_equations(_: float, y: np.ndarray, coolant: float) -> list[float]:
    """A second implementation of truth 1.1."""
    rate = 7.2e10 * np.exp(-8750 / y[1]) * y[0]
    return [1 - y[0] - rate, 350 - y[1] + 5e4 / 239 * rate + 5e4 / 23900 * (coolant - y[1])]


def temperatures_at(coolant: float, low: float, high: float) -> float:
    return brentq(lambda t: float(reactor.steady_coolant(t, reactor.NOMINAL)) - coolant, low, high, xtol=1e-9)


MIDPOINT = Tableau(a=((0.5,),), b=(0.0, 1.0), order=2)


@pytest.mark.parametrize("method", [EULER, MIDPOINT, RK4])
def test_integrators_converge_with_their_order(method: Tableau) -> None:
    # y' = -y², y(0) = 1 has the solution 1/(1 + t).
    with jax.enable_x64(True):
        errors = [
            abs(float(integrate(method, lambda y: -(y**2), jnp.ones(1), 1.0, n)[-1, 0]) - 0.5) for n in (16, 32, 64)
        ]
    slopes = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert slopes[-1] == pytest.approx(method.order, abs=0.1)


@pytest.mark.parametrize(
    ("coolant", "low", "high", "concentration", "temperature", "stable"),
    [
        # Truth 1.1 does not give the concentrations of unstable states.
        (300.0, 315.0, 335.0, 0.87725, 324.475, True),
        (295.0, 310.0, 330.0, 0.92677, 317.742, True),
        (302.0, 315.0, 333.0, 0.83479, 328.702, True),
        (300.0, 340.0, 360.0, None, 350.0, False),
        (300.0, 360.0, 380.0, None, 369.7, False),
    ],
)
def test_steady_states(
    coolant: float, low: float, high: float, concentration: float | None, temperature: float, stable: bool, truth: Truth
) -> None:
    with jax.enable_x64(True):
        y = jnp.asarray(steady(temperatures_at(coolant, low, high)))
        rest = reactor.derivative(y, coolant, 0.0, reactor.NOMINAL)
        jacobian = JACOBIAN(y, coolant, 0.0, reactor.NOMINAL)
    assert np.abs(rest).max() < 1e-6
    where, source = (
        f"{'stable' if stable else 'unstable'} steady state at Tc = {coolant:g} K",
        "pc-gym 0.1.8",
    )
    truth(f"temperature of the {where} [K]", temperature, y[1], 5e-4 if stable else 0.05, source, "chemical_reactor")
    if concentration is not None:
        truth(f"concentration of the {where} [mol/L]", concentration, y[0], 5e-6, source, "chemical_reactor")
    assert (np.linalg.eigvals(np.asarray(jacobian)).real.max() < 0) == stable


@pytest.mark.parametrize(("coolant", "peak"), [(303.0, 333.0), (304.0, 464.0)])
def test_runaway_begins_between_303_and_304_kelvin(coolant: float, peak: float, truth: Truth) -> None:
    with jax.enable_x64(True):
        y = jnp.asarray(steady(temperatures_at(300.0, 315.0, 335.0)))

        def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            y = explicit_step(RK4, lambda y: reactor.derivative(y, coolant, 0.0, reactor.NOMINAL), y, 5e-4)
            return y, y[1]

        path = jax.lax.scan(step, y, None, 60_000)[1]
    found = np.asarray(path).max()
    exact = solve_ivp(reactor_equations, (0, 30), y, "LSODA", args=(coolant,), rtol=1e-10, atol=1e-10, max_step=0.05)
    assert found == pytest.approx(exact.y[1].max(), abs=0.1)
    # Truth 1.1. The spike at 304 K lasts seconds: its top is 469.6 K, seen every 0.1 min 465.7, every 26 s 462.7.
    what = f"peak temperature after a step of Tc to {coolant:g} K [K]"
    truth(what, peak, found, 1.0 if coolant == 303.0 else 6.0, "pc-gym 0.1.8", "chemical_reactor")


def test_substeps_agree_with_adaptive_solver() -> None:
    # Truth 1.1, at Tc = 302, from the tracking task's start; the reference is SciPy's DOP853.
    y0 = np.array([0.8, 330.0])
    with jax.enable_x64(True):
        y = jnp.asarray(y0)
        ours = [y]
        advance = jax.jit(reactor.advance)
        for _ in range(reactor.HORIZON):
            ours.append(advance(ours[-1], 302.0, 0.0, reactor.NOMINAL)[0])

    times = np.arange(reactor.HORIZON + 1) * 26 / 60
    theirs = solve_ivp(
        reactor_equations, (0, times[-1]), y0, "DOP853", args=(302.0,), t_eval=times, rtol=1e-12, atol=1e-12
    ).y.T
    assert np.abs(np.stack(ours) - theirs)[:, 1].max() < 2e-7


def test_set_points_are_steady_states_of_the_task() -> None:
    keys = jax.random.split(jax.random.key(0), 1000)
    states, observations = RESET["chemical_reactor"](keys, SAMPLED)
    low, high = (float(reactor.steady_concentration(t, reactor.NOMINAL)) for t in (326.0, 322.0))
    assert low <= states.setpoints.min() < low + 0.001
    assert high - 0.001 < states.setpoints.max() <= high
    assert np.abs(observations[:, 1] - 324.0).max() < 2.5 + 6 * 0.1
    assert jnp.std(states.feed_deviation) == pytest.approx(0.5, rel=0.1)


def test_disturbances_match_domain() -> None:
    params = SAMPLED
    for drawn, nominal in ((params.reaction_rate, 7.2e10), (params.cooling_rate, 5e4 / 23900)):
        ratio = np.asarray(drawn) / nominal
        assert 0.99 <= ratio.min() < 0.991
        assert 1.009 < ratio.max() <= 1.0100001
    one = jax.tree.map(lambda x: x[0], params)
    state = jax.tree.map(
        lambda x: x[0], RESET["chemical_reactor"](jax.random.split(jax.random.key(2), 1000), params)[0]
    )

    def step(state: reactor.State, key: jax.Array) -> tuple[reactor.State, tuple[jax.Array, jax.Array]]:
        state, now = reactor.step(key, state, jnp.array([299.5]), one)
        return state, (state.feed_deviation, now.observation[1] - state.temperature)

    feed, noise = jax.lax.scan(step, state, jax.random.split(jax.random.key(3), 20_000))[1]
    feed, noise = np.asarray(feed), np.asarray(noise)
    # An AR(1) sequence's correlation falls by exp(-dt/tau) per step; the clip at three sd hardly changes it.
    assert np.corrcoef(feed[:-1], feed[1:])[0, 1] == pytest.approx(np.exp(-26 / 60 / 5), abs=0.01)
    assert feed.std() == pytest.approx(0.5, rel=0.1)
    assert np.abs(feed).max() <= 1.5
    assert noise.std() == pytest.approx(0.1, rel=0.03)


def test_trip_terminates_and_costs_more_than_staying() -> None:
    state, _ = reactor.start(0.8, 331.9, 310.0, jnp.array([0.85]))
    step = STEP["chemical_reactor"]
    _, hot = step(jax.random.key(0), state, jnp.array([310.0]), reactor.NOMINAL)
    assert bool(hot.terminated)
    assert hot.margins[0] < 0
    concentrations = [float(reactor.steady_concentration(t, reactor.NOMINAL)) for t in (316.0, 322.0, 326.0, 332.0)]
    worst = max(concentrations[0] - concentrations[2], concentrations[1] - concentrations[3])
    assert worst < 0.11
    assert hot.reward < -reactor.HORIZON * (worst / 0.3) ** 2
    _, cool = step(jax.random.key(0), state, jnp.array([290.0]), reactor.NOMINAL)
    # The margin is the least of the step: 0.1 K below the limit at the start, far below at the end.
    assert float(cool.margins[0]) == pytest.approx(0.1, abs=1e-3)
    assert not cool.terminated


@pytest.mark.slow
def test_step_gradient_equals_finite_difference() -> None:
    with jax.enable_x64(True):
        state, _ = reactor.start(0.87, 325.0, 300.0, jnp.array([0.88]))

        def temperature(rate: jax.Array) -> jax.Array:
            params = reactor.NOMINAL._replace(reaction_rate=rate * 7.2e10)
            return reactor.step(jax.random.key(0), state, jnp.array([300.0]), params)[0].temperature

        temperature = jax.jit(temperature)
        slope = float(jax.jit(jax.grad(temperature))(jnp.asarray(1.0)))
        difference = float(temperature(jnp.asarray(1 + 1e-6)) - temperature(jnp.asarray(1 - 1e-6))) / 2e-6
    assert slope == pytest.approx(difference, rel=1e-5)
    assert slope > 1.0


def test_double_mass_reproduces_official_data(dmsd_train: Path, truth: Truth) -> None:
    # Truth 1.4: the equations reproduce the data to 2.2e-7 and the rewards to 9.5e-7.
    with np.load(dmsd_train, allow_pickle=False) as data:
        rows = {name: data[name].astype(float) for name in ("obs", "action", "next_obs", "reward")}
    with jax.enable_x64(True):
        predict = jax.jit(jax.vmap(lambda o, a: masses.predict(o, a, masses.NOMINAL)[0]))
        predicted = np.asarray(predict(rows["obs"], rows["action"]))
        reward = np.asarray(masses.logged_reward(rows["obs"], rows["action"], rows["next_obs"]))
        margins = np.asarray(masses.logged_margins(rows["next_obs"]))
    source = "NeoRL-2's official data, 100,000 rows"
    away = np.abs(predicted - rows["next_obs"])[:, :4].max()
    truth("largest error of a predicted motion [m, m/s]", 0.0, away, 2.5e-7, source, "double_mass")
    away = np.abs(reward - rows["reward"].ravel()).max()
    truth("largest error of a reward", 0.0, away, 1e-6, source, "double_mass")
    assert margins.min() > 0.1
    first = rows["obs"].reshape(-1, 100, 6)[:, 0]
    assert np.abs(first[:, :2]).max() <= 0.25
    assert np.abs(first[:, 2:4]).max() <= 0.1
    # Targets only change at step 50, each in about half of the episodes.
    moved = (rows["obs"][:, 4:] != rows["next_obs"][:, 4:]).reshape(-1, 100, 2)
    assert set(np.nonzero(moved.any((0, 2)))[0]) == {49}
    assert np.abs(moved[:, 49].mean(0) - 0.5).max() < 0.05
    assert np.abs(predicted[:, 4:] - rows["obs"][:, 4:]).max() == 0


def test_double_mass_step_by_hand() -> None:
    # x1' = .1 + .2*.5 = .2; v1' = .5 + .01*(-4*.1 + 2*.2 - 8*.5 + 4*0 + 30*1) = .76
    # x2' = .2; v2' = .01*(-4*.2 + 2*.1 + 4*.5 - 30*.5) = -.136
    state = masses.State(jnp.array([0.1, 0.2, 0.5, 0.0]), jnp.array([0.2, -0.8]), jnp.asarray(0))
    following, now = STEP["double_mass"](jax.random.key(0), state, jnp.array([2.0, -0.5]), masses.NOMINAL)
    np.testing.assert_allclose(following.motion, [0.2, 0.2, 0.76, -0.136], rtol=1e-5)
    assert float(now.reward) == pytest.approx(-np.log(0.01) - np.log(1.01), rel=1e-5)
    np.testing.assert_allclose(now.margins, [2.6, 2.6], rtol=1e-6)


def test_double_mass_targets_are_redrawn_halfway() -> None:
    keys = jax.random.split(jax.random.key(0), 400)
    resting = Controller(lambda p, o: (), lambda p, s, o, a: (s, jnp.zeros(2)))

    def episode(key: jax.Array) -> jax.Array:
        run = rollout(masses.PLANT, resting, (), key, masses.NOMINAL)
        return run.next_observations[:, 4:] != run.observations[:, 4:]

    moved = np.asarray(jax.jit(jax.vmap(episode))(keys))
    assert set(np.nonzero(moved.any((0, 2)))[0]) == {49}
    # Three standard deviations of a fair coin's mean over 400 tosses; both coins succeed together in a quarter.
    assert np.abs(moved[:, 49].mean(0) - 0.5).max() < 0.075
    assert abs(moved[:, 49].all(1).mean() - 0.25) < 0.065


@pytest.mark.parametrize("name", sampled(PLANTS, FEW_PLANTS))
def test_every_plant_keeps_the_contract(name: str) -> None:
    plant = PLANTS[name]
    spec = plant.spec
    hash(plant)
    assert PLANTS[spec.name] is plant
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        params = jax.jit(plant.sample_params)(jax.random.key(0), plant.domain)
        state, observation = jax.jit(plant.reset)(jax.random.key(1), params)
        assert observation.shape == (spec.observation.size,)
        middle = (jnp.asarray(spec.action.low) + jnp.asarray(spec.action.high)) / 2
        step = STEP[spec.name]
        following, now = step(jax.random.key(2), state, middle, params)
        compiled = step._cache_size()
        step(jax.random.key(3), following, middle + 0.01, params)
    assert step._cache_size() == compiled
    assert jax.tree.structure(following) == jax.tree.structure(state)
    assert [x.dtype for x in jax.tree.leaves(following)] == [x.dtype for x in jax.tree.leaves(state)]
    assert (now.margins.shape, now.reward.shape) == ((len(spec.constraints),), ())
    assert all(
        low <= x <= high for low, x, high in zip(spec.observation.low, observation, spec.observation.high, strict=True)
    )
    # Actions beyond the range act like the bound, and NaN stays NaN.
    far = step(jax.random.key(2), state, jnp.asarray(spec.action.high) + 100, params)[1]
    end = step(jax.random.key(2), state, jnp.asarray(spec.action.high), params)[1]
    np.testing.assert_array_equal(far.observation, end.observation)
    assert np.isnan(clip_to(spec.action, jnp.full(spec.action.size, jnp.nan))).all()


def test_every_constant_has_a_source_or_is_marked_as_ours() -> None:
    for name, plant in PLANTS.items():
        rows = [
            line for line in (import_module(PLANTS.module(name)).__doc__ or "").splitlines() if line.startswith("|")
        ]
        named = {word.strip() for row in rows[2:] for word in row.split("|")[1].replace(" and ", ", ").split(",")}
        assert {*plant.params._fields, *plant.domain._fields} - named - {"non_minimum_phase"} == set(), name


HIDDEN = {"steel_annealing"}
"""Plants with a mostly hidden state; their own tests cover prediction and logs."""
SEEN = [name for name in PLANTS if name not in HIDDEN]


@pytest.mark.parametrize("name", sampled(SEEN, FEW_PLANTS))
def test_prediction_equals_undisturbed_step(name: str) -> None:
    plant = PLANTS[name]
    state, observation = jax.jit(plant.reset)(jax.random.key(1), plant.params)
    action = jnp.asarray(plant.spec.action.low) * 0.7 + jnp.asarray(plant.spec.action.high) * 0.3
    now = STEP[plant.spec.name](jax.random.key(2), state, action, plant.params)[1]
    predicted, margins = jax.jit(plant.predict)(observation, action, plant.params)
    np.testing.assert_allclose(predicted, now.observation, rtol=1e-6)
    np.testing.assert_allclose(margins, now.margins, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_logged_reward_equals_plant_reward(plant: Plant) -> None:
    run = jax.jit(lambda key: rollout(plant, plant.fallback, plant.fallback_params, key, plant.params))(
        jax.random.key(0)
    )
    signals = LOGGED[plant.spec.name]
    np.testing.assert_allclose(signals.reward(run.observations, run.actions, run.next_observations), run.rewards, 1e-5)
    # The plant uses the least margin of the step; the log only has the end of it.
    if plant.spec.name not in HIDDEN:
        assert (signals.margins(run.next_observations) >= run.margins - 1e-4).all()


def test_logged_trip_has_trip_cost() -> None:
    rows = jnp.array([[0.86, 325.0, 300.0, 0.90], [0.80, 333.0, 302.0, 0.86]])
    reward = reactor.logged_reward(rows[:1], rows[:1, 2:3], rows[1:])
    assert float(reward[0]) == pytest.approx(-(0.2**2) - 10.0, rel=1e-5)
