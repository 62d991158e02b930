"""Fitted Q evaluation (FQE) of reward and cost over a finite horizon, in closed form, with an episode bootstrap.

FQE (Le, Voloshin & Yue 2019, arXiv 1903.08738, algorithm 3) computes the value with h steps to go by regression on the
value with h - 1 steps to go. With linear features, each of these rounds is one matrix product (Duan, Jia & Wang 2020,
arXiv 2002.09516, section 3). The derivative of the last round with respect to the weight of an episode is known, so
thousands of resamples cost as much as one more round. The horizon is finite, because an infinite sum may diverge.

The features are few: observation, action, and guesses of the policy's action values by learned models. FQE reproduces a
correct guess, and the logged steps correct a wrong guess, as in a doubly robust estimator (Jiang & Li 2016, arXiv
1511.03722) but without a ratio of propensities. More features, such as learned ones, diverge on few rows. A policy is
given by its actions on the logs and by its guesses, never as code.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from neorl_core.ope.logged import Decisions as Decisions
from neorl_core.ope.logged import Guesses as Guesses
from neorl_core.ope.logged import LoggedSteps as LoggedSteps
from neorl_core.ope.logged import counts_of as counts_of
from neorl_core.ope.logged import known_rows as known_rows

REWARD, COST = 0, 1
"""Indices of reward and cost in a value."""
SLACK = 0.02
"""A valid estimate may exceed the range of values that rewards allow by this share of the range."""
ROUNDING = 1e-4
"""Largest error by single precision and the ridge penalty, as a share of the largest possible value."""
MOST_AMPLIFIED = 3.0
"""Largest `amplification` of a supported estimate. In the study's development runs, the intervals of policies up to
this value contained the true value if few steps were outside the support."""


class Evaluation(NamedTuple):
    """Discounted value of a policy over the horizon from the initial states; index 0 is reward, 1 is cost."""

    value: Float[Array, "*p 2"]
    draws: Float[Array, "*p B 2"]
    """Bootstrap draws of `value`. The same key gives the same resamples: subtract the draws of two policies to compare
    them."""
    amplification: Float[Array, "*p"]
    """Effect of feature errors on the value, relative to their effect for the logged controller."""
    effective_rows: Float[Array, "*p"]
    """Kish's effective number of logged rows that resemble the steps of the policy."""
    supported: Bool[Array, "*p"]
    """Whether the amplification is small, and logged rewards and costs allow the value."""


def features(
    observation: Float[Array, "n O"], action: Float[Array, "n A"], guesses: Float[Array, "n G"]
) -> Float[Array, "n D"]:
    """Return 1, observation, action and guesses (n, G) as one feature vector."""
    return jnp.concatenate([jnp.ones_like(observation[:, :1]), observation, action, guesses], axis=-1)


def _scaled(guesses: Guesses, weight: Float[Array, " N"]) -> Guesses:
    """Standardise guesses at the logged steps, because a large mean would hide their differences."""
    values = jnp.where(weight[:, None] > 0, guesses.logged, 0.0)
    mean = values.sum(axis=0) / weight.sum()
    deviation = jnp.sqrt((weight @ (values - mean) ** 2) / weight.sum())
    # The deviation of a constant guess is only rounding.
    scale = jnp.where(deviation > 64 * np.finfo(mean.dtype).eps * jnp.abs(mean), deviation, jnp.inf)
    scaled: Guesses = jax.tree.map(lambda x: (x - mean) / scale, guesses)
    return scaled


def _whitening(phi: Float[Array, "N D"], weight: Float[Array, " N"]) -> Float[Array, "D D"]:
    """Return a map to uncorrelated features of unit power; directions without power map to zero."""
    power = jnp.sqrt((weight @ phi**2) / weight.sum())
    scale = jnp.where(power > 0, 1.0 / jnp.where(power > 0, power, 1.0), 0.0)
    scaled = phi * scale
    gram = (scaled * weight[:, None]).T @ scaled / weight.sum()
    eigenvalue, vector = jnp.linalg.eigh(gram)
    enough = eigenvalue > 64 * np.finfo(phi.dtype).eps * eigenvalue[-1]
    shrink = jnp.where(enough, jax.lax.rsqrt(jnp.where(enough, eigenvalue, 1.0)), 0.0)
    whitening: Float[Array, "D D"] = scale[:, None] * vector * shrink
    return whitening


def resample_weights(key: PRNGKeyArray, episodes: int) -> Float[Array, " E"]:
    """Return how often each episode occurs in one resample with replacement (E,), summing to E."""
    indices = jax.random.randint(key, (episodes,), 0, episodes)
    return jnp.zeros(episodes).at[indices].add(1.0)


class _Rounds(NamedTuple):
    """Weights of all FQE rounds, and the sums over steps that make up the influence of a row."""

    theta: Float[Array, "D 2"]
    """Weights with all H steps to go."""
    nu: Float[Array, " D"]
    """Sum over steps of the dual `d_t`."""
    before: Float[Array, "2 D D"]
    """Sum over steps of `d_t theta_{H - t}^T`, for reward and cost."""
    after: Float[Array, "2 D D"]
    """Sum over steps of `d_t theta_{H - t - 1}^T`."""
    carried: Float[Array, ""]
    """Sum over steps of `|d_t|`."""


