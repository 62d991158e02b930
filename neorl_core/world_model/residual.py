"""A simulator with a learned residual on top: what the physics leaves out, an ensemble learns from the logs.

x' = f(x, u) + scale * mean_m r_m(x, u)

f is the simulator's own step; the members' networks are those of `dynamics`, trained on the simulator's errors.
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
    """Transitions of an imaginary plant that moves by the simulator's error, for `dynamics.train`.

    Args:
        predict: the simulator's step.
        params: its constants.
        normaliser: scale of observations and actions.
        rows: (N, ...) logged transitions in physical units.

    Returns:
        (N, ...) in normalised units: s, a, and s + (logged − predicted) / scale. Rewards and terminations are zero.
    """
    expected, _ = jax.vmap(predict, (0, 0, None))(rows.observation, rows.action, params)
    s = normalise(normaliser, jnp.asarray(rows.observation))
    a = to_unit(normaliser, jnp.asarray(rows.action))
    error = (jnp.asarray(rows.next_observation) - expected) / normaliser.scale[None]
    nothing = jnp.zeros(s.shape[0], s.dtype)
    return Transition(s, a, nothing, nothing, s + error, nothing)


def with_residual(predict: Predict, members: Ensemble, normaliser: Normaliser) -> Predict:
    """The simulator's step corrected by what the members expect of its error; margins stay the simulator's.

    Use it as `plant._replace(predict=...)`, in `plants.replay.replay_errors` to see whether it helps on held-out
    episodes: where it does not, leave it out.

    Args:
        predict: the simulator's step.
        members: trained on `error_transitions`.
        normaliser: the same as there.
    """

    def corrected(
        observation: Float[Array, " O"], action: Float[Array, " A"], params: Params
    ) -> tuple[Float[Array, " O"], Float[Array, " K"]]:
        following, margins = predict(observation, action, params)
        s, a = normalise(normaliser, observation), to_unit(normaliser, action)
        error = jnp.mean(jnp.stack([dynamics.transition(member, s, a)[0] - s for member in members]), axis=0)
        return following + normaliser.scale * error, margins

    return corrected
