"""Estimate members on one half of the held-out episodes, select one, and estimate its gain on the other half."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from configs.home import Home
from configs.run import OpenedRun
from neorl_core.networks import Policy
from neorl_core.ope.agreement import Estimate, interval
from tasks.data.store import reader
from tasks.data.store.episodes import halves, read_logs
from tasks.data.store.histories import composite_history, run_history
from tasks.evaluation.cluster import cluster
from tasks.evaluation.estimators import Episodes, episodes_of, estimates_by_workers, fit_estimators
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.references import Champion, Dataset, Evaluation, Interval, Member, MemberEvaluation, Population
from tasks.stages import cached

if TYPE_CHECKING:
    from tasks.progress import Report

Ask = Callable[[Episodes, Sequence[Policy]], tuple[Estimate, list[Estimate]]]
"""Function that fits estimators to episodes and estimates the logged controller and policies."""
NOTHING = Interval(value=np.nan, lower=np.nan, upper=np.nan)
"""Value in place of an estimate that the logs do not support."""


@cached()
def evaluate(
    home: Home,
    run: OpenedRun,
    dataset: Dataset,
    population: Population,
    champion: Champion,
    progress: Report | None = None,
) -> Evaluation:
    """Estimate the values of all members, select one, and estimate the gain over the logged controller.

    The best of several estimates is biased upwards. Therefore one half of the held-out episodes selects a member by
    `chosen`. The other half estimates the gains over logged controller and champion, with newly fitted estimators.

    Args:
        champion: champion to compare with. The tuned controller is not compared, because it has no policy.

    Returns:
        Estimates of each member, and the selected member's gains over logged controller and champion.

    Raises:
        BadInput, Refused, ServiceMissing: as `cluster` and `in_order`, with a Dask cluster.
    """
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    select, claim = halves(read_logs(store, store.split(run.data.held_out)[1]))
    past, confidence = run_history(run, store), run.evaluate.confidence
    composites = [load_bundle(m.bundle.folder, m.bundle.digest, run.source)[1] for m in population.members]
    found = [composite.policy for composite in composites if composite.policy is not None]
    to_choose, to_claim = (episodes_of(run, half, past, found[0].normaliser) for half in (select, claim))
    kept = champion.bundle
    incumbent = None if kept is None else load_bundle(kept.folder, kept.digest, run.source)[1]
    theirs = None if incumbent is None else incumbent.policy
    with _asking(to_claim, progress) as ask:
        logged, values = ask(to_choose, found)
        members = tuple(
            _member(member, estimate, logged, confidence)
            for member, estimate in zip(population.members, values, strict=True)
        )
        selected = chosen(members)
        its_past = past if incumbent is None else composite_history(plant_of(run).controlled, incumbent)
        alike = its_past.history == past.history
        behaviour, (best, *others) = ask(
            to_claim, [found[selected], *([theirs] if theirs is not None and alike else [])]
        )
        gain = best.gain(behaviour, confidence)
        supported = members[selected].supported and gain.supported
        if theirs is not None and supported and not alike:
            _, others = ask(episodes_of(run, claim, its_past, theirs.normaliser), [theirs])
    champion_difference, unsupported = None, ""
    if theirs is not None:
        unsupported = (members[selected].reason or gain.reason) if not supported else others[0].reason
        champion_difference = NOTHING if unsupported else _interval(best.less(others[0]), confidence)
    return Evaluation(
        selected=selected,
        members=members,
        behaviour=_interval(behaviour, confidence),
        difference=_interval(gain, confidence) if supported else NOTHING,
        supported=supported,
        reason=members[selected].reason or gain.reason,
        champion_difference=champion_difference,
        champion_unsupported=unsupported,
        discount=run.evaluate.discount,
        horizon=to_claim.horizon,
        episodes=len(claim.starts),
    )


@contextmanager
def _asking(later: Episodes, progress: Report | None) -> Iterator[Ask]:
    """Provide the function that estimates policies, on the Dask cluster if it is configured, or in this process."""
    with cluster() as client:
        if client is not None:
            yield lambda episodes, policies: estimates_by_workers(client, episodes, policies, progress)
            return
        with ThreadPoolExecutor(1) as beside:
            awaited = beside.submit(fit_estimators, later)

            def here(episodes: Episodes, policies: Sequence[Policy]) -> tuple[Estimate, list[Estimate]]:
                fitted = awaited.result() if episodes is later else fit_estimators(episodes, progress)
                return fitted.logged(), [fitted.of(policy) for policy in policies]

            yield here


def _member(member: Member, estimate: Estimate, logged: Estimate, confidence: float) -> MemberEvaluation:
    gain = estimate.gain(logged, confidence)
    known = gain.supported
    return MemberEvaluation(
        index=member.index,
        ope=_interval(estimate, confidence) if known else NOTHING,
        cost_ope=_cost(estimate, confidence) if known else NOTHING,
        gain=_interval(gain, confidence) if known else NOTHING,
        supported=known,
        reason=gain.reason,
        outside=estimate.outside,
        disagreement=estimate.disagreement,
        effective_rows=estimate.effective_rows,
    )


def chosen(members: Sequence[MemberEvaluation]) -> int:
    """Return the index of the selected member.

    Among members whose gain over the logged controller has a lower bound above 0, the highest value wins (Thomas,
    Theocharous & Ghavamzadeh 2015, High confidence policy improvement). A ranking by lower bounds would favour the
    member that moves least, because intervals include the worst reward outside the logs.

    If no gain has a positive lower bound, the highest lower bound wins, because common errors cancel in the gain. If
    the logs support no estimate, the member nearest to the logs wins."""

    return max(range(len(members)), key=lambda at: _rank(members[at]))


def _rank(member: MemberEvaluation) -> tuple[bool, bool, float]:
    finite = member.reason != "no finite estimate"
    return rank(member.supported, member.gain.lower, member.ope.value, member.outside if finite else np.nan)


def rank(supported: bool, gain: float, value: float, outside: float) -> tuple[bool, bool, float]:
    """Return the sort key of a member in `chosen`; the member with the highest key is selected.

    Args:
        gain: lower bound of the gain over the logged controller; NaN counts as the lowest.
        outside: share of steps outside the logs; NaN (estimate not finite) ranks last.
    """
    if supported:
        return True, gain > 0, value if gain > 0 else gain if np.isfinite(gain) else -np.inf
    return False, False, -outside if np.isfinite(outside) else -np.inf


def _interval(found: Estimate, confidence: float) -> Interval:
    lower, upper = found.bounds(confidence)
    return Interval(value=found.value, lower=lower, upper=upper)


def _cost(found: Estimate, confidence: float) -> Interval:
    lower, upper = interval(found.cost_draws, confidence)
    return Interval(value=found.cost, lower=lower, upper=upper)
