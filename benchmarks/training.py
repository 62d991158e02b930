"""`make bench`: measure the speed of training, certification and a shielded action on this machine.

    python -m benchmarks.training             # all parts
    python -m benchmarks.training training    # measure one part again
    python -m benchmarks.training --page      # docs/studies/speed.md from the kept results

Results are medians of time windows after compilation in which other programs used less than a tenth of a core. The
table marks a row without such a window as not quiet. The part `score` needs NeoRL-2's episodes and d3rlpy; without them
its kept results stay.
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

from benchmarks import pages, score, speed
from benchmarks.pages import ROOT, STUDIES, wrap
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

RESULTS = ROOT / "benchmarks" / "results" / "training.json"
PAGE = STUDIES / "speed.md"
SOURCES = (
    *("neorl_core", "tasks", "configs"),
    *(f"benchmarks/{name}.py" for name in ("training", "speed", "score", "windows")),
)
"""Files and folders that a measurement depends on."""
PARTS = ("speed", "score", "training", "certification")
CHUNK = 100
WINDOWS = 5


def windows(work: Callable[[], Any]) -> float:
    """Return the median seconds of a call, over quiet windows."""
    times = []
    for _ in range(WINDOWS):
        started = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def training(algorithms: Sequence[str], hidden: int, critics: int, seeds: int) -> list[dict[str, Any]]:
    """Measure gradient steps per second and seconds of compilation for networks of one size."""
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
        # CPU time has a resolution of 0.01 s, so a window must be much longer.
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
    """Measure shielded episodes per second, and the latency of one shielded action."""
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


def page(result: Mapping[str, Any]) -> str:
    """Return docs/studies/speed.md; parts without a measurement are left out."""
    parts = [speed.section(result["speed"])] if "speed" in result else []
    parts += [score.section(result["score"])] if "score" in result else []
    if "training" in result:
        rows = [
            (
                f"{r['algorithm']}{'' if r['quiet'] else ' (not quiet)'}",
                r["critics"] or "–",
                r["members"],
                f"{r['steps_per_second']:,.0f}",
                f"{r['compile_seconds']:.1f}",
            )
            for r in result["training"]["rows"]
        ]
        parts += [
            "## Networks of a plant's size",
            wrap(
                f"Measured {when(result['training'])}, on the same transitions with two layers of 64 units. "
                "*critics*: number of critics; *steps/s*: gradient steps of all members per second; *compile*: seconds "
                "of compilation."
            ),
            pages.table(("algorithm", "critics", "members", "steps/s", "compile, s"), rows),
        ]
    if "certification" in result:
        c = result["certification"]
        latency = (f"{c[f'action_us_p{p}']:.0f} µs" for p in (50, 99))
        parts += [
            "## Shielded policy",
            wrap(f"Measured {when(c)}, on chemical_reactor with a shield that looks 12 control steps ahead."),
            pages.table(
                ("certification episodes (60 steps) per second", "one action from Python, median", "99th percentile"),
                [(f"{c['episodes_per_second']:,.0f}", *latency)],
            ),
        ]
    return pages.study(
        "Speed",
        "How fast are training, certification and a shielded action on a CPU, compared with d3rlpy?",
        answer(result),
        "`make bench` measures this machine; `python -m benchmarks.training --page` only writes this page.",
        *parts,
    )


def answer(result: Mapping[str, Any]) -> str:
    """Return the answer in two sentences."""
    ratios = [r["ratio"] for r in result.get("speed", {}).get("rows", []) if r["ratio"]]
    faster = f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as d3rlpy" if ratios else "not measured"
    c = result.get("certification")
    shield = f"A shielded action takes {c['action_us_p50']:.0f} µs." if c else ""
    return f"Training is {faster}. {shield}"


def made(at: str) -> dict[str, str]:
    """Return date, commit and machine of a measurement."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": at,
        "machine": f"{platform.machine()}, {jax.device_count()} {jax.default_backend()} device(s)",
        "jax": jax.__version__,
    }


def main() -> None:
    parser = speed.parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--dmsd", type=Path, nargs="*", default=official(), help="NeoRL-2's DMSD archives, training data first"
    )
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part '{unknown[0]}': choose among {', '.join(PARTS)}")
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.page:
        PAGE.write_text(page(result))
        return
    try:
        at = made(commit(SOURCES))
    except BadInput as error:
        parser.error(str(error))
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
    PAGE.write_text(page(result))


if __name__ == "__main__":
    main()
