"""A method for offline RL after FEDORA (Rengarajan et al. 2024, arXiv 2305.03097): sites as an ensemble.

Sites whose policies are worth more count more; a site's critic may look up to the federated one; steps are drawn to the
federated weights; and a site that the federated policy beats counts its own rows less. Three things differ from the
paper, so that all learners are served by composition alone: optimism is added to rewards instead of maximising inside
of the critic's target, the same number where both look at one action; steps are drawn back in weights and not in
actions; and the influence shortens whole steps, the critic's included.
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
    """Performance-weighted sites, optimism, steps drawn back, and influence that decays.

    Learners without a critic (clones, and policies trained through a model) have no such values: their sites count by
    rows, and steps are drawn back as in `fedprox`.

    Args:
        pull: share of the way back to the federated weights at each step, as of `fedprox`.
        temperature: beta in the weights `n_i exp(beta J_i)`; the authors' code has 0.1.
        decay: what a site's influence is multiplied by after a round in which the federated policy was worth at least
            its own; the authors' code has 0.995.
    """
    drawn_back = fedprox(pull).step

    def rows(algorithm: Algorithm, learner: object, sent: object, batches: Transition) -> Transition:
        return optimistic(algorithm, learner, sent, batches)

    def step(before: Parameters, after: Parameters, offer: Offer, site: Site) -> Parameters:
        shortened: Parameters = jax.tree.map(lambda y0, y1: y0 + site.influence * (y1 - y0), before, after)
        return drawn_back(before, shortened, offer, site)

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
    """`J = E_s[min_c Q_c(s, pi(s))]` over a site's rows, by the learner's own critics; None where it has none."""
    found = value(algorithm, learner, rows.observation)
    return None if found is None else jnp.mean(found)


def optimistic(algorithm: Algorithm, learner: Any, sent: Any, batches: Transition) -> Transition:
    """Rows whose rewards hold what the federated critic sees above the site's own target critic at the next step.

    `r + gamma (1 - d) max(0, Q_fed(s', a') - Q_i'(s', a'))`, with `a' = pi_i(s')`: bootstrapped with Q_i' it is
    `r + gamma (1 - d) max(Q_i', Q_fed)`.

    Args:
        algorithm: what learns.
        learner: its state.
        sent: the state with the federated weights.
        batches: prepared transitions (batches, B, ...).
    """
    own = value(algorithm, learner, batches.next_observation, target=True)
    if own is None:
        return batches
    action = algorithm.act(learner, batches.next_observation)
    federated = _least(algorithm, _critics(algorithm, sent) or (), batches.next_observation, action)
    discount = getattr(learner, "sac", learner).hyper["discount"]
    bonus = discount * (1.0 - batches.terminated) * jax.nn.relu(federated - own)
    return batches._replace(reward=batches.reward + bonus)


def value(
    algorithm: Algorithm, learner: Any, observation: Float[Array, "*n O"], target: bool = False
) -> Float[Array, "*n"] | None:
    """Value of the policy's own action by the least of the learner's critics; None where it has none.

    Args:
        algorithm: what learns.
        learner: its state.
        observation: (..., O), normalised.
        target: whether target networks are asked in place of the critics themselves.
    """
    critics = _critics(algorithm, learner, target)
    return None if critics is None else _least(algorithm, critics, observation, algorithm.act(learner, observation))


def _critics(algorithm: Algorithm, learner: Any, target: bool = False) -> tuple[Any, ...] | None:
    if algorithm.update is algorithm.warm_up:
        # What is learned first is a model, of rewards as they are, and critics know nothing yet.
        return None
    state, suffix = getattr(learner, "sac", learner), "_target" if target else ""
    if hasattr(state, "critic"):
        return (getattr(state, f"critic{suffix}"),)
    found: tuple[Any, ...] | None = getattr(state, f"critics{suffix}", None)
    return found


def _least(
    algorithm: Algorithm, critics: tuple[Any, ...], observation: Float[Array, "*n O"], action: Float[Array, "*n A"]
) -> Float[Array, "*n"]:
    if not algorithm.discrete:
        return jnp.min(critics_apply(critics, observation, action), axis=0)
    of_choices = jnp.min(jnp.stack([mlp_apply(critic, observation) for critic in critics]), axis=0)
    chosen = jnp.argmax(action, axis=-1, keepdims=True)
    return jnp.take_along_axis(of_choices, chosen, axis=-1)[..., 0]
