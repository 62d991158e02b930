"""FEDORA (Rengarajan et al. 2024, arXiv 2305.03097), a federated method for offline RL: the sites form an ensemble.

Sites with better policies get more weight. If the federated critic exceeds a site's critic, the site adds the
difference to its rewards (optimism). Every step is pulled towards the federated weights. If the federated policy is at
least as good as a site's policy, the site reduces the influence of its own steps.

Three things differ from the paper, so that the method works with every learner. Optimism changes the rewards instead of
the critic target. The pull acts on weights, not actions. The influence scales the steps of all networks, including the
critics.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from neorl_core.federated.methods import FEDAVG, Ended, Method, Offer, Site, fedprox, weighted_by_rows
from neorl_core.networks import critics_apply, mlp_apply
from neorl_core.training.parameters import Parameters
from neorl_core.training.population import Algorithm
from neorl_core.types import Transition


@cache
def fedora(pull: float = 0.01, temperature: float = 0.1, decay: float = 0.995) -> Method:
    """Build the method: weights by performance, optimism, a pull to the federated weights and a decaying influence.

    For learners without a critic (behaviour cloning, BPTT), sites are weighted by rows; only the pull remains.

    Args:
        pull: share of the way back to the federated weights per step, as in `fedprox`.
        temperature: beta in the weight `n_i exp(beta J_i)` of a site with n_i rows and `worth` J_i; 0.1 in their code.
        decay: factor of a site's influence after a round in which the federated policy was at least as good; 0.995 in
            the authors' code.
    """
    pulled = fedprox(pull).step

    def rows(algorithm: Algorithm, learner: object, sent: object, batches: Transition) -> Transition:
        return optimistic(algorithm, learner, sent, batches)

    def step(before: Parameters, after: Parameters, offer: Offer, site: Site) -> Parameters:
        scaled: Parameters = jax.tree.map(lambda y0, y1: y0 + site.influence * (y1 - y0), before, after)
        return pulled(before, scaled, offer, site)

    def close(ended: Ended) -> tuple[Site, Parameters, Float[Array, ""]]:
        site, control, log_rows = weighted_by_rows(ended)
        own = worth(ended.algorithm, ended.site.train.learner, ended.sample)
        federated = worth(ended.algorithm, ended.before, ended.sample)
        if own is None or federated is None:
            return site, control, log_rows
        influence = jnp.where(federated >= own, decay * site.influence, site.influence)
        return site._replace(influence=influence), control, log_rows + temperature * own

    return FEDAVG._replace(name="fedora", rows=rows, step=step, close=close)


def worth(algorithm: Algorithm, learner: Any, rows: Transition) -> Float[Array, ""] | None:
    """Return the value of a site's policy, `J = mean_s min_c Q_c(s, pi(s))` over its rows; None without critics."""
    values = value(algorithm, learner, rows.observation)
    return None if values is None else jnp.mean(values)


def optimistic(algorithm: Algorithm, learner: Any, sent: Any, batches: Transition) -> Transition:
    """Add to the rewards the excess of the federated critic over the site's target critic at the next step s'.

    `r + gamma (1 - d) max(0, Q_fed(s', a') - Q_i'(s', a'))`, with `a' = pi_i(s')`, discount gamma and termination d.
    The TD target with Q_i' then becomes `r + gamma (1 - d) max(Q_i', Q_fed)`.

    Args:
        learner: state of the site's learner.
        sent: state of the site's learner with the federated weights in place of its own.
        batches: prepared transitions (batches, B, ...).
    """
    own = value(algorithm, learner, batches.next_observation, target=True)
    if own is None:
        return batches
    action = algorithm.act(learner, batches.next_observation)
    federated = _min_q(algorithm, _critics(algorithm, sent) or (), batches.next_observation, action)
    discount = getattr(learner, "sac", learner).hyper["discount"]
    bonus = discount * (1.0 - batches.terminated) * jax.nn.relu(federated - own)
    return batches._replace(reward=batches.reward + bonus)


def value(
    algorithm: Algorithm, learner: Any, observation: Float[Array, "*n O"], target: bool = False
) -> Float[Array, "*n"] | None:
    """Return the minimum over the learner's critics at the policy's action (...,), or None without critics.

    Args:
        observation: (..., O) normalised.
    """
    critics = _critics(algorithm, learner, target)
    return None if critics is None else _min_q(algorithm, critics, observation, algorithm.act(learner, observation))


def _critics(algorithm: Algorithm, learner: Any, target: bool = False) -> tuple[Any, ...] | None:
    if algorithm.update is algorithm.warm_up:
        # The warm-up trains a model of the actual rewards; the critics are still untrained.
        return None
    state, suffix = getattr(learner, "sac", learner), "_target" if target else ""
    if hasattr(state, "critic"):
        return (getattr(state, f"critic{suffix}"),)
    critics: tuple[Any, ...] | None = getattr(state, f"critics{suffix}", None)
    return critics


def _min_q(
    algorithm: Algorithm, critics: tuple[Any, ...], observation: Float[Array, "*n O"], action: Float[Array, "*n A"]
) -> Float[Array, "*n"]:
    if not algorithm.discrete:
        return jnp.min(critics_apply(critics, observation, action), axis=0)
    q_choices = jnp.min(jnp.stack([mlp_apply(critic, observation) for critic in critics]), axis=0)
    chosen = jnp.argmax(action, axis=-1, keepdims=True)
    return jnp.take_along_axis(q_choices, chosen, axis=-1)[..., 0]
