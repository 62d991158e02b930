"""`make resume`: kill a training process at random steps, resume it, and compare with an undisturbed training.

There are two trainings of every algorithm. One is undisturbed. The other is killed repeatedly, each time shortly after
a random step, and resumes from its checkpoints. Both must end with the same bits of parameters, optimisers, random keys
and learning curves.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "resume.json"
UPDATES, CHUNK, WARM_UP = 1_000, 40, 400
LATER = 0.03
"""Longest delay [s] between a step and the kill, so that some kills happen while a checkpoint is written."""


def child(name: str, folder: Path) -> None:
    """Train to the end; print the step and write a checkpoint after every chunk."""
    from neorl_core.algorithms import ALGORITHMS
    from neorl_core.training.loop import Plan, resident, train
    from neorl_core.training.population import configure, init_population, members, warm_up_updates
    from neorl_core.training.preparation import prepare
    from neorl_core.types import PlantSpec, Space, Transition
    from tasks.models.bundles.checkpoints import Checkpoints, state_digest
    from tasks.training.checkpointing import Checkpointing

    spec = PlantSpec(
        name="toy",
        observation=Space(("x", "y", "z"), ("1",) * 3, (-9.0,) * 3, (9.0,) * 3),
        action=Space(("u", "v"), ("1",) * 2, (-1.0,) * 2, (1.0,) * 2),
        constraints=(),
        dt=1.0,
        time_unit="s",
        horizon=10,
        score_range=(0.0, 1.0),
    )
    rng = np.random.default_rng(0)
    x, u = rng.normal(size=(1001, 3)).astype(np.float32), rng.uniform(-1, 1, size=(1000, 2)).astype(np.float32)
    zeros = np.zeros(1000, np.float32)
    _, data = prepare(Transition(x[:-1], u, -np.sum(x[1:] ** 2, axis=1), zeros, x[1:], zeros), spec)
    algorithm = ALGORITHMS[name]
    small = {"hidden": [16], "critics": 2, "model_hidden": [8], "horizon": 3, "warm_up_updates": WARM_UP}
    config = configure(algorithm, {k: v for k, v in small.items() if k in algorithm.Config._fields})
    fresh = init_population(algorithm, spec, config, members([0, 1], {}))

    def progress(done: int, *_: Any) -> None:
        print(done, flush=True)

    with Checkpoints(folder, json.dumps({"algorithm": name})) as checkpoints:
        saved = Checkpointing(checkpoints, progress)
        plan = Plan(CHUNK, CHUNK, UPDATES, warm_up_updates(algorithm, config))
        reached = train(algorithm, fresh, resident(data), plan, 32, resume=saved.resume, report=saved.report)
    print(state_digest(reached._asdict()), flush=True)


def run(name: str, folder: Path, until: int = UPDATES, later: float = 0.0) -> dict[str, Any]:
    """Start a training in a new process; let it finish, or kill it after it reports a step.

    Returns:
        `began` and `reached`, the first and the last reported step, and `digest` of the result; none after a kill.
    """
    command = [sys.executable, "-m", "benchmarks.resume", "--child", name, "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        output: list[str] = []
        for line in process.stdout:
            output.append(line.strip())
            if until < UPDATES and output[-1].isdigit() and int(output[-1]) >= until:
                time.sleep(later)
                os.kill(process.pid, signal.SIGKILL)
                break
        output += process.stdout.read().split()
        code, errors = process.wait(), process.stderr.read()
    steps = [int(word) for word in output if word.isdigit() and len(word) < 20]
    if code not in (0, -signal.SIGKILL) or not steps:
        raise SystemExit(f"resume: {name} exited with {code}:\n{errors[-3000:]}")
    return {"began": steps[0], "reached": steps[-1], "digest": output[-1] if code == 0 else None}


def killed(name: str, kills: int, moments: random.Random, folder: Path) -> dict[str, Any]:
    """Make both trainings of one algorithm and return the row of the table."""
    expected = run(name, folder / f"{name}-calm")["digest"]
    lives = []
    for step in sorted(moments.randrange(0, UPDATES) for _ in range(kills)):
        lives.append(run(name, folder / f"{name}-wild", step, moments.uniform(0.0, LATER)))
    last = run(name, folder / f"{name}-wild")
    begins = [life["began"] for life in (*lives[1:], last)]
    lost = [life["reached"] - began for life, began in zip(lives, begins, strict=True)]
    return {
        "algorithm": name,
        "kills": sum(life["digest"] is None for life in lives),
        "resumed_at": begins,
        "lost": lost,
        "digest": last["digest"],
        "same": last["digest"] == expected,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="seed of the steps and moments")
    parser.add_argument("--algorithms", nargs="*", help="default: all; kept rows of the others stay")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.folder)
        return 0
    from neorl_core.algorithms import ALGORITHMS

    moments, rows = random.Random(arguments.seed), []
    with tempfile.TemporaryDirectory(prefix="neorl-resume-") as name:
        folder = Path(name)
        # The children share a compilation cache.
        cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        os.environ.update(cache)
        print("| algorithm | kills | resumed at steps | updates made again, mean | same bits |\n|---|---|---|---|---|")
        for algorithm in arguments.algorithms or ALGORITHMS:
            row = killed(algorithm, arguments.kills, moments, folder)
            rows.append(row)
            span = f"{min(row['resumed_at']):,} to {max(row['resumed_at']):,}"
            lost = sum(row["lost"]) / max(len(row["lost"]), 1)
            print(
                f"| {algorithm} | {row['kills']} | {span} | {lost:.0f} | {'yes' if row['same'] else 'NO'} |", flush=True
            )
    before = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() and arguments.algorithms else []
    made = {row["algorithm"]: row for row in (*before, *rows)}
    rows = [made[name] for name in ALGORITHMS if name in made]
    result = {"date": datetime.now(UTC).date().isoformat(), "updates": UPDATES, "chunk": CHUNK, "rows": rows}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["same"] and row["kills"] == arguments.kills for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
