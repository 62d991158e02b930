"""Replays of logged episodes in learned models: exact for logged actions, and a linear plant in closed form."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope import model_based, ranges, ridge
from neorl_core.ope.action_values import ROWS_AT_ONCE, action_values
from neorl_core.ope.model_based import LearnedModel, Windows
from neorl_core.types import Transition
from neorl_core.world_model import bootstrap, dynamics

NORMALISER = Normaliser(jnp.float32([10.0, 10.0]), jnp.float32([2.0, 2.0]), jnp.float32([0.0]), jnp.float32([3.0]))
HORIZON, EPISODES, DISCOUNT = 12, 40, 0.9


def policy(gain: float) -> Policy:
    """u = 3 tanh(gain (x - set point) / 2)."""
    kernel = jnp.float32([[gain], [-gain]])
    return Policy({"Dense_0": {"kernel": kernel, "bias": jnp.zeros(1)}}, NORMALISER)


class Logged(NamedTuple):
    data: Transition
    noise: np.ndarray
    set_point: np.ndarray


def played(gain: float, noise: np.ndarray, set_point: np.ndarray, blend: np.ndarray | float = 0.0) -> Logged:
    """Normalised z' = .8 z + 1.5 a + noise with a set point that jumps, reward 100 - 20 (z' - set point)^2."""
    z, rows = np.zeros(len(noise)), []
    for t in range(HORIZON):
        a = np.tanh(gain * (z - set_point[:, t])) + (0.0 if np.isscalar(blend) else np.asarray(blend)[:, t])
        after = 0.8 * z + 1.5 * a + noise[:, t]
        s, following = np.stack([z, set_point[:, t]], 1), np.stack([after, set_point[:, t + 1]], 1)
        reward = 100 - 20 * (after - set_point[:, t + 1]) ** 2
        rows.append((s, a[:, None], reward, 0 * reward, following, 0 * reward))
        z = after
    columns = [np.stack(column, 1) for column in zip(*rows, strict=True)]
    flat = (jnp.float32(column.reshape(-1, *column.shape[2:])) for column in columns)
    return Logged(Transition(*flat), noise, set_point)


def world(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Disturbances and set points of all episodes; set points jump halfway."""
    rng = np.random.default_rng(seed)
    steps = np.repeat(rng.uniform(-1, 1, (EPISODES, 2)), [6, HORIZON - 5], axis=1)
    return 0.2 * rng.normal(size=(EPISODES, HORIZON)), steps


def learned(data: Transition, updates: int) -> tuple[LearnedModel, Windows]:
    return fitted(data, np.arange(EPISODES) * HORIZON, updates)


def fitted(data: Transition, starts: np.ndarray, updates: int) -> tuple[LearnedModel, Windows]:
    episode = jnp.asarray(np.repeat(np.arange(EPISODES), np.diff(np.append(starts, len(data.reward)))))
    keys = jax.random.split(jax.random.key(0), 4)
    model, scaled, rewards = model_based.init(keys[0], data, max(updates, 1))
    if updates:
        counts = bootstrap.resample(keys[1], episode, EPISODES, model_based.MEMBERS)
        model = bootstrap.train(model, keys[2], scaled, counts, updates, batch_size=64)
    found = model_based.fit_regressions(keys[3], model, data, rewards, episode, jnp.asarray(starts), DISCOUNT)
    return found, model_based.stack_windows(data, starts, 2, HORIZON)


def value(found: LearnedModel, rows: Windows, gain: float) -> model_based.ModelValue:
    return jax.device_get(model_based.evaluate(found, NORMALISER, policy(gain), rows, DISCOUNT))


@pytest.fixture(scope="module")
def exploring() -> tuple[LearnedModel, Windows, Logged]:
    """Logs of a controller of gain -.3 with exploration, and models trained on them."""
    noise, set_point = world(0)
    blend = np.random.default_rng(1).uniform(-0.4, 0.4, (EPISODES, HORIZON))
    logs = played(-0.3, noise, set_point, blend)
    return (*learned(logs.data, 800), logs)


