"""Fitted Q evaluation (FQE) of reward and cost over a finite horizon, in closed form, with an episode bootstrap.

FQE (Le, Voloshin & Yue 2019, arXiv 1903.08738, algorithm 3) regresses the value with h steps to go on the value with h
- 1. With linear features each round is one matrix product (Duan, Jia & Wang 2020, arXiv 2002.09516, section 3). The
derivative of the last round with respect to the weight of an episode is known, so thousands of resamples cost as much
as one more round. The horizon is the episode length of the plant: if rounds grow by a few per cent each, an infinite
sum diverges but a hundred steps do not.

Features decide what the rounds can express and how far they carry errors. Learned features say little about actions
that hardly vary in the logs, and diverge on few rows. Here the features are few: observation, action, and guesses of
the policy's action values by learned models. The rounds reproduce a correct guess; the logged steps correct a wrong
one, as in a doubly robust estimator (Jiang & Li 2016, arXiv 1511.03722) but without a ratio of propensities. A target
policy is given by its actions on the logs and its guesses, never as code.
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
"""Share of the range that rewards allow by which a valid estimate may exceed that range."""
ROUNDING = 1e-4
"""Share of the largest possible value that single precision and the ridge penalty may move an estimate by."""
MOST_AMPLIFIED = 3.0
"""Largest supported amplification of feature errors relative to the logged controller. In the development cells of the
study, the intervals of policies up to this value contained the true value if few steps lay outside the logs."""


class Evaluation(NamedTuple):
    """Discounted value of a policy over the horizon from the initial states; index 0 is reward, 1 is cost."""

    value: Float[Array, "*p 2"]
    draws: Float[Array, "*p B 2"]
    """Bootstrap draws of `value`. The same key gives the same resamples: subtract the draws of two policies to compare
    them."""
    amplification: Float[Array, "*p"]
    """Factor by which feature errors count more than for the logged controller."""
    effective_rows: Float[Array, "*p"]
    """Kish's effective number of rows behind `value`: how many logged rows resemble the steps of the policy."""
    supported: Bool[Array, "*p"]
    """Whether the amplification is small and the value is one that logged rewards and costs allow."""


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
        at: (N,) step of each row in its window.
        horizon: steps H.
        discount: discount factor per step.
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

    With features whitened on the logs, `theta_h` solves `mean phi (r + discount (1 - terminated) phi'^T theta_{h-1} -
    phi^T theta_h) = ridge theta_h`, `theta_0 = 0`. The value is the mean of `phi_0^T theta_H` over windows weighted by
    `window_counts`; the same mean of returns is the value of the logged controller. A resample with episode counts w
    has, to first order, the value `V + sum_e (w_e - 1) psi_e`. The influence `psi_e` of an episode sums its TD errors
    in all rounds, weighted by the dual features, and its initial state.

    A feature error `e_t` in round t moves the value by `sum_t mean d_t^T phi e_t`, on whitened features at most `sum_t
    |d_t| rms(e_t)` (Cauchy and Schwarz). `phi^T d_t` estimates the discounted density ratio of the policy at step t to
    all logged steps, and `|d_t|` its root mean square. The amplification is `sum_t |d_t|` relative to the logged
    controller.

    Args:
        logs: N rows in E episodes; only rows of `known_rows` count, the same ones for every policy.
        decisions: actions of the policy on these logs.
        guesses: guesses of the policy's action values of reward.
        key: PRNG key of the resamples; use the same key for all policies that are compared.
        horizon: steps H of an episode.
        discount: discount factor per step.
        bootstraps: number of resamples B.
        ridge: ridge penalty on whitened features.

    Returns:
        Value, draws and support of the estimate, clipped to the values that rewards allow. The interval covers the
        sampling of episodes but not feature errors. Windows of one long episode are resampled as if independent, so the
        interval is too narrow if disturbances outlast a window.

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
    # 0 * NaN would be NaN.
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
    """Return the lowest and highest possible sum of logged rewards and costs: `[low, high] sum_{t<H} discount^t`.

    If episodes can terminate, the sum may stop after one step. So rewards that are never positive allow no positive
    value, and rewards that are never negative allow no negative value.

    Args:
        signal: (N, S) rewards and costs.
        weight: (N,) zero in excluded rows.
        ends: whether any row terminates.
        horizon: steps H.
        discount: discount factor per step.
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

    Nothing is fitted. With the same key the resamples are those of `evaluate`, and also too narrow if windows of one
    long episode resemble each other.

    Args:
        logs: N rows in E windows.
        key: PRNG key of the resamples.
        horizon: steps H of an episode.
        discount: discount factor per step.
        bootstraps: number of resamples B.
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
