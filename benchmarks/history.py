"""`make history`: train on the industrial benchmark with and without earlier observations as additional input.

    python -m benchmarks.history                      # every algorithm with every history that has no result
    python -m benchmarks.history --algorithms iql     # train one algorithm again
    python -m benchmarks.history --page               # docs/studies/history.md from the kept results

Policies train on generated `medium` logs with five seeds. They all play the same simulated episodes without a shield.
The mean covers all final policies; none is selected. Results are kept in benchmarks/results/history.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import pages
from benchmarks.pages import ROOT, STUDIES, listed, wrap
from neorl_core.fit import fit
from neorl_core.history import parse_history, stacked_size, stacked_spec
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import Interval, mean_interval, paired_difference_interval
from neorl_core.safety.composite import make_composite, unshielded_controller
from tasks.data.store.episodes import Logs, read_logs
from tasks.data.store.histories import simulator_history
from tasks.data.store.reader import StoredDataset
from tasks.data.synthetic.episodes import generate
from tasks.simulate import score

RESULTS = ROOT / "benchmarks" / "results" / "history.json"
PAGE = STUDIES / "history.md"
PLANT = "industrial_benchmark"
LOGGED, PLAYED, SEEDS, CONFIDENCE = 50, 64, 5, 0.95
RESPONSES = ("velocity", "gain", "shift", "fatigue", "consumption")
HISTORIES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "none": ({}, {}),
    "9 of each response": (dict.fromkeys(RESPONSES, 9), {}),
    "9 of each response, GRU of 16": (dict.fromkeys(RESPONSES, 9), {"gru": 16}),
}
"""Number of earlier values by signal, and hyper-parameters of each variant. Costs react after five to nine steps."""
FAST: dict[str, Any] = {"discount": 0.97, "actor_lr": 1e-3, "critic_lr": 1e-3}
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "bc": (6_000, {"actor_lr": 1e-3}),
    "iql": (6_000, FAST),
    "td3_bc": (6_000, FAST),
    "bptt": (4_000, {"discount": 0.97}),
}
"""Gradient steps and overrides of each algorithm, the same for every history."""


def logged(folder: Path) -> Logs:
    """Return generated rows of medium quality."""
    made = generate(PLANT, "medium", LOGGED, seed=0, out=folder)
    store = StoredDataset.open(folder, str(made.digest))
    return read_logs(store, np.arange(len(store.episodes) - 1))


def scores_of(logs: Logs, algorithm: str, counts: Mapping[str, int], own: Mapping[str, Any]) -> dict[str, Any]:
    """Train one policy per seed with a history, and return the mean score of each on the simulator.

    `counts` is the number of earlier values by signal; `own` are the hyper-parameters of the history variant.
    """
    plant = PLANTS[PLANT]
    history = parse_history(counts, plant.spec)
    updates, overrides = SETTINGS[algorithm][0], SETTINGS[algorithm][1] | own
    started = time.perf_counter()
    rows = simulator_history(history, plant).stacked(logs).transitions
    spec = stacked_spec(plant.spec, history)
    learned = fit(rows, spec, algorithm, updates=updates, seeds=range(SEEDS), overrides=overrides)
    seconds = time.perf_counter() - started
    keys = jax.random.split(jax.random.key(20_261_122), PLAYED)
    controller = unshielded_controller(plant)
    composites = [make_composite(plant, policy, history=history) for policy in learned.policies]
    found = [np.asarray(rollouts(plant, controller, each, keys, plant.domain).ret) for each in composites]
    means = [float(np.mean([score(plant.spec, float(r)) for r in returns])) for returns in found]
    numbers = plant.spec.observation.size if history is None else stacked_size(history)
    return {"scores": means, "sound": [bool(x) for x in learned.sound], "seconds": round(seconds), "numbers": numbers}


def page(kept: Mapping[str, Any]) -> str:
    """Return docs/studies/history.md: every algorithm's scores with and without a history."""
    helped, harmed, rows = [], [], []
    for algorithm in SETTINGS:
        for name in HISTORIES:
            row, plain = kept.get(f"{algorithm}/{name}"), kept.get(f"{algorithm}/none")
            if row is None or plain is None:
                continue
            difference, label = "–", name.replace("9 of", "9 earlier values of")
            if row is not plain:
                gain = paired_difference_interval(row["scores"], plain["scores"], CONFIDENCE)
                difference = shown(gain)
                helped += [f"{algorithm} with {label}"] if gain.lower > 0 else []
                harmed += [f"{algorithm} with {label}"] if gain.upper < 0 else []
            rows.append((algorithm, label, row["numbers"], shown(mean_interval(row["scores"], CONFIDENCE)), difference))
    return pages.study(
        "Earlier values as input",
        f"Does a policy for `{PLANT}` score more if its input also has earlier values of the signals?",
        f"Learners with a significant gain: {listed(helped)}. Learners with a significant loss: "
        f"{'; '.join(harmed) or 'none'}.",
        "`make history`.",
        wrap(
            f"Policies train on {LOGGED} `medium` episodes. Costs of this plant react five to nine steps after an "
            "action, and the logged controller has a hidden state. Both are reasons to use earlier values. Columns:"
        ),
        COLUMNS,
        pages.table(("algorithm", "history", "inputs", "score", "gain"), rows),
    )


COLUMNS = f"""- *history*: additional input; a policy reads the values together, or in sequence by a GRU with 16 units
- *inputs*: numbers that the policy gets
- *score*: mean score of {SEEDS} seeds in {PLAYED} simulated episodes without a shield, with a {CONFIDENCE:.0%} interval
- *gain*: score minus the score without a history, for the same seeds, with a {CONFIDENCE:.0%} interval"""


def shown(interval: Interval) -> str:
    """Return an interval as text."""
    return f"{interval.value:.1f} ({interval.lower:.1f} to {interval.upper:.1f})"


def main() -> None:
    """Run the missing trainings and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--algorithms",
        nargs="*",
        choices=[*SETTINGS],
        help="discard the kept results of these algorithms and train again",
    )
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept = {name: row for name, row in kept.items() if name.split("/")[0] not in (options.algorithms or [])}
    with tempfile.TemporaryDirectory() as folder:
        logs = None if options.page else logged(Path(folder))
        for algorithm, (name, (counts, own)) in itertools.product(SETTINGS, HISTORIES.items()):
            key = f"{algorithm}/{name}"
            if logs is not None and key not in kept:
                kept[key] = scores_of(logs, algorithm, counts, own)
                print(algorithm, name, kept[key], flush=True)
                RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
