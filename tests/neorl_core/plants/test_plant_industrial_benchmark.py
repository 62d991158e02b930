"""The Siemens benchmark against the authors' recorded traces and means (truth 1.3), and a second implementation."""

from __future__ import annotations

from functools import partial
from math import acos, cbrt, cos, exp, pi, sin, sqrt
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.plants.base import rollout
from neorl_core.plants.industrial_benchmark import goldstone
from neorl_core.plants.industrial_benchmark import plant as benchmark
from tests.conftest import SHARED, Truth

HIDDEN = ("hg", "hv")
AUTOMATON = ("gs_domain", "gs_sys_response", "gs_phi_idx")


def start_of(row: dict[str, Any]) -> benchmark.State:
    """The plant's state for a row of the authors' state."""
    costs = jnp.array([row[f"o{i}"] for i in range(10)])
    several = [jnp.array([row[k] for k in names], float) for names in (("v", "g", "h"), HIDDEN, AUTOMATON)]
    fatigue, consumption = (jnp.asarray(row[k], float) for k in "fc")
    return benchmark.State(
        several[0], costs, several[1], goldstone.Automaton(*several[2]), fatigue, consumption, jnp.zeros((), jnp.int32)
    )


def noise_of(rows: np.ndarray) -> benchmark.Noise:
    """The authors' draws, (N, 8), as the plant's noise: a successful coin becomes a chance below all others."""
    alpha = np.where(np.isnan(rows[:, 6]), 0.0, (rows[:, 6] - 2.4) / 0.4)
    return benchmark.Noise(*(jnp.asarray(x) for x in (rows[:, :2], rows[:, 2:4], 1 - rows[:, 4:6], alpha, rows[:, 7])))


@jax.jit
def replay(
    state: benchmark.State, actions: jax.Array, noise: benchmark.Noise, setpoint: jax.Array
) -> dict[str, jax.Array]:
    """The plant's path under recorded actions and noise, with the authors' names."""
    params = benchmark.Params(setpoint=setpoint)

    def step(state: benchmark.State, now: tuple[jax.Array, benchmark.Noise]) -> tuple[Any, dict[str, jax.Array]]:
        state = benchmark.advance(state, *now, params)
        effective = benchmark.effective_actions(state.steering, setpoint)
        shift = benchmark.effective_shift(state.steering[2], setpoint)
        seen = {f"o{i}": state.costs[i] for i in range(10)} | {
            "coc": state.costs[-1],
            "oc": state.costs @ jnp.array(benchmark.DELAY),
            "v": state.steering[0],
            "g": state.steering[1],
            "h": state.steering[2],
            "ge": effective[0],
            "ve": effective[1],
            "he": shift,
            "hg": state.hidden[0],
            "hv": state.hidden[1],
            "gs_domain": state.goldstone.facing,
            "gs_sys_response": state.goldstone.response,
            "gs_phi_idx": state.goldstone.phi,
            "MC": -goldstone.potential(state.goldstone.phi, shift),
            "fb": benchmark.basic_fatigue(state.steering),
            "f": state.fatigue,
            "c": state.consumption,
            "reward": benchmark.reward_of(state.fatigue, state.consumption),
        }
        return state, seen

    return jax.lax.scan(step, state, (actions, noise))[1]


