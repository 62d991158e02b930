"""Statistical certification: simulate seeded episodes in order until a sequential test decides about the claim."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import PRNGKeyArray

from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from neorl_core.types import Controller, Params, Plant

SEED_DOMAIN = b"neorl certification seed v1:"
"""Prefix that separates certification seeds from other uses of the same seed."""
BATCH = 512
"""Episodes per compiled call."""


class CertificationCounts(NamedTuple):
    """Counts over episodes 0 .. episodes - 1 in the order of their seeds, as plain Python values."""

    episodes: int
    violations: int
    violating: tuple[int, ...]
    """Indices of the violated episodes; empty until the test has stopped."""
    log_e: float
    log_threshold: float
    """log(1/alpha); certified when `log_e` reaches it."""
    upper_bound: float
    """Clopper-Pearson bound at the same alpha, for information; exact only for a fixed number of episodes."""
    certified: bool
    stop: str
    """"running", "certified" or "futile" (max_episodes can no longer suffice)."""
    min_margins: tuple[float | None, ...]
    """Smallest finite margin of each constraint, in the constraint's unit; None if no margin was finite."""
    handovers: int
    mean_return: float | None
    """Mean of the finite returns."""
    crashed: int = 0
    """Violations that were counted because a batch crashed or timed out."""
    steps: int = 0
    """Simulated steps of all episodes; an episode without a violation has as many as the horizon."""


Run = Callable[[Plant, Controller, Params, PRNGKeyArray, Params], EpisodeResult | None]
"""(plant, controller, controller params, keys, domain) -> results of the episodes; None if the batch has no result."""


def key_of(seed: bytes | int) -> PRNGKeyArray:
    """Return the JAX key of a seed: the first 8 bytes of SHA-256("neorl certification seed v1:" + seed), big-endian.

    The bytes are the two 32-bit words of a threefry2x32 key, so the key does not depend on JAX's precision mode or
    default generator.

    Args:
        seed: any number of bytes (32 from a commitment), or an integer in [0, 2**64), taken as 8 bytes big-endian.
    """
    material = seed.to_bytes(8, "big") if isinstance(seed, int) else seed
    words = np.frombuffer(hashlib.sha256(SEED_DOMAIN + material).digest()[:8], dtype=">u4").astype(np.uint32)
    key: PRNGKeyArray = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    return key


def episode_keys(seed: bytes | int, start: int, count: int) -> PRNGKeyArray:
    """Return keys (count,) of episodes start, start + 1, ...: fold_in(key_of(seed), i) for episode i."""
    keys: PRNGKeyArray = _folded(key_of(seed), np.uint32(start), count)
    return keys


# Compiled, because single operations take longer than the episodes of a small plant.
@partial(jax.jit, static_argnames="count")
def _folded(key: PRNGKeyArray, start: np.uint32, count: int) -> PRNGKeyArray:
    indices = start + jnp.arange(count, dtype=jnp.uint32)
    keys: PRNGKeyArray = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, indices)
    return keys


def violations_allowed(p0: float, alpha: float, max_episodes: int) -> int:
    """Return the largest number of violations with which `max_episodes` can certify, or -1 if 0 are too many."""
    allowed = -1
    while betting_episodes(p0, allowed + 1, alpha) <= max_episodes:
        allowed += 1
    return allowed


