"""Federated training in one call: the transitions of several sites in, one policy for all of them out."""

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
from neorl_core.federated.rounds import Rule, Server, at_site, fresh_server, fresh_site, looking, make_rounds
from neorl_core.fit import check_transitions, known_algorithm
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
from neorl_core.training.preparation import Scaling, merged, moments, scaled, scaling
from neorl_core.types import PlantSpec, Transition


class Federated(NamedTuple):
    """What federated training gave."""

    algorithm: Algorithm
    config: Any
    spec: PlantSpec
    scaling: Scaling
    """Of all sites' rows together."""
    policy: Policy
    """The shared one."""
    server: Server
    sites: Site
    """What the sites kept, with a leading axis of sites."""
    curves: dict[str, Float[np.ndarray, "R K"]]
    """Each metric's mean in each round, by the sites that took part in it."""


def federated_scaling(sites: Sequence[Transition], spec: PlantSpec) -> Scaling:
    """How all sites scale their rows: exactly as if these lay in one place, from moments alone.

    Args:
        sites: each site's transitions (N_i, ...), in physical units. Only their `moments` have to leave a site.
        spec: the plant.
    """
    known = reduce(merged, [moments(rows) for rows in sites])
    return scaling(known, spec, np.asarray(sites[0].observation).dtype)


