"""How fast the plants run, alone and many at once, beside reference implementations; prints ratios of one run.

    python -m benchmarks.plants [--peers PYTHON] [NAME ...]

A peer runs in a Python of its own, named by --peers or NEORL_PEERS_PYTHON: benchmarks/peer_pandapower.py. Windows of
all programs take turns, and count only while other processes use less than a tenth of a core (benchmarks/windows.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.windows import interleaved
from neorl_core.plants import PLANTS, feeder33, power_grid
from neorl_core.plants.power_flow import is_radial, open_lines, path_matrix, solve
from neorl_core.types import Plant

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "plants.json"
MANY, STEPS = 4096, 64
"""Plants side by side, and steps of each in a window."""
FLOWS, PEER_FLOWS = 65536, 20
ROUNDS, LIMIT = 5, 20.0


def finish(work: jax.Array) -> None:
    """Wait for what JAX computes."""
    jax.block_until_ready(work)


def stepping(plant: Plant, many: int) -> Callable[[], None]:
    """A window: `many` plants, each `STEPS` steps under uniformly random actions."""
    low, high = (jnp.asarray(x) for x in (plant.spec.action.low, plant.spec.action.high))

    def run(key: jax.Array) -> jax.Array:
        params = plant.sample_params(key, plant.domain)
        state, _ = plant.reset(key, params)

        def step(state: object, key: jax.Array) -> tuple[object, jax.Array]:
            action = low + (high - low) * jax.random.uniform(key, low.shape)
            state, now = plant.step(key, state, action, params)
            return state, now.reward

        return jnp.sum(jax.lax.scan(step, state, jax.random.split(key, STEPS))[1])

    keys = jax.random.split(jax.random.key(0), many)
    compiled = jax.jit(jax.vmap(run) if many > 1 else lambda keys: run(keys[0]))
    return lambda: finish(compiled(keys))


def cases(count: int) -> dict[str, np.ndarray]:
    """Random radial topologies of the feeder, as positions and as open lines, with random loads [MW, Mvar]."""
    rng, positions = np.random.default_rng(0), np.zeros((0, feeder33.TIES), np.int32)
    radial = jax.jit(jax.vmap(is_radial))
    while len(positions) < count:
        drawn = np.stack([rng.integers(0, len(loop), 4 * count) for loop in feeder33.LOOP_LINES], 1).astype(np.int32)
        positions = np.concatenate([positions, drawn[np.asarray(radial(drawn))]])
    positions = positions[:count]
    level = rng.uniform(0.2, 0.6, (count, feeder33.BUSES))
    return {
        "positions": positions,
        "open": np.asarray(jax.vmap(open_lines)(positions)),
        "active": (level * feeder33.ACTIVE_LOAD).astype(np.float32),
        "reactive": (level * feeder33.REACTIVE_LOAD).astype(np.float32),
    }


def flowing(found: dict[str, np.ndarray]) -> Callable[[], None]:
    """A window: the power flow of every case, each with a topology of its own."""
    impedance = jnp.asarray(np.stack([feeder33.RESISTANCE, feeder33.REACTANCE], -1), jnp.float32)

    def one(positions: jax.Array, active: jax.Array, reactive: jax.Array) -> jax.Array:
        path = path_matrix(positions, active.dtype)
        return solve(path, active, reactive, impedance, power_grid.ITERATIONS).voltage

    arrays = [jnp.asarray(found[name]) for name in ("positions", "active", "reactive")]
    compiled = jax.jit(lambda *blocks: jax.lax.map(lambda block: one(*block), blocks, batch_size=MANY))
    return lambda: finish(compiled(*arrays))


@contextmanager
def pandapower(python: str, found: dict[str, np.ndarray]) -> Iterator[Callable[[], float]]:
    """pandapower's windows, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.npz"
        np.savez(path, **{name: found[name][:1000] for name in ("open", "active", "reactive")})
        script = Path(__file__).with_name("peer_pandapower.py")
        process = subprocess.Popen(
            [python, str(script), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(
                f"expected {python} to have pandapower 3.5.6, got none: see benchmarks/peer_pandapower.py."
            )

        def window() -> float:
            print(PEER_FLOWS, file=process.stdin, flush=True)
            return float(process.stdout.readline().split()[0])

        try:
            yield window
        finally:
            process.stdin.close()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=list(PLANTS), help="plants to measure, all by default")
    parser.add_argument("--peers", default=os.environ.get("NEORL_PEERS_PYTHON"), help="a Python that has pandapower")
    known = parser.parse_args()
    rows = {}
    for name in known.names:
        works = {"single": stepping(PLANTS[name], 1), "vectorised": stepping(PLANTS[name], MANY)}
        kept = interleaved(works, ROUNDS, LIMIT)
        counts = {"single": STEPS, "vectorised": MANY * STEPS}
        rows[name] = {way: {"steps_per_second": counts[way] / k.seconds, **k._asdict()} for way, k in kept.items()}
        rates = ", ".join(f"{way} {rows[name][way]['steps_per_second']:,.0f} steps/s{kept[way].note}" for way in works)
        print(f"{name}: {rates}", flush=True)
    if known.peers and "power_grid" in known.names:
        found = cases(FLOWS)
        with pandapower(known.peers, found) as peer:
            kept = interleaved({"ours": flowing(found), "pandapower": peer}, ROUNDS, LIMIT)
        rates = {"ours": FLOWS / kept["ours"].seconds, "pandapower": PEER_FLOWS / kept["pandapower"].seconds}
        ratio = rates["ours"] / rates["pandapower"]
        rows["power flow"] = {"flows_per_second": rates, "ratio": ratio, **{k: v._asdict() for k, v in kept.items()}}
        notes = f"{rates['ours']:,.0f} flows/s{kept['ours'].note}, pandapower {rates['pandapower']:,.1f}"
        print(f"power flow: {notes}{kept['pandapower'].note}: {ratio:,.0f} times")
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps(rows, indent=1) + "\n")
    partial.replace(RESULTS)


if __name__ == "__main__":
    main()
