"""Fitted Q evaluation against dynamic programming, Lyapunov equations and a refitting bootstrap."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from scipy.linalg import solve_discrete_lyapunov

from neorl_core.ope import fqe
from neorl_core.ope.metrics import coverage

Floats = npt.NDArray[np.float64]
KEY = jax.random.key(0)
LONG = 2_500
"""Steps after which a discount of .99 has left nothing: the horizon of a value of going on for ever."""


def logs_of(
    observation: Floats,
    action: Floats,
    reward: Floats,
    next_observation: Floats,
    lengths: list[int],
    cost: Floats | None = None,
    terminated: Floats | None = None,
) -> fqe.LoggedSteps:
    """Windows of the given lengths, by default without termination and cost."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    zero = np.zeros(len(reward))
    return fqe.LoggedSteps(
        *(jnp.asarray(x) for x in (observation, action, reward)),
        jnp.asarray(zero if cost is None else cost),
        jnp.asarray(next_observation),
        jnp.asarray(zero if terminated is None else terminated),
        jnp.asarray(episode),
        jnp.asarray(np.concatenate([[0], np.cumsum(lengths)[:-1]])),
    )


def products(observation: jax.Array, action: jax.Array) -> jax.Array:
    x = jnp.concatenate([observation, action], axis=-1)
    i, j = np.triu_indices(x.shape[-1])
    return x[..., i] * x[..., j]


def guessed(logs: fqe.LoggedSteps, decisions: fqe.Decisions) -> fqe.Guesses:
    """Products of pairs of inputs; values of tables and linear-quadratic systems are linear in them."""
    return fqe.Guesses(
        products(logs.observation, logs.action),
        products(logs.next_observation, decisions.next_action),
        products(logs.observation[logs.starts], decisions.initial_action),
    )


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("discount", [0.9, 0.99])
def test_table_value_equals_dynamic_programming(discount: float) -> None:
    # Source: V = (I - discount P_pi)^-1 r_pi (Puterman 1994, theorem 6.1.1), solved here by NumPy.
    rng = np.random.default_rng(3)
    states, actions, copies = 4, 3, 5
    targets = rng.integers(0, states, (states, actions, copies))
    end = rng.random((states, actions, copies)) < 0.1
    reward, cost = rng.normal(size=(2, states, actions))
    policy = rng.integers(0, actions, states)
    # Each state-action pair occurs `copies` times, so frequencies equal probabilities.
    s, a, c = (x.ravel() for x in np.indices((states, actions, copies)))
    following = targets[s, a, c]
    one_hot_s, one_hot_a = np.eye(states), np.eye(actions)
    logs = logs_of(
        one_hot_s[s], one_hot_a[a], reward[s, a], one_hot_s[following], [len(s)], cost[s, a], end[s, a, c] * 1.0
    )
    logs = logs._replace(starts=jnp.asarray([17]))
    decisions = fqe.Decisions(jnp.asarray(one_hot_a[policy[following]]), jnp.asarray(one_hot_a[policy[s[[17]]]]))
    got = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, LONG, discount, 10, 0.0)

    go_on = np.zeros((states, states))
    for i in range(states):
        for j in range(copies):
            go_on[i, targets[i, policy[i], j]] += (1 - end[i, policy[i], j]) / copies
    for which, signal in enumerate((reward, cost)):
        value = np.linalg.solve(np.eye(states) - discount * go_on, signal[np.arange(states), policy])
        np.testing.assert_allclose(got.value[which], value[s[17]], rtol=1e-8)


A = np.array([[0.9, 0.2], [0.0, 0.8]])
B = np.array([[0.0], [0.5]])
GAIN, LOGGED_GAIN = np.array([[-0.3, -0.4]]), np.array([[-0.1, 0.0]])
NOISE, DISCOUNT = 0.1, 0.9


