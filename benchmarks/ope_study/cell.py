"""Run one cell: data, policies, estimates and true values."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.ope_study.policies import evaluated
from benchmarks.pages import ROOT
from configs.home import Home
from configs.load import load_run
from configs.run import CLONE_UPDATES, OpenedRun
from neorl_core.ope import fqe
from neorl_core.ope.agreement import Estimate
from neorl_core.plants import PLANTS
from tasks.data.store.episodes import Logs, read_logs
from tasks.data.store.histories import NO_HISTORY
from tasks.data.store.reader import StoredDataset
from tasks.data.synthetic.episodes import generate
from tasks.evaluation.estimators import decisions, episodes_of, fit_estimators


class Size(NamedTuple):
    """Size of a cell."""

    rows: int = 50_000
    updates: int = 900
    """Gradient steps of each learner except the clone."""
    cloned: int = CLONE_UPDATES
    """Gradient steps of the clone."""
    truth: int = 256
    """Simulated episodes for each true value."""
    evaluate: Mapping[str, int] = {}
    """Overrides of the plant's `evaluate`."""


FULL = Size()
SMALL = Size(2_000, 60, 60, 16, {"model_updates": 40, "bootstraps": 50})
"""Size of a cell in the tests."""


def logged(run: OpenedRun, behaviour: str, home: Home, size: Size, seed: int) -> tuple[Logs, Logs, str]:
    """Return training episodes, held-out episodes and the digest of the dataset."""
    horizon = PLANTS[run.plant].spec.horizon
    made = generate(run.plant, behaviour, -(-size.rows // horizon), seed, home.folder("generated", run.plant))
    assert made.digest is not None
    store = StoredDataset.open(made.path, made.digest)
    ours, held_out = (read_logs(store, episodes) for episodes in store.split(run.data.held_out))
    return ours, held_out, made.digest


def configured(plant: str, size: Size, seed: int) -> OpenedRun:
    """Return the plant's run of configs/, which has the plant's discount."""
    known = load_run(ROOT / "configs" / f"{plant}.yaml")
    return OpenedRun(plant=plant, seed=seed, evaluate=known.evaluate.model_copy(update=dict(size.evaluate)))


def cell(
    plant: str, behaviour: str, home: Home, size: Size = FULL, seed: int = 0, peers: Path | None = None
) -> dict[str, Any]:
    """Run one cell.

    Args:
        plant: name of the plant.
        behaviour: name of the logged controller.
        home: home that stores episodes, policies and true values.
        size: size of the cell.
        seed: seed of episodes, training and estimates.
        peers: file for the held-out steps and the policies' actions on them, read by other estimators.
    """
    began = time.perf_counter(), time.process_time()
    run = configured(plant, size, seed)
    ours, held_out, dataset = logged(run, behaviour, home, size, seed)
    discount = run.evaluate.discount
    # True values are kept beside the policies; no estimator sees them.
    found, truth = evaluated(ours, dataset, plant, size.updates, size.cloned, discount, size.truth, home)
    estimators = fit_estimators(episodes_of(run, held_out, NO_HISTORY, found.policies[0].normaliser))
    if peers is not None:
        every = [decisions(estimators.episodes, policy) for policy in found.policies]
        together = {name: np.stack([getattr(one, name) for one in every]) for name in fqe.Decisions._fields}
        archive: dict[str, Any] = estimators.episodes.steps._asdict() | together
        peers.parent.mkdir(parents=True, exist_ok=True)
        np.savez(peers, discount=discount, **archive)
    rows = [estimated(estimators.of(policy), run.evaluate.confidence) for policy in found.policies]
    for row, name, (value, error) in zip(rows, found.names, truth, strict=True):
        row |= {"policy": name, "truth": value, "truth_error": error}
    return {
        "plant": plant,
        "behaviour": behaviour,
        "seed": seed,
        "rows": size.rows,
        "discount": discount,
        "logged": estimators.logged().value,
        "policies": rows,
        "seconds": time.perf_counter() - began[0],
        "cpu_seconds": time.process_time() - began[1],
    }


def estimated(found: Estimate, confidence: float) -> dict[str, Any]:
    """Return an estimate as JSON; non-finite numbers become null."""
    lower, upper = found.bounds(confidence)
    numbers = {"value": found.value, "lower": lower, "upper": upper, "outside": found.outside}
    kept: dict[str, Any] = {name: float(x) if np.isfinite(x) else None for name, x in numbers.items()}
    return kept | {"supported": found.supported, "reason": found.reason}
