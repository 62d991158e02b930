"""A simulator with a learned residual: an ensemble learns the error of the physics from logs.

x' = f(x, u) + scale * mean_m r_m(x, u)

f is the simulator's step; the networks are those of `dynamics`, trained on the simulator's errors.
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
    """Return transitions of an imaginary plant that moves by the simulator's error, for `dynamics.train`.

    Args:
        predict: step of the simulator.
        params: constants of the simulator.
        normaliser: scale of observations and actions.
        rows: (N, ...) logged transitions in physical units.

    Returns:
        (N, ...) in normalised units: s, a, and s + (logged - predicted) / scale. Rewards and terminations are zero.
    """
    expected, _ = jax.vmap(predict, (0, 0, None))(rows.observation, rows.action, params)
    s = normalise(normaliser, jnp.asarray(rows.observation))
    a = to_unit(normaliser, jnp.asarray(rows.action))
    error = (jnp.asarray(rows.next_observation) - expected) / normaliser.scale[None]
    zeros = jnp.zeros(s.shape[0], s.dtype)
    return Transition(s, a, zeros, zeros, s + error, zeros)


def with_residual(predict: Predict, members: Ensemble, normaliser: Normaliser) -> Predict:
    """Return the simulator's step corrected by the learned residual; margins are not corrected.

    Use it as `plant._replace(predict=...)`, and check on held-out episodes with `plants.replay.replay_errors` that it
    helps.

    Args:
        predict: step of the simulator.
        members: ensemble trained on `error_transitions`.
        normaliser: the normaliser used there.
    """

    def corrected(
        observation: Float[Array, " O"], action: Float[Array, " A"], params: Params
    ) -> tuple[Float[Array, " O"], Float[Array, " K"]]:
        following, margins = predict(observation, action, params)
        s, a = normalise(normaliser, observation), to_unit(normaliser, action)
        error = jnp.mean(jnp.stack([dynamics.transition(member, s, a)[0] - s for member in members]), axis=0)
        return following + normaliser.scale * error, margins

    return corrected
