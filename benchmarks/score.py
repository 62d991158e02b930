"""Measure the seconds from a validated dataset to a selected policy, for NeoRL and d3rlpy; part of `make bench`.

    python -m benchmarks.score DMSD-train.npz DMSD-val.npz --seed 0    # one run, as JSON

NeoRL's run calls the pipeline's tasks `train` and `evaluate` with configs/double_mass.yaml and one learner, in a new
process without a compilation cache. d3rlpy trains with its defaults. Scoring on the simulator does not count as time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import pages
from benchmarks.pages import wrap
from benchmarks.setting import when
from configs.home import Home
from configs.load import load_run
from configs.run import Train
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import bare_controller
from tasks.evaluation.evaluate import evaluate
from tasks.ingest import ingest
from tasks.models.bundles.bundle import load_bundle
from tasks.references import Champion
from tasks.simulate import score
from tasks.training.train import train

ROOT = Path(__file__).resolve().parents[1]
PLANT = "double_mass"
BAR = 78.65
"""Score that a policy must exceed: the best published one (EDAC in NeoRL-2, arXiv 2503.19267, selected online)."""
LEARNER = "bptt"
"""The only learner, with two seeds. For the default population see `make study`."""
RUNS = 3
EPISODES = 256
PEERS = ("td3_bc", "iql", "cql")
PEER_SECONDS = (30, 60, 120)
"""Seconds of training after which d3rlpy's policies are scored."""


def official() -> list[Path]:
    """Return NeoRL-2's DMSD archives beside this checkout, training data first."""
    return sorted((ROOT.parent / "shared" / "data" / "dmsd").glob("DMSD-*.npz"))


def ours(data: Sequence[Path], seed: int) -> dict[str, Any]:
    """Train and select once in this process; return the seconds until selection and the scores of all candidates."""
    plant = PLANTS[PLANT]
    known = load_run(ROOT / "configs" / f"{PLANT}.yaml")
    run = known.model_copy(update={"seed": seed, "train": Train(algorithm=LEARNER)})
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        dataset = ingest(home, run, list(data))
        started, processor = time.perf_counter(), time.process_time()
        population = train(home, run, dataset)
        trained = time.perf_counter() - started
        selected = evaluate(home, run, dataset, population, Champion()).selected
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
        policies = [load_bundle(m.bundle.folder, m.bundle.digest)[1].policy for m in population.members]
    keys = jax.random.split(jax.random.key(seed), EPISODES)
    returns = [rollouts(plant, bare_controller(plant), policy, keys, plant.domain).ret for policy in policies]
    scores = [score(plant.spec, float(np.mean(r))) for r in returns]
    return {
        "seed": seed,
        "seconds": seconds,
        "training_seconds": trained,
        "cpu_seconds": processor,
        "score": scores[selected],
        "candidates": scores,
        "regret": max(scores) - scores[selected],
    }


def peer(python: str, name: str, data: Path) -> list[dict[str, float]]:
    """Train with d3rlpy's defaults and return the score of its policy after each of `PEER_SECONDS`."""
    plant = PLANTS[PLANT]
    step = jax.jit(jax.vmap(plant.step, in_axes=(0, 0, 0, None)))
    keys = jax.random.split(jax.random.key(0), EPISODES)
    process = subprocess.Popen(
        [python, str(Path(__file__).with_name("peers") / "train_d3rlpy.py"), str(data), "--train", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(question: str) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        print(question, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    found, trained = [], 0.0
    try:
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{python} has no d3rlpy 2.8.1 with torch: see benchmarks/peers/train_d3rlpy.py.")
        for seconds in PEER_SECONDS:
            answer = ask(f"train {seconds - trained}")
            trained = float(seconds)
            state, observation = jax.vmap(plant.reset, in_axes=(0, None))(keys, plant.params)
            total = np.zeros(EPISODES)
            for t in range(plant.spec.horizon):
                action = jnp.asarray(ask("act " + json.dumps(np.asarray(observation).tolist())), jnp.float32)
                moved = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, t)
                state, now = step(moved, state, action, plant.params)
                observation = now.observation
                total += np.asarray(now.reward)
            found.append(
                {"seconds": trained, "steps": answer["steps"], "score": score(plant.spec, float(total.mean()))}
            )
    finally:
        process.stdin.close()
        process.wait()
    return found


def measure(data: Sequence[Path], python: str | None, today: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Measure NeoRL, and d3rlpy with the interpreter `python`; without it the scores of d3rlpy in `kept` stay."""
    runs = []
    for seed in range(RUNS):
        command = [sys.executable, "-m", "benchmarks.score", *map(str, data), "--seed", str(seed)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
        print(json.dumps(runs[-1]), flush=True)
    if python:
        theirs = {"peers": {name: peer(python, name, data[0]) for name in PEERS}, "peers_date": today}
    else:
        theirs = {name: kept[name] for name in ("peers", "peers_date") if name in kept}
    return {"runs": runs, "bar": BAR, **theirs}


def section(result: Mapping[str, Any]) -> str:
    """Return the comparison as a section of the page."""
    runs = result["runs"]
    mean, slowest = statistics.mean(r["score"] for r in runs), max(r["seconds"] for r in runs)
    rows = [
        (
            f"seed {r['seed']}",
            f"{r['seconds']:.1f} ({r['training_seconds']:.1f})",
            f"{r['cpu_seconds']:.0f}",
            f"{r['score']:.1f}",
            ", ".join(f"{x:.1f}" for x in r["candidates"]),
            f"{r['regret']:.1f}",
        )
        for r in runs
    ]
    parts = [
        "## Time to a score",
        wrap(
            f"Measured {when(result)}. Each run starts with NeoRL-2's validated DMSD data (double_mass) and ends when "
            f"off-policy evaluation has selected a policy. It uses configs/double_mass.yaml with {LEARNER} alone and "
            f"includes compilation. Criterion: a score above {result['bar']} within 60 s. The mean score is "
            f"{mean:.1f}; the slowest run takes {slowest:.0f} s. *Regret* is the best candidate's score minus the "
            "selected one's."
        ),
        pages.table(("run", "seconds (of training)", "CPU s", "selected score", "all candidates", "regret"), rows),
    ]
    if result.get("peers"):
        heads = (f"score after {s} s" for s in PEER_SECONDS)
        peers = [
            (name, *(f"{r['score']:.1f}" for r in result["peers"][name]), f"{result['peers'][name][-1]['steps']:,.0f}")
            for name in PEERS
        ]
        parts += [
            f"Scores of d3rlpy 2.8.1 with its defaults and one policy, measured on {result['peers_date']}:",
            pages.table(("algorithm", *heads, "gradient steps"), peers),
        ]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="*", default=official(), help="the data's .npz files")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(ours(options.data, options.seed)))


if __name__ == "__main__":
    main()
