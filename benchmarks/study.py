"""`make study`: every algorithm on every plant, three seeds each, selected by off-policy evaluation alone.

    python -m benchmarks.study double_mass --data DMSD-train.npz DMSD-val.npz
    python -m benchmarks.study chemical_reactor
    python -m benchmarks.study double_mass --algorithms bptt mopo      # anew; the others' policies are kept
    python -m benchmarks.study double_mass --causes                    # why two algorithms are below what is published

Settings are the same for both plants. Final policies are scored by rollouts after all selecting is done; nothing that
is trained or selected ever sees a rollout. Results are kept in benchmarks/results, and docs/results.md is made of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.score import official
from configs.home import Home
from configs.run import Evaluate, RunConfig
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import fit
from neorl_core.networks import Policy
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import Interval, mean_interval, paired_difference_interval
from neorl_core.safety.composite import bare_controller
from neorl_core.training.population import prepare
from neorl_core.types import PlantSpec
from tasks.adapters.files.canonical import write_json
from tasks.adapters.models.policy_file import MadeBy, load_policy, save_policy
from tasks.adapters.store.episodes import Logs, read_logs
from tasks.adapters.store.histories import NO_PAST
from tasks.adapters.store.reader import StoredDataset
from tasks.adapters.synthetic.plant_log import generate
from tasks.evaluation.estimators import fit_estimators
from tasks.ingest import ingest
from tasks.simulate import PUBLISHED_SCORES, ROLLOUT_SEED, score

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
SEEDS = 3
EPISODES = 256
HELD_OUT = 0.2
DISCOUNT = 0.97
MODEL_UPDATES = 3_000

PUBLISHED_NAMES = {"bc": "BC", "td3_bc": "TD3BC", "cql": "CQL", "edac": "EDAC", "mopo": "MOPO", "combo": "COMBO"}
MODEL_BASED = ("bptt", "mopo", "combo")
FAST: dict[str, Any] = {"discount": DISCOUNT, "actor_lr": 1e-3, "critic_lr": 1e-3}
SOFT: dict[str, Any] = {**FAST, "temperature": 0.1, "temperature_lr": 1e-3}
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "bc": (10_000, {"actor_lr": 1e-3}),
    "td3_bc": (8_000, {**FAST, "critics": 10, "alpha": 20.0}),
    "rebrac": (8_000, {**FAST, "critics": 10, "hidden": [64, 64]}),
    "iql": (8_000, FAST),
    "awac": (8_000, FAST),
    "sac_n": (12_000, SOFT),
    "edac": (12_000, SOFT),
    "cql": (4_000, SOFT),
    "bptt": (4_000, {"discount": DISCOUNT}),
    "mopo": (9_000, SOFT),
    "combo": (6_000, SOFT),
}
"""Gradient steps and what differs from the algorithm's own defaults, for every plant alike."""


CAUSES: dict[str, tuple[str, tuple[float, ...], tuple[int, ...]]] = {
    "cql": ("alpha", (0.2, 1.0, 5.0), (4_000, 16_000)),
    "combo": ("beta", (0.1, 1.0, 5.0), (6_000, 18_000)),
}
"""Algorithms below their published scores: the weight of what makes them careful, and gradient steps, to vary."""


def logged(plant: str, data: Sequence[Path], home: Home) -> tuple[Logs, Logs]:
    """The plant's logs through the pipeline's own ingest: episodes to train on and episodes held out."""
    if not data:
        made = plant == "chemical_reactor"
        data = [generate(plant, home.folder("generated", plant), seed=0).path] if made else official()
    mapping = ROOT / "configs" / "mappings" / f"{plant}.yaml"
    source = {"mapping": mapping} if mapping.exists() else {}
    found = ingest(home, RunConfig(plant=plant, data={**source, "held_out": HELD_OUT}), list(data))
    store = StoredDataset.open(found.store, found.digest)
    ours, held_out = (read_logs(store, episodes) for episodes in store.split(HELD_OUT))
    return ours, held_out


def train(plant: str, name: str, logs: Logs, home: Home) -> dict[str, Any]:
    """Train an algorithm's seeds and keep their final policies."""
    updates, overrides = SETTINGS[name]
    spec = PLANTS[plant].spec
    wall, processor = time.perf_counter(), time.process_time()
    learned = fit(logs.transitions, spec, name, updates=updates, seeds=range(SEEDS), overrides=overrides)
    spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor}
    for seed, policy in enumerate(learned.policies):
        save_policy(policy_path(home, plant, name, seed), policy, spec, MadeBy(algorithm=name, seed=seed))
    return {**spent, "updates": updates, "overrides": overrides, "sound": [bool(x) for x in learned.sound]}


def policy_path(home: Home, plant: str, name: str, seed: int) -> Path:
    return home.folder("study", plant) / f"{name}-{seed}.npz"


