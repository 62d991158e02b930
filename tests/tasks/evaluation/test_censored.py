"""A policy that is as good as the logged one gains nothing, however the logs that trips spared were cut."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.networks import Normaliser, Policy, actor_init
from neorl_core.ope import fqe
from neorl_core.ope.logged import window_counts
from neorl_core.ope.model_based import spread
from neorl_core.types import Transition
from tasks.data.store.episodes import Logs
from tasks.evaluation.estimators import Episodes, fit_estimators
from tasks.evaluation.model_based import lasting, windows
from tests.small_data import reactor_run

HORIZON, DISCOUNT, TRIP, EPISODES = 20, 0.95, 0.06, 300
ONE = Normaliser(jnp.zeros(1), jnp.ones(1), jnp.zeros(1), jnp.ones(1))


def tripping(seed: int, episodes: int = EPISODES) -> Logs:
    """Episodes cut after 10 to 19 steps, of which a step trips with probability `TRIP (1 - a)`; a step is worth 1."""
    draw, rows, lengths = np.random.default_rng(seed), [], []
    for cut in draw.integers(10, HORIZON, episodes):
        observation, length = draw.normal(), 0
        for _ in range(cut):
            action, after = draw.uniform(-1, 1), 0.5 * observation + 0.5 * draw.normal()
            tripped = draw.random() < TRIP * (1 - action)
            rows.append((observation, action, after, tripped))
            observation, length = after, length + 1
            if tripped:
                break
        lengths.append(length)
    x = np.asarray(rows, np.float32)
    one = np.ones(len(x), np.float32)
    starts = np.cumsum(lengths) - lengths
    t = Transition(x[:, :1], x[:, 1:2], one, 0 * one, x[:, 2:3], x[:, 3])
    return Logs(t, np.repeat(np.arange(episodes), lengths), starts, np.zeros(len(x), bool))


def test_an_interval_reaches_as_far_as_the_windows_that_count_allow() -> None:
    # Source: Kish's effective size (sum c)^2 / sum c^2 of the windows' counts, in Hesterberg's factor of few draws.
    logs = tripping(3, 20)
    horizon = lasting(logs, HORIZON)
    run = reactor_run(evaluate={"model_updates": 1, "bootstraps": 20, "discount": DISCOUNT})
    episodes = Episodes(run, windows(logs, horizon), horizon, ONE, None)
    found = fit_estimators(episodes).logged()
    steps = episodes.steps
    plain = fqe.logged(steps, jax.random.key(run.seed), horizon, DISCOUNT, 20)
    value, draws = float(plain.value[fqe.REWARD]), np.asarray(plain.draws[:, fqe.REWARD], np.float64)
    starts = np.asarray(steps.starts)
    lasts = np.minimum(np.diff([*starts, len(steps.reward)]), horizon)
    # A row that terminates is its episode's last.
    ended = np.asarray(steps.terminated)[starts + lasts - 1] > 0
    counts = np.asarray(window_counts(jnp.asarray(lasts), jnp.asarray(ended), horizon), np.float64)
    effective = counts.sum() ** 2 / (counts**2).sum()
    assert 2 < effective < 0.95 * np.count_nonzero(counts)
    np.testing.assert_allclose(found.pessimistic[0] - value, spread(effective) * (draws - value), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_who_trips_as_often_as_the_logged_controller_gains_nothing(seed: int) -> None:
    # Source: actions are symmetric about 0, so who takes 0 trips as often; sum_{t<H} (discount (1 - p))^t of both.
    every = tripping(seed)
    horizon = lasting(every, HORIZON)
    assert horizon < HORIZON
    true = sum((DISCOUNT * (1 - TRIP)) ** step for step in range(horizon))
    run = reactor_run(evaluate={"model_updates": 300, "bootstraps": 200, "discount": DISCOUNT})
    estimators = fit_estimators(Episodes(run, windows(every, horizon), horizon, ONE, None))
    still = Policy(jax.tree.map(jnp.zeros_like, actor_init(jax.random.key(0), 1, 1, (4,))), ONE)
    logged, same = estimators.logged(), estimators.of(still)
    lower, upper = logged.bounds(0.95)
    assert lower < true < upper
    gain = same.gain(logged, 0.95)
    lower, upper = gain.bounds(0.95)
    assert gain.supported
    assert lower < 0.0 < upper
