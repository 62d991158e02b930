"""Identification against closed forms and SciPy's least squares, and coverage of the intervals."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import least_squares

from neorl_core.identify import Episodes, Unknown, describe, identify, stack_rows, step_test
from neorl_core.identify.estimate import Posterior, estimate
from neorl_core.identify.forecast import errors, forecast, inflation_of
from neorl_core.identify.unknowns import constants, prior_of, with_constants
from tests.neorl_core.identify.small_models import CHAIN, LINEAR, Gains, Rates, chain, linear

BOTH = (Unknown("first", 0.5, "normal"), Unknown("second", 0.5, "normal"))
CHAINED = (Unknown("decay", 0.2), Unknown("gain", 0.2, entry=1))


def linear_logs(
    key: jax.Array,
    episodes: int,
    steps: int = 40,
    memory: float | jax.Array = 0.0,
    still: bool = False,
    noise: float = 0.3,
) -> Episodes:
    """Logs of y' = 1.3 u1 + 1.8 u2 + d, with d an AR(1) sequence of stationary deviation `noise`."""
    key_u, key_w = jax.random.split(key)
    u = 1.0 + jax.random.normal(key_u, (episodes, steps, 2))
    u = u.at[..., 1].set(0.0) if still else u
    w = jax.random.normal(key_w, (episodes, steps + 1))

    def push(d: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        d = memory * d + noise * jnp.sqrt(1 - memory**2) * w
        return d, d

    d = jax.vmap(lambda w: jax.lax.scan(push, noise * w[0], w[1:])[1])(w)
    y = (u @ jnp.array([1.3, 1.8]) + d)[..., None]
    return Episodes(jnp.concatenate([jnp.zeros((episodes, 1, 1)), y], axis=1), u)


def test_linear_gaussian_posterior_has_closed_form() -> None:
    logs = linear_logs(jax.random.key(0), 10)
    found = identify(LINEAR, BOTH, logs, segment=1)
    u, y = np.asarray(logs.actions, float), np.asarray(logs.observations[:, 1:, 0], float)
    variance = float(found.noise.deviation[0, 0]) ** 2 * float(found.noise.inflation[0])
    a = u * 0.5 / np.sqrt(variance)
    r = (y - u @ [1.0, 2.0]) / np.sqrt(variance)
    information = np.einsum("eti,etj->ij", a, a)
    mean = np.linalg.solve(np.eye(2) + information, np.einsum("eti,et->i", a, r))
    np.testing.assert_allclose(found.mean, mean, atol=2e-4)
    np.testing.assert_allclose(found.estimate, [1.0, 2.0] + 0.5 * mean, atol=1e-4)
    # The sandwich with its correction for ten episodes, plus one per cent of the model-based covariance.
    score = np.einsum("eti,et->ei", a, r - np.einsum("eti,i->et", a, mean))
    apart = score - score.mean(axis=0)
    inverse = np.linalg.inv(np.eye(2) + information)
    wanted = inverse @ (np.eye(2) + apart.T @ apart * 10 / 9 + information / 100) @ inverse
    np.testing.assert_allclose(found.covariance, wanted, rtol=2e-3)
    assert bool(found.converged)
    assert found.identified.all()


@pytest.mark.slow
def test_covariance_shrinks_with_episodes() -> None:
    def size(episodes: int) -> float:
        many = (linear_logs(key, episodes) for key in jax.random.split(jax.random.key(1), 20))
        return float(np.mean([np.trace(identify(LINEAR, BOTH, logs, segment=1).covariance) for logs in many]))

    # The prior contributes a thousandth.
    assert size(10) / size(40) == pytest.approx(4.0, rel=0.15)


def chain_logs(key: jax.Array, episodes: int = 6, steps: int = 24) -> Episodes:
    """Logs of the chain with constants other than the nominal ones; the first state is not measured."""
    true = Rates(0.23, (0.5, 0.27))
    key_u, key_w = jax.random.split(key)
    u = jax.random.uniform(key_u, (episodes, steps, 1), minval=0.0, maxval=2.0)

    def run(u: jax.Array) -> jax.Array:
        def step(y: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
            following = chain(y, u, true)[0]
            return following, following

        start = jnp.array([1.5, 1.0])
        return jnp.concatenate([start[None], jax.lax.scan(step, start, u)[1]])

    y = jax.vmap(run)(u)
    y = y + 0.02 * jax.random.normal(key_w, y.shape)
    return Episodes(y.at[..., 0].set(jnp.nan), u)


@pytest.mark.slow
def test_scipy_finds_same_constants_and_starts() -> None:
    logs = chain_logs(jax.random.key(2))
    found = identify(CHAIN, CHAINED, logs, segment=6, starts={"y0": (1.0, 0.5)})
    prior = prior_of(Rates(), CHAINED)
    y, u = np.asarray(logs.observations, float), np.asarray(logs.actions, float)
    deviation = np.tile(np.asarray(found.noise.deviation)[:, 1], 4) * np.sqrt(float(found.noise.inflation[1]))

    def residuals(q: np.ndarray) -> np.ndarray:
        decay, gain = np.asarray(prior.centre) * np.exp(np.asarray(prior.scale) * q[:2])
        rows = [q]
        for e in range(6):
            hidden, seen = 1.0 + 0.5 * q[2 + e], y[e, 0, 1]
            for t in range(24):
                # The measured tank restarts from its measurement, the hidden one continues.
                seen = y[e, t, 1] if t % 6 == 0 else seen
                hidden, seen = (
                    (1 - decay) * hidden + 0.5 * u[e, t, 0],
                    (1 - decay) * seen + gain * np.sqrt(1 + hidden**2),
                )
                rows.append(np.array([(y[e, t + 1, 1] - seen) / deviation[t]]))
        return np.concatenate(rows)

    other = least_squares(residuals, np.zeros(8))
    own = np.sqrt(np.diagonal(found.covariance))
    np.testing.assert_allclose(np.asarray(found.mean), other.x[:2], atol=0.05 * own.max())
    np.testing.assert_allclose((np.asarray(found.starts)[:, 0] - 1.0) / 0.5, other.x[2:], atol=0.02)
    np.testing.assert_allclose(found.estimate, [0.23, 0.27], rtol=0.03)


def drawn_and_estimated(
    key: jax.Array, memory: float | jax.Array = 0.0, episodes: int = 10, moved: int | None = None
) -> tuple[Posterior, jax.Array]:
    """Draw constants from the prior, which coverage of Bayesian intervals requires, and estimate them.

    With `moved`, the second input only moves in the first `moved` episodes.
    """
    key_true, key_logs = jax.random.split(key)
    true = jnp.array([1.0, 2.0]) + 0.5 * jax.random.normal(key_true, (2,))
    logs = linear_logs(key_logs, episodes, memory=memory)
    u = logs.actions if moved is None else logs.actions.at[moved:, :, 1].set(0.0)
    told = u @ true - logs.actions @ jnp.array([1.3, 1.8])
    return estimate(linear, Gains(), BOTH, Episodes(logs.observations.at[:, 1:, 0].add(told), u), 5), true


@pytest.mark.slow
@pytest.mark.parametrize(("moved", "degrees"), [(1, 1), (2, 1), (5, 4)])
def test_degrees_of_freedom_follow_informative_episodes(moved: int, degrees: int) -> None:
    keys = jax.random.split(jax.random.key(4), 200)
    found, true = jax.jit(jax.vmap(lambda key: drawn_and_estimated(key, 0.8, 20, moved)))(keys)
    covered = np.mean((found.low <= true) & (true <= found.high), axis=0)
    assert (covered >= 0.92).all(), covered
    assert np.median(found.degrees, axis=0).tolist() == [pytest.approx(18, abs=1), degrees]


@pytest.mark.slow
def test_intervals_cover_under_white_and_slow_disturbances() -> None:
    keys, memory = jax.random.split(jax.random.key(3), 800), jnp.repeat(jnp.array([0.0, 0.8]), 400)
    found, true = jax.jit(jax.vmap(drawn_and_estimated))(keys, memory)
    covered = np.mean(((found.low <= true) & (true <= found.high)).reshape(2, 400, 2), axis=1)
    assert (covered >= 0.9).all(), covered
    assert (covered <= 0.99).all(), covered


def test_inflation_of_an_autoregression() -> None:
    # The variance of a mean of T steps of an AR(1) sequence: (1 + φ)/(1 − φ) − 2φ(1 − φ^T)/(T(1 − φ)²) times 1/T.
    w = jax.random.normal(jax.random.key(4), (400, 201))

    def push(d: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        d = 0.8 * d + 0.6 * w
        return d, d

    d = jax.vmap(lambda w: jax.lax.scan(push, w[0], w[1:])[1])(w)
    theirs = 1.8 / 0.2 - 2 * 0.8 * (1 - 0.8**200) / (200 * 0.2**2)
    ours = inflation_of(jnp.stack([d, w[:, 1:]], axis=-1))
    assert float(ours[0]) == pytest.approx(theirs, rel=0.05)
    assert float(ours[1]) == pytest.approx(1.0, abs=0.1)


def test_step_test_for_unidentified_constant() -> None:
    found = identify(LINEAR, BOTH, linear_logs(jax.random.key(5), 10, still=True), segment=1)
    assert found.identified.tolist() == [True, False]
    np.testing.assert_allclose(found.estimate[1], 2.0, atol=1e-3)
    assert re.search(r"first: .* of the prior$", describe(LINEAR, BOTH, found), re.M)
    assert re.search(r"second: .* not identified$", describe(LINEAR, BOTH, found), re.M)
    test = step_test(LINEAR, BOTH, found, 1, jnp.zeros(1))
    assert test is not None
    assert (test.action, test.enough) == ("u1", True)
    assert test.deviation <= 0.7
    # By hand: a step of u2 by c for n samples has information n (0.5 c)²/s², which must reach 1/0.49 − 1.
    s = float(found.noise.deviation[0, 0]) * np.sqrt(float(found.noise.inflation[0]))
    needed = (1 / 0.49 - 1) / (0.5 * test.change / s) ** 2
    assert test.steps == pytest.approx(np.ceil(needed), abs=1)
    assert "moving u1 by" in str(test)
    # The margin is 5 − |u2|: at a limit no move is allowed.
    closed = LINEAR._replace(predict=lambda y, u, p: (linear(y, u, p)[0], -jnp.ones(1)))
    assert step_test(closed, BOTH, found, 1, jnp.zeros(1)) is None


def test_forecasts_restart_from_measured_signals_only() -> None:
    def count(y: jax.Array, u: jax.Array, p: None) -> tuple[jax.Array, jax.Array]:
        return y + u, jnp.ones(1)

    nan = float("nan")
    seen = jnp.array([[0.0, 5, 1], [10, nan, 2], [20, nan, 3], [nan, nan, 4], [40, nan, 5]])
    u = jnp.ones((4, 1))
    inputs = jnp.array([False, False, True])
    out = forecast(count, None, seen[0], seen, u, 2, inputs)
    # Signal 0 restarts at step 2, signal 1 is never measured again, signal 2 is an input.
    np.testing.assert_array_equal(out, [[1, 6, 2], [2, 7, 3], [21, 8, 4], [22, 9, 5]])
    np.testing.assert_array_equal(errors(out, seen)[:, 0], [9, 18, 0, 18])
    rows = stack_rows(
        np.array([[0.0], [1], [7]]), np.array([[1.0], [2], [3]]), np.array([[1.0], [2], [8]]), np.array([2, 1])
    )
    np.testing.assert_array_equal(rows.observations[..., 0], [[0, 1, 2], [7, 8, nan]])
    np.testing.assert_array_equal(rows.actions[..., 0], [[1, 2], [3, 3]])


def test_missing_samples_are_ignored() -> None:
    logs = linear_logs(jax.random.key(6), 10)
    gappy = logs.observations.at[:, 3::4].set(jnp.nan).at[5:, 30:].set(jnp.nan)
    found = identify(LINEAR, BOTH, Episodes(gappy, logs.actions), segment=1)
    np.testing.assert_allclose(found.estimate, [1.3, 1.8], atol=0.1)
    assert (np.asarray(found.residuals)[5:, 30:] == 0).all()


def test_new_logs_need_no_compilation() -> None:
    before = estimate._cache_size()
    for seed in (7, 8):
        identify(LINEAR, BOTH, linear_logs(jax.random.key(seed), 10), segment=1)
    assert estimate._cache_size() <= before + 1


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        (Unknown("third", 0.1), "'third' is not a constant of the plant: use one of first, second"),
        (Unknown("first", 0.0), "spread of first must be positive and finite, got 0.0"),
        (Unknown("first", 0.1, centre=-1.0), "centre of first must be positive, got"),
        (Unknown("first", 0.1, centre=0), "centre of first must be positive, got"),
        (Unknown("first", 0.1, "normal", centre=np.nan), "centre of first must be finite, got nan: correct it"),
        (Unknown("first", np.inf), "spread of first must be positive and finite, got inf"),
        (Unknown("first", 0.1, "lognormal"), "law of first must be 'log-normal' or 'normal', got 'lognormal'"),  # type: ignore[arg-type]
        (Unknown("first", 0.1, entry=0), "leave the entry out"),
    ],
)
def test_invalid_unknowns_are_rejected(unknown: Unknown, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        identify(LINEAR, (unknown,), linear_logs(jax.random.key(9), 2))


@pytest.mark.parametrize("unknowns", [(), (BOTH[0], Unknown("first", 0.1))])
def test_repeated_unknowns_are_rejected(unknowns: tuple[Unknown, ...]) -> None:
    with pytest.raises(ValueError, match="unknowns must be at least one and different"):
        identify(LINEAR, unknowns, linear_logs(jax.random.key(9), 2))


def test_invalid_logs_are_rejected() -> None:
    logs = linear_logs(jax.random.key(10), 2)
    with pytest.raises(ValueError, match="observations must have the shape"):
        identify(LINEAR, BOTH, Episodes(logs.observations[:, 1:], logs.actions))
    with pytest.raises(ValueError, match=r"actions must be finite, got (nan|inf) in episode"):
        identify(LINEAR, BOTH, Episodes(logs.observations, logs.actions.at[0, 0].set(jnp.nan)))
    with pytest.raises(ValueError, match="y0 is not measured at the start of episode 0"):
        identify(CHAIN, CHAINED, chain_logs(jax.random.key(11)))
    with pytest.raises(ValueError, match=r"'level' is not a signal of .*: use one of y0, y1"):
        identify(CHAIN, CHAINED, chain_logs(jax.random.key(11)), inputs=("level",))
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got 95: "):
        identify(LINEAR, BOTH, logs, confidence=95)
    with pytest.raises(ValueError, match="finite spread of at least 0, got mean None and spread nan"):
        identify(CHAIN, CHAINED, chain_logs(jax.random.key(11)), starts={"y0": (None, np.nan)})


def test_stacked_episodes_need_steps() -> None:
    rows = np.arange(3)[:, None]
    stacked = stack_rows(rows, rows, rows + 1, np.array([2, 1]))
    np.testing.assert_array_equal(stacked.observations[..., 0], [[0, 1, 2], [2, 3, np.nan]])
    for lengths in ([3, 0], []):
        with pytest.raises(ValueError, match="lengths must be at least 1 and sum to"):
            stack_rows(rows[: sum(lengths)], rows, rows, np.array(lengths, int))


def test_log_normal_prior_has_relative_deviation() -> None:
    unknowns = (Unknown("decay", 0.3), Unknown("gain", 0.1, "normal", entry=0))
    prior = prior_of(Rates(), unknowns)
    x = jax.random.normal(jax.random.key(12), (200_000, 2))
    drawn = np.asarray(jax.vmap(lambda x: constants(prior, unknowns, x))(x))
    assert drawn[:, 0].std() / drawn[:, 0].mean() == pytest.approx(0.3, rel=0.02)
    assert np.median(drawn[:, 0]) == pytest.approx(0.2, rel=0.01)
    assert (drawn[:, 1].mean(), drawn[:, 1].std()) == pytest.approx((0.5, 0.1), rel=0.02)
    np.testing.assert_allclose(with_constants(Rates(), unknowns, jnp.array([0.1, 0.9])).gain, [0.9, 0.3])