def _rounds(
    gram: Float[Array, "D D"],
    cross: Float[Array, "D D"],
    target: Float[Array, "D 2"],
    start: Float[Array, " D"],
    horizon: int,
) -> _Rounds:
    """Solve `theta_h = G^-1 (b + C theta_{h-1})`, and the dual `d_0 = G^-1 phi_0`, `d_{t+1} = G^-1 C^T d_t`."""
    factor = jax.scipy.linalg.cho_factor(gram)
    step, first = jax.scipy.linalg.cho_solve(factor, cross), jax.scipy.linalg.cho_solve(factor, target)

    def back(theta: Float[Array, "D 2"], _: None) -> tuple[Float[Array, "D 2"], Float[Array, "D 2"]]:
        return first + step @ theta, theta

    theta, shorter = jax.lax.scan(back, jnp.zeros_like(first), length=horizon)
    longer = jnp.concatenate([shorter[1:], theta[None]])

    def forward(d: Float[Array, " D"], _: None) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
        return jax.scipy.linalg.cho_solve(factor, cross.T @ d), d

    _, dual = jax.lax.scan(forward, jax.scipy.linalg.cho_solve(factor, start), length=horizon)
    backward = dual[::-1]
    return _Rounds(
        theta,
        dual.sum(axis=0),
        jnp.einsum("hd,hes->sde", backward, longer),
        jnp.einsum("hd,hes->sde", backward, shorter),
        jnp.linalg.norm(dual, axis=1).sum(),
    )


def _carried_by_logs(
    phi: Float[Array, "N D"], share: Float[Array, " N"], at: Int[Array, " N"], horizon: int, discount: float
) -> Float[Array, ""]:
    """Return `carried` of the logged controller: `sum_t discount^t |sum phi_t share|`, zero after termination.

    Args:
        phi: (N, D) whitened features, zero in excluded rows.
        share: (N,) share of each row's window in the value of the logged controller.
    """
    mean = jax.ops.segment_sum(phi * share[:, None], at, horizon)
    weight = jnp.asarray(discount, phi.dtype) ** jnp.arange(horizon, dtype=phi.dtype)
    total: Float[Array, ""] = weight @ jnp.linalg.norm(mean, axis=1)
    return total


@partial(jax.jit, static_argnames=("horizon", "bootstraps"))
def evaluate(
    logs: LoggedSteps,
    decisions: Decisions,
    guesses: Guesses,
    key: PRNGKeyArray,
    horizon: int,
    discount: float = 0.99,
    bootstraps: int = 1000,
    ridge: float = 1e-6,
) -> Evaluation:
    """Estimate the value of a policy over the horizon from the initial states, with a bootstrap over episodes.

    The value with h steps to go is `phi^T theta_h`, with features phi, whitened on the logs, and `theta_0 = 0`. The
    weights theta_h solve `mean phi (r + discount (1 - terminated) phi'^T theta_{h-1} - phi^T theta_h) = ridge theta_h`,
    with phi' at the next step. V is the mean of `phi_0^T theta_H` over the first steps of the windows, weighted by
    `window_counts`. To first order, a resample with episode counts w has the value `V + sum_e (w_e - 1) psi_e`. The
    influence `psi_e` of an episode contains its TD errors in all rounds, weighted by the dual features d_t, and its
    initial state.

    Feature errors `e_t` in round t change the value by `sum_t mean d_t^T phi e_t`, at most `sum_t |d_t| rms(e_t)`
    (Cauchy and Schwarz). `phi^T d_t` estimates the discounted density ratio of the policy at step t to all logged
    steps; `|d_t|` is its root mean square. The amplification is `sum_t |d_t|`, divided by the same sum for the logged
    controller.

    Args:
        logs: N rows in E episodes; only the rows of `known_rows` are used.
        guesses: guesses of the policy's action values of reward.
        key: PRNG key of the resamples; use the same key for all policies that are compared.
        horizon: steps H of an episode.

    Returns:
        Value, draws and support of the estimate, clipped to the values that rewards allow. The interval covers the
        sampling of episodes but not feature errors. The bootstrap treats windows of one long episode as independent. So
        the interval is too narrow if disturbances last longer than a window.

    Reference: Duan, Jia & Wang 2020 (arXiv 2002.09516); Hao et al. 2021, bootstrapping FQE (arXiv 2102.03607).
    """
    known = known_rows(logs)
    weight = known.astype(logs.observation.dtype)
    rows = jnp.maximum(weight.sum(), 1.0)
    guessed = _scaled(guesses, weight)
    phi = jnp.where(known[:, None], features(logs.observation, logs.action, guessed.logged), 0.0)
    white = _whitening(phi, weight)
    phi = phi @ white
    continues = known & (logs.terminated <= 0)
    phi_next = features(logs.next_observation, decisions.next_action, guessed.following) @ white
    phi_next = jnp.where(continues[:, None], discount * phi_next, 0.0)
    phi_0 = features(logs.observation[logs.starts], decisions.initial_action, guessed.initial) @ white
    # Replace unknown values, because 0 * NaN would be NaN.
    signal = jnp.where(known[:, None], jnp.stack([logs.reward, logs.cost], axis=-1), 0.0)

    weighted = phi * (weight / rows)[:, None]
    gram, cross = weighted.T @ phi, weighted.T @ phi_next
    # Directions without power have zero rows; the identity gives them zero weight.
    padding = ridge + jnp.where(jnp.diag(gram) > 0, 0.0, 1.0)
    counts = counts_of(logs, horizon).astype(phi.dtype)
    share = counts / counts.sum()
    start = share @ phi_0
    fitted = _rounds(gram + jnp.diag(padding).astype(gram.dtype), cross, weighted.T @ signal, start, horizon)
    value = start @ fitted.theta

    episodes = logs.starts.shape[0]
    density = (phi @ fitted.nu) * weight
    td_errors = jnp.einsum("nd,sde,ne->ns", phi, fitted.after, phi_next) - jnp.einsum(
        "nd,sde,ne->ns", phi, fitted.before, phi
    )
    influence = (density[:, None] * signal + weight[:, None] * td_errors) / rows
    influence = jax.ops.segment_sum(influence, logs.episode, episodes)
    influence = influence + share[:, None] * (phi_0 @ fitted.theta - value)

    def draw(key: PRNGKeyArray) -> Float[Array, " 2"]:
        drawn: Float[Array, " 2"] = value + (resample_weights(key, episodes).astype(value.dtype) - 1.0) @ influence
        return drawn

    draws = jax.vmap(draw)(jax.random.split(key, bootstraps))
    at = jnp.arange(logs.reward.shape[0]) - logs.starts[logs.episode]
    amplification = fitted.carried / _carried_by_logs(phi, share[logs.episode], at, horizon, discount)
    effective = jnp.sum(density) ** 2 / jnp.maximum(jnp.sum(density**2), np.finfo(phi.dtype).tiny)
    least, most = reachable(signal, weight, jnp.any(logs.terminated > 0), horizon, discount)
    slack = SLACK * (most - least) + ROUNDING * jnp.maximum(jnp.abs(least), jnp.abs(most))
    possible = jnp.all(jnp.isfinite(value) & (value <= most + slack) & (value >= least - slack))
    # NaN compares as not supported.
    supported = (amplification <= MOST_AMPLIFIED) & possible
    return Evaluation(jnp.clip(value, least, most), jnp.clip(draws, least, most), amplification, effective, supported)


