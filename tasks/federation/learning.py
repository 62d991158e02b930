"""Build a federation's learner and rules from its terms; coordinator and sites get identical results."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import jax

from configs.errors import BadInput
from configs.federation import Aggregation, Terms
from neorl_core.algorithms import check_actions
from neorl_core.federated.aggregate import Aggregate, krum, median, trimmed_mean, weighted_mean
from neorl_core.federated.fedora import fedora
from neorl_core.federated.methods import FEDAVG, SCAFFOLD, Method, fedprox
from neorl_core.federated.privacy import Privacy
from neorl_core.federated.rounds import Rule, check
from neorl_core.fit import get_algorithm
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
from neorl_core.types import PlantSpec


class Learning(NamedTuple):
    """Initial learner of a federation, and the rule by which each round trains and aggregates."""

    algorithm: Algorithm
    config: Any
    train: TrainState
    """Initial weights, key and step, equal at all sites."""
    rule: Rule
    warm_up: int
    """Number of rounds that use `Algorithm.warm_up`."""

    def rule_for(self, number: int) -> Rule:
        """Return the rule of a round; rounds count from 1."""
        return self.rule._replace(algorithm=phase(self.algorithm, number <= self.warm_up))


def make_learning(terms: Terms, spec: PlantSpec, aggregate: Aggregation | None = None) -> Learning:
    """Build the learner and the rule for a plant.

    Args:
        aggregate: aggregation at the coordinator; unused at a site.

    Raises:
        BadInput: if an algorithm, hyper-parameter or combination is invalid.
    """
    try:
        algorithm = get_algorithm(terms.algorithm)
        check_actions(algorithm, spec)
        config = configure(algorithm, terms.hyperparameters, terms.rounds * terms.updates)
        train = member(init_population(algorithm, spec, config, members([terms.seed], {})), 0)
        private = Privacy(terms.privacy.clip, terms.privacy.noise) if terms.privacy else None
        rule = Rule(
            algorithm,
            make_method(terms),
            make_aggregate(aggregate or Aggregation()),
            terms.updates,
            terms.batch_size,
            privacy=private,
            secure=terms.secure_bound if terms.secure_sums else None,
        )
        check(rule)
    except ValueError as error:
        raise BadInput(str(error)) from error
    warm_up = -(-warm_up_updates(algorithm, config) // terms.updates)
    if warm_up >= terms.rounds:
        raise BadInput(
            f"rounds must exceed the {warm_up} warm-up rounds of {algorithm.name}, got {terms.rounds}: raise rounds"
        )
    return Learning(algorithm, config, train, rule, warm_up)


def make_method(terms: Terms) -> Method:
    if terms.method == "fedprox":
        return fedprox(terms.pull)
    if terms.method == "fedora":
        return fedora(terms.pull)
    return SCAFFOLD if terms.method == "scaffold" else FEDAVG


def make_aggregate(asked: Aggregation) -> Aggregate:
    if asked.kind == "trimmed_mean":
        return trimmed_mean(asked.trimmed)
    if asked.kind == "krum":
        return krum(asked.hostile)
    return median if asked.kind == "median" else weighted_mean


def site_key(train: TrainState, site: str) -> Any:
    """Derive a site's random key from the federation's key and the site's name."""
    number = int.from_bytes(hashlib.sha256(site.encode()).digest()[:4])
    key = jax.random.wrap_key_data(train.key, impl="threefry2x32")
    return jax.random.key_data(jax.random.fold_in(key, number))
