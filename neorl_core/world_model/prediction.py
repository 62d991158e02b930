"""How well a learned model predicts episodes that it has not seen, beside what needs no learning.

All predictors run free: from a logged observation on, with its history where there is one, they are given the logged
actions and nothing else, and predict from what they predicted. Observations are normalised and actions unit, as
`training.prepare` makes them.
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
"""Steps after which predictions are compared."""
WINDOWS = 4096
"""Logged observations at most from which predictions start, evenly spaced."""
LEAST_EPISODES = 5
"""Episodes below which percentiles of resamples say too little, so that a ratio has no upper bound."""
FLOOR = 0.01
"""Error, as a share of a signal's deviation, below which predictions count as equally good."""


class Autoregression(NamedTuple):
    """`x' = x + A x + B u + c`; with a history A reads the earlier values, too."""

    weights: Float[Array, "D O"]
    """A over B."""
    offset: Float[Array, " O"]


class Windows(NamedTuple):
    """Stretches of logged steps from which predictions start."""

    start: Float[Array, "W S"]
    actions: Float[Array, "W H A"]
    following: Float[Array, "W H O"]
    """What was logged after each action."""
    valid: Bool[Array, "W H"]
    """False beyond an episode's end."""
    episode: npt.NDArray[np.int64]
    """(W,)"""


class Ratio(NamedTuple):
    """How large one predictor's error is beside another's, with its interval over resampled episodes."""

    value: float
    lower: float
    upper: float


def fit_autoregression(
    observation: npt.ArrayLike, action: npt.ArrayLike, following: npt.ArrayLike, ridge: float = 1e-4
) -> Autoregression:
    """Ridge regression of the change of the observation on observation and action.

    `min |x' - x - (x, u) W - c|^2 / N + ridge |W|^2`

    Hoerl and Kennard 1970, Ridge regression (Technometrics 12).

    Args:
        observation: (N, S), normalised; of a stacked one the first O are those of now.
        action: (N, A), between -1 and 1.
        following: (N, O), normalised.
        ridge: penalty of the weights, which draws them toward persistence.
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
    """Stretches of up to `horizon` steps that begin at rows of episodes, at most `WINDOWS` of them.

    Args:
        observation: (N, S), normalised, in the order of time within each episode.
        action: (N, A), unit.
        following: (N, O), normalised.
        episode: (N,) which episode a row belongs to, in ascending order.
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
def squared_errors(members: Ensemble, reach: Reach, linear: Autoregression, found: Windows) -> Float[Array, "P W H O"]:
    """Squared errors of the learned model, persistence and the autoregression, NaN beyond an episode's end.

    Args:
        members: the ensemble; its prediction is the mean of what its members, each running by itself, predict.
        reach: where an observation would leave it, it is clipped.
        linear: the autoregression.
        found: windows of held-out episodes.
    """

    observed = dynamics.predicted(members)

    def one(start: Float[Array, " S"], actions: Float[Array, "H A"]) -> Float[Array, "P H O"]:
        def step(x: Float[Array, "Q S"], action: Float[Array, " A"]) -> tuple[Float[Array, "Q S"], Float[Array, "Q O"]]:
            learned = [
                dynamics.within(reach, dynamics.transition(member, x[m], action)[0]) for m, member in enumerate(members)
            ]
            regressed = x[-1, :observed] + jnp.concatenate([x[-1], action]) @ linear.weights + linear.offset
            following = jnp.stack([*learned, regressed])
            return jax.vmap(dynamics.onward, (None, 0, None, 0))(reach, x, action, following), following

        begun = jnp.broadcast_to(start, (len(members) + 1, start.shape[0]))
        run = jax.lax.scan(step, begun, actions)[1]
        held = jnp.broadcast_to(start[:observed], (actions.shape[0], observed))
        return jnp.stack([jnp.mean(run[:, :-1], axis=1), held, run[:, -1]])

    predicted = jax.vmap(one, out_axes=1)(found.start, found.actions)
    errors = (predicted - found.following[None]) ** 2
    return jnp.where(found.valid[None, :, :, None], errors, jnp.nan)


def episode_errors(
    errors: npt.ArrayLike, episode: npt.NDArray[np.int64], spread: npt.ArrayLike, horizons: tuple[int, ...]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Sums of squared errors by episode, in units of each signal's variance.

    Args:
        errors: (P, W, H, O) squared errors, NaN where there is none.
        episode: (W,)
        spread: (O,) deviation of each signal; one that does not move is left out.
        horizons: K of them, each at most H.

    Returns:
        (P, K, O', E) sums for the O' signals that move, and (K, E) numbers of windows.
    """
    squares, scale = np.asarray(errors, np.float64), np.asarray(spread, np.float64)
    # A signal whose spread is NaN stays in, and its errors count.
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
    """The learned model's root mean square error beside each other predictor's: geometric mean of signals and horizons.

    `exp mean_{k,o} (log(m_ko + floor^2) - log(n_ko + floor^2)) / 2`: a disturbance that nobody can predict counts for
    nothing, where in a mean of squares it would hide all else; nor do errors that are too small to matter.
    Episodes are resampled, the same for all, so that what makes one hard to predict is not counted as noise.

    Args:
        sums: (P, K, O, E), the learned model first.
        counts: (K, E).
        seed: of the resamples.
        bootstraps: resamples.
        confidence: of the two-sided interval.

    Returns:
        A ratio for each predictor after the first; below 1 the learned model is better. Of fewer than `LEAST_EPISODES`
        the interval is infinite.
    """
    episodes = sums.shape[-1]
    weights = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), bootstraps)
    # The first row is the sample itself.
    weights = np.concatenate([np.ones((1, episodes)), weights])
    means = np.einsum("be,pkoe->bpko", weights, sums) / np.maximum(weights @ counts.T, 1)[:, None, :, None]
    logs = np.mean(np.log(means + FLOOR**2) / 2, axis=(2, 3))
    found = []
    for other in range(1, sums.shape[0]):
        drawn = np.exp(logs[:, 0] - logs[:, other])
        tails = np.quantile(drawn[1:], [(1 - confidence) / 2, (1 + confidence) / 2])
        lower, upper = tails if episodes >= LEAST_EPISODES else (0.0, np.inf)
        found.append(Ratio(float(drawn[0]), float(lower), float(upper)))
    return tuple(found)
