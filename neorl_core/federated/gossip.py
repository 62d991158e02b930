"""Gossip: sites mix weights with their neighbours in a graph, without a server."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from neorl_core.federated.methods import Offer, Rows, Site
from neorl_core.federated.rounds import Rule, at_site, check
from neorl_core.training.parameters import parameters_of, with_parameters
from neorl_core.training.population import Metrics


def metropolis_weights(adjacent: Bool[Array, "S S"]) -> Float[Array, "S S"]:
    """`W_ij = 1 / (1 + max(d_i, d_j))` for neighbours, and on the diagonal what is left to 1.

    Symmetric and of row sum 1 in every graph, so that mixing keeps the sites' mean; where the graph is connected, what
    they differ by shrinks by the second largest |eigenvalue| at each mixing. A site without a link keeps its own.

    Xiao, Boyd & Lall 2005, A scheme for robust distributed sensor fusion based on average consensus.

    Args:
        adjacent: (S, S), symmetric: which sites have a link; its diagonal does not count.
    """
    links = adjacent & ~jnp.eye(adjacent.shape[0], dtype=bool)
    degree = jnp.sum(links, axis=1)
    between = jnp.where(links, 1.0 / (1.0 + jnp.maximum(degree[:, None], degree[None, :])), 0.0)
    return between + jnp.diag(1.0 - jnp.sum(between, axis=1))


def mixed(stacked: Any, weights: Float[Array, "S S"]) -> Any:
    """`x_i <- sum_j W_ij x_j`, for every site at once.

    Args:
        stacked: arrays (S, ...).
        weights: (S, S), of row sum 1.
    """
    return jax.tree.map(lambda x: jnp.tensordot(weights.astype(x.dtype), x, axes=1, precision="highest"), stacked)


def contraction(weights: Float[Array, "S S"]) -> Float[Array, ""]:
    """By how much a mixing shrinks what sites differ by, at worst: the second largest |eigenvalue|.

    Args:
        weights: (S, S), symmetric.
    """
    return jnp.sort(jnp.abs(jnp.linalg.eigvalsh(weights)))[-2]


@lru_cache(maxsize=16)
def make_gossip(rule: Rule) -> Callable[[Site, Rows, Float[Array, "R S S"]], tuple[Site, Metrics]]:
    """Compile rounds in which every site learns from its own weights and then mixes them with its neighbours'.

    Args:
        rule: what sites do in a round; its method has no control variates, and its aggregate does not count.

    Returns:
        `(sites, rows, weights) -> (sites, metrics (R, S))`, one mixing by the weights of each of R rounds: a graph that
        changes, or loses links, has other weights in other rounds.

    Raises:
        ValueError: on a method whose control variates a server would have to average, or private sites.
    """
    check(rule)
    if rule.method.fresh_control({"": jnp.zeros(())}) or rule.privacy:
        raise ValueError(
            f"expected a method without control variates or private sites, got {rule.method.name}: gossip has no "
            "server that averages or adds noise; choose fedavg or fedprox."
        )

    def alone(site: Site, rows: Rows) -> tuple[Site, Metrics]:
        site, _, metrics = at_site(rule, Offer(parameters_of(site.train.learner), {}), site, rows)
        return site, metrics

    def run(sites: Site, rows: Rows, weights: Float[Array, "R S S"]) -> tuple[Site, Metrics]:
        def one(sites: Site, weights: Float[Array, "S S"]) -> tuple[Site, Metrics]:
            sites, metrics = jax.vmap(alone)(sites, rows)
            learner = with_parameters(sites.train.learner, mixed(parameters_of(sites.train.learner), weights))
            return sites._replace(train=sites.train._replace(learner=learner)), metrics

        return jax.lax.scan(one, sites, weights)

    return jax.jit(run)
