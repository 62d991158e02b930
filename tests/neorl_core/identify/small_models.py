"""Models of a few lines with plants to `identify`, and a posterior by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from neorl_core.identify import Posterior, Unknown
from neorl_core.identify.forecast import Noise
from neorl_core.identify.unknowns import constants, prior_of
from neorl_core.plants import PLANTS
from neorl_core.types import Constraint, Plant, Space


class Gains(NamedTuple):
    first: float | jax.Array = 1.0
    second: float | jax.Array = 2.0


class Rates(NamedTuple):
    decay: float | jax.Array = 0.2
    gain: tuple[float, float] | jax.Array = (0.5, 0.3)


def linear(y: jax.Array, u: jax.Array, p: Gains) -> tuple[jax.Array, jax.Array]:
    """y' = first u1 + second u2, without memory."""
    return (p.first * u[0] + p.second * u[1])[None], 5.0 - jnp.abs(u[1])[None]


def chain(y: jax.Array, u: jax.Array, p: Rates) -> tuple[jax.Array, jax.Array]:
    """A hidden tank that fills a measured one: h' = (1 − decay) h + gain1 u, y' = y + gain2 √(1 + h²) − decay y."""
    gain = jnp.asarray(p.gain)
    hidden = (1 - p.decay) * y[0] + gain[0] * u[0]
    seen = (1 - p.decay) * y[1] + gain[1] * jnp.sqrt(1.0 + y[0] ** 2)
    return jnp.stack([hidden, seen]), jnp.ones(1)


def plant_of(predict: Any, params: Any, observations: int, actions: int) -> Plant:
    """A plant with a given deterministic model; all other fields are the double mass's."""

    def space(letter: str, size: int) -> Space:
        return Space(tuple(f"{letter}{i}" for i in range(size)), ("1",) * size, (-10.0,) * size, (10.0,) * size)

    spec = PLANTS["double_mass"].spec._replace(
        name="small",
        observation=space("y", observations),
        action=space("u", actions),
        constraints=(Constraint("y", "1", -5.0, 5.0),),
    )
    return PLANTS["double_mass"]._replace(
        spec=spec, params=params, predict=predict, applied=lambda observation: jnp.zeros(actions)
    )


LINEAR = plant_of(linear, Gains(), 1, 2)
CHAIN = plant_of(chain, Rates(), 2, 1)

REACTOR = PLANTS["chemical_reactor"]
UNKNOWNS = (Unknown("reaction_rate", 0.03), Unknown("cooling_rate", 0.1, "normal"))


def posterior_of(
    mean: list[float], covariance: list[list[float]], unknowns: tuple[Unknown, ...] = UNKNOWNS
) -> Posterior:
    """A posterior in the format of `estimate`, with 12 degrees of freedom and without logs."""
    prior, x = prior_of(REACTOR.params, unknowns), jnp.asarray(mean)
    none, one = jnp.zeros((1, 1, 4)), jnp.ones(4)
    return Posterior(
        estimate=constants(prior, unknowns, x),
        low=x,
        high=x,
        mean=x,
        covariance=jnp.asarray(covariance),
        prior=prior,
        identified=x < 9,
        starts=none[..., 0],
        residuals=none,
        noise=Noise(one[None], jnp.eye(4), one),
        degrees=jnp.asarray([12.0, 14.0]),
        converged=jnp.asarray(True),
    )
