"""Federated methods as pure functions around the updates of a site.

A method treats an update of any algorithm as a step of the shared weights, `y <- U(y)`, and corrects the result. So
every method works with every algorithm. For gradient steps `U(y) = y - eta g(y)`, the corrections equal those of the
papers if constants are multiplied by eta.
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
    """Message from the server to the sites at the start of a round."""

    parameters: Parameters
    control: Parameters
    """Mean of the sites' control variates; empty if the method has none."""


class Site(NamedTuple):
    """State that a site keeps between rounds; simulations have a leading site axis on every array."""

    train: TrainState
    control: Parameters
    """The site's own control variate."""
    influence: Float[Array, "*s"]
    """Factor of the site's own steps, initially 1."""


class Rows(NamedTuple):
    """A site's prepared transitions."""

    transitions: Transition
    """(N, ...), padded beyond `number` so that all sites have the same shapes."""
    number: Int[Array, "*s"]


class Reply(NamedTuple):
    """Message from a site to the server; nothing else leaves the site."""

    change: Parameters
    """Weights after the updates minus the weights received."""
    control: Parameters
    """New minus old control variate."""
    log_weight: Float[Array, "*s"]
    """Logarithm of the site's weight in a weighted mean."""


class Ended(NamedTuple):
    """End of a site's round, as input of a method's `close`."""

    algorithm: Algorithm
    before: object
    """Learner with the weights from the server."""
    site: Site
    """State after the updates."""
    offer: Offer
    change: Parameters
    steps: int
    """Calls of the algorithm's `update`."""
    sample: Transition
    """Random sample of the site's rows."""
    number: Int[Array, ""]


class Method(NamedTuple):
    """A federated method; variants replace one of the functions."""

    name: str
    fresh_control: Callable[[Parameters], Parameters]
    """weights -> initial control variate."""
    rows: Callable[[Algorithm, object, object, Transition], Transition]
    """(algorithm, learner, learner with the weights received, batches) -> batches to learn from."""
    step: Callable[[Parameters, Parameters, Offer, Site], Parameters]
    """(weights before an update, weights after it, offer, site) -> corrected weights."""
    close: Callable[[Ended], tuple[Site, Parameters, Float[Array, ""]]]
    """end of a round -> (site, change of the control variate, log weight)."""


def no_control(parameters: Parameters) -> Parameters:
    """Return an empty control variate."""
    return {}


def unchanged_rows(algorithm: Algorithm, learner: object, sent: object, batches: Transition) -> Transition:
    """Return the batches unchanged."""
    return batches


def unchanged_step(before: Parameters, after: Parameters, offer: Offer, site: Site) -> Parameters:
    """Return the weights after the update unchanged."""
    return after


def weighted_by_rows(ended: Ended) -> tuple[Site, Parameters, Float[Array, ""]]:
    """Weight a site by its number of rows."""
    return ended.site, {}, jnp.log(ended.number.astype(jnp.result_type(float)))


FEDAVG = Method("fedavg", no_control, unchanged_rows, unchanged_step, weighted_by_rows)
"""Local updates, then a mean over sites (McMahan et al. 2017, arXiv 1602.05629, algorithm 1)."""
OBSERVING = FEDAVG._replace(name="observing", step=lambda before, after, offer, site: offer.parameters)
"""Updates that do not change weights: a learned model records the range and support of the rows."""


@cache
def fedprox(pull: float) -> Method:
    """Build FedAvg in which every step is pulled back towards the server's weights x: `y <- U(y) - pull (y - x)`.

    Li et al. 2020 (arXiv 1812.06127), equation 2: for gradient steps of length eta, the pull equals the proximal term
    `mu/2 |y - x|^2` with `mu = pull / eta`. The optimiser does not see the pull, because Adam would divide it by the
    gradient norm (as in decoupled weight decay: Loshchilov & Hutter 2019, arXiv 1711.05101).

    Args:
        pull: share of the way back per step, in [0, 1).

    Raises:
        ValueError: if `pull` is out of range.
    """
    if not 0.0 <= pull < 1.0:
        raise ValueError(f"pull must be in [0, 1), got {pull}: it is the share of the way back per step")

    def step(before: Parameters, after: Parameters, offer: Offer, site: Site) -> Parameters:
        pulled: Parameters = jax.tree.map(lambda y0, y1, x: y1 - pull * (y0 - x), before, after, offer.parameters)
        return pulled

    return FEDAVG._replace(name="fedprox", step=step)


def _corrected(before: Parameters, after: Parameters, offer: Offer, site: Site) -> Parameters:
    corrected: Parameters = jax.tree.map(lambda y, h, h_i: y + h - h_i, after, offer.control, site.control)
    return corrected


def _controls(ended: Ended) -> tuple[Site, Parameters, Float[Array, ""]]:
    site, steps = ended.site, ended.steps
    change: Parameters = jax.tree.map(lambda total, h: total / steps - h, ended.change, ended.offer.control)
    site = site._replace(control=jax.tree.map(jnp.add, site.control, change))
    return site, change, weighted_by_rows(ended)[2]


SCAFFOLD = FEDAVG._replace(
    name="scaffold",
    fresh_control=lambda parameters: jax.tree.map(jnp.zeros_like, parameters),
    step=_corrected,
    close=_controls,
)
"""Correct steps by the drift of the site: `y <- U(y) + h - h_i`, and after K steps `h_i <- h_i - h + (y - x) / K`.

Karimireddy et al. 2020 (arXiv 1910.06378), algorithm 1 with option II. Here h_i is the site's mean step, h the mean
over sites, x the server's weights. The paper uses mean gradients; mean steps work with every optimiser.
"""
