"""Fitted Q evaluation on reward and cost over a finite horizon, in closed form, with an episode bootstrap.

FQE (Le, Voloshin & Yue 2019, arXiv 1903.08738, algorithm 3) regresses the value with h steps to go on that with h - 1.
On features that are linear in the last layer a round is one matrix product (Duan, Jia & Wang 2020, arXiv 2002.09516,
section 3), and the derivative of the last round with respect to the weight of an episode is known, so that thousands
of resamples of episodes cost one more. The value is that of an episode of the plant's own length: where the features
let the rounds grow by some hundredths each, an infinite sum has no value and a hundred steps have one.

Features decide what the rounds can express and how far they carry errors. Many of them, learned from the logged
returns, say little of actions where the logs hardly vary them, and on few rows their rounds run away. Here there are
few: observation and action as they are, and guesses of this policy's own action values, which learned models make. Were
a guess right, the rounds would find it; where it is wrong the logged steps correct it, as those of a doubly robust
estimator do (Jiang & Li 2016, arXiv 1511.03722), without a ratio of propensities.
A target policy enters as its actions on the logs and as guesses, never as code.
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
"""Positions in a value."""
SLACK = 0.02
"""Share of the range that rewards allow by which an estimate may lie beyond it before it counts as none."""
ROUNDING = 1e-4
"""Share of the largest possible value by which rounds in single precision and their penalty move an estimate."""
MOST_AMPLIFIED = 3.0
"""Errors of the features may count for a policy this many times as much as for the logged controller. In the cells that
the study was developed on, the intervals of policies up to here held the truth where few steps lay outside the logs,
and one of those beyond was far from it."""


class Evaluation(NamedTuple):
    """A policy's discounted value over the horizon from the initial states: index 0 is reward, 1 is cost."""

    value: Float[Array, "*p 2"]
    draws: Float[Array, "*p B 2"]
    """Bootstrap draws of `value`. Same key, same resamples: subtract two policies' draws to compare them in pairs."""
    amplification: Float[Array, "*p"]
    """How many times as much errors of the features may count here as for the logged controller."""
    effective_rows: Float[Array, "*p"]
    """Kish's effective number of rows behind `value`: how much of the logs resembles where the policy goes."""
    supported: Bool[Array, "*p"]
    """Whether the rounds amplify little, to a value that the logged rewards and costs could add up to."""


def features(
    observation: Float[Array, "n O"], action: Float[Array, "n A"], guesses: Float[Array, "n G"]
) -> Float[Array, "n D"]:
    """1, the inputs, and the guesses.

    Args:
        observation: (n, O), normalised.
        action: (n, A), between -1 and 1.
        guesses: (n, G), of about unit size.
    """
    return jnp.concatenate([jnp.ones_like(observation[:, :1]), observation, action, guesses], axis=-1)


def _scaled(guesses: Guesses, weight: Float[Array, " N"]) -> Guesses:
    """Guesses by their mean and deviation at the logged steps: a large mean would hide what they differ in."""
    known = jnp.where(weight[:, None] > 0, guesses.logged, 0.0)
    mean = known.sum(axis=0) / weight.sum()
    deviation = jnp.sqrt((weight @ (known - mean) ** 2) / weight.sum())
    # Of a guess that is the same everywhere the deviation is what rounding leaves.
    scale = jnp.where(deviation > 64 * np.finfo(mean.dtype).eps * jnp.abs(mean), deviation, jnp.inf)
    found: Guesses = jax.tree.map(lambda x: (x - mean) / scale, guesses)
    return found


def _whitening(phi: Float[Array, "N D"], weight: Float[Array, " N"]) -> Float[Array, "D D"]:
    """A map after which features are uncorrelated with unit power; directions without power become zero."""
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
    """How often each episode occurs in one resample with replacement; sums to E."""
    drawn = jax.random.randint(key, (episodes,), 0, episodes)
    return jnp.zeros(episodes).at[drawn].add(1.0)