def returns(plant: str, policy: Policy | None) -> np.ndarray:
    """Returns of episodes of the simulator under a policy, or under the plant's own controller; the same episodes."""
    simulator = PLANTS[plant]
    keys = jax.random.split(jax.random.key(ROLLOUT_SEED), EPISODES)
    if policy is None:
        found = rollouts(simulator, simulator.fallback, simulator.fallback_params, keys, simulator.domain)
    else:
        found = rollouts(simulator, bare_controller(simulator), policy, keys, simulator.domain)
    return np.asarray(found.ret, np.float64)


def estimates(policies: Sequence[Policy], held_out: Logs, spec: PlantSpec) -> list[float]:
    """Every policy's value by the pipeline's own estimators, fitted to the held-out episodes."""
    asked = Evaluate(discount=DISCOUNT, model_updates=MODEL_UPDATES)
    run, normaliser = RunConfig(plant=spec.name, evaluate=asked), prepare(held_out.transitions, spec)[0]
    estimators = fit_estimators(run, held_out, NO_PAST, normaliser)
    found = [estimators.of(policy).value for policy in policies]
    return [value if np.isfinite(value) else -np.inf for value in found]


def behaviour_score(spec: PlantSpec, logs: Logs) -> float:
    """What the logged rewards come to, per episode of the plant's horizon."""
    return score(spec, float(np.mean(logs.transitions.reward)) * spec.horizon)


