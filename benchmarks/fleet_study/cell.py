"""A cell of the study: one way to learn from so many episodes a site, and what its policies come to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fleet_study.fleet import LEARNING, PLANT, UNSEEN, logs, reactors, scores
from neorl_core.algorithms import ALGORITHMS
from neorl_core.federated.federate import (
    Federated,
    federate,
    fine_tune,
    fresh_sites,
    make_apart,
    policies_of,
    stacked_rows,
)
from neorl_core.federated.fedora import fedora
from neorl_core.federated.methods import FEDAVG, SCAFFOLD, Method, fedprox
from neorl_core.federated.rounds import Rule
from neorl_core.networks import Policy
from neorl_core.training.parameters import parameters_of
from neorl_core.training.population import configure, init_population, member, members
from neorl_core.training.preparation import moments, scaling
from neorl_core.types import Transition


class Size(NamedTuple):
    """How large a cell is."""

    sites: int = 20
    rounds: int = 100
    updates: int = 40
    """Gradient steps of a site in a round; whoever learns without rounds makes as many in all."""
    tuning: int = 1_000
    """Gradient steps of fine-tuning."""
    episodes: int = 32
    """Played on each site for its score."""


FULL = Size()
SMALL = Size(sites=3, rounds=2, updates=10, tuning=10, episodes=4)
"""A cell of the tests."""
ALGORITHM = "td3_bc"
SETTINGS = {"actor_lr": 1e-3, "critic_lr": 1e-3, "discount": 0.95}
"""A set point is held for 20 steps, and the reactor settles in about ten."""
METHODS: dict[str, Method] = {
    "fedavg": FEDAVG,
    "fedprox": fedprox(0.01),
    "scaffold": SCAFFOLD,
    "fedora": fedora(),
}


class Fleet(NamedTuple):
    """What a way to learn may look at."""

    learning: list[Transition]
    """Rows of each site that learns."""
    unseen: list[Transition]
    """Rows of as many new sites, for fine-tuning on them alone."""
    size: Size
    seed: int


class Learned(NamedTuple):
    """A policy for each site."""

    learning: list[Policy]
    unseen: list[Policy]


def pooled(fleet: Fleet) -> Learned:
    """One policy of all rows in one place: a federation of one site."""
    one = _pooled(fleet).policy
    return _same(fleet, one)


def tuned(fleet: Fleet) -> Learned:
    """The pooled policy, trained further at every site on its own rows, at new sites, too."""
    found = _pooled(fleet)
    return Learned(*(fine_tune(found, each, fleet.size.tuning, seed=fleet.seed) for each in fleet[:2]))


def local(fleet: Fleet) -> Learned:
    """Every site by itself, scales included; a new site takes the policy of another one."""
    algorithm, size = ALGORITHMS[ALGORITHM], fleet.size
    train = member(
        init_population(algorithm, PLANT.spec, configure(algorithm, SETTINGS), members([fleet.seed], {})),
        0,
    )
    scales = [scaling(moments(rows), PLANT.spec) for rows in fleet.learning]
    rows = stacked_rows(scales, fleet.learning)
    run = make_apart(Rule(algorithm, updates=size.rounds * size.updates))
    learners = run(parameters_of(train.learner), fresh_sites(train, FEDAVG, size.sites), rows).train.learner
    policies = policies_of(algorithm, learners, [scale.normaliser for scale in scales])
    return Learned(policies, policies)


def federated(method: Method) -> Callable[[Fleet], Learned]:
    """One policy of all sites, whose rows stay where they are."""

    def learn(fleet: Fleet) -> Learned:
        return _same(fleet, _federated(fleet.learning, method, fleet).policy)

    return learn


WAYS: dict[str, Callable[[Fleet], Learned]] = {
    "local": local,
    "pooled": pooled,
    "fine-tuned": tuned,
    **{name: federated(method) for name, method in METHODS.items()},
}


def cell(way: str, episodes: int, size: Size = FULL, seed: int = 0) -> dict[str, Any]:
    """One cell.

    Args:
        way: one of `WAYS`.
        episodes: logged at each site.
        size: of the cell.
        seed: of logs and training.
    """
    began = time.perf_counter(), time.process_time()
    constants = [reactors(size.sites, fleet) for fleet in (LEARNING, UNSEEN)]
    rows = [logs(of_fleet, episodes, seed + 10 * fleet) for fleet, of_fleet in enumerate(constants)]
    learned = WAYS[way](Fleet(*rows, size, seed))
    found: dict[str, Any] = {"way": way, "episodes": episodes, "seed": seed, "rows": sum(map(_count, rows[0]))}
    for name, policies, of_fleet in zip(Learned._fields, learned, constants, strict=True):
        found[name] = scores(policies, of_fleet, size.episodes)._asdict()
    return found | {"seconds": time.perf_counter() - began[0], "cpu_seconds": time.process_time() - began[1]}


def _federated(sites: list[Transition], method: Method, fleet: Fleet) -> Federated:
    size = fleet.size
    return federate(
        sites,
        PLANT.spec,
        ALGORITHM,
        method,
        rounds=size.rounds,
        updates=size.updates,
        overrides=SETTINGS,
        seed=fleet.seed,
    )


def _pooled(fleet: Fleet) -> Federated:
    every: Any = [None if x[0] is None else np.concatenate(x) for x in zip(*fleet.learning, strict=True)]
    return _federated([Transition(*every)], FEDAVG, fleet)


def _same(fleet: Fleet, policy: Policy) -> Learned:
    return Learned([policy] * fleet.size.sites, [policy] * fleet.size.sites)


def _count(rows: Transition) -> int:
    return len(rows.reward)
