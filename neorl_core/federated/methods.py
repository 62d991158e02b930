"""Federated methods: what each does around a site's updates, as pure functions.

A method sees an algorithm's update as a step of its shared weights, `y <- U(y)`, whatever optimisers, networks and
rates are in it, and corrects where the step ends. So every method serves every algorithm. Where U is a gradient step
`y - eta g(y)` the corrections are those of the papers, with their constants times eta.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from neorl_core.training.parameters import Parameters
from neorl_core.training.population import Algorithm, TrainState
from neorl_core.types import Transition


class Offer(NamedTuple):
    """What the server sends in a round."""

    parameters: Parameters
    control: Parameters
    """Mean of the sites' control variates; without entries where the method has none."""


class Site(NamedTuple):
    """What stays at a site between two rounds; in a simulation every array has a leading site axis."""

    train: TrainState
    control: Parameters
    """The site's own control variate."""
    influence: Float[Array, "*s"]
    """How much the site's own rows count in its updates, 1 at first."""


class Rows(NamedTuple):
    """A site's prepared transitions."""

    transitions: Transition
    """(N, ...), padded behind `number`, so that sites have the same shapes."""
    number: Int[Array, "*s"]


class Reply(NamedTuple):
    """What leaves a site: nothing else does."""

    change: Parameters
    """Weights after the site's updates less those that were sent."""
    control: Parameters
    """New control variate less the old one."""
    log_weight: Float[Array, "*s"]
    """Logarithm of what the site counts in a weighted mean."""


class Ended(NamedTuple):
    """A site's round as a method's `close` sees it."""

    algorithm: Algorithm
    before: object
    """The learner with the weights that were sent."""
    site: Site
    """After the updates."""
    offer: Offer
    change: Parameters
    steps: int
    """Calls of the algorithm's `update`."""
    sample: Transition
    """Some of the site's rows."""
    number: Int[Array, ""]


class Method(NamedTuple):
    """A federated method as pure functions; a variant has another function in one of the places."""

    name: str
    fresh_control: Callable[[Parameters], Parameters]
    """weights -> the control variate to begin with."""
    rows: Callable[[Algorithm, object, object, Transition], Transition]
    """(algorithm, learner, learner with the weights that were sent, batches) -> the batches to learn from."""
    step: Callable[[Parameters, Parameters, Offer, Site], Parameters]
    """(weights before an update, after it, offer, site) -> where the step ends."""
    close: Callable[[Ended], tuple[Site, Parameters, Float[Array, ""]]]
    """A round's end -> (site, change of its control variate, logarithm of its weight)."""


def no_control(parameters: Parameters) -> Parameters:
    """None."""
    return {}


def rows_as_they_are(algorithm: Algorithm, learner: object, sent: object, batches: Transition) -> Transition:
    """The batches themselves."""
    return batches


def step_as_it_is(before: Parameters, after: Parameters, offer: Offer, site: Site) -> Parameters:
    """Where the algorithm's own update ends."""
    return after


def weighted_by_rows(ended: Ended) -> tuple[Site, Parameters, Float[Array, ""]]:
    """A site counts by its number of rows."""
    return ended.site, {}, jnp.log(ended.number.astype(jnp.result_type(float)))


FEDAVG = Method("fedavg", no_control, rows_as_they_are, step_as_it_is, weighted_by_rows)
"""Local updates and a mean (McMahan et al. 2017, arXiv 1602.05629, algorithm 1)."""
LOOKING = FEDAVG._replace(name="looking", step=lambda before, after, offer, site: offer.parameters)
"""Updates that move no weight: what stays of them is what a learned model keeps of rows."""


@cache
def fedprox(pull: float) -> Method:
    """FedAvg whose every step is drawn back to the weights x that were sent: `y <- U(y) - pull (y - x)`.

    Li et al. 2020 (arXiv 1812.06127), equation 2: with gradient steps of length eta it is the proximal term
    `mu/2 |y - x|^2` with `mu = pull / eta`. It stands beside the optimiser, as decoupled weight decay does
    (Loshchilov & Hutter 2019, arXiv 1711.05101): Adam would divide it by the gradient's size.

    Args:
        pull: share of the way back at each step, in [0, 1).

    Raises:
        ValueError: when it lies outside.
    """
    if not 0.0 <= pull < 1.0:
        raise ValueError(f"expected a pull from 0 to below 1, got {pull}: it is the share of the way back at a step.")

    def step(before: Parameters, after: Parameters, offer: Offer, site: Site) -> Parameters:
        found: Parameters = jax.tree.map(lambda y0, y1, x: y1 - pull * (y0 - x), before, after, offer.parameters)
        return found

    return FEDAVG._replace(name="fedprox", step=step)


def _corrected(before: Parameters, after: Parameters, offer: Offer, site: Site) -> Parameters:
    found: Parameters = jax.tree.map(lambda y, h, h_i: y + h - h_i, after, offer.control, site.control)
    return found


def _controls(ended: Ended) -> tuple[Site, Parameters, Float[Array, ""]]:
    site, steps = ended.site, ended.steps
    change: Parameters = jax.tree.map(lambda moved, h: moved / steps - h, ended.change, ended.offer.control)
    site = site._replace(control=jax.tree.map(jnp.add, site.control, change))
    return site, change, weighted_by_rows(ended)[2]


SCAFFOLD = FEDAVG._replace(
    name="scaffold",
    fresh_control=lambda parameters: jax.tree.map(jnp.zeros_like, parameters),
    step=_corrected,
    close=_controls,
)
"""Steps with the site's own drift taken off: `y <- U(y) + h - h_i`, then `h_i <- h_i - h + (y - x) / K`.

Karimireddy et al. 2020 (arXiv 1910.06378), algorithm 1 with option II. A control variate here is a mean step, minus eta
times the paper's mean gradient, so that it is of every optimiser's steps.
"""
