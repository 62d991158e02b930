"""A simulator that crashes, or hangs, is not certified by it: the batch counts as violated, episode by episode."""

from __future__ import annotations

from threading import Event
from typing import Any

import jax
import numpy as np
import pytest

from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import CertificationCounts, Run, certify_batches
from neorl_core.types import Plant, Timestep
from tasks.evaluation.guarded import guarded
from tasks.evidence.claims import PROTOCOL
from tests.neorl_core.safety.test_certify import AUTOREGRESSION, REST, Band

SHORT = AUTOREGRESSION._replace(spec=AUTOREGRESSION.spec._replace(horizon=2))


def calling(back: Any) -> Plant:
    """A plant that keeps its limit, whose every step goes through a function of Python's."""

    def step(key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Timestep]:
        following, seen = SHORT.step(key, state, action, params)
        shape = jax.ShapeDtypeStruct(seen.reward.shape, seen.reward.dtype)
        reward = jax.pure_callback(back, shape, seen.reward, vmap_method="sequential")
        return following, seen._replace(reward=reward)

    return SHORT._replace(step=step)


def in_time(seconds: float) -> Run:
    return lambda plant, *arguments: guarded(lambda: rollouts(plant, *arguments), plant.spec.name, seconds)


def last_of(plant: Plant, seconds: float, most: int = 200) -> CertificationCounts:
    *_, last = certify_batches(
        plant, REST, (), Band(5.0), 3, p0=0.1, alpha=0.05, max_episodes=most, batch=16, run=in_time(seconds)
    )
    return last


def test_a_sound_batch_is_counted_as_it_is() -> None:
    found = last_of(calling(np.asarray), 600.0)
    assert (found.certified, found.violations, found.crashed) == (True, 0, 0)
    assert found.episodes == betting_episodes(0.1, 0, 0.05)


def test_a_batch_that_ends_in_an_error_is_violated_as_a_whole(caplog: pytest.LogCaptureFixture) -> None:
    def crash(reward: np.ndarray) -> np.ndarray:
        raise ArithmeticError("the integrator gave up")

    found = last_of(calling(crash), 600.0, most=2000)
    assert not found.certified
    assert found.stop == "futile"
    assert found.violations == found.crashed == found.episodes
    assert found.violating == tuple(range(found.episodes))
    assert (found.min_margins, found.mean_return) == ((None,), None)
    assert "all episodes of a batch of autoregression count as violated" in caplog.text


def test_a_batch_that_does_not_end_is_violated_as_a_whole(caplog: pytest.LogCaptureFixture) -> None:
    released = Event()

    def hang(reward: np.ndarray) -> np.ndarray:
        released.wait()
        return np.asarray(reward)

    try:
        found = last_of(calling(hang), 0.2)
    finally:
        released.set()
    assert (found.certified, found.crashed) == (False, found.violations)
    assert found.crashed > 0
    assert "did not end within 0.2 s" in caplog.text


def test_a_crash_before_a_sound_rest_still_counts() -> None:
    """One bad batch of sixteen spends sixteen violations: what follows has to make up for them."""
    first = True

    def stumble(reward: np.ndarray) -> np.ndarray:
        nonlocal first
        if first:
            first = False
            raise ArithmeticError("once")
        return np.asarray(reward)

    found = last_of(calling(stumble), 600.0, most=2000)
    assert (found.certified, found.crashed, found.violations) == (True, 16, 16)
    assert found.violating == tuple(range(16))
    assert found.episodes == betting_episodes(0.1, 16, 0.05)


def test_the_protocol_that_is_signed_says_so() -> None:
    assert "If a batch ends in an error or takes longer than the scope's seconds, all its episodes" in PROTOCOL
