"""Measure AC power flows per second of NeoRL (in batches) and pandapower. Used by benchmarks/plants/speed.py."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.windows import interleaved
from neorl_core.plants.power_grid import feeder33
from neorl_core.plants.power_grid import plant as power_grid
from neorl_core.plants.power_grid.power_flow import is_radial, open_lines, path_matrix, solve

MANY = 4096
"""Cases solved in one batch."""
FLOWS, PEER_FLOWS = 65536, 20
"""Cases in a time window, for NeoRL and for pandapower."""


def finish(work: jax.Array) -> None:
    """Wait until JAX has finished its computations."""
    jax.block_until_ready(work)


def cases(count: int) -> dict[str, np.ndarray]:
    """Draw random radial topologies of the feeder and loads [MW, Mvar] for `count` cases."""
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
    """Return a function that solves all cases, each with its own topology."""
    impedance = jnp.asarray(np.stack([feeder33.RESISTANCE, feeder33.REACTANCE], -1), jnp.float32)

    def one(positions: jax.Array, active: jax.Array, reactive: jax.Array) -> jax.Array:
        path = path_matrix(positions, active.dtype)
        return solve(path, active, reactive, impedance, power_grid.ITERATIONS).voltage

    arrays = [jnp.asarray(found[name]) for name in ("positions", "active", "reactive")]
    compiled = jax.jit(lambda *blocks: jax.lax.map(lambda block: one(*block), blocks, batch_size=MANY))
    return lambda: finish(compiled(*arrays))


@contextmanager
def pandapower(python: str, found: dict[str, np.ndarray]) -> Iterator[Callable[[], float]]:
    """Yield a function that solves cases with pandapower in another process and returns the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.npz"
        np.savez(path, **{name: found[name][:1000] for name in ("open", "active", "reactive")})
        script = Path(__file__).with_name("peers") / "solve_pandapower.py"
        process = subprocess.Popen(
            [python, str(script), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{python} has no pandapower 3.5.6: see benchmarks/peers/solve_pandapower.py.")

        def window() -> float:
            print(PEER_FLOWS, file=process.stdin, flush=True)
            return float(process.stdout.readline().split()[0])

        try:
            yield window
        finally:
            process.stdin.close()
            process.wait()


def measure(python: str | None, rounds: int, limit: float) -> dict[str, Any] | None:
    """Return the power flows per second of NeoRL and pandapower; None if `python` is None."""
    if python is None:
        return None
    found = cases(FLOWS)
    with pandapower(python, found) as peer:
        kept = interleaved({"ours": flowing(found), "pandapower": peer}, rounds, limit)
    counts = {"ours": FLOWS, "pandapower": PEER_FLOWS}
    return {
        name: {"flows_per_second": counts[name] / one.seconds, "quiet": one.quiet, "windows": one.windows}
        for name, one in kept.items()
    }
