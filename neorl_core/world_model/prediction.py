"""Prediction errors of a learned model on held-out episodes, compared with persistence and linear regression.

All predictors run open loop: from a logged observation with its history they get only the logged actions, and predict
from their own predictions. Observations are normalised and actions are unit actions, as in `training.prepare`.
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
"""Largest number of start rows, evenly spaced."""
LEAST_EPISODES = 5
"""Number of episodes below which the upper bound of a ratio is infinite."""
FLOOR = 0.01
"""Error, relative to the standard deviation of a signal, below which predictions count as equally good."""


class Autoregression(NamedTuple):
    """`x' = x + A x + B u + c`; with a history A also reads the earlier values."""

    weights: Float[Array, "D O"]
    """A stacked on B."""
    offset: Float[Array, " O"]


class Windows(NamedTuple):
    """Stretches of logged steps that predictions start from."""

    start: Float[Array, "W S"]
    actions: Float[Array, "W H A"]
    following: Float[Array, "W H O"]
    """Logged observation after each action."""
    valid: Bool[Array, "W H"]
    """False beyond the end of the episode."""
    episode: npt.NDArray[np.int64]
    """(W,) episode index."""


class Ratio(NamedTuple):
    """Ratio of one predictor's error to another's, with an interval over resampled episodes."""

    value: float
    lower: float
    upper: float


def fit_autoregression(
    observation: npt.ArrayLike, action: npt.ArrayLike, following: npt.ArrayLike, ridge: float = 1e-4
) -> Autoregression:
    """Fit the change of the observation by ridge regression on observation and action.

    `min |x' - x - (x, u) W - c|^2 / N + ridge |W|^2`

    Hoerl and Kennard 1970, Ridge regression (Technometrics 12).

    Args:
        observation: (N, S) normalised; the first O components are the current ones.
        action: (N, A) unit actions.
        following: (N, O) next observations, normalised.
        ridge: penalty of the weights, which favours persistence.
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
    """Cut at most `WINDOWS` stretches of up to `horizon` steps from episodes.

    Args:
        observation: (N, S) normalised, in order of time within each episode.
        action: (N, A) unit actions.
        following: (N, O) next observations, normalised.
        episode: (N,) episode index of each row, ascending.
        horizon: steps H of the longest prediction.
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
    """Return squared errors (P, W, H, O) of the learned model, persistence and the autoregression.

    Errors after the end of an episode are NaN.

    Args:
        members: weights of the ensemble; its prediction is the mean over members that each run on their own.
        reach: bounds that clip the observations.
        linear: autoregression.
        windows: windows of held-out episodes.
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
    """Sum squared errors by episode, in units of each signal's variance.

    Args:
        errors: (P, W, H, O) squared errors, NaN where invalid.
        episode: (W,) episode index.
        spread: (O,) standard deviation of each signal; constant signals are excluded.
        horizons: K horizons, each at most H.

    Returns:
        (P, K, O', E) sums for the O' signals that move, and (K, E) numbers of windows.
    """
    squares, scale = np.asarray(errors, np.float64), np.asarray(spread, np.float64)
    # A signal with a NaN spread is included.
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
    """Return the learned model's RMS error relative to each other predictor.

    The ratio is a geometric mean over signals and horizons: `exp mean_{k,o} (log(m_ko + floor^2) - log(n_ko + floor^2))
    / 2`. So an unpredictable signal cannot hide the others, and the floor removes negligible errors. All predictors
    share the resamples of episodes, so the difficulty of an episode does not count as noise.

    Args:
        sums: (P, K, O, E) with the learned model first.
        counts: (K, E) numbers of windows.
        seed: seed of the resamples.
        bootstraps: number of resamples.
        confidence: two-sided confidence.

    Returns:
        One ratio per other predictor, below 1 if the learned model is better. With fewer than `LEAST_EPISODES` episodes
        the interval is infinite.
    """
    episodes = sums.shape[-1]
    weights = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), bootstraps)
    # The first row is the sample itself.
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