def linear_logs(seed: int, episodes: int, steps: int, noise: float = NOISE) -> fqe.LoggedSteps:
    """x' = A x + B u + noise, reward -(|x|^2 + u^2), u = LOGGED_GAIN x + exploration."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[Floats, Floats, Floats]] = []
    x = rng.normal(size=(episodes, 2))
    for _ in range(steps):
        u = x @ LOGGED_GAIN.T + 0.5 * rng.normal(size=(episodes, 1))
        following = x @ A.T + u @ B.T + noise * rng.normal(size=x.shape)
        rows.append((x, u, following))
        x = following
    o, u, n = (np.stack(part, axis=1).reshape(episodes * steps, -1) for part in zip(*rows, strict=True))
    reward = -(o**2).sum(axis=1) - (u**2).sum(axis=1)
    return logs_of(o, u, reward, n, [steps] * episodes)


def linear_decisions(logs: fqe.LoggedSteps, gain: Floats = GAIN) -> fqe.Decisions:
    return fqe.Decisions(logs.next_observation @ gain.T, logs.observation[logs.starts] @ gain.T)


def linear_value(x: Floats, noise: float, gain: Floats = GAIN) -> Floats:
    """V(x) = -x'Px - discount/(1-discount) noise^2 tr P with P = Q + K'RK + discount (A+BK)'P(A+BK), Q = R = I."""
    closed = A + B @ gain
    p = solve_discrete_lyapunov(np.sqrt(DISCOUNT) * closed.T, np.eye(2) + gain.T @ gain)
    value: Floats = -np.einsum("ni,ij,nj->n", x, p, x) - DISCOUNT / (1 - DISCOUNT) * noise**2 * np.trace(p)
    return value


@pytest.mark.usefixtures("double")
def test_linear_value_equals_lyapunov_equation() -> None:
    # Source: the discounted LQR's Lyapunov equation, solved by SciPy; without noise it is exact on every path.
    logs = linear_logs(0, 20, 10, noise=0.0)
    decisions = linear_decisions(logs)
    got = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, LONG, DISCOUNT, 10, 0.0)
    expected = linear_value(np.asarray(logs.observation[logs.starts]), 0.0).mean()
    np.testing.assert_allclose(got.value[0], expected, rtol=1e-8)
    assert bool(got.supported)


@pytest.mark.slow
def test_intervals_have_nominal_coverage() -> None:
    # Source: truth is the Lyapunov value at the logs' own distribution of initial states, x ~ N(0, I).
    closed = A + B @ GAIN
    p = solve_discrete_lyapunov(np.sqrt(DISCOUNT) * closed.T, np.eye(2) + GAIN.T @ GAIN)
    truth = -np.trace(p) - DISCOUNT / (1 - DISCOUNT) * NOISE**2 * np.trace(p)
    many = [linear_logs(seed, 60, 12) for seed in range(200)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *many)

    def bounds(logs: fqe.LoggedSteps) -> jax.Array:
        decisions = linear_decisions(logs)
        draws = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, 200, DISCOUNT, 400).draws[:, 0]
        return jnp.quantile(draws, jnp.array([0.05, 0.95]))

    lower, upper = jax.jit(jax.vmap(bounds))(stacked).T
    # Within 3 standard errors of 90 % (.021 at 200 sets), minus a few points that percentile intervals lose.
    assert 0.82 <= float(coverage(lower, upper, jnp.full(200, truth))) <= 0.96


def refit(logs: fqe.LoggedSteps, weights: Floats) -> float:
    """FQE's fixed point on 1, inputs and products by weighted least squares; NumPy, no influence function."""

    def phi(o: Floats, a: Floats) -> Floats:
        x = np.concatenate([o, a], axis=1)
        i, j = np.triu_indices(3)
        return np.concatenate([np.ones((len(x), 1)), x, x[:, i] * x[:, j]], axis=1)

    host = jax.tree.map(np.asarray, logs)
    decisions = jax.tree.map(np.asarray, linear_decisions(logs))
    use = weights[host.episode]
    now, following = phi(host.observation, host.action), phi(host.next_observation, decisions.next_action)
    theta = np.linalg.solve((now * use[:, None]).T @ (now - DISCOUNT * following), now.T @ (use * host.reward))
    start = phi(host.observation[host.starts], decisions.initial_action) @ theta
    return float(weights @ start / weights.sum())


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_bootstrap_equals_refitting() -> None:
    logs = linear_logs(5, 200, 10)
    decisions = linear_decisions(logs)
    got = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, LONG, DISCOUNT, 500, 0.0)
    np.testing.assert_allclose(got.value[0], refit(logs, np.ones(200)), rtol=1e-8)
    # `evaluate` splits its key into one per resample.
    weights = np.stack([fqe.resample_weights(key, 200) for key in jax.random.split(KEY, 500)[:100]])
    refits = np.array([refit(logs, w) for w in weights])
    assert np.corrcoef(refits, got.draws[:100, 0])[0, 1] > 0.98
    np.testing.assert_allclose(got.draws[:100, 0].std(), refits.std(), rtol=0.1)


