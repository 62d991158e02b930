"""Rank the members of a population by rollouts on fresh episodes of the simulator, behind their shields."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import numpy as np

from configs.errors import Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import mean_interval, paired_difference_interval
from neorl_core.safety.composite import Composite, composite_controller, make_composite
from tasks.identify import simulator_of
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.references import KNOWN, Identification, Interval, Population, RankedMember, Ranking
from tasks.simulate import as_interval, domain_of, score
from tasks.stages import cached
from tasks.training.shielding import shield_of
from tasks.tuning import check_returns

if TYPE_CHECKING:
    from tasks.progress import Report

RANKING_SEED = 20_280_000
"""Added to the run's seed: training, gates and certification use other episodes."""


@cached()
def rank(
    home: Home,
    run: OpenedRun,
    population: Population,
    progress: Report | None = None,
    identification: Identification = KNOWN,
) -> Ranking:
    """Roll out every member behind its shield, and the tuned controller, on the same fresh episodes.

    Returns:
        Each member's score, gain over the tuned controller, and violations.
    """
    plant = simulator_of(plant_of(run), identification)
    domain, controller = domain_of(plant, run), composite_controller(plant)
    keys = jax.random.split(jax.random.key(RANKING_SEED + run.seed), run.evaluate.rollouts)
    done, total = 0, 1 + len(population.members)

    def points(composite: Composite) -> tuple[np.ndarray, int]:
        """Return the score of each episode, and the number of episodes with a violation."""
        nonlocal done
        found = jax.device_get(rollouts(plant, controller, composite, keys, domain))
        done += 1
        if progress:
            progress(done, total, "controllers")
        return np.asarray([score(plant.spec, ret) for ret in found.ret.astype(np.float64)]), int(found.violated.sum())

    tuned, tuned_violated = points(make_composite(plant, shield=shield_of(plant.spec, run.shield)))
    check_returns(plant.spec.name, tuned)
    members = []
    for member in population.members:
        ours, violated = points(load_bundle(member.bundle.folder, member.bundle.digest, run.source)[1])
        members.append(_ranked(ours, tuned, violated, run.evaluate.confidence))
    if not any(math.isfinite(member.gain.lower) for member in members):
        raise Refused(
            f"no member has a finite return in all {len(keys):,} episodes of {plant.spec.name}: correct the simulator, "
            "or narrow certify.domain"
        )
    return Ranking(members=tuple(members), tuned_violated=tuned_violated, episodes=len(keys))


def _ranked(ours: np.ndarray, tuned: np.ndarray, violated: int, confidence: float) -> RankedMember:
    """Return the rank of a member; NaN if a return is not finite, so that the member ranks last."""
    if not np.isfinite(ours).all():
        nothing = Interval(value=math.nan, lower=math.nan, upper=math.nan)
        return RankedMember(score=nothing, gain=nothing, violated=violated)
    gain = paired_difference_interval(ours, tuned, confidence)
    return RankedMember(score=as_interval(mean_interval(ours, confidence)), gain=as_interval(gain), violated=violated)
