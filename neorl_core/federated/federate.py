"""Federated training in one call: train one policy from the transitions of several sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from neorl_core.algorithms import check_actions
from neorl_core.federated import privacy as dp
from neorl_core.federated.aggregate import Aggregate, weighted_mean
from neorl_core.federated.methods import FEDAVG, Method, Offer, Rows, Site
from neorl_core.federated.privacy import Privacy
from neorl_core.federated.rounds import Rule, Server, fresh_server, fresh_site, make_rounds, observing, site_round
from neorl_core.fit import check_transitions, get_algorithm
from neorl_core.networks import Normaliser, Policy
from neorl_core.training.optimisers import Recipe
from neorl_core.training.parameters import Parameters, size, tuning_updates, with_parameters
from neorl_core.training.population import (
    Algorithm,
    TrainState,
    configure,
    init_population,
    member,
    members,
    phase,
    warm_up_updates,
)
from neorl_core.training.preparation import Scaling, make_scaling, merge_moments, moments, scale_rows
from neorl_core.types import PlantSpec, Transition


class Federated(NamedTuple):
    """Result of federated training."""

    algorithm: Algorithm
    config: Any
    spec: PlantSpec
    scaling: Scaling
    """Scaling of the rows of all sites together."""
    policy: Policy
    """The shared policy."""
    server: Server
    sites: Site
    """State of the sites, with a leading site axis."""
    curves: dict[str, Float[np.ndarray, "R K"]]
    """Mean of each metric per round and participant."""


def federated_scaling(sites: Sequence[Transition], spec: PlantSpec) -> Scaling:
    """Return one scaling for the rows of all sites; sites reveal only their `moments`."""
    total = reduce(merge_moments, [moments(rows) for rows in sites])
    return make_scaling(total, spec, np.asarray(sites[0].observation).dtype)


def stacked_rows(scaling: Scaling | Sequence[Scaling], sites: Sequence[Transition]) -> Rows:
    """Return the scaled transitions of all sites, padded to one length, with a leading site axis.

    Args:
        scaling: federated scaling, or one scaling per site.
        sites: transitions (N_i, ...) of each site in physical units.

    Raises:
        ValueError: if a site has no transitions.
    """
    counts = [len(np.asarray(rows.reward)) for rows in sites]
    if not sites or min(counts) < 1:
        raise ValueError(f"every site needs transitions, got {counts} rows per site: leave out empty sites")
    most = max(counts)

    def padded(x: Any) -> Any:
        return jnp.pad(x, [(0, most - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    scalings = [scaling] * len(sites) if isinstance(scaling, Scaling) else scaling
    each = [jax.tree.map(padded, scale_rows(own, rows)) for own, rows in zip(scalings, sites, strict=True)]
    return Rows(jax.tree.map(lambda *x: jnp.stack(x), *each), jnp.asarray(counts, jnp.int32))


def fresh_sites(train: TrainState, method: Method, count: int) -> Site:
    """Return `count` sites with the same learner and different PRNG keys, derived from the key of `train`."""
    key = jax.random.wrap_key_data(train.key, impl="threefry2x32")
    keys = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i)))(jnp.arange(count))
    one = fresh_site(train, method)
    states: Site = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), one)
    return states._replace(train=states.train._replace(key=keys))


def federate(
    sites: Sequence[Transition],
    spec: PlantSpec,
    algorithm: str | Algorithm = "td3_bc",
    method: Method = FEDAVG,
    *,
    rounds: int = 100,
    updates: int = 20,
    aggregate: Aggregate = weighted_mean,
    participants: int | None = None,
    privacy: Privacy | None = None,
    insist: bool = False,
    secure: float | None = None,
    server_recipe: Recipe | None = None,
    server_lr: float = 1.0,
    overrides: Mapping[str, Any] | None = None,
    batch_size: int = 256,
    seed: int = 0,
) -> Federated:
    """Train one policy from the rows of several sites, which stay at the sites.

    Args:
        sites: transitions (N_i, ...) of each site in physical units.
        algorithm: a name in `ALGORITHMS` or your own `Algorithm`.
        method: `FEDAVG`, `fedprox(...)`, `SCAFFOLD` or `fedora(...)`.
        rounds: number of rounds, including the warm-up.
        updates: gradient steps per site and round.
        participants: number of sites drawn at random in each round; all sites by default. A site that took no part in
            the warm-up observes its rows for one round afterwards, without changing weights.
        privacy: clip norm and noise for site-level privacy.
        insist: accept noise that is larger than the clip norm.
        secure: largest absolute value of a site's numbers under secure aggregation, which shows the server only sums
            over sites; None switches secure aggregation off.
        server_recipe: optimiser of the server; None adds the aggregate to the weights.
        server_lr: factor of the aggregate, or learning rate of the server's optimiser.

    Raises:
        ValueError: if two arguments cannot be combined, and in the cases of `fit`.

    Example:
        >>> result = federate([one, other], spec, method=SCAFFOLD)  # doctest: +SKIP
        >>> action = policy_act(result.policy, observation)  # doctest: +SKIP
    """
    learner = get_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    check_actions(learner, spec)
    _check_sites(sites, spec)
    scaling = federated_scaling(sites, spec)
    rows = stacked_rows(scaling, sites)
    config = configure(learner, overrides or {}, rounds * updates)
    train = member(init_population(learner, spec, config, members([seed], {})), 0)
    server = fresh_server(train.learner, method, server_recipe)
    if privacy:
        numbers = size(server.parameters) + size(server.control)
        dp.check(privacy, numbers, participants or len(sites), insist)
    rule = Rule(learner, method, aggregate, updates, batch_size, server_lr, privacy, secure)
    states, curves = fresh_sites(train, method, len(sites)), []
    warm = -(-warm_up_updates(learner, config) // updates)
    if warm >= rounds:
        raise ValueError(
            f"rounds must exceed the {warm} warm-up rounds of {learner.name}, got {rounds}: increase rounds"
        )
    for warming, length in [(True, warm), (False, rounds - warm)]:
        if length:
            if warm and not warming:
                states = _seen_by_all(rule, server.parameters, states, rows)
            run = make_rounds(rule._replace(algorithm=phase(learner, warming)), length, len(sites), participants)
            server, states, metrics = run(server, states, rows, key_of_rounds(seed, warming))
            curves.append(metrics)
    curves_by_name = {name: np.concatenate([np.asarray(part[name]) for part in curves]) for name in curves[0]}
    policy = Policy(learner.actor(with_parameters(train.learner, server.parameters)), scaling.normaliser)
    return Federated(learner, config, spec, scaling, policy, server, states, curves_by_name)


def key_of_rounds(seed: int, warming: bool) -> PRNGKeyArray:
    """Return the PRNG key that draws participants, noise and masks; it differs from all keys of learners and sites."""
    # `init_population` splits the same key, and `split(key)[i]` is `fold_in(key, i)`: 0 and 1 are taken.
    return jax.random.fold_in(jax.random.key(seed), 2 if warming else 3)


def fine_tune(
    result: Federated, sites: Sequence[Transition], updates: int, *, batch_size: int = 256, seed: int = 0
) -> list[Policy]:
    """Fine-tune the shared weights on the rows of each site alone.

    A site with few rows takes fewer steps (`tuning_updates`). A learner with a model first observes the rows for the
    same number of steps, because no site sends their range.

    Args:
        sites: transitions (N_i, ...) of each site in physical units; a site need not be part of the federation.
        updates: largest number of gradient steps per site, a multiple of the algorithm's `batches_per_update`.

    Raises:
        ValueError: if transitions do not fit the spec.
    """
    _check_sites(sites, result.spec)
    batches = result.algorithm.batches_per_update
    steps = np.asarray([tuning_updates(updates, len(site.reward), batch_size, batches) for site in sites])
    rows = stacked_rows(result.scaling, sites)
    train = member(init_population(result.algorithm, result.spec, result.config, members([seed], {})), 0)
    states = fresh_sites(train, FEDAVG, len(sites))
    if result.algorithm.warm_up:
        observe = observing(Rule(result.algorithm, updates=int(steps.max()), batch_size=batch_size))
        states = make_apart(observe)(result.server.parameters, states, rows)
    policies: dict[int, Policy] = {}
    for count in np.unique(steps):
        indices = np.flatnonzero(steps == count)
        run = make_apart(Rule(result.algorithm, updates=int(count), batch_size=batch_size))
        some_sites, some_rows = jax.tree.map(itemgetter(indices), (states, rows))
        learners = run(result.server.parameters, some_sites, some_rows).train.learner
        normalisers = [result.scaling.normaliser] * len(indices)
        policies |= dict(zip(indices.tolist(), policies_of(result.algorithm, learners, normalisers), strict=True))
    return [policies[i] for i in range(len(sites))]


def _seen_by_all(rule: Rule, parameters: Parameters, states: Site, rows: Rows) -> Site:
    """Let the sites that the warm-up never selected observe their rows."""
    missed = np.flatnonzero(np.asarray(states.train.step) == 0)
    if not missed.size:
        return states
    some, their_rows = jax.tree.map(itemgetter(missed), (states, rows))
    observed = make_apart(observing(rule))(parameters, some, their_rows)
    updated: Site = jax.tree.map(lambda x, new: x.at[missed].set(new), states, observed)
    return updated


def _check_sites(sites: Sequence[Transition], spec: PlantSpec) -> None:
    if not sites:
        raise ValueError("federate needs at least one site, got 0: pass the transitions of each site")
    for rows in sites:
        check_transitions(rows, spec)


@lru_cache(maxsize=16)
def make_apart(rule: Rule) -> Callable[[Parameters, Site, Rows], Site]:
    """Compile one round in which every site trains alone and sends nothing.

    Returns:
        `(initial weights, sites, rows) -> sites`, with a leading site axis on sites and rows.
    """

    def run(parameters: Parameters, sites: Site, rows: Rows) -> Site:
        sites, _, _ = jax.vmap(partial(site_round, rule, Offer(parameters, {})))(sites, rows)
        return sites

    return jax.jit(run)


def policies_of(algorithm: Algorithm, learners: Any, normalisers: Sequence[Normaliser]) -> list[Policy]:
    """Return the policy of each site from states with a leading site axis."""
    return [
        Policy(algorithm.actor(jax.tree.map(lambda x, i=i: x[i], learners)), own) for i, own in enumerate(normalisers)
    ]
