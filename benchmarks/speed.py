"""Measure the training speed of NeoRL and d3rlpy, and the limit of this machine; part of `make bench`.

Time windows of NeoRL, d3rlpy and the fastest matrix product alternate. A window counts only if other processes use less
than a tenth of a core. d3rlpy is measured if NEORL_PEERS_PYTHON or --peers names a Python interpreter that has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import pages
from benchmarks.pages import wrap
from benchmarks.setting import when
from benchmarks.windows import Kept, interleaved
from neorl_core.algorithms import ALGORITHMS
from neorl_core.training.population import Algorithm, TrainState, configure, init_population, make_train_chunk, members
from neorl_core.training.preparation import prepare
from neorl_core.types import Constraint, PlantSpec, Space, Transition

ROWS, WIDTH, BATCH = 1_000_000, 256, 256
OBSERVATIONS, ACTIONS = 11, 3
OURS = {"td3_bc": 500, "iql": 500, "cql": 50}
"""Gradient steps of a window, about a second of work."""
PEERS = {"td3_bc": 100, "iql": 80, "cql": 15}
BARS = {"td3_bc": 4.7, "iql": 4.5, "cql": 2.65}
"""Criteria: least ratio of our steps per second to d3rlpy's."""
OVERRIDES: dict[str, dict[str, Any]] = {"cql": {"alpha_lr": 1e-4}}
"""Hyper-parameters that make our algorithm equal to d3rlpy's, which adapts CQL's alpha."""


def space(size: int, low: float, high: float) -> Space:
    return Space(tuple(f"x{i}" for i in range(size)), ("1",) * size, (low,) * size, (high,) * size)


SPEC = PlantSpec(
    name="benchmark",
    observation=space(OBSERVATIONS, -10.0, 10.0),
    action=space(ACTIONS, -1.0, 1.0),
    constraints=(Constraint("none", "1", -1e9, 1e9),),
    dt=1.0,
    time_unit="s",
    horizon=1000,
    score_range=(0.0, 1.0),
)


def transitions(rows: int) -> Transition:
    """Return random transitions of a common size: 11 observations, 3 actions."""
    random = np.random.default_rng(0)
    observation = random.standard_normal((rows + 1, OBSERVATIONS), np.float32)
    return Transition(
        observation=observation[:-1],
        action=random.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32),
        reward=random.standard_normal(rows, np.float32),
        cost=np.zeros(rows, np.float32),
        next_observation=observation[1:],
        terminated=np.zeros(rows, np.float32),
    )


def set_up(name: str) -> tuple[Algorithm, TrainState]:
    """Return an algorithm and a fresh population with d3rlpy's defaults: twin critics, Adam without clipping."""
    algorithm = ALGORITHMS[name]
    known = algorithm.Config()._asdict()
    wanted = {"hidden": [WIDTH, WIDTH], "critics": 2, "actor_recipe": "td3", "critic_recipe": "td3"}
    chosen = {key: value for key, value in wanted.items() if key in known} | OVERRIDES.get(name, {})
    return algorithm, init_population(algorithm, SPEC, configure(algorithm, chosen), members([0], {}))


