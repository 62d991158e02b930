"""Compare a learned model's prediction errors on held-out episodes with two simple predictors.

The simple predictors are persistence (the observation stays as it is) and an autoregression (linear regression). Each
prediction starts from a logged observation. Later steps use the logged actions and the predictor's own predictions.
Observations are normalised, and actions are in [-1, 1].
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float

from neorl_core.networks import Ensemble
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Reach

HORIZONS = (1, 5, 20)
"""Prediction horizons in steps."""
WINDOWS = 4096
"""Largest number of windows. Their first rows are evenly spaced in the log."""
LEAST_EPISODES = 5
"""With fewer episodes, the interval of a ratio is 0 to infinity."""
FLOOR = 0.01
"""Errors below this share of a signal's standard deviation are negligible."""


class Autoregression(NamedTuple):
    """Linear predictor `x' = x + A s + B u + c`, with observation x, stacked observation s and action u."""

    weights: Float[Array, "D O"]
    """Transposed matrices A and B, one above the other; D = S + A."""
    offset: Float[Array, " O"]
    """The constant c."""


class Windows(NamedTuple):
    """W windows of H consecutive logged steps. A prediction starts at the beginning of each window."""

    start: Float[Array, "W S"]
    """Stacked observation at the beginning of the window."""
    actions: Float[Array, "W H A"]
    following: Float[Array, "W H O"]
    """Logged observation after each action."""
    valid: Bool[Array, "W H"]
    """False for steps after the end of the window's episode."""
    episode: npt.NDArray[np.int64]
    """(W,) index of the episode."""


class Ratio(NamedTuple):
    """The learned model's error divided by a simple predictor's error, with a confidence interval."""

    value: float
    lower: float
    upper: float


def fit_autoregression(
    observation: npt.ArrayLike, action: npt.ArrayLike, following: npt.ArrayLike, ridge: float = 1e-4
) -> Autoregression:
    """Fit the autoregression to logged steps by ridge regression: `min |x' - x - (s, u) W - c|^2 / N + ridge |W|^2`.

    Hoerl and Kennard 1970, Ridge regression (Technometrics 12).

    Args:
        observation: (N, S) stacked observations s, normalised. The first O values are the current observation x.
        action: (N, A) actions u in [-1, 1].
        following: (N, O) next observations x', normalised.
    """
    x = np.concatenate([np.asarray(observation, np.float64), np.asarray(action, np.float64)], axis=1)
    after = np.asarray(following, np.float64)
    y = after - x[:, : after.shape[1]]
    mean, level = x.mean(axis=0), y.mean(axis=0)
    z = x - mean
    weights = np.linalg.solve(z.T @ z / len(z) + ridge * np.eye(z.shape[1]), z.T @ (y - level) / len(z))
    return Autoregression(jnp.asarray(weights, dtype=float), jnp.asarray(level - mean @ weights, dtype=float))


def windows(
    observation: npt.NDArray[np.floating],
    action: npt.NDArray[np.floating],
    following: npt.NDArray[np.floating],
    episode: npt.NDArray[np.int64],
    horizon: int,
) -> Windows:
    """Cut at most `WINDOWS` windows of `horizon` steps from logged episodes.

    Args:
        observation: (N, S) stacked observations, normalised, in the order of time within each episode.
        action: (N, A) actions in [-1, 1].
        following: (N, O) next observations, normalised.
        episode: (N,) episode index of each row, ascending.
        horizon: number of steps H of the longest prediction.
    """
    rows = len(episode)
    starts = np.unique(np.linspace(0, rows - 1, min(rows, WINDOWS)).astype(np.int64))
    steps = starts[:, None] + np.arange(horizon)
    inside = np.minimum(steps, rows - 1)
    valid = (steps < rows) & (episode[inside] == episode[starts][:, None])
    return Windows(
        jnp.asarray(observation[starts]),
        jnp.asarray(action[inside]),
        jnp.asarray(following[inside]),
        jnp.asarray(valid),
        episode[starts],
    )


