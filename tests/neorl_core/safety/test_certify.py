"""Certification on plants with known violation probability, and on the reactor's certified task."""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from neorl_core.networks import Normaliser, Policy, policy_act
from neorl_core.plants import PLANTS
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety import bounds
from neorl_core.safety.certify import CertificationCounts, certify, certify_batches, episode_keys, key_of
from neorl_core.safety.composite import bare_controller, composite_controller, make_composite
from neorl_core.types import Constraint, Controller, Plant, PlantSpec, Space, Timestep
from tests.neorl_core.safety.exact import betting_stop, certification_probability


class Band(NamedTuple):
    """|x| beyond `limit` violates; |x| beyond `blind` makes the measurement NaN."""

    limit: float = 1.0
    blind: float = 99.0


class ARState(NamedTuple):
    x: Array
    step: Array


def autoregression_step(key: Array, state: ARState, action: Array, params: Band) -> tuple[ARState, Timestep]:
    x = 0.9 * state.x + 0.1 * jax.random.normal(key)
    seen = jnp.where(jnp.abs(x) > params.blind, jnp.nan, x)[None]
    step = state.step + 1
    margins = (params.limit - jnp.abs(x))[None]
    return ARState(x, step), Timestep(seen, -jnp.abs(x), margins, jnp.asarray(False), step >= 200)


REST = Controller(lambda params, observation: (), lambda params, state, observation, applied: (state, jnp.zeros(1)))

AUTOREGRESSION = Plant(
    spec=PlantSpec(
        name="autoregression",
        observation=Space(("x",), ("1",), (-10.0,), (10.0,)),
        action=Space(("u",), ("1",), (-1.0,), (1.0,)),
        constraints=(Constraint("band", "1", -1.0, 1.0),),
        dt=1.0,
        time_unit="s",
        horizon=200,
        score_range=(0.0, 1.0),
    ),
    params=Band(),
    domain=Band(),
    sample_params=lambda key, domain: domain,
    reset=lambda key, params: (ARState(jnp.zeros(()), jnp.asarray(0)), jnp.zeros(1)),
    step=autoregression_step,
    predict=lambda observation, action, params: (0.9 * observation, params.limit - jnp.abs(observation)),
    applied=lambda observation: jnp.zeros(1),
    fallback=REST,
    fallback_params=(),
)


def run_ar(
    limit: float, seed: int, *, blind: float = 99.0, batch: int = 4096, most: int = 12_000
) -> CertificationCounts:
    return certify(
        AUTOREGRESSION, REST, (), Band(limit, blind), seed, p0=1e-3, alpha=0.05, max_episodes=most, batch=batch
    )


# Violation probabilities by quadrature: shared truth, section 1.7.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "probability"),
    [
        pytest.param(0.8, 0.04726868, marks=pytest.mark.slow),
        pytest.param(0.9, 0.00967962, marks=pytest.mark.slow),
        (1.0, 0.00159505606),
        (1.1, 2.144277e-4),
    ],
)
def test_known_violation_probability(limit: float, probability: float) -> None:
    episodes = 16_384
    seen = 0
    for start in range(0, episodes, 4096):
        result = rollouts(AUTOREGRESSION, REST, (), episode_keys(11, start, 4096), Band(limit))
        seen += int(result.violated.sum())
    deviation = math.sqrt(episodes * probability * (1 - probability))
    assert abs(seen - episodes * probability) < 3.5 * deviation


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "probability"), [(1.0, 0.00159505606), (1.1, 2.144277e-4), (1.2, 2.36392e-5)])
def test_certified_with_exact_probability(limit: float, probability: float) -> None:
    tries = 16
    certified = sum(run_ar(limit, seed).certified for seed in range(tries))
    boundaries = [bounds.betting_episodes(1e-3, k, 0.05) for k in range(4)]
    exact = certification_probability(probability, boundaries)
    assert abs(certified - tries * exact) <= 3.5 * math.sqrt(tries * exact * (1 - exact)) + 0.5
    # Worse than p0 must nearly always fail, much better than p0 must pass.
    assert {1.0: certified <= 1, 1.1: certified > tries / 2, 1.2: certified == tries}[limit]


