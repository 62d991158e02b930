"""Whether a simulator explains held-out logs over several steps: like compared with like."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from neorl_core.identify.forecast import Episodes, Predict, errors, forecast
from neorl_core.types import Params

EXCESS = 1.5
"""How many times the domain's own error the logs' may be."""
FLOOR = 0.01
"""What the error may be besides, as a share of the signal's spread, for resampling and instruments round."""


class SegmentErrors(NamedTuple):
    """Root mean square forecast errors of episodes, 1 to S steps ahead, in the signals' units."""

    rms: Float[Array, "*n S O"]
    spread: Float[Array, "*n O"]
    """Standard deviation of what was measured."""
    moves: Bool[Array, "*n O"]
    """Whether the simulator predicts the signal at all: one that it hands on as it is, a set point, is none of it."""


class Verdict(NamedTuple):
    """What the gate found."""

    excess: Float[Array, "*n S O"]
    """Error on the logs as a share of what is allowed; zero for signals that are left out."""
    passed: Bool[Array, "*n"]


@partial(jax.jit, static_argnames=("predict", "segment", "inputs"))
def segment_errors(
    predict: Predict, params: Params, episodes: Episodes, segment: int, inputs: tuple[int, ...] = ()
) -> SegmentErrors:
    """Errors of a simulator's forecasts over segments that start from what was measured.

    The starts' measurement noise, the noise of what is forecast and the disturbances on the way are all in them, so
    they are only to be compared with errors that hold the same (`simulator_gate`). Every signal must be measured where
    an episode starts.

    Args:
        predict: the simulator's deterministic step.
        params: its constants.
        episodes: E of them, held out from whatever the constants were fitted to.
        segment: S.
        inputs: signals that are taken as measured at every step.
    """
    observations, actions = jnp.asarray(episodes.observations), jnp.asarray(episodes.actions)
    signals = observations.shape[-1]
    is_input = jnp.zeros(signals, bool).at[jnp.asarray(inputs, int)].set(True)

    def of_episode(seen: Array, done: Array) -> tuple[Array, Array]:
        forecasts = forecast(predict, params, seen[0], seen, done, segment, is_input)
        following, _ = jax.vmap(predict, (0, 0, None))(seen[:-1], done, params)
        alters = jnp.any((following != seen[:-1]) & jnp.isfinite(seen[:-1]), axis=0)
        return errors(forecasts, seen), alters

    found, alters = jax.vmap(of_episode)(observations, actions)
    measured = jnp.isfinite(observations[:, 1:]).astype(found.dtype)
    pad = ((0, 0), (0, -found.shape[1] % segment), (0, 0))
    squares = jnp.sum(jnp.pad(found**2, pad).reshape(-1, segment, signals), axis=0)
    counts = jnp.sum(jnp.pad(measured, pad).reshape(-1, segment, signals), axis=0)
    spread = jnp.nanstd(observations.reshape(-1, signals), axis=0)
    moves = jnp.any(alters, axis=0) & ~is_input & (spread > 0)
    return SegmentErrors(jnp.sqrt(squares / counts), spread, moves)


def simulator_gate(logs: SegmentErrors, domain: SegmentErrors, excess: float = EXCESS, floor: float = FLOOR) -> Verdict:
    """Whether errors on held-out logs are those that the operating domain itself brings.

    Passed where `logs <= excess * domain + floor * spread` for each signal and each number of steps ahead; what is not
    finite fails on either side, for a domain whose plants diverge would explain every log.

    Args:
        logs: errors on held-out logs.
        domain: errors of the same `predict` and constants on episodes that the simulator made itself, under the
            controller that the logs are of and with the domain's noise, disturbances and spread constants.
        excess: how many times the domain's error the logs' may be.
        floor: share of the signal's spread that is allowed besides.
    """
    allowed = excess * domain.rms + floor * logs.spread
    share = logs.rms / jnp.where(allowed > 0, allowed, np.finfo(allowed.dtype).tiny)
    known = jnp.isfinite(share) & jnp.isfinite(allowed)
    judged = jnp.where(logs.moves, jnp.where(known, share, jnp.inf), 0.0)
    return Verdict(judged, jnp.all(judged <= 1.0, axis=(-2, -1)) & jnp.any(logs.moves, axis=-1))