def true_value(gain: float, logs: Logged) -> float:
    """Return of another controller under the same disturbances and set points."""
    rewards = np.asarray(played(gain, logs.noise, logs.set_point).data.reward).reshape(EPISODES, HORIZON)
    return float((rewards @ DISCOUNT ** np.arange(HORIZON)).mean())


@pytest.mark.slow
def test_logged_actions_give_the_logged_return() -> None:
    # Source: the logged rewards. The networks are untrained, and no model knows set points and disturbances.
    logs = played(-0.5, *world(2))
    found, rows = learned(logs.data, 0)
    expected = np.asarray(logs.data.reward).reshape(EPISODES, HORIZON) @ DISCOUNT ** np.arange(HORIZON)
    same = value(found, rows, -0.5)
    np.testing.assert_allclose(same.value, expected.mean(), rtol=1e-4)
    np.testing.assert_allclose(model_based.logged_returns(rows, DISCOUNT), expected, rtol=1e-5)
    np.testing.assert_allclose(model_based.logged_value(rows, DISCOUNT).value, expected.mean(), rtol=1e-5)


@pytest.mark.slow
def test_other_controllers_have_their_true_value(
    exploring: tuple[LearnedModel, Windows, Logged],
) -> None:
    found, rows, logs = exploring
    gains = (-0.6, -0.45, -0.2, 0.0)
    values = [value(found, rows, gain) for gain in gains]
    truth = [true_value(gain, logs) for gain in gains]
    for estimate, true in zip(values, truth, strict=True):
        np.testing.assert_allclose(estimate.value, true, rtol=0.02)
        assert estimate.outside < 0.2
    assert np.argsort([v.value.mean() for v in values]).tolist() == np.argsort(truth).tolist()


def test_action_values_equal_step_by_step_rollouts() -> None:
    # Source: the same sum in a Python loop. The networks are untrained, and some steps terminate.
    logs = played(-0.5, *world(2))
    ends = jnp.zeros_like(logs.data.terminated).at[HORIZON - 1].set(1.0)
    found, _ = learned(logs.data._replace(terminated=ends), 0)
    acting, steps = policy(0.7), 4
    s, a = logs.data.observation[:5], logs.data.action[:5]
    got = action_values(found, NORMALISER, acting, s, a, 2, steps, DISCOUNT)
    reach = dynamics.reach(found.model)
    for number in range(2):
        network, coefficients = found.model.members[number], found.ridge.coefficients[number]
        for row in range(5):
            for family in range(2):
                x, u, weight, total = s[row], a[row], 1.0, 0.0
                for _ in range(steps):
                    if family:
                        after = x + ridge.features(found.ridge, jnp.concatenate([x, u])) @ coefficients
                    else:
                        after = dynamics.transition(network, x, u)[0]
                    after = dynamics.clip(reach, after)
                    reward, logit = dynamics.reward_and_termination(network, x, u, after)
                    total += weight * float(found.reward_mean + found.reward_scale * reward)
                    weight *= DISCOUNT * (1.0 - float(jax.nn.sigmoid(logit)))
                    x, u = after, jnp.tanh(0.7 * (after[:1] - after[1:]))
                assert float(got[number, row, family]) == pytest.approx(total, rel=1e-4)
    # More rows than one batch, and an incomplete batch: each row gives the result it gives alone.
    many = ROWS_AT_ONCE + 5
    rows = jnp.arange(many) % 5
    every = action_values(found, NORMALISER, acting, s[rows], a[rows], 2, steps, DISCOUNT)
    np.testing.assert_allclose(every, got[:, rows], rtol=1e-5)


@pytest.mark.slow
def test_leaving_the_logged_states_is_detected(exploring: tuple[LearnedModel, Windows, Logged]) -> None:
    found, rows, _ = exploring
    away = value(found, rows, 3.0)
    assert away.outside > 0.5
    # Rewards are clipped to the logged range, which bounds the return.
    least, most = float(jnp.min(rows.reward)), float(jnp.max(rows.reward))
    steps = (1 - DISCOUNT**HORIZON) / (1 - DISCOUNT)
    assert np.all(away.value <= most * steps + 1e-3)
    assert np.all(away.value >= least * steps - 1e-3)