@pytest.mark.slow
def test_counts_are_reproducible_for_any_batch_size() -> None:
    whole = run_ar(1.1, 5)
    assert whole == run_ar(1.1, 5)
    assert whole._replace(mean_return=None) == run_ar(1.1, 5, batch=1000)._replace(mean_return=None)
    assert whole != run_ar(1.1, 6)
    # The verdict agrees with the plain definition.
    flags = np.zeros(whole.episodes, dtype=bool)
    flags[list(whole.violating)] = True
    assert betting_stop(flags, 1e-3, 0.05) == whole.episodes


def test_progress_is_reported_after_every_batch() -> None:
    steps = list(
        certify_batches(
            AUTOREGRESSION, REST, (), Band(1.5), b"s" * 32, p0=1e-3, alpha=0.05, max_episodes=5000, batch=1000
        )
    )
    assert [s.episodes for s in steps] == [1000, 2000, 3000, 3327]
    assert [s.stop for s in steps] == ["running"] * 3 + ["certified"]
    last = steps[-1]
    assert (last.violations, last.certified) == (0, True)
    assert last.upper_bound == pytest.approx(1 - 0.05 ** (1 / 3327))
    assert last.log_e >= last.log_threshold == pytest.approx(math.log(20))
    assert 0 < last.min_margins[0] < 1.5


def test_futility_stops_at_decisive_violation() -> None:
    # 6000 episodes suffice for one violation (5885) and not for two (8443).
    hopeless = run_ar(0.9, 1, batch=1000, most=6000)
    assert hopeless.stop == "futile"
    assert not hopeless.certified
    assert hopeless.violations == 2
    assert hopeless.violating[-1] == hopeless.episodes - 1
    assert hopeless.min_margins[0] < 0


@pytest.mark.slow
def test_test_always_stops_by_max_episodes() -> None:
    # Any allowed number of violations certifies within the maximum number of episodes.
    for seed in range(8):
        counts = run_ar(1.05, seed, most=11_500)
        assert counts.stop in ("certified", "futile")
        assert counts.episodes <= 11_500
        assert counts.certified == (counts.log_e >= counts.log_threshold)


def test_a_million_episodes_are_counted_batch_by_batch() -> None:
    """Only a few numbers per batch are stored, so only the simulation grows with the number of episodes."""
    size, sizes = 16_384, []

    def sound(plant: Plant, controller: Controller, params: Any, keys: Array, domain: Any) -> EpisodeResult:
        sizes.append(len(keys))
        zeros = np.zeros(size)
        # One violation in 280,000, which a claim of 1e-5 allows.
        violated = (np.arange(size) + size * (len(sizes) - 1)) % 280_000 == 279_999
        return EpisodeResult(zeros, zeros, violated, np.ones((size, 1)), zeros)  # type: ignore[arg-type]

    *_, last = certify_batches(
        AUTOREGRESSION, REST, (), Band(), 0, p0=1e-5, alpha=0.05, max_episodes=10**7, batch=size, run=sound
    )
    assert last.certified
    assert last.violating == (279_999, 559_999, 839_999)
    # By hand: log(20) + k log(10) over log((1 - 1e-6)/(1 - 1e-5)), plus the violations.
    gain = math.log1p(-1e-6) - math.log1p(-1e-5)
    assert last.episodes == math.ceil((math.log(20) + 3 * math.log(10)) / gain) + 3
    assert sum(sizes) >= last.episodes > 10**6


def test_nan_counts_as_violation() -> None:
    # The limit is never reached, but the measurement fails where |x| > .9: p = .00968 as for a limit of .9.
    blind = run_ar(5.0, 1, blind=0.9, batch=1000, most=6000)
    assert blind.violating == run_ar(0.9, 1, batch=1000, most=6000).violating
    assert blind.min_margins[0] > 0


def test_too_few_episodes_are_rejected() -> None:
    with pytest.raises(ValueError, match="max_episodes must be at least 3327"):
        run_ar(1.1, 0, most=3000)