CLOCK, START = 12, 3.0


def clocked_logs(seed: int, episodes: int) -> fqe.LoggedSteps:
    """x' = 0.9 x + 0.5 u with a clock from 0 to 1 per episode; reward -(1 + x^2 + u^2) <= -1."""
    rng = np.random.default_rng(seed)
    x, rows = START + 0.1 * rng.normal(size=episodes), []
    for t in range(CLOCK):
        u = -0.1 * x + rng.normal(size=episodes)
        following = 0.9 * x + 0.5 * u
        here = [
            np.stack([x, np.full(episodes, t / CLOCK)], 1),
            u[:, None],
            np.stack([following, 0 * x + (t + 1) / CLOCK], 1),
        ]
        rows.append(here)
        x = following
    o, u, n = (np.stack(part, axis=1).reshape(episodes * CLOCK, -1) for part in zip(*rows, strict=True))
    return logs_of(o, u, -1 - o[:, 0] ** 2 - u[:, 0] ** 2, n, [CLOCK] * episodes)


def clocked_value(x: Floats, gain: float, discount: float) -> Floats:
    """Sum of the rewards of u = gain x over the steps of the clock."""
    total = np.zeros_like(x)
    for t in range(CLOCK):
        total += discount**t * (-1 - x**2 - (gain * x) ** 2)
        x = (0.9 + 0.5 * gain) * x
    return total


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("discount", [0.9, 0.99])
def test_value_with_a_clock_ends_with_it(discount: float) -> None:
    # Source: the sum itself. Only the truncated last row shows the end of an episode.
    logs = clocked_logs(0, 40)
    decisions = fqe.Decisions(-0.3 * logs.next_observation[:, :1], -0.3 * logs.observation[logs.starts, :1])
    got = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, CLOCK, discount, 10, 0.0)
    expected = clocked_value(np.asarray(logs.observation[logs.starts, 0]), -0.3, discount).mean()
    np.testing.assert_allclose(got.value[0], expected, rtol=1e-6)
    assert bool(got.supported)


@pytest.mark.usefixtures("double")
def test_truncated_rows_are_evaluated() -> None:
    # Source: by hand. Every episode is one truncated step, from A to B (r = 1) or from B to A (r = 3).
    one_hot = np.eye(2)
    state = np.array([0, 1, 0, 1])
    zero = np.zeros((4, 1))
    logs = logs_of(one_hot[state], zero, np.where(state == 0, 1.0, 3.0), one_hot[1 - state], [1] * 4)
    logs = logs._replace(starts=jnp.asarray([0, 2]), episode=jnp.asarray([0, 0, 1, 1]))
    decisions = fqe.Decisions(jnp.zeros((4, 1)), jnp.zeros((2, 1)))
    got = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, 4, 0.5, 10, 0.0)
    assert float(got.value[0]) == pytest.approx(1 + 0.5 * 3 + 0.25 * 1 + 0.125 * 3, rel=1e-8)


def test_rewards_that_are_never_positive_allow_no_positive_value() -> None:
    # Source: a sum of non-positive numbers, for a policy far from the logs and features that do not show it.
    logs = linear_logs(1, 30, 20)
    for gain in (0.0, -1.0, 0.6, 1.0, 3.0):
        for sign in (1.0, -1.0):
            given = logs._replace(reward=sign * logs.reward)
            decisions = linear_decisions(logs, np.array([[gain, -gain]]))
            found = fqe.evaluate(given, decisions, guessed(logs, decisions), KEY, 50, 0.99, 50)
            assert float(jnp.max(sign * found.value[0])) <= 0
            assert float(jnp.max(sign * found.draws[:, 0])) <= 0


