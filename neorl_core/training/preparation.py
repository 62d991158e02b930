"""Scale logged transitions, in physical units, for learners."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from neorl_core.graph.layout import pool_moments
from neorl_core.history import stacked_normaliser
from neorl_core.networks import Normaliser, normalise, to_unit
from neorl_core.types import PlantSpec, Transition, varies

Vector = Float[np.ndarray, " D"]
LARGEST = 1e6
"""A training has diverged if a metric is larger than this number, for scaled rewards with a mean square of 1."""


class Moments(NamedTuple):
    """Statistics of logged rows, in physical units and float64. `make_scaling` computes the scaling from them."""

    rows: int
    observation_mean: Vector
    observation_deviation: Vector
    observation_low: Vector
    observation_high: Vector
    action_low: Vector
    action_high: Vector
    reward_mean: float
    reward_deviation: float
    terminates: bool
    """Whether any row terminates an episode."""


class Scaling(NamedTuple):
    """Conversion of observations, actions and rewards from physical units to the units of learners."""

    normaliser: Normaliser
    reward_shift: float
    reward_scale: float
    """Scaled reward = (reward - reward_shift) / reward_scale."""
    spec: PlantSpec
    limit: float = LARGEST
    """A training has diverged if a metric is larger. This limit grows with the mean square of the scaled rewards."""


def moments(transitions: Transition) -> Moments:
    """Return the statistics of logged transitions (N, ...) in physical units."""
    observation, action = np.asarray(transitions.observation), np.asarray(transitions.action)
    reward = np.asarray(transitions.reward, np.float64)
    return Moments(
        rows=len(reward),
        observation_mean=observation.mean(axis=0, dtype=np.float64),
        observation_deviation=observation.std(axis=0, dtype=np.float64),
        observation_low=observation.min(axis=0),
        observation_high=observation.max(axis=0),
        action_low=action.min(axis=0).astype(np.float64),
        action_high=action.max(axis=0).astype(np.float64),
        reward_mean=float(reward.mean()),
        reward_deviation=float(reward.std()),
        terminates=bool(np.any(np.asarray(transitions.terminated))),
    )


def merge_moments(one: Moments, other: Moments) -> Moments:
    """Return the statistics of two sets of rows together.

    `mean = m1 + w d`, `variance = (1 - w) v1 + w v2 + w (1 - w) d^2`. Here m1, m2 are the means and v1, v2 the
    variances of the two sets, `d = m2 - m1`, and w is the share of rows in the second set.

    Chan, Golub & LeVeque 1983, Algorithms for computing the sample variance, equation 2.1.
    """
    share = other.rows / (one.rows + other.rows)

    def deviation(v1: Any, v2: Any, m1: Any, m2: Any) -> Any:
        return np.sqrt((1 - share) * v1**2 + share * v2**2 + share * (1 - share) * (m2 - m1) ** 2)

    a, b = one, other
    return Moments(
        rows=a.rows + b.rows,
        observation_mean=a.observation_mean + share * (b.observation_mean - a.observation_mean),
        observation_deviation=deviation(
            a.observation_deviation, b.observation_deviation, a.observation_mean, b.observation_mean
        ),
        observation_low=np.minimum(a.observation_low, b.observation_low),
        observation_high=np.maximum(a.observation_high, b.observation_high),
        action_low=np.minimum(a.action_low, b.action_low),
        action_high=np.maximum(a.action_high, b.action_high),
        reward_mean=a.reward_mean + share * (b.reward_mean - a.reward_mean),
        reward_deviation=float(deviation(a.reward_deviation, b.reward_deviation, a.reward_mean, b.reward_mean)),
        terminates=a.terminates or b.terminates,
    )


def make_scaling(total: Moments, spec: PlantSpec, dtype: Any = np.float32) -> Scaling:
    """Return the scaling for rows with these statistics.

    - Observations: mean 0 and standard deviation 1; constant signals are only shifted. On a plant with a layout, all
      nodes or edges share one scale per feature. Earlier values of a signal have the scale of its current value.
    - Actions: -1 and 1 are the ends of `explored_range`, so that a policy cannot command actions far from the logs.
      Discrete actions become one-hot vectors.
    - Rewards: standard deviation 1. The mean is subtracted only if no row terminates. Otherwise the shift would change
      whether it pays to end an episode.
    - Terminations: if the spec has a clock, `scale_rows` also marks the step that reaches the clock's end, because no
      log contains later states (Pardo et al. 2018, Time limits in reinforcement learning, section 3).

    Args:
        total: statistics of all training rows. From observations with history, only the current values are used.
    """
    plain = spec.observation.size if spec.history is None else len(spec.history.observation)
    mean, deviation = total.observation_mean[:plain], total.observation_deviation[:plain]
    if spec.layout is not None:
        mean, deviation = pool_moments(spec.layout, mean, deviation)
    discrete = spec.choices is not None
    explored = explored_range(total.action_low, total.action_high, spec)
    low, high = (np.asarray(bound) for bound in (spec.action[2:] if discrete else explored))
    normaliser = Normaliser(
        mean=jnp.asarray(mean, dtype),
        scale=jnp.asarray(np.where(varies(mean, deviation), deviation, 1.0), dtype),
        action_centre=jnp.asarray((high + low) / 2, dtype),
        action_half_range=jnp.asarray((high - low) / 2, dtype),
        choices=jnp.arange(spec.acting, dtype=dtype) if discrete else None,
    )
    shift = 0.0 if total.terminates or spec.clock is not None else total.reward_mean
    scale = total.reward_deviation if varies(total.reward_mean, total.reward_deviation) else 1.0
    limit = LARGEST * (1.0 + ((total.reward_mean - shift) / scale) ** 2)
    return Scaling(stacked_normaliser(spec.history, normaliser), shift, scale, spec, limit)


def scale_rows(scaling: Scaling, transitions: Transition) -> Transition:
    """Return the rows in the units of learners, on the device. `next_actions` gives the field `next_action`."""
    normaliser = scaling.normaliser
    observation = np.asarray(transitions.observation)
    reward = np.asarray(transitions.reward, np.float64)
    terminated = np.maximum(np.asarray(transitions.terminated), scaling.spec.over(transitions.next_observation))
    return Transition(
        observation=normalise(normaliser, jnp.asarray(observation)),
        action=to_unit(normaliser, jnp.asarray(transitions.action)),
        reward=jnp.asarray((reward - scaling.reward_shift) / scaling.reward_scale, observation.dtype),
        cost=jnp.asarray(transitions.cost),
        next_observation=normalise(normaliser, jnp.asarray(transitions.next_observation)),
        terminated=jnp.asarray(terminated, observation.dtype),
        next_action=to_unit(normaliser, jnp.asarray(next_actions(transitions))),
    )


def prepare(transitions: Transition, spec: PlantSpec) -> tuple[Normaliser, Transition]:
    """Scale logged transitions for learners.

    Args:
        transitions: (N, ...) in physical units. The rows of each episode must be in the order of time.

    Returns:
        The normaliser, which the policy also needs, and the scaled transitions on the device.
    """
    scaling = make_scaling(moments(transitions), spec, np.asarray(transitions.observation).dtype)
    return scaling.normaliser, scale_rows(scaling, transitions)


def next_actions(transitions: Transition) -> np.ndarray[Any, Any]:
    """Return for each row the action (A,) of the following step of the episode; +inf if the log has no such step.

    Row i + 1 follows row i if its observation equals the next observation of row i bit for bit. If the transitions
    already have `next_action`, that field is returned.
    """
    if transitions.next_action is not None:
        return np.asarray(transitions.next_action)
    action, after = np.asarray(transitions.action), np.asarray(transitions.next_observation)
    follows = np.all(after[:-1] == np.asarray(transitions.observation)[1:], axis=1)
    following = np.full_like(action, np.inf)
    following[:-1][follows] = action[1:][follows]
    return following


WIDENING = 0.1
"""Share of the range of logged actions that `explored_range` adds at each end."""


def explored_range(least: Vector, most: Vector, spec: PlantSpec) -> tuple[Vector, Vector]:
    """Return the lowest and highest action (A,) that a policy may command: the logged range, widened by `WIDENING`.

    The range stays inside the actuator's bounds. For an action that is constant in the log, it equals these bounds.

    Args:
        least: (A,) lowest logged actions, float64.
        most: (A,) highest logged actions, float64.
    """
    low, high = np.asarray(spec.action.low, np.float64), np.asarray(spec.action.high, np.float64)
    reach = most - least
    varied = reach > 1e-6 * (high - low)
    return (
        np.where(varied, np.maximum(low, least - WIDENING * reach), low),
        np.where(varied, np.minimum(high, most + WIDENING * reach), high),
    )
