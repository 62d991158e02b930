"""Environment steps per second of every plant, vectorised and single, and of peers.

Speeds are medians of windows in which other processes used under a tenth of a core, ours and the peers' in turn.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import power_flow
from benchmarks.plants.kept import ROOT
from benchmarks.windows import interleaved
from neorl_core.plants import PLANTS
from neorl_core.types import Plant

BATCH = 4096
"""Plants of a vectorised window."""
STEPS = 50
"""Of each plant in a vectorised window."""
ROUNDS, LIMIT = 5, 20.0
MEASURED = {"industrial_benchmark": ("Siemens' NumPy code, measured before on one core", 13_000.0)}
"""References that are on no package index: name and steps/s. No ratio is told of them: it would be of two machines."""
PEERS = {"chemical_reactor": "pc-gym 0.1.8"}
"""References in the same run."""


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
                # All that a step tells counts: what nobody takes, such as an observation's noise, is not computed.
                return state, sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(now))

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
    script = ROOT / "benchmarks" / "peers" / "step_pcgym.py"
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
    return {"cores": os.cpu_count(), "machine": machine, "peers": bool(python), "plants": rates, "power_flow": flows}


def lines_of(kept: Mapping[str, Any] | None) -> list[str]:
    """The speeds as a section of docs/studies/plants.md."""
    if not kept:
        return []
    without = "" if kept.get("peers") else ", which had none: NEORL_PEERS_PYTHON names a Python that has them"
    lines = [
        "",
        "## Speed",
        "",
        f"Environment steps per second on {kept['cores']} cores: {BATCH} plants in one jitted call under random "
        "actions, with all that a step tells, and one plant stepped from Python. A ratio is told where the reference "
        f"ran in the same run{without}.",
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
            told = f"{ratio:,.0f}×" if "peer" in row else "–"
            rest = f"{reference['name']} | {reference['steps_per_second']:,.0f} | {told}"
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
