"""Weights of windows in logs with cut and terminated episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from neorl_core.ope import fqe, model_based
from neorl_core.ope.logged import window_counts
from neorl_core.types import Transition

HORIZON, DISCOUNT, TRIP = 20, 0.95, 0.06


def test_windows_are_weighted_by_inverse_survival() -> None:
    # By hand: of four windows one is cut after the first step, which leaves 3/4 uncut; one terminates at the second; of
    # the two at risk one is cut, which leaves 3/8; the last survives.
    lasts, ended = jnp.asarray([1, 2, 2, 3]), jnp.asarray([False, True, False, False])
    np.testing.assert_allclose(window_counts(lasts, ended, 3), [0.0, 4 / 3, 0.0, 8 / 3], rtol=1e-6)
    # Source: Kaplan-Meier survival of three at risk, one of which terminates at the second step.
    counts = window_counts(lasts, ended, 3)
    assert float(counts[3] / counts.sum()) == np.float32(2 / 3)


def test_uncut_windows_have_equal_weights() -> None:
    ended = jnp.asarray([False, True, True, False, True])
    assert window_counts(jnp.asarray([3, 1, 2, 3, 3]), ended, 3).tolist() == [1.0] * 5
    # If all are cut, all have weight 1.
    assert window_counts(jnp.asarray([1, 2]), jnp.asarray([False, False]), 3).tolist() == [1.0] * 2


def tripping(episodes: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Episodes that terminate with constant probability per step, and are cut after 10 to 29 steps."""
    draw = np.random.default_rng(seed)
    life, cut = draw.geometric(TRIP, episodes), draw.integers(10, 30, episodes)
    return np.minimum(np.minimum(life, cut), HORIZON), life <= np.minimum(cut, HORIZON)


def test_logged_value_does_not_depend_on_cuts() -> None:
    # Source: a reward of 1 a step while a geometric life lasts, sum_{t<H} (discount (1 - p))^t.
    true = sum((DISCOUNT * (1 - TRIP)) ** step for step in range(HORIZON))
    lasts, ended = tripping(20_000, 0)
    returns = (1 - DISCOUNT**lasts) / (1 - DISCOUNT)
    whole = ended | (lasts >= HORIZON)
    error = 3 * returns.std() / np.sqrt(whole.sum())
    # Among complete windows alone, too many have terminated.
    assert returns[whole].mean() < true - 3 * error

    rows, starts = int(lasts.sum()), np.cumsum(lasts) - lasts
    column, zero, terminated = jnp.zeros((rows, 1)), jnp.zeros(rows), np.zeros(rows, np.float32)
    terminated[(starts + lasts - 1)[ended]] = 1.0
    episode = jnp.asarray(np.repeat(np.arange(len(lasts)), lasts))
    logs = fqe.LoggedSteps(
        column, column, zero + 1, zero, column, jnp.asarray(terminated), episode, jnp.asarray(starts)
    )
    found = fqe.logged(logs, jax.random.key(0), HORIZON, DISCOUNT, 10)
    assert abs(float(found.value[fqe.REWARD]) - true) < error


def test_models_and_fqe_weight_windows_alike() -> None:
    lasts, ended = tripping(300, 1)
    rows, starts = int(lasts.sum()), np.cumsum(lasts) - lasts
    column, terminated = np.zeros((rows, 1), np.float32), np.zeros(rows, np.float32)
    terminated[(starts + lasts - 1)[ended]] = 1.0
    reward = np.arange(rows, dtype=np.float32) % 7
    data = Transition(column, column, reward, 0 * reward, column, terminated)
    windows = model_based.complete_windows(model_based.stack_windows(data, starts, 1, HORIZON), HORIZON)
    of_models = model_based.logged_value(windows, DISCOUNT)
    episode = jnp.asarray(np.repeat(np.arange(len(lasts)), lasts))
    logs = fqe.LoggedSteps(*(jnp.asarray(x) for x in data[:6]), episode=episode, starts=jnp.asarray(starts))
    found = fqe.logged(logs, jax.random.key(0), HORIZON, DISCOUNT, 10)
    np.testing.assert_allclose(of_models.value, np.full(2, found.value[fqe.REWARD]), rtol=1e-5)
    # Unequal weights reduce the effective number of windows.
    assert model_based.effective_windows(windows) < 0.95 * len(windows.reward)
    alike = windows._replace(counts=jnp.ones(len(windows.reward)))
    assert model_based.effective_windows(alike) == len(windows.reward)
