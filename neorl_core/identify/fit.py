"""Identification of a plant's constants from logs, in one call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from neorl_core.identify.estimate import Posterior, Start, estimate
from neorl_core.identify.forecast import Episodes
from neorl_core.identify.unknowns import Unknown, constants, prior_of
from neorl_core.types import Plant

SEGMENT = 5
"""Default number of steps of a forecast."""


def identify(
    plant: Plant,
    unknowns: Sequence[Unknown],
    episodes: Episodes,
    *,
    segment: int = SEGMENT,
    starts: Mapping[str, tuple[float | None, float]] | None = None,
    inputs: Sequence[str] = (),
    confidence: float = 0.95,
) -> Posterior:
    """Estimate constants of a plant from logged episodes.

    A segment must be long enough for the constants to affect the measurements. The errors of a single step are mostly
    measurement noise; the errors of a whole episode are mostly disturbances.

    Args:
        plant: supplies `predict` and the nominal constants.
        episodes: E episodes in physical units, NaN where not measured.
        segment: steps of a forecast before it restarts from the measurements.
        starts: signals that are not measured or too noisy -> (prior mean, prior deviation) of the signal at the start
            of each episode. With None as mean, the measurement is the mean.
        inputs: signals that act on the plant from outside, such as weather; forecasts use their measurements.

    Raises:
        ValueError: if a name, prior, shape, action or confidence is invalid, or an episode starts with a signal that is
            neither measured nor in `starts`.

    Example:
        >>> unknowns = (Unknown("reaction_rate", 0.03), Unknown("cooling_rate", 0.03))
        >>> posterior = identify(PLANT, unknowns, episodes)  # doctest: +SKIP
        >>> posterior.estimate, posterior.low, posterior.high, posterior.identified  # doctest: +SKIP
    """
    names = plant.spec.observation.names
    starts = starts or {}
    for name in (*starts, *inputs):
        if name not in names:
            raise ValueError(f"'{name}' is not a signal of {plant.spec.name}: use one of {', '.join(names)}")
    for name, (centre, spread) in starts.items():
        if not 0 <= spread < math.inf or not math.isfinite(centre or 0.0):
            raise ValueError(
                f"start of {name} needs a finite mean and a finite spread of at least 0, got mean {centre} and spread "
                f"{spread}: correct the numbers"
            )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}: write 0.95 for 95 %")
    prior_of(plant.params, unknowns)
    _check(plant, episodes, segment, {names.index(name) for name in starts})
    posterior: Posterior = estimate(
        plant.predict,
        plant.params,
        tuple(unknowns),
        episodes,
        segment,
        tuple(Start(names.index(name), spread, centre) for name, (centre, spread) in starts.items()),
        tuple(names.index(name) for name in inputs),
        confidence,
    )
    return posterior


def _check(plant: Plant, episodes: Episodes, segment: int, started: set[int]) -> None:
    observations, actions = np.asarray(episodes.observations), np.asarray(episodes.actions)
    count, steps = (*actions.shape, 0, 0)[:2]
    wanted = ((count, steps + 1, plant.spec.observation.size), (count, steps, plant.spec.action.size))
    if (observations.shape, actions.shape) != wanted or not count * steps:
        raise ValueError(
            f"observations must have the shape (E, T + 1, {wanted[0][2]}) and actions (E, T, {wanted[1][2]}), got "
            f"{observations.shape} and {actions.shape}: stack whole episodes, and pad shorter ones with NaN"
        )
    if segment < 1:
        raise ValueError(f"segment must be at least 1 step, got {segment}: the default is {SEGMENT}")
    if not np.isfinite(actions).all():
        episode, step, action = np.argwhere(~np.isfinite(actions))[0]
        raise ValueError(
            f"actions must be finite, got {actions[episode, step, action]} in episode {episode}, step {step}: repeat "
            "the last action after the end of an episode"
        )
    for signal, name in enumerate(plant.spec.observation.names):
        unseen = np.flatnonzero(~np.isfinite(observations[:, 0, signal]))
        if unseen.size and signal not in started:
            raise ValueError(
                f"{name} is not measured at the start of episode {unseen[0]}: add a prior to `starts`, or leave the "
                "episode out"
            )


def describe(plant: Plant, unknowns: Sequence[Unknown], posterior: Posterior) -> str:
    """Describe each constant in a line: estimate, interval, prior, and whether the logs identify it."""
    before = np.asarray(constants(posterior.prior, unknowns, jnp.zeros(len(unknowns))))
    share = np.sqrt(np.diagonal(np.asarray(posterior.covariance)))
    lines = []
    for i, unknown in enumerate(unknowns):
        word = "" if bool(posterior.identified[i]) else "; not identified"
        lines.append(
            f"{plant.spec.name} {unknown}: {float(posterior.estimate[i]):.5g} "
            f"[{float(posterior.low[i]):.5g}, {float(posterior.high[i]):.5g}], prior {before[i]:.5g}, "
            f"posterior {share[i]:.2f} of the prior{word}"
        )
    return "\n".join(lines)