class Second:
    """A second, scalar implementation from the papers and truth 1.3."""

    def __init__(self, p: float) -> None:
        self.p, self.v, self.g, self.h = p, 50.0, 50.0, 50.0
        self.o = [exp((2 * p + 325.0) / 100)] * 10
        self.hg = self.hv = self.f = self.c = 0.0
        self.side, self.response, self.phi = 1, 1, 0

    def row(self) -> dict[str, float]:
        names = {"v": self.v, "g": self.g, "h": self.h, "hg": self.hg, "hv": self.hv, "f": self.f, "c": self.c}
        automaton = dict(zip(AUTOMATON, (self.side, self.response, self.phi), strict=True))
        return names | automaton | {f"o{i}": o for i, o in enumerate(self.o)}

    def effective(self) -> tuple[float, float]:
        def gain(g: float) -> float:
            return 1 / (g + 1 + self.p)

        def velocity(v: float, g: float) -> float:
            return (g + 2 + self.p) / (v + 101 - self.p)

        least, most = velocity(100, 0), velocity(0, 100)
        return (gain(self.g) - gain(100)) / (gain(0) - gain(100)), (velocity(self.v, self.g) - least) / (most - least)

    def potential(self, r: float) -> float:
        u = cbrt(1 + sqrt(2)) / sqrt(3)
        r0 = u + 1 / (3 * u)
        tilt = 8 * sqrt(2 / 27)
        scale = 2 * r0**2 - r0**4 + tilt * r0
        s = sin(self.phi * pi / 12)
        q = -tilt * abs(s) / 8
        if q <= -sqrt(1 / 27):
            w = cbrt(-q + sqrt(q * q - 1 / 27))
            valley = w + 1 / (3 * w)
        else:
            valley = sqrt(4 / 3) * cos(acos(-q * sqrt(27)) / 3)
        best = max(abs(s), sin(pi / 12))
        x = abs(r)
        if x <= best:
            x *= valley / best
        else:
            power = (2 - best) / (2 - valley)
            x = valley + (2 - valley) / (2 - best) ** power * (x - best) ** power
        x = x if r >= 0 else -x
        return (-2 * x * x + x**4 - tilt * s * x) / scale

    def turn(self, r: float) -> None:
        safe = abs(r) <= sin(pi / 12) / 2
        way = (r > 0) - (r < 0)
        if not safe and way != self.side:
            self.side, self.response = way, 1
        if safe:
            self.phi -= (self.phi > 0) - (self.phi < 0)
        elif self.phi != -6 * self.side:
            self.phi += self.response * way
        if abs(self.phi) >= 6:
            self.response = -1
            self.phi = 12 - self.phi % 24
        if safe and self.phi == 0:
            self.side, self.response = 1, 1

    def gauge(self, hidden: float, effective: float, wobble: float) -> float:
        if effective <= 0.05:
            return effective
        return min(5.0, 1.1 * hidden) if hidden >= 1.2 else 0.9 * hidden + wobble / 3

    def step(self, a: list[float], z: list[float]) -> None:
        def keep(x: float) -> float:
            return min(100.0, max(0.0, x))

        self.v, self.g = keep(self.v + a[0]), keep(self.g + 10 * a[1])
        self.h = keep(self.h + sin(pi / 12) / 0.9 * 20 * a[2])
        ge, ve = self.effective()
        wobbles = []
        for e, u, fell, effective in ((z[0], z[2], z[4], ge), (z[1], z[3], z[5], ve)):
            w = 2 / (1 + exp(-e)) - 1
            wobbles.append(w + (1 - w) * u * fell * effective)
        self.hg, self.hv = self.gauge(self.hg, ge, wobbles[0]), self.gauge(self.hv, ve, wobbles[1])
        alpha = 1 / (1 + exp(-z[6])) if max(self.hg, self.hv) == 5 else max(wobbles)
        self.f = max(0.0, 30000 / (5 * self.v + 100) - self.g**2 / 100) * (1 + 2 * alpha) / 3
        self.o = [*self.o[1:], exp((2 * self.p + 4 * self.v + 2.5 * self.g) / 100)]
        r = min(1.5, max(-1.5, self.h / 20 - 0.02 * self.p - 1.5))
        self.turn(r)
        weights = (0.11111, 0.22222, 0.33333, 0.22222, 0.11111)
        quiet = sum(w * o for w, o in zip(weights, self.o, strict=False)) + 25 * (1 + self.potential(r))
        self.c = quiet - z[7] * (1 + 0.005 * quiet)


@pytest.mark.parametrize("trace", ["trace0.npz", "trace1.npz"])
def test_authors_traces_are_reproduced(trace: str, truth: Truth) -> None:
    path: Path = SHARED / "industrial_benchmark" / trace
    if not path.exists():
        pytest.skip("the recorded traces of the Siemens benchmark are not beside this checkout")
    with np.load(path, allow_pickle=False) as data, jax.enable_x64(True):
        names = list(data["state_names"])
        start = start_of(dict(zip(names, data["initial_state"], strict=True)))
        setpoint = jnp.asarray(data["setpoint"])
        ours = replay(start, jnp.asarray(data["actions"]), noise_of(data["noise"]), setpoint)
        away = {
            name: np.abs((np.asarray(ours[name]) if name != "p" else float(setpoint)) - data["states"][:, column]).max()
            for column, name in enumerate(names)
        }
        worst = max(away, key=lambda name: away[name])
        what = f"largest error of {len(names)} signals over 1,000 steps of {trace} (in {worst})"
        truth(what, 0.0, away[worst], 1e-9, "Siemens' own recorded traces")


