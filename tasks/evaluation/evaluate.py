"""Estimate every member's value on held-out episodes, and select one by that estimate alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from configs.home import Home
from configs.run import RunConfig
from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope import fqe
from neorl_core.ope.model import ModelValue
from neorl_core.safety.composite import Composite
from tasks.adapters.models.bundle import load_bundle
from tasks.adapters.plants.known import plant_of
from tasks.adapters.store import reader
from tasks.adapters.store.episodes import Logs, read_logs
from tasks.adapters.store.histories import past_of, past_of_composite
from tasks.evaluation.model_based import CHUNKS, fit_learned_model, logged_steps
from tasks.references import Bundle, Champion, Dataset, Evaluation, Interval, MemberEvaluation, Population
from tasks.stages import cached

if TYPE_CHECKING:
    from tasks.progress import Report

REWARD, COST = 0, 1
"""Positions in the values that fitted Q evaluation gives."""


@cached()
def evaluate(
    home: Home,
    run: RunConfig,
    dataset: Dataset,
    population: Population,
    champion: Champion,
    progress: Report | None = None,
) -> Evaluation:
    """Estimate the values of all members, the champion and the logged controller, and select a member.

    Among the members whose value the logs support (by fitted Q evaluation, FQE) the one with the highest lower bound of
    its value in a model that is learned from the same held-out episodes is selected: over populations of mixed quality
    on both plants that model ranks better (docs/research.md). What is claimed against the logged controller and the
    champion stays FQE's, which needs no model of the plant. All see the run's history, the champion's policy its own.

    Args:
        home: unused; every stage takes it.
        run: its plant, seed, evaluation, history and share of held-out episodes.
        dataset: whose held-out episodes the estimates are of.
        population: the members to compare.
        champion: what the selected member is compared with; the plant's own controller has no policy to estimate.
        progress: told of gradient steps made.

    Returns:
        The estimates of each member, and the differences of the selected one.
    """
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    plain = read_logs(store, store.split(run.data.held_out)[1])
    logs = past_of(run, store).stacked(plain)
    composites = [_composite(member.bundle, run) for member in population.members]
    found = [composite.policy for composite in composites if composite.policy is not None]
    normaliser, confidence = found[0].normaliser, run.evaluate.confidence
    steps = logged_steps(logs, normaliser)
    layers = _features(run, steps, progress).layers
    key = jax.random.key(run.seed)

    def value(decisions: fqe.Decisions) -> fqe.Evaluation:
        settings = (run.evaluate.discount, run.evaluate.bootstraps)
        estimate: fqe.Evaluation = jax.device_get(fqe.evaluate(layers, steps, decisions, key, *settings))
        return estimate

    logged = value(fqe.logged_decisions(steps))
    values = [value(_decisions(policy, normaliser, logs)) for policy in found]
    learned = fit_learned_model(run, steps, normaliser, progress)
    members = tuple(
        _member(member.index, estimate, logged, learned.evaluate(policy), confidence)
        for member, estimate, policy in zip(population.members, values, found, strict=True)
    )
    selected = _select(members)
    known = None if champion.bundle is None else _composite(champion.bundle, run)
    champion_difference = None
    if known is not None and known.policy is not None:
        seen = past_of_composite(plant_of(run).controlled, known).stacked(plain)
        other = value(_decisions(known.policy, normaliser, seen))
        champion_difference = _difference(values[selected], other, confidence)
    return Evaluation(
        selected=selected,
        members=members,
        behaviour=_interval(logged.value, logged.draws, REWARD, confidence),
        difference=members[selected].gain,
        supported=members[selected].supported,
        champion_difference=champion_difference,
        discount=run.evaluate.discount,
        episodes=len(logs.starts),
    )


def _composite(bundle: Bundle, run: RunConfig) -> Composite:
    composite: Composite = load_bundle(bundle.folder, bundle.digest, run.source)[1]
    return composite


def _member(
    index: int, estimate: fqe.Evaluation, logged: fqe.Evaluation, rolled: ModelValue, confidence: float
) -> MemberEvaluation:
    return MemberEvaluation(
        index=index,
        ope=_interval(estimate.value, estimate.draws, REWARD, confidence),
        cost_ope=_interval(estimate.value, estimate.draws, COST, confidence),
        gain=_difference(estimate, logged, confidence),
        model=_interval(rolled.value[None], rolled.draws[:, None], REWARD, confidence),
        disagreement=float(rolled.disagreement),
        supported=bool(estimate.supported),
        effective_rows=float(estimate.effective_rows),
    )


def _select(members: tuple[MemberEvaluation, ...]) -> int:
    """Position of the supported member with the highest lower bound in the learned model."""

    def rank(position: int) -> tuple[bool, float]:
        member = members[position]
        # An estimate that is not finite is none, and comes last.
        return member.supported, member.model.lower if np.isfinite(member.model.lower) else -np.inf

    return max(range(len(members)), key=rank)


def _decisions(policy: Policy, normaliser: Normaliser, logs: Logs) -> fqe.Decisions:
    """A policy's actions on logs that it sees with its own history, by its own normaliser, in units of another."""
    t = logs.transitions
    return fqe.Decisions(
        to_unit(normaliser, policy_act(policy, jnp.asarray(t.next_observation))),
        to_unit(normaliser, policy_act(policy, jnp.asarray(t.observation[logs.starts]))),
    )


def _features(run: RunConfig, steps: fqe.LoggedSteps, progress: Report | None) -> fqe.FeatureState:
    init_key, train_key = jax.random.split(jax.random.key(run.seed + 1))
    state, targets = fqe.init_features(init_key, steps), fqe.feature_targets(steps)
    chunk = max(run.evaluate.fqe_updates // CHUNKS, 1)
    for done in range(0, chunk * CHUNKS, chunk):
        if progress:
            progress(done, chunk * CHUNKS, "updates")
        state, _ = fqe.train_features(state, train_key, steps, targets, chunk, chunk * CHUNKS)
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
    if progress:
        progress(chunk * CHUNKS, chunk * CHUNKS, "updates")
    return state


def _difference(one: fqe.Evaluation, other: fqe.Evaluation, confidence: float) -> Interval:
    """How much more the one is worth; the draws of both are of the same resamples."""
    return _interval(one.value - other.value, one.draws - other.draws, REWARD, confidence)


def _interval(value: Array, draws: Array, which: int, confidence: float) -> Interval:
    lower, upper = fqe.interval(jnp.asarray(draws[:, which]), confidence)
    return Interval(value=float(value[which]), lower=float(lower), upper=float(upper))