def reachable(
    signal: Float[Array, "N S"],
    weight: Float[Array, " N"],
    ends: Bool[Array, ""],
    horizon: int,
    discount: float | Float[Array, ""],
) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
    """Return the lowest and highest value that logged rewards and costs allow: `[low, high] sum_{t<H} discount^t`.

    If episodes can terminate, the range also contains sums that end after one step.

    Args:
        weight: (N,) zero in excluded rows.
    """
    seen = weight[:, None] > 0
    high = jnp.where(seen, signal, -jnp.inf).max(axis=0)
    low = jnp.where(seen, signal, jnp.inf).min(axis=0)
    steps = jnp.sum(jnp.asarray(discount, signal.dtype) ** jnp.arange(horizon, dtype=signal.dtype))
    least = jnp.where(ends, jnp.minimum(low, low * steps), low * steps)
    most = jnp.where(ends, jnp.maximum(high, high * steps), high * steps)
    return least, most


@partial(jax.jit, static_argnames=("horizon", "bootstraps"))
def logged(
    logs: LoggedSteps, key: PRNGKeyArray, horizon: int, discount: float = 0.99, bootstraps: int = 1000
) -> Evaluation:
    """Estimate the value of the logged controller: the mean return of the windows weighted by `window_counts`.

    With the same key, the resamples are those of `evaluate`. The interval is too narrow if windows of one long episode
    resemble each other.

    Args:
        horizon: steps H of an episode.
    """
    windows, rows = logs.starts.shape[0], logs.reward.shape[0]
    at = jnp.arange(rows) - logs.starts[logs.episode]
    weight = jnp.asarray(discount, logs.reward.dtype) ** at
    signal = jnp.stack([logs.reward, logs.cost], axis=-1) * weight[:, None]
    returns = jax.ops.segment_sum(signal, logs.episode, windows)
    counts = counts_of(logs, horizon).astype(signal.dtype)
    value = counts @ returns / counts.sum()

    def draw(key: PRNGKeyArray) -> Float[Array, " 2"]:
        taken = counts * resample_weights(key, windows).astype(signal.dtype)
        # With few weighted windows, a resample may contain none of them.
        drawn: Float[Array, " 2"] = jnp.where(taken.sum() > 0, taken @ returns / jnp.maximum(taken.sum(), 1.0), value)
        return drawn

    draws = jax.vmap(draw)(jax.random.split(key, bootstraps))
    all_rows = jnp.asarray(rows, signal.dtype)
    return Evaluation(value, draws, jnp.ones_like(all_rows), all_rows, jnp.all(jnp.isfinite(value)))
