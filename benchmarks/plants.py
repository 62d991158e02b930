"""`make plants`: what the plants are held against, how fast they run, and what their controllers come to.

    python -m benchmarks.plants truths     # runs the plants' tests and keeps the outside values that they were held to
    python -m benchmarks.plants speed      # environment steps per second, beside peers (NEORL_PEERS_PYTHON)
    python -m benchmarks.plants scores     # idle, own controller and oracle, by rollouts
    python -m benchmarks.plants            # all three

Each part is kept as JSON, and docs/plants.md is made of what is kept. Speeds are medians of windows in which other
processes used under a tenth of a core, ours and the peers' in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import power_flow
from benchmarks.windows import interleaved
from configs.plant_scores import PATH as SCORES
from neorl_core.plants import PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import mean_interval
from neorl_core.types import Plant
from tasks.adapters.files.canonical import write_json
from tasks.adapters.reporting.trajectories import controllers_of
from tasks.simulate import score

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "plants.md"
PARTS = ("truths", "speed", "scores")
BATCH = 4096
"""Plants of a vectorised window."""
STEPS = 50
"""Of each plant in a vectorised window."""
ROUNDS, LIMIT = 5, 20.0
MEASURED = {"industrial_benchmark": ("Siemens' NumPy code, measured before on one core", 13_000.0)}
"""References that are on no package index: name and steps/s."""
PEERS = {"chemical_reactor": "pc-gym 0.1.8"}
"""References in the same run."""
EPISODES = 1_000
ORACLE_EPISODES = 100


def truths() -> list[dict[str, Any]]:
    """Run the plants' tests; every outside value that one of them was held to by the `truth` fixture."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        folder_of_tests = ROOT / "tests" / "neorl_core" / "plants"
        tests = sorted(str(path) for path in folder_of_tests.glob("test_plant*.py"))
        options = ["-m", "", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode != 0:
            raise SystemExit("expected every test of the plants to pass, got failures: see above.")
        found = [
            json.loads(item.get("value", ""))
            for item in ElementTree.parse(report).iter("property")
            if item.get("name") == "truth"
        ]
    return sorted(found, key=lambda row: row["plant"])


def vectorised(plant: Plant) -> Callable[[], float]:
    """A window of `BATCH` plants, `STEPS` steps each, under random actions; returns seconds per step of one plant."""
    low, high = jnp.asarray(plant.spec.action.low), jnp.asarray(plant.spec.action.high)

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        def episode(key: jax.Array) -> jax.Array:
            start, _ = plant.reset(key, plant.params)

            def step(state: Any, t: jax.Array) -> tuple[Any, jax.Array]:
                key_action, key_step = jax.random.split(jax.random.fold_in(key, t))
                action = low + (high - low) * jax.random.uniform(key_action, low.shape)
                state, now = plant.step(key_step, state, action, plant.params)
                return state, now.reward

            return jnp.sum(jax.lax.scan(step, start, jnp.arange(STEPS))[1])

        return jax.vmap(episode)(jax.random.split(key, BATCH))

    def window() -> float:
        started = time.perf_counter()
        jax.block_until_ready(run(jax.random.key(0)))
        return (time.perf_counter() - started) / (BATCH * STEPS)

    return window


def single(plant: Plant, steps: int = 300) -> Callable[[], float]:
    """A window of one plant, stepped from Python; returns seconds per step."""
    step = jax.jit(plant.step)
    start, _ = jax.jit(plant.reset)(jax.random.key(0), plant.params)
    action = (jnp.asarray(plant.spec.action.low) + jnp.asarray(plant.spec.action.high)) / 2
    key = jax.random.key(1)

    def window() -> float:
        state, started = start, time.perf_counter()
        for _ in range(steps):
            state, now = step(key, state, action, plant.params)
        jax.block_until_ready(now)
        return (time.perf_counter() - started) / steps

    return window


@contextmanager
def pcgym(python: str | None) -> Iterator[Callable[[], float] | None]:
    """Windows of pc-gym's reactor, in seconds per step; None where the peers' Python has none."""
    if python is None:
        yield None
        return
    script = Path(__file__).with_name("peers") / "step_pcgym.py"
    process = subprocess.Popen(
        [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def window() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        print(file=process.stdin, flush=True)
        return 1.0 / float(process.stdout.readline())

    try:
        yield window if process.stdout.readline().strip() == "ready" else None
    finally:
        process.stdin.close()
        process.wait()


def speed(python: str | None) -> dict[str, Any]:
    """Steps per second of every plant, vectorised and single, and of the peers, in one run."""
    rates: dict[str, Any] = {}
    for name, plant in PLANTS.items():
        works: dict[str, Callable[[], float | None]] = {"vectorised": vectorised(plant), "single": single(plant)}
        with pcgym(python if name in PEERS else None) as peer:
            found = interleaved(works | ({"peer": peer} if peer else {}), ROUNDS, LIMIT)
        row: dict[str, Any] = {
            work: {"steps_per_second": 1 / kept.seconds, "quiet": kept.quiet, "windows": kept.windows}
            for work, kept in found.items()
        }
        if "peer" in row:
            row["reference"] = {"name": PEERS[name], "steps_per_second": row["peer"]["steps_per_second"]}
        elif name in MEASURED:
            row["reference"] = dict(zip(("name", "steps_per_second"), MEASURED[name], strict=True))
        rates[name] = row
        print(name, json.dumps(row), flush=True)
    flows = power_flow.measure(python, ROUNDS, LIMIT)
    print("power flow", json.dumps(flows), flush=True)
    machine = platform.processor() or platform.machine()
    return {"cores": os.cpu_count(), "machine": machine, "plants": rates, "power_flow": flows}


def scores(names: list[str]) -> dict[str, Any]:
    """Mean returns of each plant's own controller and of its oracle."""
    kept: dict[str, Any] = json.loads(SCORES.read_text()) if SCORES.exists() else {}
    for name in names:
        plant = PLANTS[name]
        kept[name] = {}
        for who, (controller, params) in controllers_of(plant).items():
            own = who == "plant controller"
            keys = jax.random.split(jax.random.key(0), EPISODES if own else ORACLE_EPISODES)
            found = rollouts(plant, controller, params, keys, plant.domain)
            interval = mean_interval(np.asarray(found.ret, np.float64))
            kept[name]["controller" if own else "oracle"] = {
                "return": float(interval.value),
                "half_width": float(interval.upper - interval.value),
                "score": score(plant.spec, float(interval.value)),
                "violated": int(np.sum(found.violated)),
                "episodes": len(keys),
            }
        print(name, json.dumps(kept[name]), flush=True)
    return {name: kept[name] for name in PLANTS if name in kept}


def _kept(part: str) -> Any:
    path = RESULTS / f"plants-{part}.json"
    return json.loads(path.read_text()) if path.exists() else None


def page() -> str:
    """docs/plants.md from what is kept."""
    lines = [
        "# The plants",
        "",
        "Made by `make plants`. `neorl plants` lists them, `neorl plants show NAME` draws one.",
        "",
        "| plant | observed | manipulated | period | steps | hard limits |",
        "|---|---|---|---|---|---|",
    ]
    for name, plant in PLANTS.items():
        spec = plant.spec
        limits = "; ".join(f"{c.name} {c.low:g} to {c.high:g} {c.unit}".removesuffix(" 1") for c in spec.constraints)
        sizes = f"{spec.observation.size} | {spec.action.size} | {spec.dt:.4g} {spec.time_unit}"
        lines.append(f"| {name} | {sizes} | {spec.horizon} | {limits} |")
    lines += _score_lines(json.loads(SCORES.read_text()) if SCORES.exists() else {})
    lines += _truth_lines(_kept("truths") or [])
    lines += _speed_lines(_kept("speed"))
    return "\n".join([*lines, ""])


def _score_lines(kept: Mapping[str, Any]) -> list[str]:
    if not kept:
        return []
    lines = [
        "",
        "## Controllers",
        "",
        "Mean return with its 95 % interval, score (0 is the zero or safe, idle action, 100 the best known) and "
        "episodes in which a limit was crossed, over the default operating domain.",
        "",
        "| plant | controller | return | score | beyond a limit |",
        "|---|---|---|---|---|",
    ]
    for name, rows in kept.items():
        for who, r in rows.items():
            label = "its own" if who == "controller" else who
            value = f"{r['return']:.4g} ± {r['half_width']:.2g}"
            lines.append(f"| {name} | {label} | {value} | {r['score']:.1f} | {r['violated']} of {r['episodes']} |")
    return lines


def _truth_lines(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "",
        "## Outside values",
        "",
        "What the plants' tests hold them to, and what came out in the run that made this page.",
        "",
        "| plant | quantity | theirs | ours | allowed | source |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r['plant']} | {r['quantity']} | {r['theirs']:.8g} | {r['ours']:.8g} | ± {r['allowed']:.2g} "
            f"| {r['source']} |"
        )
    return lines


def _speed_lines(kept: Mapping[str, Any] | None) -> list[str]:
    if not kept:
        return []
    lines = [
        "",
        "## Speed",
        "",
        f"Environment steps per second on {kept['cores']} cores: {BATCH} plants in one jitted call under random "
        "actions, and one plant stepped from Python. References ran in the same run, unless said.",
        "",
        "| plant | vectorised | single | reference | its rate | vectorised / reference |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in kept["plants"].items():
        rates = [
            f"{row[work]['steps_per_second']:,.0f}" + ("" if row[work]["quiet"] else " (not quiet)")
            for work in ("vectorised", "single")
        ]
        reference = row.get("reference")
        if reference:
            ratio = row["vectorised"]["steps_per_second"] / reference["steps_per_second"]
            rest = f"{reference['name']} | {reference['steps_per_second']:,.0f} | {ratio:,.0f}×"
        else:
            rest = "– | – | –"
        lines.append(f"| {name} | {' | '.join(rates)} | {rest} |")
    if flows := kept.get("power_flow"):
        ours, theirs = (flows[who]["flows_per_second"] for who in ("ours", "pandapower"))
        quiet = "" if all(row["quiet"] for row in flows.values()) else " (not quiet)"
        lines += [
            "",
            f"AC power flow of the 33-bus feeder, each case with random loads and a radial topology of its own: "
            f"{ours:,.0f} flows per second, pandapower 3.5.6 (`runpp`, with numba) {theirs:,.0f} in the same "
            f"run{quiet}: {ours / theirs:,.0f}×.",
        ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--plants", nargs="*", default=list(PLANTS), choices=list(PLANTS), help="for scores")
    parser.add_argument("--peers", default=os.environ.get("NEORL_PEERS_PYTHON"), help="a Python with the peers")
    options = parser.parse_args()
    for part in options.parts or PARTS:
        if part == "truths":
            write_json(RESULTS / "plants-truths.json", truths())
        elif part == "speed":
            write_json(RESULTS / "plants-speed.json", speed(options.peers))
        elif part == "scores":
            write_json(SCORES, scores(options.plants))
        else:
            parser.error(f"expected parts among {', '.join(PARTS)}, got '{part}'")
    PAGE.write_text(page())
    print(f"docs: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