def test_key_of_a_seed() -> None:
    digest = hashlib.sha256(b"neorl certification seed v1:" + bytes(range(32))).digest()
    expected = [int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")]
    assert [int(x) for x in jax.random.key_data(key_of(bytes(range(32))))] == expected
    assert jax.random.key_data(key_of(7)).tolist() == jax.random.key_data(key_of(b"\0" * 7 + b"\7")).tolist()
    third = jax.random.fold_in(key_of(7), 3)
    assert jax.random.key_data(episode_keys(7, 2, 4))[1].tolist() == jax.random.key_data(third).tolist()


REACTOR = PLANTS["chemical_reactor"]


class Proposal(NamedTuple):
    """A hand-written policy, or random actions: one function for both, so that the reactor is compiled once."""

    random: Array
    policy: Policy


def propose(proposal: Proposal, observation: Array) -> Array:
    # Random actions use the measurement noise, because a controller has no key.
    bits = jax.lax.bitcast_convert_type(observation[1], jnp.uint32)
    low, high = (jnp.asarray(x) for x in REACTOR.spec.action[2:])
    dice = jax.random.uniform(jax.random.fold_in(jax.random.key(0), bits), low.shape, minval=low, maxval=high)
    return jnp.where(proposal.random, dice, policy_act(proposal.policy, observation))


def by_hand(setpoint_mean: float) -> Policy:
    """Feedforward of the coolant for the set point: 300 K at .8608 mol/L, 1 K less per .0143 mol/L more.

    .0143 (mol/L)/K is the slope between the steady states at 295, 300 and 302 K (shared truth, section 1.1). The right
    normaliser has the mean .865; any other belongs to other data.
    """
    normaliser = Normaliser(
        jnp.array([0.865, 324.0, 300.0, setpoint_mean]),
        jnp.array([0.03, 2.0, 2.0, 0.03]),
        jnp.array([300.0]),
        jnp.array([10.0]),
    )
    kernel = jnp.zeros((4, 1)).at[3, 0].set(-0.03 / 0.0143 / 10.0)
    return Policy({"Dense_0": {"kernel": kernel, "bias": jnp.array([0.06])}}, normaliser)


SOUND = Proposal(jnp.asarray(False), by_hand(0.865))
STALE = Proposal(jnp.asarray(False), by_hand(0.95))
RANDOM = Proposal(jnp.asarray(True), by_hand(0.865))


def run_reactor(controller: Controller, params: Any) -> CertificationCounts:
    return certify(
        REACTOR, controller, params, REACTOR.domain, 2026, p0=1e-3, alpha=0.05, max_episodes=30_000, batch=512
    )


def test_reactor_pi_controller_is_certified() -> None:
    counts = run_reactor(composite_controller(REACTOR), make_composite(REACTOR))
    assert (counts.certified, counts.episodes, counts.violations, counts.handovers) == (True, 3327, 0, 0)
    # The tuned controller is faster and gets 0.3 K closer to the limits than the found one.
    assert counts.min_margins[0] > 2.5


def test_unshielded_random_and_stale_policies_fail() -> None:
    bare = bare_controller(REACTOR, propose)
    for proposal in (RANDOM, STALE):
        counts = run_reactor(bare, proposal)
        assert (counts.certified, counts.stop) == (False, "futile")
        assert counts.episodes < 40
    # With the right normaliser the same policy keeps the limits, so the test does not reject every policy.
    assert run_reactor(bare, SOUND).certified


@pytest.mark.slow
def test_shield_makes_random_policy_safe() -> None:
    controller = composite_controller(REACTOR, propose)
    for proposal, least in ((RANDOM, 1.0), (STALE, 1.0), (SOUND, 0.0)):
        composite = make_composite(REACTOR, proposal)  # type: ignore[arg-type]
        result = rollouts(REACTOR, controller, composite, episode_keys(5, 0, 512), REACTOR.domain)
        assert int(result.violated.sum()) == 0
        assert float(result.handovers.mean()) >= least
    # A good policy is not changed.
    assert int(result.handovers.sum()) == 0


@pytest.mark.slow
def test_wider_domain_defeats_the_shield() -> None:
    # Truth 1.1: a plain look-ahead of 12 steps loses 0 of 4,000 episodes of random actions at a feed deviation of .5 K,
    # and 27 % at 2 K with constants within ±5 %. This shield also keeps a distance to each limit and loses fewer, but
    # far more than 1e-3.
    controller, composite = composite_controller(REACTOR, propose), make_composite(REACTOR, RANDOM)  # type: ignore[arg-type]
    wide = {"feed_sd": 2.0, "feed_clip": 6.0, "reaction_spread": 0.05, "cooling_spread": 0.05}
    lost = [
        int(rollouts(REACTOR, controller, composite, episode_keys(6, 0, 4000), domain).violated.sum())
        for domain in (REACTOR.domain, REACTOR.domain._replace(**wide))
    ]
    assert lost[0] == 0
    assert bounds.clopper_pearson_upper(4000 - lost[1], 4000, 0.01) < 1 - 1e-3
    assert bounds.clopper_pearson_upper(lost[1], 4000, 0.01) < 0.27