def test_rows_without_successor_do_not_count() -> None:
    logs = clocked_logs(3, 40)
    decisions = fqe.Decisions(-0.3 * logs.next_observation[:, :1], -0.3 * logs.observation[logs.starts, :1])
    odd = logs.reward.at[7].set(jnp.nan)
    broken = logs._replace(next_observation=logs.next_observation.at[7].set(jnp.nan), reward=odd)
    unknown = fqe.Decisions(decisions.next_action.at[7].set(jnp.nan), decisions.initial_action)
    assert fqe.known_rows(broken).tolist().count(False) == 1
    got = fqe.evaluate(broken, unknown, guessed(broken, unknown), KEY, CLOCK, 0.9, 10)
    expected = fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, CLOCK, 0.9, 10)
    np.testing.assert_allclose(got.value, expected.value, rtol=1e-3)
    np.testing.assert_allclose(got.draws, expected.draws, rtol=0.02)


def test_logged_value_is_mean_of_complete_windows() -> None:
    # By hand, discount 1/2: (1, 2, 4) has three steps, (8, 16) terminates, (32,) is cut and does not count.
    column, zero = np.zeros((6, 1)), np.zeros(6)
    reward, ends = np.array([1.0, 2, 4, 8, 16, 32]), np.array([0.0, 0, 0, 0, 1, 0])
    logs = logs_of(column, column, reward, column, [3, 2, 1], cost=zero + 1, terminated=ends)
    found = fqe.logged(logs, KEY, 3, 0.5, 400)
    np.testing.assert_allclose(found.value, [(3 + 16) / 2, (1.75 + 1.5) / 2])
    assert bool(found.supported)
    # A resample contains each of the two windows some times: only these means are possible.
    times = np.stack([fqe.resample_weights(key, 3) for key in jax.random.split(KEY, 400)])[:, :2]
    some = times.sum(axis=1) > 0
    expected = times[some] @ [3.0, 16.0] / times[some].sum(axis=1)
    np.testing.assert_allclose(found.draws[some, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(found.draws[~some, 0], 9.5)


@pytest.mark.usefixtures("double")
def test_correct_guess_is_found_in_any_unit() -> None:
    # Source: the Lyapunov equation. Linear features cannot express a quadratic value, but its guess can.
    logs = linear_logs(0, 20, 10, noise=0.0)
    decisions = linear_decisions(logs)

    def value(o: jax.Array, a: jax.Array) -> jax.Array:
        after = np.asarray(o) @ A.T + np.asarray(a) @ B.T
        paid = -(np.asarray(o) ** 2).sum(axis=1) - (np.asarray(a) ** 2).sum(axis=1)
        return jnp.asarray(paid + DISCOUNT * linear_value(after, 0.0))[:, None]

    right = fqe.Guesses(
        value(logs.observation, logs.action),
        value(logs.next_observation, decisions.next_action),
        value(logs.observation[logs.starts], decisions.initial_action),
    )
    expected = linear_value(np.asarray(logs.observation[logs.starts]), 0.0).mean()
    other_unit = jax.tree.map(lambda x: 1e-3 * x + 7, right)
    none = jax.tree.map(jnp.zeros_like, right)
    for guesses in (right, other_unit):
        got = fqe.evaluate(logs, decisions, guesses, KEY, LONG, DISCOUNT, 10, 0.0)
        np.testing.assert_allclose(got.value[0], expected, rtol=1e-6)
    without = fqe.evaluate(logs, decisions, none, KEY, LONG, DISCOUNT, 10, 0.0)
    assert abs(float(without.value[0]) / expected - 1) > 0.02


def test_nothing_is_compiled_twice() -> None:
    logs = linear_logs(2, 30, 20)
    compiled = []
    for gain in (GAIN, LOGGED_GAIN):
        decisions = linear_decisions(logs, gain)
        fqe.evaluate(logs, decisions, guessed(logs, decisions), KEY, 100, 0.99, 11)
        compiled.append(fqe.evaluate._cache_size())
    assert compiled[0] == compiled[1]


def test_logged_actions_gain_nothing_over_fragments() -> None:
    # By hand: 20 episodes of 19 steps in windows of 10 and 9, reward -1 only in the first three steps of an episode,
    # and actions have no effect. Fragments have zero return.
    clock = np.tile(np.arange(19.0), 20)
    logs = logs_of(
        (clock / 19)[:, None], np.zeros((380, 1)), -1.0 * (clock < 3), ((clock + 1) / 19)[:, None], [10, 9] * 20
    )
    same = fqe.Decisions(jnp.zeros((380, 1)), jnp.zeros((40, 1)))
    known = np.stack([np.maximum(3 - clock, 0), np.maximum(2 - clock, 0)])
    guesses = fqe.Guesses(*(jnp.asarray(-x[:, None]) for x in (*known, known[0][np.asarray(logs.starts)])))
    found, logged = fqe.evaluate(logs, same, guesses, KEY, 10, 1.0, 50), fqe.logged(logs, KEY, 10, 1.0, 50)
    assert float(logged.value[0]) == pytest.approx(-3.0)
    # A line in the clock errs by some hundredths; with starts of fragments the difference would be 1.45.
    np.testing.assert_allclose(found.draws[:, 0], logged.draws[:, 0], atol=0.2)


@pytest.mark.usefixtures("double")
def test_logged_controller_and_policies_share_resamples() -> None:
    # If actions have no effect, a policy has the logged value in every resample, which depends on the start.
    rng = np.random.default_rng(6)
    start = np.repeat(rng.normal(size=60), 4)
    clock = np.tile(np.arange(4.0), 60)
    now, after = (np.stack([start, (clock + i) / 4], axis=1) for i in (0, 1))
    logs = logs_of(now, np.zeros((240, 1)), start, after, [4] * 60)
    nothing = fqe.Decisions(jnp.zeros((240, 1)), jnp.zeros((60, 1)))
    # The value with t steps to go is linear in start and start x clock.
    guesses = fqe.Guesses(*(jnp.asarray(x[:, :1] * x[:, 1:]) for x in (now, after, now[::4])))
    found, logged = fqe.evaluate(logs, nothing, guesses, KEY, 4, 0.9, 50), fqe.logged(logs, KEY, 4, 0.9, 50)
    assert float(logged.draws[:, 0].std()) > 0.1
    np.testing.assert_allclose(found.draws[:, 0], logged.draws[:, 0], atol=1e-3)


def test_constant_guess_has_no_effect() -> None:
    # 39.4994 in single precision: the last bit of a large mean is rounding, not a difference.
    logs = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, linear_logs(2, 30, 20))
    decisions = linear_decisions(logs)
    constant, none = (
        jax.tree.map(lambda x, value=value: jnp.full_like(x[:, :1], value), guessed(logs, decisions))
        for value in (39.4994, 0.0)
    )
    constant = constant._replace(following=constant.following * 1.001)
    found, expected = (fqe.evaluate(logs, decisions, each, KEY, 20, 0.99, 11) for each in (constant, none))
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-4)
    assert bool(found.supported)


@pytest.mark.slow
def test_official_data_does_not_support_unlogged_actions(dmsd_train: Path) -> None:
    # Source: NeoRL-2's data, in which idling occurs only at rest.
    with np.load(dmsd_train, allow_pickle=False) as data:
        o, a, r, n = (data[key][:20_000] for key in ("obs", "action", "reward", "next_obs"))
    centre, spread = o.mean(axis=0), o.std(axis=0)
    logs = logs_of((o - centre) / spread, a, r, (n - centre) / spread, [100] * 200)
    logs = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, logs)
    nothing = fqe.Decisions(jnp.zeros_like(logs.action), jnp.zeros((200, 2), jnp.float32))
    assert float(fqe.evaluate(logs, nothing, guessed(logs, nothing), KEY, LONG).effective_rows) < 0.02 * len(r)
