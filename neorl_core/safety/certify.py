"""Statistical certification: seeded episodes in order, stopped by a bet that fewer than p0 of all are violated."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import PRNGKeyArray

from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from neorl_core.types import Controller, Params, Plant

SEED_DOMAIN = b"neorl certification seed v1:"
"""Keeps a seed that is used elsewhere, too, from giving the same episodes."""


class CertificationCounts(NamedTuple):
    """What was counted so far, over episodes 0 .. episodes - 1 in the order of their seeds. Plain Python values."""

    episodes: int
    violations: int
    violating: tuple[int, ...]
    """Indices of the violated episodes: with `episodes` all that the test needs to be repeated."""
    log_e: float
    log_threshold: float
    """log(1/alpha); certified when `log_e` reaches it."""
    upper_bound: float
    """Clopper-Pearson bound at the same alpha, for information: exact for a fixed number of episodes only."""
    certified: bool
    stop: str
    """"running", "certified", "futile" (max_episodes can no longer suffice) or "max_episodes"."""
    min_margins: tuple[float | None, ...]
    """Least finite margin of each constraint, in its unit; None where there was none."""
    handovers: int
    mean_return: float | None
    """Mean return of the counted episodes whose return is finite."""


def key_of(seed: bytes | int) -> PRNGKeyArray:
    """The JAX key of a seed: the first 8 bytes of SHA-256("neorl certification seed v1:" + seed), big-endian.

    They are the two 32-bit words of a threefry2x32 key, so the key depends neither on JAX's precision mode nor on
    its default generator.

    Args:
        seed: any number of bytes (32 from a commitment), or an integer in [0, 2**64), taken as 8 bytes big-endian.
    """
    material = seed.to_bytes(8, "big") if isinstance(seed, int) else seed
    words = np.frombuffer(hashlib.sha256(SEED_DOMAIN + material).digest()[:8], dtype=">u4").astype(np.uint32)
    key: PRNGKeyArray = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    return key


def episode_keys(seed: bytes | int, start: int, count: int) -> PRNGKeyArray:
    """Keys (count,) of episodes start, start + 1, ...: fold_in(key_of(seed), i) for episode i, whatever the batches.

    Args:
        seed: seed of the attempt.
        start: number of the first episode.
        count: how many.
    """
    indices = jnp.arange(start, start + count, dtype=jnp.uint32)
    keys: PRNGKeyArray = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key_of(seed), indices)
    return keys


def violations_allowed(p0: float, alpha: float, max_episodes: int) -> int:
    """The most violations with which `max_episodes` can still certify; -1 if not even none.

    Args:
        p0: violation probability that is claimed.
        alpha: error probability that the attempt spends.
        max_episodes: number of episodes after which the test stops.
    """
    allowed = -1
    while betting_episodes(p0, allowed + 1, alpha) <= max_episodes:
        allowed += 1
    return allowed


def _stop_index(violated: npt.NDArray[np.bool_], p0: float, alpha: float, max_episodes: int) -> tuple[int, str]:
    """How many episodes count, and why the test stops there; the earliest reason holds."""
    lost = np.cumsum(violated)
    # Thresholds as whole numbers of episodes, so that no rounding of a sum of logarithms can move the stop.
    allowed = violations_allowed(p0, alpha, max_episodes)
    boundaries = np.array([betting_episodes(p0, k, alpha) for k in range(allowed + 1)])
    count = np.arange(1, violated.size + 1)
    hopeless = lost > allowed
    certified = ~hopeless & (count >= boundaries[np.minimum(lost, allowed)])
    ended = np.flatnonzero(hopeless | certified | (count >= max_episodes))
    if not ended.size:
        return int(violated.size), "running"
    at = int(ended[0])
    return at + 1, "certified" if certified[at] else "futile" if hopeless[at] else "max_episodes"


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
    batch: int = 512,
) -> Iterator[CertificationCounts]:
    """Test "P(an episode under `domain` is violated) >= p0" episode by episode, and report after every batch.

    The e-value of `bounds.log_e_value` is looked at after every episode; it certifies at the first one where it
    reaches 1/alpha. The test also stops when the violations so far leave it no way to certify within `max_episodes`.
    Both are valid: the e-value holds at any stopping time, and stopping for futility only ever refuses, so it can
    but lower the probability of a false certificate. Episodes computed beyond the stop are not counted, so the
    counts do not depend on `batch`. NaN and infinity count as violations (`plants.base.summarise`).

    Args:
        plant: the simulator.
        controller: usually `composite_controller(plant)`.
        controller_params: usually the `Composite`.
        domain: the operating domain, part of the claim.
        seed: seed of this attempt (see `key_of`).
        p0: the violation probability to refute.
        alpha: what this attempt may spend (`bounds.alpha_spent`).
        max_episodes: number of episodes after which it gives up.
        batch: episodes per compiled call.

    Yields:
        The counts so far; the last one has the verdict.

    Raises:
        ValueError: when `max_episodes` could not certify even without a violation.
    """
    least = betting_episodes(p0, 0, alpha)
    if max_episodes < least:
        raise ValueError(
            f"expected at least {least} episodes, which p0 = {p0} at alpha = {alpha:.3g} needs without a violation, "
            f"got max_episodes = {max_episodes}; raise max_episodes"
        )
    flags = np.zeros(0, dtype=bool)
    margins = np.zeros((0, len(plant.spec.constraints)))
    handovers, returns = np.zeros(0, dtype=np.int64), np.zeros(0)
    stop = "running"
    while stop == "running":
        keys = episode_keys(seed, flags.size, batch)
        result = rollouts(plant, controller, controller_params, keys, domain)
        flags = np.concatenate([flags, np.asarray(result.violated)])
        margins = np.concatenate([margins, np.asarray(result.min_margins, dtype=np.float64)])
        handovers = np.concatenate([handovers, np.asarray(result.handovers, dtype=np.int64)])
        returns = np.concatenate([returns, np.asarray(result.ret, dtype=np.float64)])
        episodes, stop = _stop_index(flags, p0, alpha, max_episodes)
        violating = np.flatnonzero(flags[:episodes])
        finite_returns = returns[:episodes][np.isfinite(returns[:episodes])]
        yield CertificationCounts(
            episodes=episodes,
            violations=int(violating.size),
            violating=tuple(int(i) for i in violating),
            log_e=log_e_value(episodes - int(violating.size), int(violating.size), p0),
            log_threshold=-math.log(alpha),
            upper_bound=clopper_pearson_upper(int(violating.size), episodes, alpha),
            certified=stop == "certified",
            stop=stop,
            min_margins=tuple(_least_finite(column) for column in margins[:episodes].T),
            handovers=int(handovers[:episodes].sum()),
            mean_return=float(finite_returns.mean()) if finite_returns.size else None,
        )


def _least_finite(values: npt.NDArray[np.float64]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.min()) if finite.size else None


def certify(
    plant: Plant,
    controller: Controller,
    controller_params: Params,
    domain: Params,
    seed: bytes | int,
    *,
    p0: float,
    alpha: float,
    max_episodes: int,
    batch: int = 512,
) -> CertificationCounts:
    """The last of `certify_batches`: the verdict.

    Args:
        plant: the simulator.
        controller: what is tested.
        controller_params: its parameters, such as a composite.
        domain: operating domain that episodes are drawn from.
        seed: seed of the attempt.
        p0: violation probability that is claimed.
        alpha: error probability that the attempt spends.
        max_episodes: number of episodes after which the test stops.
        batch: episodes that are simulated at a time.
    """
    *_, last = certify_batches(
        plant,
        controller,
        controller_params,
        domain,
        seed,
        p0=p0,
        alpha=alpha,
        max_episodes=max_episodes,
        batch=batch,
    )
    return last
