"""Correct a simulator with a learned residual: an ensemble learns the simulator's error from logs.

x' = f(x, u) + scale * mean_m r_m(x, u)

Here x is the observation, u the action, f the simulator's step, r_m the residual that member m predicts, and scale the
normaliser's scale. The members are networks of `dynamics`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.networks import Ensemble, Normaliser, normalise, to_unit
from neorl_core.types import Params, Transition
from neorl_core.world_model import dynamics

Predict = Callable[[Float[Array, " O"], Float[Array, " A"], Params], tuple[Float[Array, " O"], Float[Array, " K"]]]


def error_transitions(predict: Predict, params: Params, normaliser: Normaliser, rows: Transition) -> Transition:
    """Return training data for `dynamics.train`, in which each observation changes by the simulator's error.

    Args:
        rows: (N, ...) logged transitions in physical units.

    Returns:
        Transitions (N, ...) in normalised units. The next observation is observation + (logged - simulated next
        observation) / scale. Rewards and terminations are zero.
    """
    expected, _ = jax.vmap(predict, (0, 0, None))(rows.observation, rows.action, params)
    s = normalise(normaliser, jnp.asarray(rows.observation))
    a = to_unit(normaliser, jnp.asarray(rows.action))
    error = (jnp.asarray(rows.next_observation) - expected) / normaliser.scale[None]
    zeros = jnp.zeros(s.shape[0], s.dtype)
    return Transition(s, a, zeros, zeros, s + error, zeros)


def with_residual(predict: Predict, members: Ensemble, normaliser: Normaliser) -> Predict:
    """Return a simulator step that adds the learned residual to the observation. Margins are not corrected.

    Use the result in `plant._replace(predict=...)`. Check with `plants.replay.replay_errors`, on held-out episodes,
    that the errors are smaller.

    Args:
        members: ensemble trained on the result of `error_transitions`.
        normaliser: the normaliser that `error_transitions` received.
    """

    def corrected(
        observation: Float[Array, " O"], action: Float[Array, " A"], params: Params
    ) -> tuple[Float[Array, " O"], Float[Array, " K"]]:
        following, margins = predict(observation, action, params)
        s, a = normalise(normaliser, observation), to_unit(normaliser, action)
        error = jnp.mean(jnp.stack([dynamics.transition(member, s, a)[0] - s for member in members]), axis=0)
        return following + normaliser.scale * error, margins

    return corrected
