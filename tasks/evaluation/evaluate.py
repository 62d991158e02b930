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
from neorl_core.safety.composite import Composite
from tasks.data.store import reader
from tasks.data.store.episodes import halves, read_logs
from tasks.data.store.histories import composite_history, run_history
from tasks.evaluation.cluster import cluster
from tasks.evaluation.estimators import Episodes, episodes_of, estimates_by_workers, fit_estimators
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.references import Champion, Dataset, Evaluation, Interval, Member, MemberEvaluation, Population, Ranking
from tasks.stages import cached

if TYPE_CHECKING:
    from tasks.progress import Report

Ask = Callable[[Episodes, Sequence[Policy]], tuple[Estimate, list[Estimate]]]
"""Function that fits estimators to episodes and estimates the logged controller and policies."""
NOTHING = Interval(value=np.nan, lower=np.nan, upper=np.nan)
"""Value in place of an estimate that the logs do not support."""
CORRECTS = "the policy corrects the plant's controller, whose state is not in the logs"
NEEDLESS = "not estimated, because a member that corrects the plant's controller is better on the simulator"


@cached()
def evaluate(
    home: Home,
    run: OpenedRun,
    dataset: Dataset,
    population: Population,
    champion: Champion,
    progress: Report | None = None,
    ranking: Ranking | None = None,
) -> Evaluation:
    """Select a member, and estimate its gain over the logged controller.

    One half of the held-out episodes gives an estimate of each member. With a ranking by rollouts, the estimates are a
    veto: NeoRL selects the best member that the logs do not show to be worse than the logged controller. Without a
    ranking, `chosen` selects by the estimates. If the logs cannot estimate the best member, nothing is estimated.

    The best of several estimates is biased upwards. Therefore the other half of the held-out episodes estimates the
    gains over logged controller and champion, with newly fitted estimators.

    Args:
        champion: champion to compare with. The tuned controller is not compared, because it has no policy.
        ranking: rollouts of the members; None for a log-only plant.

    Returns:
        Estimates of each member, and the selected member's gains over logged controller and champion.

    Raises:
        BadInput, Refused, ServiceMissing: as `cluster` and `in_order`, with a Dask cluster.
    """
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    select, claim = halves(read_logs(store, store.split(run.data.held_out)[1]))
    past, confidence = run_history(run, store), run.evaluate.confidence
    composites = [load_bundle(m.bundle.folder, m.bundle.digest, run.source)[1] for m in population.members]
    policies = [_estimable(composite) for composite in composites]
    kept = champion.bundle
    incumbent = None if kept is None else load_bundle(kept.folder, kept.digest, run.source)[1]
    theirs = None if incumbent is None else _estimable(incumbent)
    trained = incumbent is not None and incumbent.policy is not None
    first = None if ranking is None else ranking.best(range(len(policies)))
    if first is not None and policies[first] is None:
        # The logs cannot tell anything about the best member, so estimates of other members would change nothing.
        return Evaluation(
            selected=first,
            members=tuple(
                _unknown(member, NEEDLESS if policy is not None else CORRECTS)
                for member, policy in zip(population.members, policies, strict=True)
            ),
            behaviour=NOTHING,
            difference=NOTHING,
            supported=False,
            reason=CORRECTS,
            champion_difference=NOTHING if trained else None,
            champion_unsupported=CORRECTS if trained else "",
            ranking=ranking,
            discount=run.evaluate.discount,
            episodes=len(claim.starts),
        )
    known = [policy for policy in policies if policy is not None]
    to_choose, to_claim = (episodes_of(run, half, past, known[0].normaliser) for half in (select, claim))
    with _asking(to_claim, progress) as ask:
        logged, values = ask(to_choose, known)
        left = iter(values)
        members = tuple(
            _unknown(member, CORRECTS) if policy is None else _member(member, next(left), logged, confidence)
            for member, policy in zip(population.members, policies, strict=True)
        )
        selected = _selected(members, ranking)
        ours = policies[selected]
        its_past = past if incumbent is None else composite_history(plant_of(run).controlled, incumbent)
        alike = its_past.history == past.history
        asked = [ours, *([theirs] if theirs is not None and alike else [])] if ours is not None else []
        behaviour, found = ask(to_claim, asked)
        gain = found[0].gain(behaviour, confidence) if found else None
        supported = gain is not None and members[selected].supported and gain.supported
        others = found[1:]
        if theirs is not None and supported and not alike:
            _, others = ask(episodes_of(run, claim, its_past, theirs.normaliser), [theirs])
    reason = members[selected].reason or ("" if gain is None else gain.reason)
    champion_difference, unsupported = None, ""
    if trained:
        unsupported = reason if not supported else others[0].reason if others else CORRECTS
        champion_difference = NOTHING if unsupported else _interval(found[0].less(others[0]), confidence)
    return Evaluation(
        selected=selected,
        members=members,
        behaviour=_interval(behaviour, confidence),
        difference=_interval(gain, confidence) if gain is not None and supported else NOTHING,
        supported=supported,
        reason=reason,
        champion_difference=champion_difference,
        champion_unsupported=unsupported,
        horizon=to_claim.horizon,
        ranking=ranking,
        discount=run.evaluate.discount,
        episodes=len(claim.starts),
    )


def _estimable(composite: Composite) -> Policy | None:
    """Return the policy if logs can estimate it: if it needs no state of the plant's controller."""
    return None if composite.moves_fallback else composite.policy


def _selected(members: Sequence[MemberEvaluation], ranking: Ranking | None) -> int:
    """Return the index of the selected member: by rollouts with a veto of the logs, or by the logs alone."""
    if ranking is None:
        return chosen(members)
    every = range(len(members))
    kept = [index for index in every if not (members[index].supported and members[index].gain.upper < 0)]
    # If the logs show all members to be worse, the gate refuses the best one.
    return ranking.best(kept or every)


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


def _unknown(member: Member, reason: str) -> MemberEvaluation:
    """Return the evaluation of a member that was not estimated."""
    return MemberEvaluation(
        index=member.index,
        ope=NOTHING,
        cost_ope=NOTHING,
        gain=NOTHING,
        supported=False,
        reason=reason,
        outside=np.nan,
        disagreement=np.nan,
        effective_rows=np.nan,
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
