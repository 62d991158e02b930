"""Scaling of physical transitions for learners, over all rows at once or by blocks with the same result."""

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
"""Metric above which training has diverged, for prepared rewards with a mean square of 1."""


class Moments(NamedTuple):
    """Statistics of all rows that the scaling needs; float64."""

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
    """Whether any row terminates."""


class Scaling(NamedTuple):
    """Scale of observations, actions and rewards."""

    normaliser: Normaliser
    reward_shift: float
    reward_scale: float
    spec: PlantSpec
    limit: float = LARGEST
    """Metric above which training has diverged: `LARGEST` times the mean square of prepared rewards, because losses are
    squares."""


def moments(transitions: Transition) -> Moments:
    """Return the moments of rows (N, ...)."""
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
    """Return the moments of two sets of rows together.

    `mean = m1 + w d`, `variance = (1 - w) v1 + w v2 + w (1 - w) d^2`, with `d = m2 - m1` and w the share of the second
    set.

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
    """Return the scaling of rows with these moments.

    - Observations: zero mean and unit deviation (constant columns keep deviation 1). On a plant with a layout, all
      nodes or edges of a feature share one scale. Earlier values are scaled as current ones.
    - Actions: [-1, 1] is the logged range widened by a tenth on both sides within the action bounds, so a policy cannot
      command actions far from the logs. Discrete actions become one-hot.
    - Rewards: unit deviation. They are centred if no row terminates, which shifts all values alike; with terminations,
      centring would change the value of ending an episode.
    - Terminations: with a clock in the spec, the step at which it reads the end counts as one, because the observation
      shows the remaining time and no log contains later states (Pardo et al. 2018, Time limits in reinforcement
      learning, section 3).

    Args:
        total: moments of all training rows in physical units; of stacked observations only the plain part is used.
        spec: bounds of the actions, and the history.
        dtype: precision of the normaliser.
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
    """Return scaled rows on the device, with `next_action` from `next_actions`."""
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
    """Scale physical transitions for learners: `make_scaling`, then `scale_rows`.

    Args:
        transitions: (N, ...) in physical units, each episode in order of time (used for `next_action` only).
        spec: spec of the plant.

    Returns:
        The normaliser, which ships with the policy, and the transitions on the device.
    """
    scaling = make_scaling(moments(transitions), spec, np.asarray(transitions.observation).dtype)
    return scaling.normaliser, scale_rows(scaling, transitions)


def next_actions(transitions: Transition) -> np.ndarray[Any, Any]:
    """Return the actions (N, A) logged at each next observation, +inf if none.

    A row continues the previous one if its observation equals the previous next observation bit for bit. An existing
    `next_action` is returned unchanged.
    """
    if transitions.next_action is not None:
        return np.asarray(transitions.next_action)
    action, after = np.asarray(transitions.action), np.asarray(transitions.next_observation)
    follows = np.all(after[:-1] == np.asarray(transitions.observation)[1:], axis=1)
    following = np.full_like(action, np.inf)
    following[:-1][follows] = action[1:][follows]
    return following


WIDENING = 0.1
"""Share of the range of logged actions added on both sides."""


def explored_range(least: Vector, most: Vector, spec: PlantSpec) -> tuple[Vector, Vector]:
    """Return the range of logged actions, widened by `WIDENING` within the action bounds, as float64 (A,) arrays.

    An action that never varied keeps its whole range.

    Args:
        least: (A,) lowest logged action, float64.
        most: (A,) highest logged action, float64.
        spec: spec of the plant.
    """
    low, high = np.asarray(spec.action.low, np.float64), np.asarray(spec.action.high, np.float64)
    reach = most - least
    varied = reach > 1e-6 * (high - low)
    return (
        np.where(varied, np.maximum(low, least - WIDENING * reach), low),
        np.where(varied, np.minimum(high, most + WIDENING * reach), high),
    )