class _Rounds(NamedTuple):
    """FQE's rounds: values with h steps to go, and the sums over them that the influence of a row is made of."""

    theta: Float[Array, "D 2"]
    """Weights with all steps to go."""
    nu: Float[Array, " D"]
    """Sum over steps of what the features of a row count there."""
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
    """`theta_h = G^-1 (b + C theta_{h-1})`, and the last round's dual: `d_0 = G^-1 phi_0`, `d_{t+1} = G^-1 C^T d_t`."""
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
    """What `carried` is of the logged controller, whose features at each step are logged.

    `sum_t discount^t |sum phi_t share|`; of windows that have terminated nothing is left.

    Args:
        phi: (N, D) whitened features, zero at rows that do not count.
        share: (N,) of each row's window in the logged controller's value.
        at: (N,) step of each row in its window.
        horizon: steps H.
        discount: per step.
    """
    mean = jax.ops.segment_sum(phi * share[:, None], at, horizon)
    weight = jnp.asarray(discount, phi.dtype) ** jnp.arange(horizon, dtype=phi.dtype)
    found: Float[Array, ""] = weight @ jnp.linalg.norm(mean, axis=1)
    return found


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
    """Value of one policy over the horizon from the initial states, with a bootstrap over episodes.

    With features whitened on the logs `theta_h` solves `mean phi (r + discount (1 - terminated) phi'^T theta_{h-1} -
    phi^T theta_h) = ridge theta_h`, `theta_0 = 0`, and the value is `mean phi_0^T theta_H` over the windows by their
    `window_counts`, whose mean return is the logged controller's value. A resample with episode counts w has, to first
    order, `V + sum_e (w_e - 1) psi_e` with `psi_e` the influence of an episode: its TD errors in all rounds, weighted
    by what its features count there, and its own initial state.

    What the features cannot express of a round, `e_t`, moves the value by `sum_t mean d_t^T phi e_t`, which on whitened
    features is at most `sum_t |d_t| rms(e_t)` (Cauchy and Schwarz). `phi^T d_t` is what the features take for the
    ratio of the policy's density at step t, discounted, to that of all logged steps, and `|d_t|` its root mean square.
    The amplification is the sum of these over that of the logged controller.

    Args:
        logs: (N, ...) rows in E episodes, of which those of `known_rows` count: the same rows for every policy, so
            that differences are of policies and not of rows.
        decisions: the policy's actions on these logs.
        guesses: of its action values of reward; a cost is as good as a guess of rewards and a line allow.
        key: randomness of the resamples; use one for all policies that are compared.
        horizon: steps H of an episode.
        discount: discount factor per step.
        bootstraps: resamples B.
        ridge: on whitened features.

    Returns:
        Value of reward and cost, draws, and what tells whether the logs support them, none of them beyond what rewards
        allow; they do not where the amplification exceeds `MOST_AMPLIFIED`. The interval covers what another set of
        episodes would have given; it does not cover what the features cannot express. Windows of one long episode are
        resampled as if each were an episode of its own: where they resemble their neighbours, as under a disturbance
        that outlasts a window, they say less than so many episodes, and the interval is too narrow.

    Source: Duan, Jia & Wang 2020 (arXiv 2002.09516); Hao et al. 2021, bootstrapping FQE (arXiv 2102.03607).
    """
    known = known_rows(logs)
    weight = known.astype(logs.observation.dtype)
    rows = jnp.maximum(weight.sum(), 1.0)
    guessed = _scaled(guesses, weight)
    phi = jnp.where(known[:, None], features(logs.observation, logs.action, guessed.logged), 0.0)
    white = _whitening(phi, weight)
    phi = phi @ white
    onward = known & (logs.terminated <= 0)
    phi_next = features(logs.next_observation, decisions.next_action, guessed.following) @ white
    phi_next = jnp.where(onward[:, None], discount * phi_next, 0.0)
    phi_0 = features(logs.observation[logs.starts], decisions.initial_action, guessed.initial) @ white
    # Zero times what is not a number would be none.
    signal = jnp.where(known[:, None], jnp.stack([logs.reward, logs.cost], axis=-1), 0.0)

    weighted = phi * (weight / rows)[:, None]
    gram, cross = weighted.T @ phi, weighted.T @ phi_next
    # Directions without power have a zero row in both; the identity there gives them a zero weight.
    padding = ridge + jnp.where(jnp.diag(gram) > 0, 0.0, 1.0)
    counts = counts_of(logs, horizon).astype(phi.dtype)
    share = counts / counts.sum()
    start = share @ phi_0
    found = _rounds(gram + jnp.diag(padding).astype(gram.dtype), cross, weighted.T @ signal, start, horizon)
    value = start @ found.theta

    episodes = logs.starts.shape[0]
    density = (phi @ found.nu) * weight
    moved = jnp.einsum("nd,sde,ne->ns", phi, found.after, phi_next) - jnp.einsum(
        "nd,sde,ne->ns", phi, found.before, phi
    )
    influence = (density[:, None] * signal + weight[:, None] * moved) / rows
    influence = jax.ops.segment_sum(influence, logs.episode, episodes)
    influence = influence + share[:, None] * (phi_0 @ found.theta - value)

    def draw(key: PRNGKeyArray) -> Float[Array, " 2"]:
        drawn: Float[Array, " 2"] = value + (resample_weights(key, episodes).astype(value.dtype) - 1.0) @ influence
        return drawn

    draws = jax.vmap(draw)(jax.random.split(key, bootstraps))
    at = jnp.arange(logs.reward.shape[0]) - logs.starts[logs.episode]
    amplification = found.carried / _carried_by_logs(phi, share[logs.episode], at, horizon, discount)
    effective = jnp.sum(density) ** 2 / jnp.maximum(jnp.sum(density**2), np.finfo(phi.dtype).tiny)
    least, most = reachable(signal, weight, jnp.any(logs.terminated > 0), horizon, discount)
    slack = SLACK * (most - least) + ROUNDING * jnp.maximum(jnp.abs(least), jnp.abs(most))
    possible = jnp.all(jnp.isfinite(value) & (value <= most + slack) & (value >= least - slack))
    # What is not a number is not at most anything.
    supported = (amplification <= MOST_AMPLIFIED) & possible
    return Evaluation(jnp.clip(value, least, most), jnp.clip(draws, least, most), amplification, effective, supported)


