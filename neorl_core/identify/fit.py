"""Identification in one call: a plant, what is unknown of it, and its logs."""

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
"""Steps of a forecast, by default."""


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
    """Estimate constants of a plant from logged episodes: `estimate` with names instead of numbers, and checks.

    Choose segments about as long as the constants take to show in the measurements: one step is mostly measurement
    noise, a whole episode mostly disturbances.

    Args:
        plant: its `predict` and nominal constants.
        unknowns: constants by name, each with its prior.
        episodes: E of them, in physical units, NaN where not measured.
        segment: steps of a forecast before it begins anew from what was measured.
        starts: signal -> (prior mean, prior deviation) of its value at the start of each episode, where that was not
            measured or only with noise that matters; None for the mean stands for what was measured.
        inputs: signals that act on the plant from outside (weather): taken as measured at every step.
        confidence: of the intervals.

    Raises:
        ValueError: on names that are none, priors that `prior_of` refuses, shapes that do not fit, actions that are not
            finite, a confidence outside of 0 to 1, or an episode that starts with a signal neither measured nor among
            `starts`.

    Example:
        >>> unknowns = (Unknown("reaction_rate", 0.03), Unknown("cooling_rate", 0.03))
        >>> posterior = identify(PLANT, unknowns, episodes)  # doctest: +SKIP
        >>> posterior.estimate, posterior.low, posterior.high, posterior.identified  # doctest: +SKIP
    """
    names = plant.spec.observation.names
    starts = starts or {}
    for name in (*starts, *inputs):
        if name not in names:
            raise ValueError(f"expected a signal among {', '.join(names)}, got '{name}': correct the name.")
    for name, (centre, spread) in starts.items():
        if not 0 <= spread < math.inf or not math.isfinite(centre or 0.0):
            raise ValueError(
                f"expected a finite start of {name} and a spread from 0, got {centre} and {spread}: correct them."
            )
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence between 0 and 1, got {confidence}: 0.95 is 95 %.")
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
            f"expected observations (E, T + 1, {wanted[0][2]}) and actions (E, T, {wanted[1][2]}), got "
            f"{observations.shape} and {actions.shape}: stack whole episodes, the shorter ones filled up with NaN."
        )
    if segment < 1:
        raise ValueError(f"expected segments of at least one step, got {segment}: the default is {SEGMENT}.")
    if not np.isfinite(actions).all():
        raise ValueError("expected finite actions, got NaN or infinity: after an episode's end repeat its last action.")
    for signal, name in enumerate(plant.spec.observation.names):
        unseen = np.flatnonzero(~np.isfinite(observations[:, 0, signal]))
        if unseen.size and signal not in started:
            raise ValueError(
                f"expected {name} to be measured where an episode starts, got none in episode {unseen[0]}: give its "
                "prior in `starts`, or leave the episode out."
            )


def described(plant: Plant, unknowns: Sequence[Unknown], posterior: Posterior) -> str:
    """A line for each constant: its estimate with its interval, the prior, and whether the logs identify it."""
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
