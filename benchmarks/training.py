"""`make bench`: how fast the core trains, certifies and acts on this machine; writes docs/studies/speed.md.

Medians of repeated windows after compilation, of those in which other programs used less than a tenth of a core:
where none was so quiet, the table says so. Each part says when it was measured. Where NeoRL-2's
episodes or d3rlpy are missing, the times to a score that need them stay what they were.

    python -m benchmarks.training             # all parts
    python -m benchmarks.training training    # this one anew
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import score, speed
from benchmarks.score import official
from benchmarks.setting import commit, when
from benchmarks.speed import ROWS, SPEC, finish, transitions
from benchmarks.windows import interleaved
from configs.errors import BadInput
from neorl_core.algorithms import ALGORITHMS
from neorl_core.plants import PLANTS
from neorl_core.safety.certify import episode_keys
from neorl_core.safety.composite import composite_controller, make_composite
from neorl_core.training.population import configure, init_population, make_train_chunk, members, policies
from neorl_core.training.preparation import prepare
from tasks.files.canonical import write_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "training.json"
TABLES = ROOT / "docs" / "studies" / "speed.md"
SOURCES = (
    *("neorl_core", "tasks", "configs"),
    *(f"benchmarks/{name}.py" for name in ("training", "speed", "score", "windows")),
)
"""What a measurement depends on."""
PARTS = ("speed", "score", "training", "certification")
CHUNK = 100
WINDOWS = 5


def windows(work: Callable[[], Any]) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(WINDOWS):
        started = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def training(algorithms: Sequence[str], hidden: int, critics: int, seeds: int) -> list[dict[str, Any]]:
    """Gradient steps per second and compile seconds at one size."""
    _, data = prepare(transitions(ROWS), SPEC)
    found = []
    for name in algorithms:
        algorithm = ALGORITHMS[name]
        overrides: dict[str, Any] = {"hidden": [hidden, hidden]}
        if "critics" in algorithm.Config()._asdict():
            overrides["critics"] = critics
        config = configure(algorithm, overrides)
        population = init_population(algorithm, SPEC, config, members(range(seeds), {}))
        chunk = make_train_chunk(algorithm, CHUNK, CHUNK, 256)
        started = time.perf_counter()
        compiled = chunk.lower(population, data).compile()  # type: ignore[attr-defined]
        compiling = time.perf_counter() - started
        finish(compiled(population, data))
        started = time.perf_counter()
        finish(compiled(population, data))
        # Processor time is counted in hundredths of a second: a window must be long beside that.
        repeats = max(round(0.4 / (time.perf_counter() - started)), 1)

        def window(compiled: Any = compiled, population: Any = population, repeats: int = repeats) -> None:
            for _ in range(repeats):
                finish(compiled(population, data))

        kept = interleaved({name: window}, rounds=WINDOWS, limit=4.0)[name]
        found.append(
            {
                "algorithm": name,
                "network": f"2x{hidden}",
                "critics": overrides.get("critics", 0),
                "members": seeds,
                "steps_per_second": seeds * CHUNK * repeats / kept.seconds,
                "compile_seconds": compiling,
                "quiet": kept.quiet > 0,
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def certification() -> dict[str, Any]:
    """Shielded episodes per second, and the latency of one shielded action."""
    plant = PLANTS["chemical_reactor"]
    algorithm = ALGORITHMS["td3_bc"]
    state = init_population(algorithm, plant.spec, configure(algorithm, {}), members([0], {}))
    log = transitions(1000)
    reach = np.asarray(plant.spec.observation.low), np.asarray(plant.spec.observation.high)
    observation = np.random.default_rng(0).uniform(*reach, (1000, 4)).astype(np.float32)
    action = np.full((1000, 1), plant.spec.action.low[0], np.float32)
    normaliser, _ = prepare(
        log._replace(observation=observation, next_observation=observation, action=action), plant.spec
    )
    composite = make_composite(plant, policies(algorithm, state, normaliser)[0])
    controller = composite_controller(plant)
    from neorl_core.plants.base import rollouts

    keys = episode_keys(0, 0, 512)
    jax.block_until_ready(rollouts(plant, controller, composite, keys, plant.domain).ret)
    seconds = windows(lambda: rollouts(plant, controller, composite, keys, plant.domain).ret)
    act = jax.jit(controller.act)
    seen = jnp.asarray(observation[0])
    memory = controller.init(composite, seen)
    jax.block_until_ready(act(composite, memory, seen, plant.applied(seen)))
    applied = plant.applied(seen)
    times = []
    for _ in range(2000):
        started = time.perf_counter()
        jax.block_until_ready(act(composite, memory, seen, applied))
        times.append(time.perf_counter() - started)
    p50, p99 = np.percentile(times, [50, 99]) * 1e6
    return {"episodes_per_second": 512 / seconds, "action_us_p50": float(p50), "action_us_p99": float(p99)}


def table(result: Mapping[str, Any]) -> str:
    """The results as Markdown; parts that were never measured are left out."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`. Steps of all members of a population count.",
        "",
    ]
    if "speed" in result:
        lines += [speed.table(result["speed"])]
    if "score" in result:
        lines += [score.table(result["score"])]
    if "training" in result:
        lines += [
            "## At a plant's size",
            "",
            f"Measured {when(result['training'])}, on the same rows.",
            "",
            "| algorithm | network | critics | members | gradient steps/s | trace and compile, s |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['algorithm']}{'' if r['quiet'] else ' (not quiet)'} | {r['network']} | {r['critics'] or '–'} "
            f"| {r['members']} | {r['steps_per_second']:,.0f} "
            f"| {r['compile_seconds']:.1f} |"
            for r in result["training"]["rows"]
        ]
    if "certification" in result:
        c = result["certification"]
        lines += [
            "",
            "## A shielded policy",
            "",
            f"Measured {when(c)}.",
            "",
            "| chemical_reactor, shielded policy with a 12-step look-ahead | |",
            "|---|---|",
            f"| certification episodes (60 steps) per second | {c['episodes_per_second']:,.0f} |",
            f"| one shielded action from Python, median | {c['action_us_p50']:.0f} µs |",
            f"| one shielded action from Python, 99th percentile | {c['action_us_p99']:.0f} µs |",
            "",
        ]
    return "\n".join(lines)


def made(at: str) -> dict[str, str]:
    """When, where and of what a part was measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": at,
        "machine": f"{platform.machine()}, {jax.device_count()} {jax.default_backend()} device(s)",
        "jax": jax.__version__,
    }


def main() -> None:
    known = speed.parser(__doc__)
    known.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    known.add_argument("--dmsd", type=Path, nargs="*", default=official(), help="NeoRL-2's DMSD archives, train first")
    options = known.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        known.error(f"expected parts among {', '.join(PARTS)}, got '{unknown[0]}'")
    try:
        at = made(commit(SOURCES))
    except BadInput as refused:
        known.error(str(refused))
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "speed": lambda: speed.measure(options.peers, options.rounds, options.limit),
        "score": lambda: score.measure(options.dmsd, options.peers, at["date"], result.get("score", {})),
        "training": lambda: {
            "rows": [
                *training(list(ALGORITHMS), 64, 2, 1),
                *training(["sac_n", "edac", "td3_bc"], 64, 10, 1),
                *training(["td3_bc"], 64, 2, 4),
            ]
        },
        "certification": certification,
    }
    for part in options.parts or PARTS:
        if part != "score" or options.dmsd:
            result[part] = at | measures[part]()
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            write_json(RESULTS, result)
    TABLES.write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main()