class _Tally:
    """State of the test; each episode is counted once."""

    def __init__(self, constraints: int, p0: float, alpha: float, max_episodes: int) -> None:
        allowed = violations_allowed(p0, alpha, max_episodes)
        # Integer thresholds, so that rounding of summed logarithms cannot move the stop.
        self._boundaries = np.array([betting_episodes(p0, k, alpha) for k in range(allowed + 1)])
        self._p0, self._alpha = p0, alpha
        self._violating: list[int] = []
        self._margins = np.full(constraints, np.inf)
        self._episodes = self._crashed = self._handovers = self._returned = self._steps = 0
        self._return = 0.0
        self.stop = "running"

    def take(self, result: EpisodeResult | None, size: int) -> None:
        """Count a batch up to the stop; a batch without a result counts as violated."""
        flags = np.ones(size, dtype=bool) if result is None else np.asarray(result.violated)
        counted = self._until_stop(flags)
        self._violating += (self._episodes + np.flatnonzero(flags[:counted])).tolist()
        self._episodes += counted
        if result is None:
            self._crashed += counted
            return
        margins = np.asarray(result.min_margins, dtype=np.float64)[:counted]
        self._margins = np.minimum(self._margins, np.where(np.isfinite(margins), margins, np.inf).min(axis=0))
        self._steps += int(np.asarray(result.length)[:counted].sum())
        self._handovers += int(np.asarray(result.handovers)[:counted].sum())
        returns = np.asarray(result.ret, dtype=np.float64)[:counted]
        returns = returns[np.isfinite(returns)]
        self._return, self._returned = self._return + float(returns.sum()), self._returned + returns.size

    def _until_stop(self, flags: npt.NDArray[np.bool_]) -> int:
        """Return the number of episodes of a batch up to the stop, and set the reason if the test stops.

        The test stops at `max_episodes` at the latest, because the allowed number of violations certifies there.
        """
        allowed = len(self._boundaries) - 1
        lost = len(self._violating) + np.cumsum(flags)
        number = self._episodes + np.arange(1, flags.size + 1)
        hopeless = lost > allowed
        certified = ~hopeless & (number >= self._boundaries[np.minimum(lost, allowed)])
        ended = np.flatnonzero(hopeless | certified)
        if not ended.size:
            return int(flags.size)
        at = int(ended[0])
        self.stop = "certified" if certified[at] else "futile"
        return at + 1

    def counts(self) -> CertificationCounts:
        """Return the counts; the violated episodes are listed after the test has stopped."""
        violations = len(self._violating)
        return CertificationCounts(
            episodes=self._episodes,
            violations=violations,
            violating=() if self.stop == "running" else tuple(self._violating),
            log_e=log_e_value(self._episodes - violations, violations, self._p0),
            log_threshold=-math.log(self._alpha),
            upper_bound=clopper_pearson_upper(violations, self._episodes, self._alpha),
            certified=self.stop == "certified",
            stop=self.stop,
            min_margins=tuple(float(least) if np.isfinite(least) else None for least in self._margins),
            handovers=self._handovers,
            mean_return=self._return / self._returned if self._returned else None,
            crashed=self._crashed,
            steps=self._steps,
        )


def certify_batches(
    plant: Plant,
    controller: Controller,
    controller_params: Params,
    domain: Params,
    seed: bytes | int,
    *,
    p0: float,
    alpha: float,
    max_episodes: int,
    batch: int = BATCH,
    run: Run = rollouts,
) -> Iterator[CertificationCounts]:
    """Test the hypothesis "an episode in `domain` is violated with probability p0 or more"; yield counts per batch.

    The test certifies at the first episode at which the e-value (`bounds.log_e_value`) reaches 1/alpha, which refutes
    the hypothesis. It stops without a certificate when too many violations make a certificate impossible within
    `max_episodes`. The e-value permits checks after every episode, and a stop without a certificate cannot cause a
    false certificate. `plants.base.summarise` states when an episode is violated;
    all episodes of a batch without a result are.

    Args:
        controller: usually `composite_controller(plant)`.
        controller_params: usually the `Composite`.
        domain: the operating domain, part of the claim.
        seed: seed of this attempt (see `key_of`).
        p0: violation probability to refute.
        alpha: error probability of this attempt (`bounds.alpha_spent`).
        max_episodes: number of episodes after which the test stops.
        batch: episodes per compiled call.
        run: simulates a batch; returns None after a crash or time-out.

    Yields:
        The counts so far; the last item has the verdict and lists the violated episodes.

    Raises:
        ValueError: if `max_episodes` could not certify even without a violation.
    """
    least = betting_episodes(p0, 0, alpha)
    if max_episodes < least:
        raise ValueError(
            f"max_episodes must be at least {least} to certify p0 = {p0} at alpha = {alpha:.3g} without a violation, "
            f"got {max_episodes}: raise max_episodes"
        )
    results = (
        run(plant, controller, controller_params, episode_keys(seed, start, batch), domain) for start in count(0, batch)
    )
    yield from certify_results(
        results, len(plant.spec.constraints), p0=p0, alpha=alpha, max_episodes=max_episodes, batch=batch
    )


def certify_results(
    results: Iterable[EpisodeResult | None], constraints: int, *, p0: float, alpha: float, max_episodes: int, batch: int
) -> Iterator[CertificationCounts]:
    """Run the test of `certify_batches` on results from any source, such as several machines.

    Args:
        results: endless batches in order, episodes 0 to batch - 1 first; None for a batch without a result. Only as
            many as needed are taken.
        p0, alpha, max_episodes, batch: as for `certify_batches`.

    Yields:
        The counts so far; the last item has the verdict and lists the violated episodes.
    """
    tally = _Tally(constraints, p0, alpha, max_episodes)
    for result in results:
        tally.take(result, batch)
        yield tally.counts()
        if tally.stop != "running":
            return


def certify(
    plant: Plant,
    controller: Controller,
    controller_params: Params,
    domain: Params,
    seed: bytes | int,
    **test: Any,
) -> CertificationCounts:
    """Return the verdict, the last item of `certify_batches`; `test` are the keyword arguments of `certify_batches`."""
    *_, last = certify_batches(plant, controller, controller_params, domain, seed, **test)
    return last
