"""Estimate every member's value on held-out episodes, select one by those, and say what it gains by others."""

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
from tasks.data.store.histories import past_of, past_of_composite
from tasks.evaluation.cluster import cluster
from tasks.evaluation.estimators import Episodes, episodes_of, estimates_by_workers, fit_estimators
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.references import Champion, Dataset, Evaluation, Interval, Member, MemberEvaluation, Population
from tasks.stages import cached

if TYPE_CHECKING:
    from tasks.progress import Report

Ask = Callable[[Episodes, Sequence[Policy]], tuple[Estimate, list[Estimate]]]
"""Estimators are fitted to episodes, and tell the worth of the logged controller and of policies."""
NOTHING = Interval(value=np.nan, lower=np.nan, upper=np.nan)
"""In place of an estimate that the logs do not support."""


@cached()
def evaluate(
    home: Home,
    run: OpenedRun,
    dataset: Dataset,
    population: Population,
    champion: Champion,
    progress: Report | None = None,
) -> Evaluation:
    """Estimate the values of all members, select one, and estimate what it gains over the logged controller.

    The best of several estimates is too good by its own error, so that a member is selected by every second held-out
    episode, and what is claimed against the logged controller and the champion comes from the others alone, by
    estimators that were fitted to those alone. `chosen` says which. All see the run's history, the champion's policy
    its own.

    Args:
        home: unused; every stage takes it.
        run: its plant, seed, evaluation, history and share of held-out episodes.
        dataset: whose held-out episodes the estimates are of.
        population: the members to compare.
        champion: what the selected member is compared with; the plant's own controller has no policy to estimate.
        progress: told of gradient steps made, or on a Dask cluster of estimates that have come.

    Returns:
        The estimates of each member, and the differences of the selected one.

    Raises:
        BadInput, Refused, ServiceMissing: as `cluster` and `in_order`, where the settings name a Dask cluster.
    """
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    select, claim = halves(read_logs(store, store.split(run.data.held_out)[1]))
    past, confidence = past_of(run, store), run.evaluate.confidence
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
        its_past = past if incumbent is None else past_of_composite(plant_of(run).controlled, incumbent)
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
    """How estimates are come by: from the workers of a Dask cluster where the settings name one, else in this process.

    Args:
        later: what is asked for in the end; its estimators are compiled and fitted here beside those of the others.
        progress: told of what was done.
    """
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
    """Position of the member to take: a supported one that gains, then a supported one, then that nearest to the logs.

    Members whose gain on the logged controller has a lower bound above 0 have passed for safe, and of those the one of
    the highest value is taken (Thomas, Theocharous & Ghavamzadeh 2015, High confidence policy improvement). Ranked by
    their lower bounds, whoever moves least would win, for an interval reaches over the worst that steps outside the
    logs may pay. Where none has passed, the one whose gain has the highest lower bound is taken: errors that its
    estimate shares with the logged controller's cancel in that, which they do not in a bound of its value. The claim
    is made by other episodes, so that the best of many being too good does no harm to it.
    """

    return max(range(len(members)), key=lambda at: _rank(members[at]))


def _rank(member: MemberEvaluation) -> tuple[bool, bool, float]:
    finite = member.reason != "no finite estimate"
    return rank(member.supported, member.gain.lower, member.ope.value, member.outside if finite else np.nan)


def rank(supported: bool, gain: float, value: float, outside: float) -> tuple[bool, bool, float]:
    """What `chosen` takes the highest of.

    Args:
        supported: whether the logs support the member's estimate.
        gain: lower bound of its gain on the logged controller; NaN counts as the least.
        value: its estimated value.
        outside: share of its steps outside the logs; of one whose estimate is not finite NaN, which comes last.
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
