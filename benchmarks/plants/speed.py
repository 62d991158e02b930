"""Measure environment steps per second of every plant and of other simulators (peers).

Speeds are medians of time windows in which other processes used less than a tenth of a core. Windows of NeoRL and of a
peer alternate.
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
from benchmarks.pages import ROOT, table, wrap
from benchmarks.windows import interleaved
from neorl_core.plants import PLANTS
from neorl_core.types import Plant

BATCH = 4096
"""Number of plants in a vectorised window."""
STEPS = 50
"""Steps of each plant in a vectorised window."""
ROUNDS, LIMIT = 5, 20.0
MEASURED = {"industrial_benchmark": ("Siemens' NumPy code on another machine", 13_000.0)}
"""Simulators that no package index has, with steps/s on another machine. The table shows no ratio to them."""
PEERS = {"chemical_reactor": "pc-gym 0.1.8"}
"""Other simulators that are measured on the same machine."""


def vectorised(plant: Plant) -> Callable[[], float]:
    """Return a function that plays `BATCH` plants for `STEPS` random steps and returns seconds per plant and step."""
    low, high = jnp.asarray(plant.spec.action.low), jnp.asarray(plant.spec.action.high)

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        def episode(key: jax.Array) -> jax.Array:
            start, _ = plant.reset(key, plant.params)

            def step(state: Any, t: jax.Array) -> tuple[Any, jax.Array]:
                key_action, key_step = jax.random.split(jax.random.fold_in(key, t))
                action = low + (high - low) * jax.random.uniform(key_action, low.shape)
                state, now = plant.step(key_step, state, action, plant.params)
                # Use every output, because XLA removes computations of unused outputs, such as measurement noise.
                return state, sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(now))

            return jnp.sum(jax.lax.scan(step, start, jnp.arange(STEPS))[1])

        return jax.vmap(episode)(jax.random.split(key, BATCH))

    def window() -> float:
        started = time.perf_counter()
        jax.block_until_ready(run(jax.random.key(0)))
        return (time.perf_counter() - started) / (BATCH * STEPS)

    return window


def single(plant: Plant, steps: int = 300) -> Callable[[], float]:
    """Return a function that steps one plant from Python and returns seconds per step."""
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
    """Yield a function that returns seconds per step of pc-gym's reactor; None if pc-gym is not installed."""
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
    """Measure every plant, and the peers if `python` names an interpreter that has them."""
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


def section(kept: Mapping[str, Any]) -> str:
    """Return the speeds as a table."""
    rows = []
    for name, measured in kept["plants"].items():
        rates = [
            f"{measured[work]['steps_per_second']:,.0f}" + ("" if measured[work]["quiet"] else " (not quiet)")
            for work in ("vectorised", "single")
        ]
        reference = measured.get("reference")
        shown = f"{reference['name']}: {reference['steps_per_second']:,.0f}" if reference else "–"
        ratio = "–"
        if reference and "peer" in measured:
            ratio = f"{measured['vectorised']['steps_per_second'] / reference['steps_per_second']:,.0f}×"
        rows.append((name, *rates, shown, ratio))
    parts = [
        wrap(
            f"Control steps per second on {kept['cores']} cores. *Vectorised*: {BATCH} plants in one "
            "compiled call with random actions. *Single*: one plant with one step per call. *Reference*: another "
            "simulator with its speed. *Ratio*: vectorised speed divided by the reference's speed, if both ran on "
            "this machine."
        ),
        table(("plant", "vectorised", "single", "reference", "ratio"), rows),
    ]
    if flows := kept.get("power_flow"):
        ours, theirs = (flows[who]["flows_per_second"] for who in ("ours", "pandapower"))
        quiet = "" if all(each["quiet"] for each in flows.values()) else " (not quiet)"
        parts.append(
            wrap(
                "For the 33-bus feeder with random loads and a random radial topology in each case, NeoRL solves "
                f"{ours:,.0f} AC power flows per second. pandapower 3.5.6 (`runpp` with numba) solves "
                f"{theirs:,.0f}{quiet}."
            )
        )
    return "\n\n".join(parts)
