"""Estimate every member's value on held-out episodes, and select one by that estimate alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.home import Home
from configs.run import RunConfig
from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope.fqe import (
    Decisions,
    Evaluation,
    FeatureState,
    LoggedSteps,
    evaluate,
    feature_targets,
    init_features,
    interval,
    logged_decisions,
    train_features,
)
from tasks.adapters.models.bundle import load_bundle
from tasks.adapters.store.episodes import Logs, read_logs
from tasks.adapters.store.reader import Dataset
from tasks.evaluation.model_based import CHUNKS, judge_of, logged_steps
from tasks.progress import Report

REWARD, COST = 0, 1


def evaluate_population(
    home: Home,
    run: RunConfig,
    dataset: dict[str, Any],
    population: dict[str, Any],
    incumbent: dict[str, str] | None,
    progress: Report | None = None,
) -> dict[str, Any]:
    """Fitted Q evaluation of every member, the champion and the logged controller on held-out episodes, and rollouts of
    every member in a twin that was fitted to the same episodes.

    Among the members whose value the logs support (by FQE) the one with the highest lower bound of its value in the
    twin is selected: over populations of mixed quality on both plants the twin ranks better (docs/research.md). What
    is claimed against the logged controller and the champion stays FQE's, which needs no model of the plant.

    Args:
        dataset: reference from `ingest`.
        population: reference from `train`.
        incumbent: {path, digest} of the champion's bundle; the plant's own controller has no policy to estimate.
        progress: told of updates of the features.

    Returns:
        {selected, members: [{index, ope, cost_ope, gain, model, disagreement, supported, effective_rows}], behaviour,
        difference (selected minus logged), champion_difference, discount, episodes}; intervals are {value, lower,
        upper}.
    """
    store = Dataset.open(Path(dataset["path"]), dataset["digest"])
    logs = read_logs(store, store.split(run.data.held_out)[1])
    found = [load_bundle(Path(m["path"]), m["digest"])[1].policy for m in population["members"]]
    normaliser = found[0].normaliser
    steps = logged_steps(logs, normaliser)
    layers = _features(run, steps, progress).layers
    key = jax.random.key(run.seed)
    settings = (run.evaluate.discount, run.evaluate.bootstraps)

    def value(decisions: Decisions) -> Evaluation:
        return jax.device_get(evaluate(layers, steps, decisions, key, *settings))

    logged = value(logged_decisions(steps))
    members = [value(_decisions(policy, normaliser, logs)) for policy in found]
    confidence = run.evaluate.confidence
    gains = [_interval(m.value - logged.value, m.draws - logged.draws, REWARD, confidence) for m in members]
    judge = judge_of(run, steps, normaliser, progress)
    imagined = [judge.imagine(policy) for policy in found]
    in_twin = [_interval(m.value[None], m.draws[:, None], REWARD, confidence) for m in imagined]
    # An estimate that is not finite is none, and comes last.
    lowest = [twin["lower"] if np.isfinite(twin["lower"]) else -np.inf for twin in in_twin]
    selected = max(range(len(members)), key=lambda i: (bool(members[i].supported), lowest[i]))
    champion_policy, champion_difference = None, None
    if incumbent is not None:
        champion_policy = load_bundle(Path(incumbent["path"]), incumbent["digest"])[1].policy
    if champion_policy is not None:
        champion = value(_decisions(champion_policy, normaliser, logs))
        best = members[selected]
        champion_difference = _interval(best.value - champion.value, best.draws - champion.draws, REWARD, confidence)
    return {
        "selected": selected,
        "members": [
            {
                "index": entry["index"],
                "ope": _interval(m.value, m.draws, REWARD, confidence),
                "cost_ope": _interval(m.value, m.draws, COST, confidence),
                "gain": gain,
                "model": twin,
                "disagreement": float(rolled.disagreement),
                "supported": bool(m.supported),
                "effective_rows": float(m.effective_rows),
            }
            for entry, m, gain, twin, rolled in zip(
                population["members"], members, gains, in_twin, imagined, strict=True
            )
        ],
        "behaviour": _interval(logged.value, logged.draws, REWARD, confidence),
        "difference": gains[selected],
        "supported": bool(members[selected].supported),
        "champion_difference": champion_difference,
        "discount": run.evaluate.discount,
        "episodes": len(logs.starts),
    }


def _decisions(policy: Policy, normaliser: Normaliser, logs: Logs) -> Decisions:
    """A policy's actions on the logs, by its own normaliser, in the units of the logs' one."""
    t = logs.transitions
    return Decisions(
        to_unit(normaliser, policy_act(policy, jnp.asarray(t.next_observation))),
        to_unit(normaliser, policy_act(policy, jnp.asarray(t.observation[logs.starts]))),
    )


def _features(run: RunConfig, steps: LoggedSteps, progress: Report | None) -> FeatureState:
    init_key, train_key = jax.random.split(jax.random.key(run.seed + 1))
    state, targets = init_features(init_key, steps), feature_targets(steps)
    chunk = max(run.evaluate.fqe_updates // CHUNKS, 1)
    for done in range(0, chunk * CHUNKS, chunk):
        if progress:
            progress(done, chunk * CHUNKS, "updates")
        state, _ = train_features(state, train_key, steps, targets, chunk, chunk * CHUNKS)
        jax.block_until_ready(state)
    if progress:
        progress(chunk * CHUNKS, chunk * CHUNKS, "updates")
    return state


def _interval(value: np.ndarray, draws: np.ndarray, which: int, confidence: float) -> dict[str, float]:
    lower, upper = interval(jnp.asarray(draws[:, which]), confidence)
    return {"value": float(value[which]), "lower": float(lower), "upper": float(upper)}
