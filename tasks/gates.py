"""The gates that a candidate passes before it may be promoted, each with a verdict and the numbers behind it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np

from configs.home import Home
from configs.run import RunConfig
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import composite_controller, make_composite
from tasks.adapters.store.episodes import read_logs
from tasks.adapters.store.reader import Dataset
from tasks.simulate import domain_of

TWIN_EXCESS = 1.5
"""How many times the domain's own one-step error the logs' may be."""
TWIN_FLOOR = 0.01
"""And what is allowed besides, as a share of the signal's spread: resampling and instruments round."""


class Gate(TypedDict):
    """One verdict; `passed` is None where an earlier gate made this one pointless."""

    name: str
    passed: bool | None
    detail: str


def gate(name: str, passed: bool | None, detail: str) -> Gate:
    """A verdict as JSON."""
    return {"name": name, "passed": passed, "detail": detail}


def data_gate(validation: dict[str, Any]) -> Gate:
    """Whether the dataset passed validation."""
    reasons = validation["reasons"]
    return gate("data", bool(validation["passed"]), "; ".join(reasons) if reasons else "all expectations hold")


def twin_errors(home: Home, run: RunConfig, dataset: dict[str, Any]) -> dict[str, dict[str, float]]:
    """One-step prediction errors of the twin, on held-out logs and on episodes of its own operating domain.

    In the domain the twin's prediction misses what noise, disturbances and spread constants do. Logs that it misses by
    much more come from a plant that the domain does not cover. Set points, which operators move, are left out.

    Returns:
        Observation name -> {logs, domain, spread}: two RMSE and the logs' standard deviation, in the signal's unit.
    """
    plant = PLANTS[run.plant]
    store = Dataset.open(Path(dataset["path"]), dataset["digest"])
    rows = read_logs(store, store.split(run.data.held_out)[1]).transitions
    predict = jax.jit(jax.vmap(plant.predict, (0, 0, None)))

    def errors(observation: Any, action: Any, following: Any) -> tuple[np.ndarray, np.ndarray]:
        predicted = np.asarray(predict(observation, action, plant.params)[0], np.float64)
        held = np.all(predicted == np.asarray(observation), axis=0)
        return np.sqrt(np.mean((predicted - np.asarray(following, np.float64)) ** 2, axis=0)), held

    logged, held = errors(rows.observation, rows.action, rows.next_observation)
    keys = jax.random.split(jax.random.key(run.seed), run.evaluate.rollouts)
    trace = rollouts(plant, composite_controller(plant), make_composite(plant), keys, domain_of(plant, run), trace=True)
    episodes = trace.trajectory
    assert episodes is not None
    alive = np.asarray(episodes.alive)
    steps = (episodes.observations, episodes.actions, episodes.next_observations)
    simulated, _ = errors(*(np.asarray(x)[alive] for x in steps))
    spread = rows.next_observation.std(axis=0, dtype=np.float64)
    return {
        name: {"logs": float(logged[i]), "domain": float(simulated[i]), "spread": float(spread[i])}
        for i, name in enumerate(plant.spec.observation.names)
        # A signal whose spread is NaN stays in, and fails.
        if not held[i] and not spread[i] <= 0
    }


def twin_gate(errors: dict[str, dict[str, float]]) -> Gate:
    """Whether the domain explains the held-out logs: a claim about a twin that misses them is worth nothing."""

    def excess(name: str) -> float:
        found = errors[name]
        return found["logs"] / (TWIN_EXCESS * found["domain"] + TWIN_FLOOR * found["spread"])

    if not errors:
        return gate("twin", False, "no signal of the held-out logs moves, so the twin cannot be judged")
    # A NaN is the worst of all, and no comparison may hide it.
    worst = max(errors, key=lambda name: float("inf") if math.isnan(excess(name)) else excess(name))
    found = errors[worst]
    detail = (
        f"one-step error on held-out logs {found['logs']:.3g}, in the operating domain {found['domain']:.3g} ({worst}, "
        f"{excess(worst):.2f} of what is allowed)"
    )
    return gate("twin", bool(excess(worst) <= 1.0), detail)


def ope_gate(evaluation: dict[str, Any], run: RunConfig) -> Gate:
    """Whether held-out logs show the candidate above the plant's own controller: lower bound of the difference."""
    difference = evaluation["difference"]
    detail = (
        f"estimated gain over the logged controller {difference['value']:+.4g}, "
        f"interval [{difference['lower']:+.4g}, {difference['upper']:+.4g}]"
    )
    if not evaluation["supported"]:
        return gate("ope", False, f"the held-out logs do not support an estimate of this policy ({detail})")
    if not run.gates.beat_plant and math.isfinite(difference["lower"]):
        return gate("ope", True, f"{detail}; not required by gates.beat_plant")
    return gate("ope", bool(difference["lower"] > 0), detail)


def rollouts_gate(rollouts: dict[str, Any], run: RunConfig) -> Gate:
    """Whether the composite is above the plant's own controller on the twin: it would replace that controller."""
    difference = rollouts["differences"]["plant controller"]
    detail = (
        f"return per episode on the twin {difference['value']:+.4g} against the plant's controller, "
        f"interval [{difference['lower']:+.4g}, {difference['upper']:+.4g}]"
    )
    if not run.gates.beat_plant and math.isfinite(difference["lower"]):
        return gate("rollouts", True, f"{detail}; not required by gates.beat_plant")
    return gate("rollouts", bool(difference["lower"] > 0), detail)


def champion_gate(evaluation: dict[str, Any]) -> Gate:
    """Whether held-out logs show the candidate no worse than the champion: upper bound of the difference."""
    difference = evaluation["champion_difference"]
    detail = (
        f"estimated gain over the champion {difference['value']:+.4g}, "
        f"interval [{difference['lower']:+.4g}, {difference['upper']:+.4g}]"
    )
    return gate("champion", bool(difference["upper"] >= 0), detail)


def fallback_gate(certificate: dict[str, Any]) -> Gate:
    """Whether the fallback alone is certified: what a shield hands over to must stand by itself."""
    return gate("fallback", bool(certificate["passed"]), _counts(certificate))


def statistical_gate(certificate: dict[str, Any] | None) -> Gate:
    """Whether the composite is certified."""
    if certificate is None:
        return gate("statistical", None, "not attempted: an earlier gate failed, so no error probability was spent")
    return gate("statistical", bool(certificate["passed"]), _counts(certificate))


def servability_gate(check: dict[str, Any] | None) -> Gate:
    """Whether the bundle loads in a fresh process, answers the recorded inputs and keeps its latency budget."""
    if check is None:
        return gate("servability", None, "not attempted: an earlier gate failed")
    if not check["passed"]:
        return gate("servability", False, "; ".join(check["reasons"]))
    return gate("servability", True, f"{check['answers']} answers agree, p99 {check['latency_us']['p99']:.0f} µs")


def _counts(certificate: dict[str, Any]) -> str:
    return (
        f"{certificate['violations']} violations in {certificate['episodes']} episodes, attempt "
        f"{certificate['attempt']}, α = {certificate['alpha']:.4g}"
    )


def all_passed(gates: list[Gate]) -> bool:
    """Whether no gate failed and none was left out."""
    return all(gate["passed"] for gate in gates)