def test_outside_steps_pay_worst_to_best_rewards() -> None:
    logs = played(-0.5, *world(5))
    found, rows = learned(logs.data, 0)
    steps = (1 - DISCOUNT**HORIZON) / (1 - DISCOUNT)
    anywhere = ranges.Ranges(jnp.full(2, -jnp.inf), jnp.full(2, jnp.inf))
    nowhere = value(found._replace(radius=jnp.float32(jnp.inf), ranges=anywhere), rows, 0.2)
    assert (nowhere.outside, nowhere.below, nowhere.above) == (0, 0, 0)
    # A failed regression (NaN) counts every step as outside.
    assert value(found._replace(radius=jnp.float32(jnp.nan)), rows, 0.2).outside == 1
    # If every step is outside, only the range of the logged rewards is known: all steps pay one end of it. Rewards
    # beyond that range do not change.
    every = value(found._replace(radius=jnp.float32(-1)), rows, -0.5)
    worst, best = np.quantile(rows.reward, [1 - ranges.INSIDE, ranges.INSIDE])
    logged = np.asarray(rows.reward, np.float64)
    weight = DISCOUNT ** np.arange(HORIZON)
    assert every.outside == pytest.approx(1.0)
    assert every.below == pytest.approx(float((np.maximum(logged - worst, 0) @ weight).mean()), rel=1e-3)
    assert every.above == pytest.approx(float((np.maximum(best - logged, 0) @ weight).mean()), rel=1e-3)
    assert every.value[0] - every.below == pytest.approx(worst * steps, rel=0.02)


def test_replay_stays_outside_after_leaving() -> None:
    # Source: the same replays in a Python loop. No leverage is outside, and the networks are untrained.
    logs = played(-0.5, *world(6))
    found, rows = learned(logs.data, 0)
    every = np.concatenate([logs.data.observation, logs.data.next_observation])
    low, high = every.min(axis=0), every.max(axis=0)
    # None of forty similar episodes exceeds the range of the others by a fifth.
    margin = ranges.WIDENED * (high - low)
    np.testing.assert_allclose(found.ranges, (low - margin, high + margin), rtol=1e-5)
    found = found._replace(radius=jnp.float32(jnp.inf))
    reach, acting, weight = dynamics.reach(found.model), policy(0.25), DISCOUNT ** np.arange(HORIZON)
    shares, came_back = [], 0
    for network in found.model.members:
        moved = jax.vmap(lambda s, a, network=network: dynamics.transition(network, s, a)[0])
        x, left = rows.observation[:, 0], np.zeros((EPISODES, HORIZON), bool)
        for t in range(HORIZON):
            noise = rows.next_observation[:, t] - moved(rows.observation[:, t], rows.action[:, t])
            u = to_unit(NORMALISER, policy_act(acting, x * NORMALISER.scale + NORMALISER.mean))
            free = moved(x, u) + noise
            here = np.any((free < low - margin) | (free > high + margin), axis=1)
            before = left[:, :t].any(axis=1)
            came_back += int((before & ~here).sum())
            left[:, t] = before | here
            x = dynamics.clip(reach, free)
        shares.append(left @ weight / weight.sum())
    assert 0.05 < np.mean(shares) < 0.95
    assert came_back
    assert float(value(found, rows, 0.25).outside) == pytest.approx(np.mean(shares), abs=1e-3)