def stacked_rows(how: Scaling | Sequence[Scaling], sites: Sequence[Transition]) -> Rows:
    """The sites' scaled transitions with a leading site axis; shorter ones are padded, which is never drawn.

    Args:
        how: the federated scaling, or one for each site where they learn apart.
        sites: each site's transitions (N_i, ...), in physical units.

    Raises:
        ValueError: when a site has none.
    """
    counts = [len(np.asarray(rows.reward)) for rows in sites]
    if not sites or min(counts) < 1:
        raise ValueError("expected at least one site, and transitions at each, got none: leave empty sites out.")
    most = max(counts)

    def padded(x: Any) -> Any:
        return jnp.pad(x, [(0, most - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    scalings = [how] * len(sites) if isinstance(how, Scaling) else how
    each = [jax.tree.map(padded, scaled(own, rows)) for own, rows in zip(scalings, sites, strict=True)]
    return Rows(jax.tree.map(lambda *x: jnp.stack(x), *each), jnp.asarray(counts, jnp.int32))


def fresh_sites(train: TrainState, method: Method, count: int) -> Site:
    """Sites that begin with one learner and draw with keys of their own.

    Args:
        train: the learner that all begin with, and the key that theirs are made of.
        method: gives the control variates.
        count: how many.
    """
    key = jax.random.wrap_key_data(train.key, impl="threefry2x32")
    keys = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i)))(jnp.arange(count))
    one = fresh_site(train, method)
    every: Site = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), one)
    return every._replace(train=every.train._replace(key=keys))


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
    """Train one policy from the rows of several sites, which stay where they are.

    Args:
        sites: each site's transitions (N_i, ...), physical units.
        spec: names and bounds of observations and actions.
        algorithm: one of `ALGORITHMS` by name, or an `Algorithm` of your own.
        method: `FEDAVG`, `fedprox(...)`, `SCAFFOLD` or `fedora(...)`.
        rounds: of exchanging weights; those of a warm-up come first and count among them.
        updates: gradient steps of a site in each round.
        aggregate: how the server makes one change of many.
        participants: sites of a round, drawn anew each time; all by default. Sites that a warm-up leaves out look at
            their rows after it, in the steps of a round, without moving a weight.
        privacy: clip norm and noise of whole sites.
        insist: whether noise that is larger than every signal is wanted all the same.
        secure: bound of a site's numbers where the server sees their sum alone.
        server_recipe: an optimiser of the server's own.
        server_lr: what the aggregate is multiplied by, or the rate of that optimiser.
        overrides: hyper-parameters that differ from the algorithm's defaults.
        batch_size: transitions per gradient step.
        seed: of everything that is drawn.

    Raises:
        ValueError: on parts that do not go together, and as `fit` does.

    Example:
        >>> learned = federate([one, other], spec, method=SCAFFOLD)  # doctest: +SKIP
        >>> action = policy_act(learned.policy, observation)  # doctest: +SKIP
    """
    learner = known_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    check_actions(learner, spec)
    _check_sites(sites, spec)
    how = federated_scaling(sites, spec)
    rows = stacked_rows(how, sites)
    config = configure(learner, overrides or {}, rounds * updates)
    train = member(init_population(learner, spec, config, members([seed], {})), 0)
    server = fresh_server(train.learner, method, server_recipe)
    if privacy:
        numbers = size(server.parameters) + size(server.control)
        dp.check(privacy, numbers, participants or len(sites), insist)
    rule = Rule(learner, method, aggregate, updates, batch_size, server_lr, privacy, secure)
    every, curves = fresh_sites(train, method, len(sites)), []
    warm = -(-warm_up_updates(learner, config) // updates)
    if warm >= rounds:
        raise ValueError(
            f"expected more rounds than the {warm} of the warm-up of {learner.name}, got {rounds}: ask for more."
        )
    for warming, length in [(True, warm), (False, rounds - warm)]:
        if length:
            if warm and not warming:
                every = _seen_by_all(rule, server.parameters, every, rows)
            run = make_rounds(rule._replace(algorithm=phase(learner, warming)), length, len(sites), participants)
            server, every, metrics = run(server, every, rows, key_of_rounds(seed, warming))
            curves.append(metrics)
    told = {name: np.concatenate([np.asarray(part[name]) for part in curves]) for name in curves[0]}
    shipped = Policy(learner.actor(with_parameters(train.learner, server.parameters)), how.normaliser)
    return Federated(learner, config, spec, how, shipped, server, every, told)


def key_of_rounds(seed: int, warming: bool) -> PRNGKeyArray:
    """What rounds draw participants, noise and masks by; apart from whatever learners and sites draw by.

    Args:
        seed: of the federation.
        warming: whether these are the rounds of the warm-up.
    """
    # `init_population` splits the same key in two, and `split(key)[i]` is `fold_in(key, i)`: with 0 and 1 the rounds'
    # keys were those of the first networks and of the sites' gradient steps.
    return jax.random.fold_in(jax.random.key(seed), 2 if warming else 3)


def fine_tuned(
    found: Federated, sites: Sequence[Transition], updates: int, *, batch_size: int = 256, seed: int = 0
) -> list[Policy]:
    """A policy for each site: the shared weights, trained further on its own rows alone, with optimisers of its own.

    A site with few rows makes fewer steps, as `tuning_updates` says, for more would forget what is shared. A learner
    with a model first looks at the rows in as many steps, so that it knows their range and support, which are not sent.

    Args:
        found: what was shared.
        sites: each site's transitions (N_i, ...), physical units; sites that took no part in it are welcome.
        updates: gradient steps of each, at most, a multiple of the algorithm's `batches_per_update`.
        batch_size: transitions per gradient step.
        seed: of what is drawn.

    Raises:
        ValueError: on transitions that do not fit.
    """
    _check_sites(sites, found.spec)
    batches = found.algorithm.batches_per_update
    steps = np.asarray([tuning_updates(updates, len(site.reward), batch_size, batches) for site in sites])
    rows = stacked_rows(found.scaling, sites)
    train = member(init_population(found.algorithm, found.spec, found.config, members([seed], {})), 0)
    every = fresh_sites(train, FEDAVG, len(sites))
    if found.algorithm.warm_up:
        look = looking(Rule(found.algorithm, updates=int(steps.max()), batch_size=batch_size))
        every = make_apart(look)(found.server.parameters, every, rows)
    policies: dict[int, Policy] = {}
    for count in np.unique(steps):
        which = np.flatnonzero(steps == count)
        run = make_apart(Rule(found.algorithm, updates=int(count), batch_size=batch_size))
        some_sites, some_rows = jax.tree.map(itemgetter(which), (every, rows))
        learners = run(found.server.parameters, some_sites, some_rows).train.learner
        normalisers = [found.scaling.normaliser] * len(which)
        policies |= dict(zip(which.tolist(), policies_of(found.algorithm, learners, normalisers), strict=True))
    return [policies[i] for i in range(len(sites))]


def _seen_by_all(rule: Rule, parameters: Parameters, every: Site, rows: Rows) -> Site:
    """The sites, of which those that no round of the warm-up drew have looked at their rows."""
    missed = np.flatnonzero(np.asarray(every.train.step) == 0)
    if not missed.size:
        return every
    some, theirs = jax.tree.map(itemgetter(missed), (every, rows))
    looked = make_apart(looking(rule))(parameters, some, theirs)
    found: Site = jax.tree.map(lambda x, new: x.at[missed].set(new), every, looked)
    return found


def _check_sites(sites: Sequence[Transition], spec: PlantSpec) -> None:
    if not sites:
        raise ValueError("expected at least one site, got none: give each site's transitions.")
    for rows in sites:
        check_transitions(rows, spec)


@lru_cache(maxsize=16)
def make_apart(rule: Rule) -> Callable[[Parameters, Site, Rows], Site]:
    """Compile the updates of one round in which every site learns by itself, and nothing is sent.

    Args:
        rule: how they learn.

    Returns:
        `(weights to begin with, sites, rows) -> sites`, all but the weights with a leading site axis.
    """

    def run(parameters: Parameters, sites: Site, rows: Rows) -> Site:
        kept, _, _ = jax.vmap(partial(at_site, rule, Offer(parameters, {})))(sites, rows)
        apart: Site = kept
        return apart

    return jax.jit(run)


def policies_of(algorithm: Algorithm, learners: Any, normalisers: Sequence[Normaliser]) -> list[Policy]:
    """What each site would ship.

    Args:
        algorithm: what was trained.
        learners: states with a leading site axis.
        normalisers: each site's.
    """
    return [
        Policy(algorithm.actor(jax.tree.map(lambda x, i=i: x[i], learners)), own) for i, own in enumerate(normalisers)
    ]