def reachable(
    signal: Float[Array, "N S"],
    weight: Float[Array, " N"],
    ends: Bool[Array, ""],
    horizon: int,
    discount: float | Float[Array, ""],
) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
    """Least and most that logged rewards and costs add up to over the horizon: `[low, high] sum_{t<H} discount^t`.

    Where episodes terminate the sum may stop after its first step. Rewards that are never positive so allow no positive
    value, and rewards that are never negative no negative one.

    Args:
        signal: (N, S) rewards and costs.
        weight: (N,) zero at rows that do not count.
        ends: whether any row terminates.
        horizon: steps H.
        discount: per step.
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
    """The logged controller's own value: the mean return of the windows, by their `window_counts`.

    Nothing has to be fitted for it. The resamples are those of `evaluate` with the same key, and like those too narrow
    where windows of one long episode resemble their neighbours.

    Args:
        logs: (N, ...) rows in E windows.
        key: randomness of the resamples.
        horizon: steps H of an episode.
        discount: discount factor per step.
        bootstraps: resamples B.
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
        # A resample may have none of the windows that count, where these are few.
        drawn: Float[Array, " 2"] = jnp.where(taken.sum() > 0, taken @ returns / jnp.maximum(taken.sum(), 1.0), value)
        return drawn

    draws = jax.vmap(draw)(jax.random.split(key, bootstraps))
    everything = jnp.asarray(rows, signal.dtype)
    return Evaluation(value, draws, jnp.ones_like(everything), everything, jnp.all(jnp.isfinite(value)))