def test_ranges_cover_other_episodes_and_ignore_constants() -> None:
    # By hand: five episodes of one step, one per fold. The last one reaches 1.8 and the others lie between 0 and 1, so
    # covering 99 % of the steps needs .8 of their range; with zero weight on the last one, .2.
    at = jnp.float32([[0.0], [1.0], [0.5], [0.2], [1.8]])
    every = jnp.concatenate([at, jnp.full_like(at, 7.0)], axis=1)
    asked = (every, every, jnp.arange(5), 5)
    found = ranges.ranges(*asked, jnp.ones(5))
    np.testing.assert_allclose(found, ([-0.8 * 1.8, -np.inf], [1.8 + 0.8 * 1.8, np.inf]), rtol=1e-5)
    found = ranges.ranges(*asked, jnp.float32([1, 1, 1, 1, 0]))
    np.testing.assert_allclose(found.low[0], -0.2 * 1.8, rtol=1e-5)
    # A nearly constant observation may vary by a fifth of a standard deviation.
    hardly = every.at[:, 1].set(0.01 * at[:, 0])
    found = ranges.ranges(hardly, hardly, jnp.arange(5), 5, jnp.float32([1, 1, 1, 1, 0]))
    np.testing.assert_allclose([found.low[1], found.high[1]], [-0.2, 0.018 + 0.2], rtol=1e-5)
    # With one episode nothing is held out, and unknown next observations are ignored.
    unknown = every.at[2].set(jnp.nan)
    found = ranges.ranges(every, unknown, jnp.zeros(5, jnp.int32), 1, jnp.ones(5))
    np.testing.assert_allclose(found.high[0], 1.2 * 1.8, rtol=1e-5)


@pytest.mark.slow
def test_outside_share_is_discounted(
    exploring: tuple[LearnedModel, Windows, Logged],
) -> None:
    # A slow exit puts the end of a window outside, which a strong discount weights little.
    found, rows, _ = exploring
    shares = [
        float(model_based.evaluate(found, NORMALISER, policy(0.3), rows, discount).outside) for discount in (1.0, 0.5)
    ]
    assert shares[0] > 0.2
    assert shares[1] < 0.6 * shares[0]


def test_first_steps_of_long_episodes_are_inside() -> None:
    # z' = .5 z + u + noise from starts of +-8: four of four hundred steps are far from all others and have nine tenths
    # of the discounted weight. An unweighted quantile as radius would put them outside.
    episodes, horizon, discount = 8, 400, 0.5
    rng = np.random.default_rng(4)
    z, rows = 8 * rng.choice([-1.0, 1.0], episodes) + rng.normal(size=episodes), []
    for _ in range(horizon):
        u = np.tanh(-0.3 * z)
        after = 0.5 * z + u + 0.1 * rng.normal(size=episodes)
        s, following = np.stack([z, 0 * z], 1), np.stack([after, 0 * z], 1)
        rows.append((s, u[:, None], -(z**2), 0 * z, following, 0 * z))
        z = after
    columns = [np.stack(column, 1) for column in zip(*rows, strict=True)]
    data = Transition(*(jnp.float32(column.reshape(-1, *column.shape[2:])) for column in columns))
    episode, starts = jnp.repeat(jnp.arange(episodes), horizon), np.arange(episodes) * horizon
    model, _, rewards = model_based.init(jax.random.key(0), data, 1)
    windows = model_based.stack_windows(data, starts, 2, horizon)

    def outside(by: float) -> float:
        found = model_based.fit_regressions(jax.random.key(1), model, data, rewards, episode, jnp.asarray(starts), by)
        asked = (policy(-0.3), windows, discount)
        return float(model_based.evaluate(found, NORMALISER, *asked).outside)

    assert outside(1.0) > 0.5
    assert outside(discount) < 0.05


def test_weighted_quantile_equals_repeated_values() -> None:
    values, counts = jnp.float32([3.0, 1.0, 2.0, 5.0]), np.array([2, 5, 2, 1])
    for share in (0.05, 0.5, 0.55, 0.75, 0.9, 0.95, 1.0):
        repeated = np.repeat(values, counts)
        expected = np.quantile(repeated, share, method="inverted_cdf")
        assert ranges.weighted_quantile(values, jnp.float32(counts), share) == expected, share