def silent(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm without the computation of metrics."""
    return algorithm._replace(update=lambda state, batches, key: (algorithm.update(state, batches, key)[0], {}))


def finish(work: Any) -> None:
    """Wait for JAX."""
    jax.block_until_ready(work)


def ours(algorithm: Algorithm, population: TrainState, data: Transition, steps: int) -> Callable[[], None]:
    chunk = make_train_chunk(algorithm, steps, steps, BATCH)
    return lambda: finish(chunk(population, data))


@contextmanager
def peers(python: str | None, raw: Transition) -> Iterator[dict[str, Callable[[], float]]]:
    """Yield a function for each algorithm that trains with d3rlpy in another process; none if `python` is None."""
    if not python:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transitions.npz"
        np.savez(path, observations=raw.observation, actions=raw.action, rewards=raw.reward)
        script = Path(__file__).with_name("peers") / "train_d3rlpy.py"
        process = subprocess.Popen(
            [python, str(script), str(path), str(WIDTH), str(BATCH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{python} has no d3rlpy 2.8.1 with torch: see benchmarks/peers/train_d3rlpy.py.")

        def window(name: str) -> float:
            print(name, PEERS[name], file=process.stdin, flush=True)
            return float(process.stdout.readline().split()[0])

        try:
            yield {name: lambda name=name: window(name) for name in PEERS if name in ALGORITHMS}
        finally:
            process.stdin.close()
            process.wait()


def products() -> dict[int, Callable[[], None]]:
    """Return functions that compute float32 matrix products, by size; the fastest defines the machine's rate."""

    def chain(size: int) -> Callable[[], None]:
        x = jnp.asarray(np.random.default_rng(0).standard_normal((size, size), np.float32) / np.sqrt(size))
        repeated = jax.jit(lambda x: jax.lax.fori_loop(0, repeats(size), lambda _, y: y @ x, x))
        return lambda: finish(repeated(x))

    return {size: chain(size) for size in (512, 1024, 2048)}


def repeats(size: int) -> int:
    """Return the number of products in a window: about 2e11 operations."""
    return max(int(1e11 / size**3), 1)


def minimal_flop(name: str) -> float:
    """Return the least number of floating-point operations of one gradient step.

    Only matrix products count, each computed once. A layer needs one product forward, one for the gradient of the
    weights, and one for the gradient of its input. The first layer of a trained network needs no gradient of its input.
    """
    hidden, inputs = WIDTH * WIDTH, OBSERVATIONS + ACTIONS
    critic, first = inputs * WIDTH + hidden + WIDTH, inputs * WIDTH
    actor, value = OBSERVATIONS * WIDTH + hidden + ACTIONS * WIDTH, OBSERVATIONS * WIDTH + hidden + WIDTH
    actor_learns, value_learns = 3 * actor - OBSERVATIONS * WIDTH, 3 * value - OBSERVATIONS * WIDTH
    critics_learn, samples = 2 * (3 * critic - first), 10
    products = {
        # Target action and values; both critics; the actor through the first critic every other step.
        "td3_bc": actor + 2 * critic + critics_learn + (actor_learns + 2 * critic) / 2,
        # Values at s and s', twin targets, twin critics, actor.
        "iql": value_learns + value + 2 * critic + critics_learn + actor_learns,
        # Critics at the logged and the sampled actions; the policy at s' and s; the actor through both critics.
        "cql": critics_learn * (3 * samples + 1) + 2 * critic + actor + actor_learns + 4 * critic,
    }
    return 2.0 * BATCH * products[name]


def executed_flop(name: str) -> float:
    """Return the floating-point operations of one gradient step that XLA counts in the compiled program.

    XLA counts the body of a loop once. CQL splits large batches in a loop, so this function uses a small batch and
    scales the result.
    """
    algorithm, population = set_up(name)
    rows = BATCH - 1
    batches = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * algorithm.batches_per_update), transitions(rows))
    one = jax.tree.map(lambda x: x[0], population.learner)
    analysis = jax.jit(algorithm.update).lower(one, batches, jax.random.key(0)).compile().cost_analysis()
    return float(analysis["flops"]) / algorithm.batches_per_update * BATCH / rows


def compile_seconds(name: str) -> float:
    """Return the seconds of tracing and compiling a chunk in this process."""
    algorithm, population = set_up(name)
    data = jax.eval_shape(lambda: prepared_like(ROWS))
    started = time.perf_counter()
    make_train_chunk(algorithm, OURS[name], OURS[name], BATCH).lower(population, data).compile()  # type: ignore[attr-defined]
    return time.perf_counter() - started


def prepared_like(rows: int) -> Transition:
    _, few = prepare(transitions(8), SPEC)
    return jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), few)


