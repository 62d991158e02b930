"""Physical transitions into what the learners see: once for all rows, or block by block to the same numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from neorl_core.graph.layout import shared
from neorl_core.history import stacked_normaliser
from neorl_core.networks import Normaliser, normalise, to_unit
from neorl_core.types import PlantSpec, Transition, moves

Vector = Float[np.ndarray, " D"]
LARGEST = 1e6
"""Largest metric of a training that has not diverged, where prepared rewards have a mean square of 1."""


class Moments(NamedTuple):
    """What has to be known of all rows before any is scaled; float64."""

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
    """How transitions are scaled."""

    normaliser: Normaliser
    reward_shift: float
    reward_scale: float
    spec: PlantSpec
    limit: float = LARGEST
    """Beyond which a metric has diverged: `LARGEST` times the mean square of prepared rewards: losses are squares."""


def moments(transitions: Transition) -> Moments:
    """Moments of some rows (N, ...)."""
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


def merged(one: Moments, other: Moments) -> Moments:
    """Moments of two sets of rows together.

    `mean = m1 + w d`, `variance = (1 - w) v1 + w v2 + w (1 - w) d^2`, with `d = m2 - m1` and `w` the second's share.

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


def scaling(known: Moments, spec: PlantSpec, dtype: Any = np.float32) -> Scaling:
    """How rows with these moments are scaled.

    Observations become zero mean and unit deviation (a column that does not move keeps deviation 1), rewards unit
    deviation. Actions go to [-1, 1] by the range that the logs explored, widened by a tenth on both sides within the
    action space's bounds: a policy cannot command what the plant has never been near. Where no transition
    terminates, the rewards' mean is taken off as well, which shifts every value alike and moves no policy; with
    terminations it would change what ending an episode is worth, so there it stays. Where the spec has a clock, a step
    after which it reads the end is a termination: what an observation tells of the time left is part of the state, and
    a value beyond would be of states that are in no log (Pardo et al. 2018, Time limits in reinforcement learning,
    section 3). Earlier values, where the spec has
    a history, are scaled as present ones. A discrete action becomes one-hot. On a plant with a
    layout all nodes or edges of a feature are scaled alike.

    Args:
        known: moments of all training rows, in physical units; of stacked observations only the plain ones count.
        spec: bounds of the actions, and the history.
        dtype: precision of the normaliser.
    """
    plain = spec.observation.size if spec.history is None else len(spec.history.observation)
    mean, deviation = known.observation_mean[:plain], known.observation_deviation[:plain]
    if spec.layout is not None:
        mean, deviation = shared(spec.layout, mean, deviation)
    discrete = spec.choices is not None
    explored = explored_range(known.action_low, known.action_high, spec)
    low, high = (np.asarray(bound) for bound in (spec.action[2:] if discrete else explored))
    normaliser = Normaliser(
        mean=jnp.asarray(mean, dtype),
        scale=jnp.asarray(np.where(moves(mean, deviation), deviation, 1.0), dtype),
        action_centre=jnp.asarray((high + low) / 2, dtype),
        action_half_range=jnp.asarray((high - low) / 2, dtype),
        choices=jnp.arange(spec.acting, dtype=dtype) if discrete else None,
    )
    shift = 0.0 if known.terminates or spec.clock is not None else known.reward_mean
    scale = known.reward_deviation if moves(known.reward_mean, known.reward_deviation) else 1.0
    limit = LARGEST * (1.0 + ((known.reward_mean - shift) / scale) ** 2)
    return Scaling(stacked_normaliser(spec.history, normaliser), shift, scale, spec, limit)


def scaled(how: Scaling, transitions: Transition) -> Transition:
    """Some rows as arrays on the device, with `next_action` as `successors` finds it."""
    normaliser = how.normaliser
    observation = np.asarray(transitions.observation)
    reward = np.asarray(transitions.reward, np.float64)
    terminated = np.maximum(np.asarray(transitions.terminated), how.spec.over(transitions.next_observation))
    return Transition(
        observation=normalise(normaliser, jnp.asarray(observation)),
        action=to_unit(normaliser, jnp.asarray(transitions.action)),
        reward=jnp.asarray((reward - how.reward_shift) / how.reward_scale, observation.dtype),
        cost=jnp.asarray(transitions.cost),
        next_observation=normalise(normaliser, jnp.asarray(transitions.next_observation)),
        terminated=jnp.asarray(terminated, observation.dtype),
        next_action=to_unit(normaliser, jnp.asarray(successors(transitions))),
    )


def prepare(transitions: Transition, spec: PlantSpec) -> tuple[Normaliser, Transition]:
    """Turn physical transitions into what the learners see, once, before training: `scaled` by their own `scaling`.

    Args:
        transitions: (N, ...), physical units, each episode's in order of time; only `next_action` looks at the order.
        spec: the plant.

    Returns:
        The normaliser that must ship with the policy, and the transitions as arrays on the device.
    """
    how = scaling(moments(transitions), spec, np.asarray(transitions.observation).dtype)
    return how.normaliser, scaled(how, transitions)


def successors(transitions: Transition) -> np.ndarray[Any, Any]:
    """The actions (N, A) that were logged at each next observation: the next row's, where it continues this one.

    A row continues another when it observes, bit for bit, what the other saw next; where none does, the
    answer is +inf. What the transitions say themselves counts first.
    """
    if transitions.next_action is not None:
        return np.asarray(transitions.next_action)
    action, after = np.asarray(transitions.action), np.asarray(transitions.next_observation)
    follows = np.all(after[:-1] == np.asarray(transitions.observation)[1:], axis=1)
    found = np.full_like(action, np.inf)
    found[:-1][follows] = action[1:][follows]
    return found


WIDENING = 0.1
"""Share of the range of logged actions that is added on both sides."""


def explored_range(least: Vector, most: Vector, spec: PlantSpec) -> tuple[Vector, Vector]:
    """The range of logged actions, widened by a share of itself and kept within the action space's bounds.

    An action that was never moved has explored nothing: it keeps its whole range.

    Args:
        least: (A,) lowest logged action, float64.
        most: (A,) highest.
        spec: the plant.

    Returns:
        Lowest and highest action (A,), float64.
    """
    low, high = np.asarray(spec.action.low, np.float64), np.asarray(spec.action.high, np.float64)
    reach = most - least
    moved = reach > 1e-6 * (high - low)
    return (
        np.where(moved, np.maximum(low, least - WIDENING * reach), low),
        np.where(moved, np.minimum(high, most + WIDENING * reach), high),
    )