def test_windows_are_cut_at_their_ends() -> None:
    column = np.arange(5.0, dtype=np.float32)
    data = Transition(column[:, None], column[:, None], column, column, column[:, None] + 1, 0 * column)
    rows = model_based.stack_windows(data, np.array([0, 3]), 1, 10)
    assert rows.logged.tolist() == [[True, True, True], [True, True, False]]
    # By hand: 0 + 1/2 + 2/4, and 3 + 4/2.
    assert model_based.logged_returns(rows, 0.5).tolist() == [1.0, 5.0]


def test_terminated_windows_continue_with_longer_ones() -> None:
    # By hand: windows of rows 0, 1-2, 3-6 and 7-8; the first two terminated, the last was truncated.
    column, terminated = np.arange(9.0, dtype=np.float32), np.float32([1, 0, 1, 0, 0, 0, 0, 0, 0])
    data = Transition(column[:, None], column[:, None], column, column, column[:, None] + 1, terminated)
    rows = model_based.stack_windows(data, np.array([0, 1, 3, 7]), 1, 10)
    assert rows.reward[:3].tolist() == [[0, 2, 5, 6], [1, 2, 5, 6], [3, 4, 5, 6]]
    assert rows.logged.sum(axis=1).tolist() == [1, 2, 4, 2]
    assert rows.known.sum(axis=1).tolist() == [4, 4, 4, 2]
    assert model_based.logged_returns(rows, 0.5).tolist() == [0.0, 2.0, 3 + 2 + 5 / 4 + 6 / 8, 7 + 4]


def test_fragments_are_excluded() -> None:
    # By hand: the last window above, two of four steps, was truncated; the first two terminated.
    column, terminated = np.arange(9.0, dtype=np.float32), np.float32([1, 0, 1, 0, 0, 0, 0, 0, 0])
    data = Transition(column[:, None], column[:, None], column, column, column[:, None] + 1, terminated)
    rows = model_based.complete_windows(model_based.stack_windows(data, np.array([0, 1, 3, 7]), 1, 4), 4)
    assert rows.logged.sum(axis=1).tolist() == [1, 2, 4]
    # Undiscounted rewards of 1 for four steps give 4 for any number of fragments.
    data = data._replace(reward=np.ones(9, np.float32), terminated=np.zeros(9, np.float32))
    rows = model_based.complete_windows(model_based.stack_windows(data, np.array([0, 4, 5, 6]), 1, 4), 4)
    assert float(model_based.logged_value(rows, 1.0).value.mean()) == 4.0


def test_termination_follows_the_logged_step() -> None:
    # Source: P(u < p | u < q) and P(u < p | u >= q) of one uniform u, by counting.
    u = (np.arange(100_000) + 0.5) / 100_000
    for p, q in ((0.2, 0.5), (0.5, 0.2), (0.3, 0.3), (0.9, 0.999)):
        logits = (jnp.log(p / (1 - p)), jnp.log(q / (1 - q)))
        for ended, given in ((1.0, u < q), (0.0, u >= q)):
            found = model_based.termination(*logits, jnp.float32(ended))
            assert float(found) == pytest.approx(np.mean(u[given] < p), abs=2e-3)


def crossing(blend: float) -> tuple[Logged, np.ndarray]:
    """z' = z + a + noise, a about .1, terminates beyond 1, reward 1 per step. Rows until the end, and lengths."""
    rng = np.random.default_rng(4)
    noise, nothing = 0.2 * rng.normal(size=(EPISODES, HORIZON)), np.zeros((EPISODES, HORIZON + 1))
    action = np.tanh(0.1) + rng.uniform(-blend, blend, (EPISODES, HORIZON))
    z = np.concatenate([nothing[:, :1], np.cumsum(action + noise, axis=1)], axis=1)
    over = z[:, 1:] > 1
    lengths = np.where(over.any(axis=1), over.argmax(axis=1) + 1, HORIZON)
    alive, one = np.arange(HORIZON) < lengths[:, None], np.ones((EPISODES, HORIZON))
    pair = np.stack([z, nothing], axis=-1)
    columns = pair[:, :-1], action[..., None], one, 0 * one, pair[:, 1:], over.astype(float)
    return Logged(Transition(*(jnp.float32(column[alive]) for column in columns)), noise, nothing), lengths


