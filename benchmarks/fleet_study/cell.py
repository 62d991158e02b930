"""Run one cell: a learning method on a number of episodes per site."""

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
from neorl_core.training.preparation import make_scaling, moments
from neorl_core.types import Transition


class Size(NamedTuple):
    """Size of a cell."""

    sites: int = 20
    rounds: int = 100
    updates: int = 40
    """Gradient steps of a site per round. Methods without rounds make rounds × updates steps."""
    tuning: int = 1_000
    """Gradient steps of fine-tuning."""
    episodes: int = 32
    """Episodes played on each site for the score."""


FULL = Size()
SMALL = Size(sites=3, rounds=2, updates=10, tuning=10, episodes=4)
"""Size of a cell in the tests."""
ALGORITHM = "td3_bc"
SETTINGS = {"actor_lr": 1e-3, "critic_lr": 1e-3, "discount": 0.95}
"""The discount suits set points that last 20 steps; the reactor settles in about ten."""
FEDERATED: dict[str, Method] = {
    "fedavg": FEDAVG,
    "fedprox": fedprox(0.01),
    "scaffold": SCAFFOLD,
    "fedora": fedora(),
}


class Fleet(NamedTuple):
    """Input of a learning method."""

    learning: list[Transition]
    """Rows of each training site."""
    unseen: list[Transition]
    """Rows of each new site, used for fine-tuning only."""
    size: Size
    seed: int


class Learned(NamedTuple):
    """A policy for each site."""

    learning: list[Policy]
    unseen: list[Policy]


def pooled(fleet: Fleet) -> Learned:
    """Train one policy on all rows: a federation of one site."""
    one = _pooled(fleet).policy
    return _same(fleet, one)


def tuned(fleet: Fleet) -> Learned:
    """Train the pooled policy further at every training site and new site, on the site's own rows."""
    found = _pooled(fleet)
    return Learned(*(fine_tune(found, each, fleet.size.tuning, seed=fleet.seed) for each in fleet[:2]))


def local(fleet: Fleet) -> Learned:
    """Train every site alone, with a normaliser of its own. A new site uses the policy of a training site."""
    algorithm, size = ALGORITHMS[ALGORITHM], fleet.size
    train = member(
        init_population(algorithm, PLANT.spec, configure(algorithm, SETTINGS), members([fleet.seed], {})),
        0,
    )
    scales = [make_scaling(moments(rows), PLANT.spec) for rows in fleet.learning]
    rows = stacked_rows(scales, fleet.learning)
    run = make_apart(Rule(algorithm, updates=size.rounds * size.updates))
    learners = run(parameters_of(train.learner), fresh_sites(train, FEDAVG, size.sites), rows).train.learner
    policies = policies_of(algorithm, learners, [scale.normaliser for scale in scales])
    return Learned(policies, policies)


def federated(method: Method) -> Callable[[Fleet], Learned]:
    """Return a method that trains one policy over all sites by federated rounds."""

    def learn(fleet: Fleet) -> Learned:
        return _same(fleet, _federated(fleet.learning, method, fleet).policy)

    return learn


METHODS: dict[str, Callable[[Fleet], Learned]] = {
    "local": local,
    "pooled": pooled,
    "fine-tuned": tuned,
    **{name: federated(method) for name, method in FEDERATED.items()},
}


def cell(method: str, episodes: int, size: Size = FULL, seed: int = 0) -> dict[str, Any]:
    """Run one cell.

    Args:
        method: one of `METHODS`.
        episodes: logged episodes per site.
        size: size of the cell.
        seed: seed of logs and training.
    """
    began = time.perf_counter(), time.process_time()
    constants = [reactors(size.sites, fleet) for fleet in (LEARNING, UNSEEN)]
    rows = [logs(of_fleet, episodes, seed + 10 * fleet) for fleet, of_fleet in enumerate(constants)]
    learned = METHODS[method](Fleet(*rows, size, seed))
    found: dict[str, Any] = {"way": method, "episodes": episodes, "seed": seed, "rows": sum(map(_count, rows[0]))}
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