@pytest.mark.parametrize("setpoint", [20.0, 95.0])
def test_a_second_implementation_agrees(setpoint: float) -> None:
    # Long stretches at one end of the steerings, so that gauges run away and the hat turns to both sides.
    rng = np.random.default_rng(int(setpoint))
    drift = np.repeat(rng.choice([-1.0, 1.0], (20, 3)), 50, axis=0)
    actions = np.clip(drift * rng.uniform(0, 1, (1000, 3)), -1, 1)
    noise = np.column_stack(
        [
            rng.exponential(0.1, (1000, 2)),
            rng.uniform(size=(1000, 2)),
            rng.integers(0, 2, (1000, 2)),
            rng.normal(2.4, 0.4, 1000),
            rng.normal(size=1000),
        ]
    )
    second = Second(setpoint)
    first = second.row()
    theirs = []
    for a, z in zip(actions.tolist(), noise.tolist(), strict=True):
        second.step(a, z)
        theirs.append(second.row())
    with jax.enable_x64(True):
        ours = replay(start_of(first), jnp.asarray(actions), noise_of(noise), jnp.asarray(setpoint))
    for name in first:
        assert np.abs(np.asarray(ours[name]) - [row[name] for row in theirs]).max() <= 1e-9, name
    assert {-1.0, 1.0} == set(np.asarray(ours["gs_sys_response"]))
    assert max(np.asarray(ours["hg"]).max(), np.asarray(ours["hv"]).max()) == 5.0


