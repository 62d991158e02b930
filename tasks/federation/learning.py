"""What a federation trains, as coordinator and sites make it alike from the same terms."""

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
    """The learner that all begin with, and how a round goes."""

    algorithm: Algorithm
    config: Any
    train: TrainState
    """Weights, key and step that all begin with."""
    rule: Rule
    warm_up: int
    """Rounds in which `Algorithm.warm_up` is the update."""

    def rule_of(self, number: int) -> Rule:
        """The rule of a round, counted from 1."""
        return self.rule._replace(algorithm=phase(self.algorithm, number <= self.warm_up))


def learning_of(terms: Terms, spec: PlantSpec, aggregate: Aggregation | None = None) -> Learning:
    """What these terms train on this plant.

    Args:
        terms: of the federation.
        spec: of the plant.
        aggregate: at the coordinator; a site does without.

    Raises:
        BadInput: on an algorithm, a hyper-parameter or parts that do not go together.
    """
    try:
        algorithm = get_algorithm(terms.algorithm)
        check_actions(algorithm, spec)
        config = configure(algorithm, terms.hyperparameters, terms.rounds * terms.updates)
        train = member(init_population(algorithm, spec, config, members([terms.seed], {})), 0)
        private = Privacy(terms.privacy.clip, terms.privacy.noise) if terms.privacy else None
        rule = Rule(
            algorithm,
            method_of(terms),
            aggregate_of(aggregate or Aggregation()),
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
            f"expected more rounds than the {warm_up} of the warm-up of {algorithm.name}, got {terms.rounds}."
        )
    return Learning(algorithm, config, train, rule, warm_up)


def method_of(terms: Terms) -> Method:
    """The method that is named, with its constant."""
    if terms.method == "fedprox":
        return fedprox(terms.pull)
    if terms.method == "fedora":
        return fedora(terms.pull)
    return SCAFFOLD if terms.method == "scaffold" else FEDAVG


def aggregate_of(asked: Aggregation) -> Aggregate:
    """The aggregate that is named, with its constant."""
    if asked.kind == "trimmed_mean":
        return trimmed_mean(asked.trimmed)
    if asked.kind == "krum":
        return krum(asked.hostile)
    return median if asked.kind == "median" else weighted_mean


def site_key(train: TrainState, site: str) -> Any:
    """A site's own key, made of the federation's and its name."""
    number = int.from_bytes(hashlib.sha256(site.encode()).digest()[:4])
    key = jax.random.wrap_key_data(train.key, impl="threefry2x32")
    return jax.random.key_data(jax.random.fold_in(key, number))
