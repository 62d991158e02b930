"""Gossip: sites mix weights with their neighbours in a graph, without a server."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from neorl_core.federated.methods import Offer, Rows, Site
from neorl_core.federated.rounds import Rule, check, site_round
from neorl_core.training.parameters import parameters_of, with_parameters
from neorl_core.training.population import Metrics


def metropolis_weights(adjacent: Bool[Array, "S S"]) -> Float[Array, "S S"]:
    """Return the Metropolis mixing weights of linked sites with d_i and d_j links: `W_ij = 1 / (1 + max(d_i, d_j))`.

    The diagonal makes every row sum to 1. The matrix is symmetric, so mixing keeps the mean over sites. In a connected
    graph, each mixing reduces differences by the second largest |eigenvalue|. A site without links keeps its policy.

    Xiao, Boyd & Lall 2005, A scheme for robust distributed sensor fusion based on average consensus.

    Args:
        adjacent: (S, S) symmetric, whether two sites are linked; the diagonal is ignored.
    """
    links = adjacent & ~jnp.eye(adjacent.shape[0], dtype=bool)
    degree = jnp.sum(links, axis=1)
    between = jnp.where(links, 1.0 / (1.0 + jnp.maximum(degree[:, None], degree[None, :])), 0.0)
    return between + jnp.diag(1.0 - jnp.sum(between, axis=1))


def mix(stacked: Any, weights: Float[Array, "S S"]) -> Any:
    """Return `x_i <- sum_j W_ij x_j` for arrays (S, ...) of all sites."""
    return jax.tree.map(lambda x: jnp.tensordot(weights.astype(x.dtype), x, axes=1, precision="highest"), stacked)


def contraction(weights: Float[Array, "S S"]) -> Float[Array, ""]:
    """Return the worst-case factor by which one mixing shrinks differences: the second largest |eigenvalue| of W."""
    return jnp.sort(jnp.abs(jnp.linalg.eigvalsh(weights)))[-2]


@lru_cache(maxsize=16)
def make_gossip(rule: Rule) -> Callable[[Site, Rows, Float[Array, "R S S"]], tuple[Site, Metrics]]:
    """Compile rounds in which every site trains its own weights, then mixes them with the weights of its neighbours.

    Args:
        rule: settings of the federation, without control variates; the aggregate is ignored.

    Returns:
        `(sites, rows, weights (R, S, S)) -> (sites, metrics (R, S))`, with one mixing matrix per round, so the graph
        may change.

    Raises:
        ValueError: if the method needs a server, or sites are private.
    """
    check(rule)
    if rule.method.fresh_control({"": jnp.zeros(())}) or rule.privacy:
        raise ValueError(
            f"gossip has no server to average control variates or add noise, got method {rule.method.name} and "
            f"privacy {rule.privacy}: choose fedavg or fedprox without privacy"
        )

    def alone(site: Site, rows: Rows) -> tuple[Site, Metrics]:
        site, _, metrics = site_round(rule, Offer(parameters_of(site.train.learner), {}), site, rows)
        return site, metrics

    def run(sites: Site, rows: Rows, weights: Float[Array, "R S S"]) -> tuple[Site, Metrics]:
        def one(sites: Site, weights: Float[Array, "S S"]) -> tuple[Site, Metrics]:
            sites, metrics = jax.vmap(alone)(sites, rows)
            learner = with_parameters(sites.train.learner, mix(parameters_of(sites.train.learner), weights))
            return sites._replace(train=sites.train._replace(learner=learner)), metrics

        return jax.lax.scan(one, sites, weights)

    return jax.jit(run)
