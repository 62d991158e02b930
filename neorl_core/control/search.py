"""Search for controller parameters: successive halving from many starts, then the cross-entropy method.

Jamieson and Talwalkar: Non-stochastic best arm identification and hyperparameter optimization (AISTATS 2016);
Rubinstein and Kroese: The Cross-Entropy Method, 2004, section 2.3. All candidates of a round are simulated on the same
episodes, so that random differences between episodes cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray

from neorl_core.plants.base import rollout, summarise
from neorl_core.types import Controller, Params, Plant

Floats = npt.NDArray[np.float64]
GEOMETRIC = 10.0
"""A range is searched on a logarithmic scale if its ends have the same sign and differ at least by this factor."""
VIOLATION_COST = 10_000.0
"""Points subtracted from the mean score, times the share of violated episodes."""
CHUNK = 512
"""Episodes per compiled call; all their steps are in memory."""
LEAST, NEAR = 0.01, 0.1
"""Standard deviations of draws, as shares of the range: the minimum, and the initial value around given numbers."""
STAY = 0.3
"""Weight of the previous round's mean and spread in the next round, to reduce noise."""


class Space(NamedTuple):
    """A search space: parameters by name with ranges."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    params: Callable[[Float[Array, " n"]], Params]
    """(n,) numbers -> parameters of the controller."""

    def _orders(self) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
        low, high = np.asarray(self.low, float), np.asarray(self.high, float)
        sizes = np.sort(np.abs([low, high]), axis=0)
        return low, high, (low * high > 0) & (sizes[1] >= GEOMETRIC * sizes[0])

    def numbers(self, place: npt.ArrayLike) -> Floats:
        """Convert points (..., n) of the unit cube to numbers in their own units."""
        (low, high, many), place = self._orders(), np.asarray(place, float)
        ratio = np.where(many, high / np.where(many, low, 1.0), 1.0)
        return np.asarray(np.where(many, low * ratio**place, low + (high - low) * place))

    def place(self, numbers: npt.ArrayLike) -> Floats:
        """Convert numbers (..., n) to points of the unit cube: the inverse of `numbers`."""
        (low, high, many), own = self._orders(), np.asarray(numbers, float)
        ratio = np.where(many, high / np.where(many, low, 1.0), math.e)
        return np.where(
            many,
            np.log(np.where(many, own / np.where(many, low, 1.0), 1.0)) / np.log(ratio),
            (own - low) / (high - low),
        )


class Effort(NamedTuple):
    """Size of a search."""

    starts: int = 1_000
    """Uniform draws from the space."""
    episodes: int = 8
    """Episodes per start; doubled when the number of starts is halved."""
    finalists: int = 16
    """Number of starts at which halving ends."""
    rounds: int = 24
    """Rounds of the cross-entropy method."""
    draws: int = 64
    """Draws per round; the best quarter determines the next round."""
    draw_episodes: int = 32
    """Episodes per draw."""
    fresh: int = 1_024
    """Episodes to judge the finalists, not used in the search."""


class Judged(NamedTuple):
    """Result of one set of parameters on the fresh episodes."""

    numbers: Floats
    """(n,), the parameters."""
    returns: Floats
    """(fresh,), undiscounted, in the order of the episodes."""
    violated: npt.NDArray[np.bool_]
    """(fresh,), whether a limit was violated in each episode."""


@partial(jax.jit, static_argnames=("plant", "controller", "build"))
def _play(
    plant: Plant,
    controller: Controller,
    build: Callable[[Float[Array, " n"]], Params],
    numbers: Float[Array, "C n"],
    keys: Key[Array, " C"],
) -> tuple[Float[Array, " C"], Bool[Array, " C"]]:
    """Simulate C episodes, each with its own parameters and key; a key gives the same episode as in `rollouts`."""

    def episode(own: Float[Array, " n"], key: PRNGKeyArray) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        key_constants, key_run = jax.random.split(key)
        constants = plant.sample_params(key_constants, plant.domain)
        result = summarise(rollout(plant, controller, build(own), key_run, constants), plant)
        return result.ret, result.violated

    return jax.vmap(episode)(numbers, keys)


def play(
    plant: Plant, controller: Controller, space: Space, numbers: npt.ArrayLike, keys: Key[Array, " E"]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Simulate P sets of parameters on the same E episodes; return the episodes' returns and violations, both (P, E).

    Args:
        plant: the plant, simulated in its operating domain.
        numbers: (P, n), in their own units.
    """
    rows = np.asarray(numbers, np.float32)
    pairs, each = len(rows) * len(keys), len(keys)
    returns, violated = np.empty(pairs), np.empty(pairs, bool)
    for start in range(0, pairs, CHUNK):
        # Repeat the last pair to fill the last chunk, so that all chunks have one shape.
        which = np.minimum(np.arange(start, start + CHUNK), pairs - 1)
        results = _play(plant, controller, space.params, jnp.asarray(rows[which // each]), keys[which % each])
        kept = slice(start, min(start + CHUNK, pairs))
        for whole, part in zip((returns, violated), results, strict=True):
            whole[kept] = np.asarray(part)[: kept.stop - start]
    return returns.reshape(len(rows), each), violated.reshape(len(rows), each)


def objective(plant: Plant, returns: Floats, violated: npt.NDArray[np.bool_]) -> Floats:
    """Return the mean score (P,) from 0 to 100 minus `VIOLATION_COST` times the share of violated episodes."""
    worst, best = plant.spec.score_range
    scores = 100.0 * (returns - worst) / (best - worst) - VIOLATION_COST * violated
    # A non-finite return is the worst score.
    return np.asarray(np.where(np.isfinite(scores), scores, -np.inf).mean(axis=1))


def episodes_of(effort: Effort, *, halving: bool = True) -> int:
    """Return the number of episodes that `search` simulates, without the fresh ones."""
    total, left, episodes = effort.rounds * effort.draws * effort.draw_episodes, effort.starts, effort.episodes
    while halving and left > effort.finalists:
        total, left, episodes = total + left * episodes, max(left // 2, effort.finalists), episodes * 2
    return total


def search(
    plant: Plant,
    controller: Controller,
    space: Space,
    key: PRNGKeyArray,
    effort: Effort,
    around: npt.ArrayLike | None = None,
    report: Callable[[int, int], object] | None = None,
) -> Judged:
    """Search for the parameters with the best `objective`; return their result on fresh episodes.

    Successive halving keeps the better half of uniform starts and doubles their episodes, until the finalists are left.
    Then the cross-entropy method draws from a normal distribution around the finalists; the best quarter of the draws
    gives mean and spread of the next round. Finalists and last mean are judged on fresh episodes.

    Args:
        plant: the plant, simulated in its operating domain.
        key: randomness of the starts, the episodes and the draws.
        around: (n,), numbers from which the cross-entropy method starts; skips the halving.
        report: called with the numbers of simulated episodes and of all episodes of the search.
    """
    key_starts, key_episodes, key_draws, key_fresh = jax.random.split(key, 4)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key_draws)))
    turns, total, done = count(), episodes_of(effort, halving=around is None), 0

    def ranked(places: Floats, episodes: int) -> Floats:
        nonlocal done
        keys = jax.random.split(jax.random.fold_in(key_episodes, next(turns)), episodes)
        scores = objective(plant, *play(plant, controller, space, space.numbers(places), keys))
        done += len(places) * episodes
        if report:
            report(done, total)
        return places[np.argsort(-scores, kind="stable")]

    if around is None:
        finalists = np.asarray(jax.random.uniform(key_starts, (effort.starts, len(space.names))), np.float64)
        episodes = effort.episodes
        while len(finalists) > effort.finalists:
            finalists = ranked(finalists, episodes)[: max(len(finalists) // 2, effort.finalists)]
            episodes *= 2
        mean, spread = finalists.mean(axis=0), finalists.std(axis=0)
    else:
        finalists = space.place(around)[None]
        mean, spread = finalists[0], np.full(len(space.names), NEAR)
    for _ in range(effort.rounds):
        drawn = np.clip(rng.normal(mean, np.maximum(spread, LEAST), (effort.draws, len(mean))), 0.0, 1.0)
        elite = ranked(drawn, effort.draw_episodes)[: effort.draws // 4]
        mean, spread = STAY * mean + (1 - STAY) * elite.mean(axis=0), STAY * spread + (1 - STAY) * elite.std(axis=0)
    numbers = space.numbers(np.vstack([mean, finalists[:4]]))
    results = judge(plant, controller, space, numbers, key_fresh, effort.fresh)
    scores = objective(plant, np.stack([r.returns for r in results]), np.stack([r.violated for r in results]))
    return results[int(np.argmax(scores))]


def judge(
    plant: Plant, controller: Controller, space: Space, numbers: npt.ArrayLike, key: PRNGKeyArray, fresh: int
) -> list[Judged]:
    """Evaluate P sets of parameters `numbers` (P, n) on the same `fresh` episodes."""
    rows = np.atleast_2d(np.asarray(numbers, np.float64))
    returns, violated = play(plant, controller, space, rows, jax.random.split(key, fresh))
    return [Judged(*each) for each in zip(rows, returns, violated, strict=True)]
