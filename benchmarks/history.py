"""`make history`: what earlier values beside the observation are worth on the industrial benchmark.

    python -m benchmarks.history                      # every algorithm with every history; what is kept is not repeated
    python -m benchmarks.history --algorithms iql     # one anew

Policies learn from generated logs of medium quality, five seeds each, and are rolled out bare on the same episodes of
the simulator. Nothing is selected by a rollout: every final policy counts. Results are kept in
benchmarks/results/history.json, of which the table in docs/training.md is made.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neorl_core.fit import fit
from neorl_core.history import parse_history, stacked_size, stacked_spec
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import Interval, mean_interval, paired_difference_interval
from neorl_core.safety.composite import bare_controller
from tasks.data.store.episodes import Logs, read_logs
from tasks.data.store.histories import of_simulator
from tasks.data.store.reader import StoredDataset
from tasks.data.synthetic.episodes import generate
from tasks.simulate import score

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "history.json"
PAGE = ROOT / "docs" / "training.md"
MARKS = "<!-- history: begin -->", "<!-- history: end -->"
PLANT = "industrial_benchmark"
LOGGED, PLAYED, SEEDS, CONFIDENCE = 50, 64, 5, 0.95
RESPONSES = ("velocity", "gain", "shift", "fatigue", "consumption")
HISTORIES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "none": ({}, {}),
    "9 of each response": (dict.fromkeys(RESPONSES, 9), {}),
    "9 of each response, GRU of 16": (dict.fromkeys(RESPONSES, 9), {"gru": 16}),
}
"""Earlier values, and what of a policy differs: costs answer a steering after five to nine steps, and set points stand
still in an episode."""
FAST: dict[str, Any] = {"discount": 0.97, "actor_lr": 1e-3, "critic_lr": 1e-3}
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "bc": (6_000, {"actor_lr": 1e-3}),
    "iql": (6_000, FAST),
    "td3_bc": (6_000, FAST),
    "bptt": (4_000, {"discount": 0.97}),
}
"""Gradient steps and what differs from the algorithm's own defaults, for every history alike."""


def logged(folder: Path) -> Logs:
    """Rows of medium quality, without a history."""
    made = generate(PLANT, "medium", LOGGED, seed=0, out=folder)
    store = StoredDataset.open(folder, str(made.digest))
    return read_logs(store, np.arange(len(store.episodes) - 1))


def scores_of(logs: Logs, algorithm: str, counts: Mapping[str, int], own: Mapping[str, Any]) -> dict[str, Any]:
    """Mean score of each seed's policy on the simulator."""
    plant = PLANTS[PLANT]
    history = parse_history(counts, plant.spec)
    updates, overrides = SETTINGS[algorithm][0], SETTINGS[algorithm][1] | own
    started = time.perf_counter()
    rows = of_simulator(history, plant).stacked(logs).transitions
    spec = stacked_spec(plant.spec, history)
    learned = fit(rows, spec, algorithm, updates=updates, seeds=range(SEEDS), overrides=overrides)
    seconds = time.perf_counter() - started
    keys = jax.random.split(jax.random.key(20_261_122), PLAYED)
    controller = bare_controller(plant, history=history)
    found = [np.asarray(rollouts(plant, controller, policy, keys, plant.domain).ret) for policy in learned.policies]
    means = [float(np.mean([score(plant.spec, float(r)) for r in returns])) for returns in found]
    numbers = plant.spec.observation.size if history is None else stacked_size(history)
    return {"scores": means, "sound": [bool(x) for x in learned.sound], "seconds": round(seconds), "numbers": numbers}


def table(kept: Mapping[str, Any]) -> str:
    """Every algorithm's scores beside those of the same seeds without a history, and whom it helps or harms."""
    helped, harmed = [], []
    lines = [
        f"Made by `make history` on {LOGGED} episodes of medium quality of `{PLANT}`: mean score of {SEEDS} seeds on "
        f"{PLAYED} episodes of the simulator, without a shield, and the gain over no history, seed by seed; "
        f"{CONFIDENCE:.0%} intervals of Student's t over seeds.",
        "",
        "| algorithm | history | numbers | score | gain |",
        "|:--|:--|--:|:--|:--|",
    ]
    for algorithm in SETTINGS:
        for name in HISTORIES:
            row, plain = kept.get(f"{algorithm}/{name}"), kept.get(f"{algorithm}/none")
            if row is None or plain is None:
                continue
            told = "–"
            if row is not plain:
                gain = paired_difference_interval(row["scores"], plain["scores"], CONFIDENCE)
                told = shown(gain)
                helped += [f"{algorithm} with {name}"] if gain.lower > 0 else []
                harmed += [f"{algorithm} with {name}"] if gain.upper < 0 else []
            mean = shown(mean_interval(row["scores"], CONFIDENCE))
            lines.append(f"| {algorithm} | {name} | {row['numbers']} | {mean} | {told} |")
    words = [
        f"The whole interval of the gain is {where} 0: {'; '.join(found) or 'none'}."
        for where, found in (("above", helped), ("below", harmed))
    ]
    return "\n".join([*lines, "", *words])


def shown(interval: Interval) -> str:
    """An interval in words."""
    return f"{interval.value:.1f} ({interval.lower:.1f} to {interval.upper:.1f})"


def write(kept: Mapping[str, Any]) -> None:
    """Keep the results, and put the table into its page."""
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n{table(kept)}\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")


def main() -> None:
    """Train what is not kept, and write the table."""
    parser = argparse.ArgumentParser(description="what earlier values are worth on the industrial benchmark")
    parser.add_argument("--algorithms", nargs="*", choices=[*SETTINGS], help="train these anew")
    again = parser.parse_args().algorithms or []
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept = {name: row for name, row in kept.items() if name.split("/")[0] not in again}
    with tempfile.TemporaryDirectory() as folder:
        logs = logged(Path(folder))
        for algorithm in SETTINGS:
            for name, (counts, own) in HISTORIES.items():
                if f"{algorithm}/{name}" not in kept:
                    kept[f"{algorithm}/{name}"] = scores_of(logs, algorithm, counts, own)
                    print(algorithm, name, kept[f"{algorithm}/{name}"], flush=True)
                    write(kept)
    write(kept)


if __name__ == "__main__":
    main()