@jax.jit
def squared_errors(
    members: Ensemble, reach: Reach, linear: Autoregression, windows: Windows
) -> Float[Array, "P W H O"]:
    """Return the squared errors (P, W, H, O) of P = 3 predictors: learned model, persistence, autoregression.

    Errors after the end of an episode are NaN.

    Args:
        members: weights of the ensemble. Each member predicts all H steps alone; the prediction is the members' mean.
        reach: range to which the members' predictions are clipped.
    """

    observed = dynamics.predicted_size(members)

    def one(start: Float[Array, " S"], actions: Float[Array, "H A"]) -> Float[Array, "P H O"]:
        def step(x: Float[Array, "Q S"], action: Float[Array, " A"]) -> tuple[Float[Array, "Q S"], Float[Array, "Q O"]]:
            learned = [
                dynamics.clip(reach, dynamics.transition(member, x[m], action)[0]) for m, member in enumerate(members)
            ]
            regressed = x[-1, :observed] + jnp.concatenate([x[-1], action]) @ linear.weights + linear.offset
            following = jnp.stack([*learned, regressed])
            return jax.vmap(dynamics.stack_outcome, (None, 0, None, 0))(reach, x, action, following), following

        states = jnp.broadcast_to(start, (len(members) + 1, start.shape[0]))
        run = jax.lax.scan(step, states, actions)[1]
        persistence = jnp.broadcast_to(start[:observed], (actions.shape[0], observed))
        return jnp.stack([jnp.mean(run[:, :-1], axis=1), persistence, run[:, -1]])

    predicted = jax.vmap(one, out_axes=1)(windows.start, windows.actions)
    errors = (predicted - windows.following[None]) ** 2
    return jnp.where(windows.valid[None, :, :, None], errors, jnp.nan)


def episode_errors(
    errors: npt.ArrayLike, episode: npt.NDArray[np.int64], spread: npt.ArrayLike, horizons: tuple[int, ...]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Sum the squared errors of each episode, divided by each signal's variance.

    Args:
        errors: (P, W, H, O) squared errors; NaN after the end of an episode.
        episode: (W,) episode index of each window.
        spread: (O,) standard deviation of each signal. Constant signals are left out of the result.
        horizons: K prediction horizons, in steps, each at most H.

    Returns:
        Sums (P, K, O', E) for the O' signals that are not constant, and numbers of windows (K, E).
    """
    squares, scale = np.asarray(errors, np.float64), np.asarray(spread, np.float64)
    # Written so that a signal with a NaN standard deviation is kept.
    moving = np.flatnonzero(np.logical_not(scale <= 1e-9))
    there = np.isfinite(squares[1, :, :, 0])[:, [h - 1 for h in horizons]]
    each = squares[:, :, [h - 1 for h in horizons]][..., moving] / scale[moving] ** 2
    names, index = np.unique(episode, return_inverse=True)
    sums = np.zeros((squares.shape[0], len(horizons), len(moving), len(names)))
    counts = np.zeros((len(horizons), len(names)))
    for k in range(len(horizons)):
        rows = np.flatnonzero(there[:, k])
        np.add.at(counts[k], index[rows], 1)
        for e in range(len(names)):
            sums[:, k, :, e] = each[:, rows[index[rows] == e], k].sum(axis=1)
    return sums, counts


def error_ratios(
    sums: npt.NDArray[np.float64],
    counts: npt.NDArray[np.float64],
    seed: int,
    bootstraps: int = 1000,
    confidence: float = 0.95,
) -> tuple[Ratio, ...]:
    """Return the learned model's root mean square error, divided by the error of each other predictor.

    The ratio is the geometric mean over signals and horizons of `sqrt((m + FLOOR^2) / (n + FLOOR^2))`. Here m and n are
    the mean squared errors of the learned model and the other predictor. So no single signal dominates the ratio.

    Args:
        sums: sums from `episode_errors`, with the learned model first.
        counts: numbers of windows from `episode_errors`.
        seed: seed of the bootstrap, which resamples episodes.
        bootstraps: number of resamples. All predictors use the same resamples.
        confidence: two-sided confidence of the interval.

    Returns:
        One ratio per other predictor; below 1 if the learned model is better. With fewer than `LEAST_EPISODES` episodes
        the interval is 0 to infinity.
    """
    episodes = sums.shape[-1]
    weights = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), bootstraps)
    # The first row has weight 1 for every episode: the sample without resampling.
    weights = np.concatenate([np.ones((1, episodes)), weights])
    means = np.einsum("be,pkoe->bpko", weights, sums) / np.maximum(weights @ counts.T, 1)[:, None, :, None]
    logs = np.mean(np.log(means + FLOOR**2) / 2, axis=(2, 3))
    ratios = []
    for other in range(1, sums.shape[0]):
        draws = np.exp(logs[:, 0] - logs[:, other])
        tails = np.quantile(draws[1:], [(1 - confidence) / 2, (1 + confidence) / 2])
        lower, upper = tails if episodes >= LEAST_EPISODES else (0.0, np.inf)
        ratios.append(Ratio(float(draws[0]), float(lower), float(upper)))
    return tuple(ratios)