def whole_runs(candidates: Mapping[str, dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """One run for each seed: every algorithm's policy of that seed, and the one that the estimate chooses."""
    runs = []
    for seed in range(SEEDS):
        scores = {name: candidates[name]["scores"][seed] for name in names}
        estimated = {name: candidates[name]["ope"][seed] for name in names}
        chosen = max(names, key=lambda name: estimated[name])
        regret = max(scores.values()) - scores[chosen]
        runs.append({"seed": seed, "chosen": chosen, "score": scores[chosen], "regret": regret})
    return runs


def study(plant: str, names: Sequence[str], data: Sequence[Path], home: Home) -> dict[str, Any]:
    """Train the named algorithms, estimate every policy that there is, and only then roll them out."""
    spec = PLANTS[plant].spec
    path = RESULTS / f"study-{plant}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"plant": plant, "algorithms": {}}
    logs, held_out = logged(plant, data, home)
    for name in names:
        result["algorithms"][name] = train(plant, name, logs, home)
        # Written at once: a study that is stopped keeps what it has trained.
        write_json(path, result)
        print(name, json.dumps(result["algorithms"][name]), file=sys.stderr, flush=True)
    known = [n for n in ALGORITHMS if n in result["algorithms"] and policy_path(home, plant, n, SEEDS - 1).exists()]
    kept = {name: [load_policy(policy_path(home, plant, name, seed))[0] for seed in range(SEEDS)] for name in known}
    result["algorithms"] = {name: result["algorithms"][name] for name in known}
    estimated = estimates([p for name in known for p in kept[name]], held_out, spec)
    controller = returns(plant, None)
    for i, name in enumerate(known):
        found = [returns(plant, policy) for policy in kept[name]]
        gain = paired_difference_interval(np.concatenate(found), np.tile(controller, SEEDS))
        result["algorithms"][name] |= {
            "ope": [float(x) for x in estimated[i * SEEDS : (i + 1) * SEEDS]],
            "scores": [score(spec, float(x.mean())) for x in found],
            "beats_controller": [gain.lower, gain.upper],
        }
    result |= {
        "rows": len(logs.episode),
        "behaviour": behaviour_score(spec, logs),
        "controller": score(spec, float(controller.mean())),
        "model_free": whole_runs(result["algorithms"], [n for n in known if n not in MODEL_BASED]),
        "any": whole_runs(result["algorithms"], known),
    }
    write_json(path, result)
    return result


def causes(plant: str, names: Sequence[str], data: Sequence[Path], home: Home) -> list[dict[str, Any]]:
    """What weight and length make of an algorithm, one seed each; estimates and scores, nothing chosen."""
    spec = PLANTS[plant].spec
    path = RESULTS / f"causes-{plant}.json"
    rows: list[dict[str, Any]] = (
        [r for r in json.loads(path.read_text()) if r["algorithm"] not in names] if path.exists() else []
    )
    logs, held_out = logged(plant, data, home)
    for name in names:
        weight, weights, lengths = CAUSES[name]
        for updates in lengths:
            overrides = SETTINGS[name][1]
            grid = {weight: list(weights)}
            learned = fit(logs.transitions, spec, name, updates=updates, seeds=[0], overrides=overrides, grid=grid)
            estimated = estimates(learned.policies, held_out, spec)
            for value, policy, estimate in zip(weights, learned.policies, estimated, strict=True):
                found = {"algorithm": name, "updates": updates, "weight": weight, "value": value, "ope": estimate}
                rows.append({**found, "score": score(spec, float(returns(plant, policy).mean()))})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            write_json(path, rows)
    return rows


def show(interval: Interval) -> str:
    return f"{interval.value:.1f} ± {interval.upper - interval.value:.1f}"


def verdict(interval: Sequence[float]) -> str:
    """Whether the plant's controller is beaten, by the interval of the paired difference of returns."""
    low, high = interval
    answer = "yes" if low > 0 else "no" if high < 0 else "undecided"
    return f"{answer} [{low:+.3g}, {high:+.3g}]"


def table(result: Mapping[str, Any]) -> str:
    """One plant's results as Markdown."""
    published = PUBLISHED_SCORES.get(result["plant"], {})
    lines = [
        f"## {result['plant']}",
        "",
        f"{result['rows']:,} transitions to learn from; final policies of {SEEDS} seeds, {EPISODES} episodes each, "
        "mean and 95 % t interval over the seeds. The last column is the interval of the mean difference of "
        "returns from the plant's own controller in the same episodes.",
        "",
        "| | score | published | each seed | estimate, each seed | CPU s, all seeds | beats the plant's controller? |",
        "|---|---|---|---|---|---|---|",
        f"| behaviour policy | {result['behaviour']:.1f} | {published.get('data', '–')} | | | | |",
        f"| plant's controller | {result['controller']:.1f} | – | | | | |",
    ]
    for name, entry in result["algorithms"].items():
        scores = ", ".join(f"{x:.1f}" for x in entry["scores"])
        estimated = ", ".join(f"{x:.3g}" for x in entry["ope"])
        lines.append(
            f"| {name} | {show(mean_interval(entry['scores']))} | {published.get(PUBLISHED_NAMES.get(name, ''), '–')} "
            f"| {scores} | {estimated} | {entry['cpu_seconds']:.0f} | {verdict(entry['beats_controller'])} |"
        )
    lines += ["", "Selected by the estimate alone, in each of three whole runs:", ""]
    lines += ["| candidates | run 1 | run 2 | run 3 | mean | mean regret |", "|---|---|---|---|---|---|"]
    for title, key in (("model-free algorithms", "model_free"), ("all algorithms", "any")):
        runs = result[key]
        cells = " | ".join(f"{r['score']:.1f} ({r['chosen']})" for r in runs)
        mean, regret = (statistics.mean(r[k] for r in runs) for k in ("score", "regret"))
        lines.append(f"| {title} | {cells} | {mean:.1f} | {regret:.1f} |")
    return "\n".join([*lines, ""])


def causes_table(plant: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """What weight and length make of the algorithms below their published scores, as Markdown."""
    lines = [
        f"## {plant}: why some scores are below the published ones",
        "",
        "One seed each; the settings below but for what is named. Nothing was chosen by these scores: they say what "
        "would have to be chosen, and the estimate says whether it could be.",
        "",
        "| algorithm | published | gradient steps | weight | score | estimate |",
        "|---|---|---|---|---|---|",
    ]
    published = PUBLISHED_SCORES.get(plant, {})
    for r in rows:
        lines.append(
            f"| {r['algorithm']} | {published.get(PUBLISHED_NAMES[r['algorithm']], '–')} | {r['updates']:,} "
            f"| {r['weight']} = {r['value']:g} | {r['score']:.1f} | {r['ope']:.3g} |"
        )
    return "\n".join([*lines, ""])


def page() -> str:
    """docs/results.md from all results that are kept."""
    why = [
        causes_table(path.stem.removeprefix("causes-"), json.loads(path.read_text()))
        for path in sorted(RESULTS.glob("causes-*.json"))
    ]
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("study-*.json"))]
    settings = [f"- {name}: {updates:,} updates, {json.dumps(o)}" for name, (updates, o) in SETTINGS.items()]
    return "\n".join(
        [
            "# What the algorithms come to",
            "",
            "Made by `make study`. Score 0 and 100 are the plant's own (`PlantSpec.score_range`; for double_mass "
            "NeoRL-2's, whose published scores are seed averages of the best setting, chosen online).",
            "",
            *(table(result) for result in found),
            *why,
            "## Settings",
            "",
            "The same for every plant; what is not named is the algorithm's default. They are not innocent of the "
            "simulator: bptt's defaults were found with rollouts of both plants in view, and of double_mass one or two "
            "trials with rollouts came before the rates, critics and temperatures below. Within the runs above nothing "
            "was chosen by a rollout.",
            "",
            *settings,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plant", choices=sorted(PLANTS))
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="its logs; the reactor's are generated")
    parser.add_argument("--algorithms", nargs="*", default=sorted(SETTINGS), choices=[*SETTINGS, []])
    parser.add_argument("--causes", action="store_true", help="vary weight and length of the algorithms of CAUSES")
    options = parser.parse_args()
    home = Home((Path(os.environ.get("NEORL_HOME") or ".neorl") / "study").resolve())
    if options.causes:
        rows = causes(options.plant, [n for n in CAUSES if n in options.algorithms], options.data, home)
        PAGE.write_text(page())
        print(causes_table(options.plant, rows))
        return
    result = study(options.plant, options.algorithms, options.data, home)
    PAGE.write_text(page())
    print(table(result))


if __name__ == "__main__":
    main()