@pytest.fixture(scope="module")
def episodes() -> Any:
    """Mean rewards and least margins of 60 episodes, by set point and constant steering, or with random moves."""

    def episode(key: jax.Array, setpoint: jax.Array, target: jax.Array, wild: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = benchmark.Params(setpoint, jnp.ones(()))
        start, _ = benchmark.reset(key, params)

        def step(state: benchmark.State, t: jax.Array) -> tuple[benchmark.State, tuple[jax.Array, jax.Array]]:
            key_move, key_step = jax.random.split(jax.random.fold_in(key, t))
            moves = jax.random.uniform(key_move, (3,), minval=-1.0, maxval=1.0)
            moves = jnp.where(wild, moves, (target - state.steering) / jnp.array(benchmark.STEPS))
            state, now = benchmark.step(key_step, state, moves, params)
            return state, (now.reward, now.margins)

        rewards, margins = jax.lax.scan(step, start, jnp.arange(1000))[1]
        return jnp.mean(rewards), jnp.min(margins, axis=0)

    run = jax.jit(jax.vmap(episode, (0, None, None, None)))
    keys = jax.random.split(jax.random.key(0), 60)
    return lambda p, target, wild=False: run(keys, jnp.asarray(p), jnp.asarray(target, float), jnp.asarray(wild))


@pytest.mark.parametrize(
    ("setpoint", "held", "mean", "spread"),
    [
        # Truth 1.3; where it gives no spread at 100, the spread at 70 is used.
        (70.0, (50.0, 50.0, 50.0), -209.4, 0.3),
        (70.0, (40.0, 40.4, 55.5), -185.8, 0.5),
        (100.0, (50.0, 50.0, 50.0), -303.9, 0.3),
        (100.0, (35.0, 34.0, 6.0), -258.8, 1.0),
    ],
)
def test_mean_rewards_of_constant_steerings(
    episodes: Any, setpoint: float, held: tuple[float, ...], mean: float, spread: float, truth: Truth
) -> None:
    rewards = np.asarray(episodes(setpoint, held)[0])
    what = f"mean reward per step at p = {setpoint:g}, holding (v, g, h) = ({', '.join(f'{x:g}' for x in held)})"
    truth(what, mean, rewards.mean(), 0.1 + 3 * spread / 60**0.5, "Siemens")
    assert 0.3 < rewards.std() / spread < 3


@pytest.mark.parametrize(("setpoint", "mean", "spread"), [(70.0, -315.0, 34.0), (100.0, -456.0, 90.0)])
def test_mean_rewards_of_random_moves(episodes: Any, setpoint: float, mean: float, spread: float, truth: Truth) -> None:
    # Truth 1.3: −315 ± 34 and −456 with our spread, which is large because of rare visits to high velocity and gain.
    rewards, margins = episodes(setpoint, (50.0,) * 3, True)
    what = f"mean reward per step at p = {setpoint:g} under uniformly random moves"
    truth(what, mean, np.mean(rewards), 3 * spread / 60**0.5, "Siemens")
    # Random moves violate both limits, consumption far more often than fatigue.
    assert np.mean(np.any(np.asarray(margins) < 0, axis=1)) > 0.8


def test_best_constants_beat_published_ones(episodes: Any) -> None:
    known = benchmark.HELD
    for setpoint, published in ((70.0, -185.8), (100.0, -258.8)):
        held = known.steerings[known.setpoints.index(setpoint)]
        rewards, margins = episodes(setpoint, (*held, 20 * (-0.125 + 1.5 + 0.02 * setpoint)))
        assert np.mean(rewards) > published
        assert np.min(margins) > 10.0
    observation = jnp.array([75.0, 50.0, 50.0, 57.6, 20.0, 100.0])
    _, moves = benchmark.steer.act(known, benchmark.steer.init(known, observation), observation, jnp.zeros(3))
    # Between 70 and 80 the target is (37.6, 44, 57.5): moves of −12.4, −6 and −0.1 in steps of 1, 10 and 5.75.
    np.testing.assert_allclose(moves, [-1.0, -0.6, -0.1 / 5.7515], rtol=2e-4)


@pytest.mark.slow
def test_rotating_shift_agrees_with_dynamic_programming() -> None:
    # Truth 1.3: a dynamic programme over the Goldstone cost brings miscalibration from 22.2 to 7.1 a step. Value
    # iteration over side, response, angle and effective shift; in a step the shift reaches 11 cells of 0.025.
    top, reach = goldstone.TOP, 11
    grid = np.linspace(-1.5, 1.5, 121)
    sides = np.stack([x.ravel() for x in np.meshgrid([-1.0, 1.0], [-1.0, 1.0], np.arange(-top, top + 1.0))], -1)

    def after(before: jax.Array, radius: jax.Array) -> tuple[jax.Array, jax.Array]:
        turned = goldstone.turn(goldstone.Automaton(*before), radius)
        return jnp.stack(turned), 25.0 * (1.0 + goldstone.potential(turned.phi, radius))

    each = jax.jit(jax.vmap(jax.vmap(after, (None, 0)), (0, None)))
    following, costs = (np.asarray(x) for x in each(jnp.asarray(sides, float), jnp.asarray(grid, float)))
    # A response of 0, where the hat waits at an end, continues like either.
    where = [
        {tuple(side): i for i, side in enumerate(sides)}[f, r or 1.0, phi] for f, r, phi in following.reshape(-1, 3)
    ]
    index, totals = np.reshape(where, costs.shape), [np.zeros(costs.shape)]
    for _ in range(240):
        ways = np.pad(costs + totals[-1][index, np.arange(121)], ((0, 0), (reach, reach)), constant_values=np.inf)
        totals.append(np.lib.stride_tricks.sliding_window_view(ways, 2 * reach + 1, axis=1).min(axis=-1))
    least = (totals[240] - totals[120]).min() / 120
    assert least == pytest.approx(7.06, abs=0.05)

    plant, known = benchmark.PLANT, benchmark.PLANT.fallback_params
    turn, potential = jax.jit(goldstone.turn), jax.jit(goldstone.potential)
    for setpoint in (15.0, 95.0):
        run = jax.jit(partial(rollout, plant, plant.fallback))(
            known, jax.random.key(0), benchmark.Params(setpoint=setpoint)
        )
        positions = jax.vmap(goldstone.effective_shift, (0, None))(run.next_observations[:, 3], setpoint)
        hat = goldstone.turn(goldstone.rest(float), goldstone.effective_shift(jnp.array(50.0), setpoint))
        cost = []
        for radius in positions[:240]:
            hat = turn(hat, radius)
            cost.append(25.0 * (1.0 + float(potential(hat.phi, radius))))
        # After the transition to the right side, the cycle costs the same as the optimum.
        assert np.mean(cost[120:]) == pytest.approx(least, abs=0.3)


def test_fatigue_never_exceeds_its_bound() -> None:
    # Both noises are at most 1 and so is α, so f <= fb, which justifies the limit.
    rng = np.random.default_rng(1)
    hidden = jnp.asarray(rng.uniform(0, 5, (2000, 2)), jnp.float32)
    steering = jnp.asarray(rng.uniform(0, 100, (2000, 3)), jnp.float32)
    keys = jax.random.split(jax.random.key(2), 2000)

    def worn(key: jax.Array, hidden: jax.Array, steering: jax.Array) -> tuple[benchmark.Noise, jax.Array, jax.Array]:
        noise = benchmark.draw_noise(key, 1.0, jnp.float32)
        return noise, benchmark._fatigue(hidden, steering, noise, 70.0)[1], benchmark.basic_fatigue(steering)

    noise, fatigue, basis = jax.jit(jax.vmap(worn))(keys, hidden, steering)
    assert (fatigue <= basis * 1.000001).all()
    # The draws: exponential with mean 0.1, uniform, uniform, two standard normals.
    assert float(jnp.mean(noise.exponential)) == pytest.approx(0.1, abs=0.005)
    assert float(jnp.mean(noise.exponential**2)) == pytest.approx(0.02, abs=0.003)
    for uniform in (noise.height, noise.chance):
        assert float(jnp.mean(uniform)) == pytest.approx(0.5, abs=0.02)
        assert float(jnp.var(uniform)) == pytest.approx(1 / 12, abs=0.005)
    for normal in (noise.alpha, noise.consumption):
        assert float(jnp.mean(normal)) == pytest.approx(0.0, abs=0.07)
        assert float(jnp.std(normal)) == pytest.approx(1.0, abs=0.05)