def cold_and_warm(name: str) -> tuple[float, float]:
    """Return `compile_seconds` of two new processes: with an empty compilation cache, then with the filled cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
        command = [sys.executable, "-m", "benchmarks.speed", "--compile", name]
        runs = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    cold, warm = (float(run.stdout.split()[-1]) for run in runs)
    return cold, warm


def checkpoint_seconds(population: TrainState) -> float:
    """Return the median seconds of writing a checkpoint as the pipeline does."""
    from tasks.models.bundles.checkpoints import Checkpoints

    with tempfile.TemporaryDirectory() as folder, Checkpoints(Path(folder), "{}") as checkpoints:
        step = iter(range(100))
        return interleaved({"save": lambda: checkpoints.save(next(step), {"population": population})}, 5, 5)[
            "save"
        ].seconds


def measure(python: str | None, rounds: int = 7, limit: float = 120.0) -> dict[str, Any]:
    """Measure everything as JSON."""
    # Imported here, because benchmarks.accelerator imports this module without the pipeline's packages.
    from configs.run import DEFAULT_BESIDE, Train

    raw = transitions(ROWS)
    started = time.perf_counter()
    _, data = jax.block_until_ready(prepare(raw, SPEC))
    preparing = time.perf_counter() - started
    names = [name for name in OURS if name in ALGORITHMS]
    found = {name: set_up(name) for name in names}
    works: dict[str, Callable[[], float | None]] = {name: ours(*found[name], data, OURS[name]) for name in names}
    td3_bc, population = found["td3_bc"]
    works["td3_bc without metrics"] = ours(silent(td3_bc), population, data, OURS["td3_bc"])
    works |= {f"product {size}": work for size, work in products().items()}
    with peers(python, raw) as theirs:
        works |= {f"d3rlpy {name}": work for name, work in theirs.items()}
        kept = interleaved(works, rounds, limit)
    gemm = max(2.0 * size**3 * repeats(size) / kept[f"product {size}"].seconds for size in products())
    result = [row(name, kept, gemm) for name in names]
    updates = next(learner.updates for learner in DEFAULT_BESIDE if learner.algorithm == "td3_bc")
    rate = OURS["td3_bc"] / kept["td3_bc without metrics"].seconds
    saving = checkpoint_seconds(population)
    return {
        "gemm_gflops": gemm / 1e9,
        "rows": result,
        "overhead": {
            "normalisation": preparing * rate / updates,
            "metrics": kept["td3_bc"].seconds / kept["td3_bc without metrics"].seconds - 1.0,
            "checkpoints": saving * rate / Train().checkpoint_every,
            "prepare_seconds": preparing,
            "checkpoint_seconds": saving,
        },
        "windows": {name: {"all": k.windows, "quiet": k.quiet} for name, k in kept.items()},
        "peers": bool(python),
    }


def row(name: str, kept: dict[str, Kept], gemm: float) -> dict[str, Any]:
    mine, peer = kept[name], kept.get(f"d3rlpy {name}")
    rate = OURS[name] / mine.seconds
    cold, warm = cold_and_warm(name)
    return {
        "algorithm": name,
        "steps_per_second": rate,
        "peer_steps_per_second": peer and PEERS[name] / peer.seconds,
        "ratio": peer and rate / (PEERS[name] / peer.seconds),
        "bar": BARS[name],
        "quiet": bool(mine.quiet and (peer is None or peer.quiet)),
        "executed_mflop": executed_flop(name) / 1e6,
        "minimal_mflop": minimal_flop(name) / 1e6,
        "share_of_limit": rate * minimal_flop(name) / gemm,
        "compile_cold_seconds": cold,
        "compile_warm_seconds": warm,
    }


def section(result: Mapping[str, Any]) -> str:
    """Return the comparison as a section of the page."""
    peer = "NeoRL and d3rlpy 2.8.1 run in turn" if result["peers"] else "d3rlpy was not measured"
    rows = []
    for r in result["rows"]:
        theirs = f"{r['peer_steps_per_second']:.1f}" if r["peer_steps_per_second"] else "–"
        ratio = f"{r['ratio']:.2f} ({r['bar']})" if r["ratio"] else "–"
        flop = (f"{r['executed_mflop']:.0f}", f"{r['minimal_mflop']:.0f}", f"{r['share_of_limit']:.0%}")
        compiling = (f"{r['compile_cold_seconds']:.1f}", f"{r['compile_warm_seconds']:.1f}")
        name = f"{r['algorithm']}{'' if r['quiet'] else ' (not quiet)'}"
        rows.append((name, f"{r['steps_per_second']:.1f}", theirs, ratio, *flop, *compiling))
    head = ("algorithm", "steps/s", "d3rlpy", "ratio (criterion)", "MFLOP per step", "minimal", "share of the limit")
    o = result["overhead"]
    total = o["normalisation"] + o["metrics"] + o["checkpoints"]
    return "\n\n".join(
        [
            "## Compared with d3rlpy and with the machine",
            wrap(
                f"Measured {when(result)}. One member trains on {ROWS:,} random transitions with {OBSERVATIONS} "
                f"observations and {ACTIONS} actions. A batch has {BATCH} rows. Networks have two layers of {WIDTH} "
                f"units; there are two critics. {peer}. Rates are medians of time windows in which other processes "
                "used less than a tenth of a core. Columns:"
            ),
            COLUMNS.format(limit=f"{result['gemm_gflops']:.0f} GFLOP/s"),
            pages.table((*head, "compile, s", "with cache, s"), rows),
            wrap(
                f"A default training with TD3+BC spends {total:.1%} of the time on other work: metrics "
                f"{o['metrics']:.1%}, checkpoints {o['checkpoints']:.1%}, normalisation {o['normalisation']:.1%}."
            ),
        ]
    )


COLUMNS = """- *steps/s*, *d3rlpy*: gradient steps per second of NeoRL and of d3rlpy
- *ratio (criterion)*: NeoRL's rate / d3rlpy's rate, with the required least ratio
- *MFLOP per step*, *minimal*: million floating-point operations of a step, in the program and the least that the
  equations need
- *share of the limit*: rate / the rate at which this machine could compute the minimal operations ({limit})
- *compile*, *with cache*: seconds of compilation in a new process, without and with a compilation cache"""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of this module and of `benchmarks.training`."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--peers", default=os.environ.get("NEORL_PEERS_PYTHON"), help="Python interpreter with d3rlpy")
    found.add_argument("--rounds", type=int, default=7, help="quiet windows of each program")
    found.add_argument("--limit", type=float, default=120.0, help="seconds after which windows stop")
    return found


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--compile", choices=sorted(OURS), help="only print the seconds of one compilation")
    options = known.parse_args()
    if options.compile:
        print(compile_seconds(options.compile))
        return
    result = measure(options.peers, options.rounds, options.limit)
    print(json.dumps(result))
    print(section(result))


if __name__ == "__main__":
    main()