def crossed(
    blend: float, updates: int, gain: float, bias: float, *, lost: bool = False
) -> tuple[model_based.ModelValue, np.ndarray]:
    """Value of a = tanh(gain z + bias) from such logs, and the return of each logged episode."""
    logs, lengths = crossing(blend)
    if lost:
        # As readers do for files without next observations: a terminated row repeats its own observation.
        ended = (logs.data.terminated > 0)[:, None]
        after = jnp.where(ended, logs.data.observation, logs.data.next_observation)
        logs = logs._replace(data=logs.data._replace(next_observation=after))
    assert 0.2 < np.mean(lengths < HORIZON) < 0.8
    found, rows = fitted(logs.data, np.concatenate([[0], np.cumsum(lengths)[:-1]]), updates)
    acting = Policy({"Dense_0": {"kernel": jnp.float32([[gain], [0.0]]), "bias": jnp.full(1, bias)}}, NORMALISER)
    came = model_based.evaluate(found, NORMALISER, acting, rows, DISCOUNT)
    return came, (1 - DISCOUNT**lengths) / (1 - DISCOUNT)


@pytest.mark.slow
def test_logged_actions_give_the_logged_return_with_termination() -> None:
    # Source: the discounted number of steps. The networks are untrained and do not predict termination.
    for lost in (False, True):
        same, returns = crossed(0.0, 0, 0.0, 0.1, lost=lost)
        np.testing.assert_allclose(same.value, returns.mean(), rtol=1e-4)


@pytest.mark.slow
def test_unknown_last_steps_do_not_train_dynamics() -> None:
    logs, lengths = crossing(0.5)
    ended = logs.data.terminated > 0
    after = jnp.where(ended[:, None], logs.data.observation, logs.data.next_observation)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    found, _ = fitted(logs.data._replace(next_observation=after), starts, 400)
    # Source: the mean change of a step is its action. Terminating steps are longer than others from the same state, so
    # a model without them predicts less, and a model that takes them for standstill predicts almost nothing.
    member = model_based.Member(found.model.members[0], found.ridge.coefficients[0])
    s, a = logs.data.observation[ended], logs.data.action[ended]
    for regressed in (False, True):
        step = (
            jax.vmap(lambda s, a, r=regressed: model_based.predict_next(found, member, r, s, a))(s, a)[:, 0] - s[:, 0]
        )
        assert step.mean() > 0.4 * a.mean()


@pytest.mark.slow
def test_survivors_continue_from_the_predicted_state() -> None:
    # Source: the same logs with their last observations. Taken for standstill, the last step would move a replay back
    # by its whole length, and the value of each family would be wrong by at least .8.
    told, lost = (crossed(0.5, 400, 0.0, 0.2, lost=lost)[0] for lost in (False, True))
    np.testing.assert_allclose(lost.value, told.value, atol=0.6)


@pytest.mark.slow
def test_surviving_policy_has_the_full_horizon() -> None:
    # Source: the sum of discounts, because the reward is 1 and a controller with gain -1 never crosses 1.
    safe, returns = crossed(0.5, 400, -1.0, 0.0)
    whole = (1 - DISCOUNT**HORIZON) / (1 - DISCOUNT)
    assert returns.mean() < 0.9 * whole
    np.testing.assert_allclose(safe.value, whole, rtol=0.03)


def test_few_windows_widen_intervals() -> None:
    # Source: quantiles 2.262 (Student, nine degrees of freedom) and 1.960 (normal): 2.262 / 1.960 sqrt(10 / 9).
    assert model_based.spread(10) == pytest.approx(1.2166, rel=1e-3)
    assert model_based.spread(100_000) == pytest.approx(1.0, rel=1e-4)
    assert np.isnan(model_based.spread(1))
