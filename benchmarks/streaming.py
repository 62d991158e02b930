"""`make streaming`: compare gradient steps per second on streamed data and on data in memory.

The streamed data are four times as large as the allowed memory; training reads them from the shards of the dataset
store. Algorithm, batch and compiled loop are the same in both cases. Time windows alternate; the result is the median
of windows in which other programs used less than a tenth of a core.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.speed import SPEC, transitions
from benchmarks.windows import interleaved
from neorl_core.algorithms import ALGORITHMS
from neorl_core.training.loop import TrainingRows, resident
from neorl_core.training.population import configure, init_population, make_train_chunk, members
from neorl_core.training.preparation import make_scaling, moments, scale_rows
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Provenance
from tasks.data.store.stream import Ring, Stream, row_bytes, window_shape
from tasks.data.store.writer import DatasetWriter

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "streaming.json"
EPISODE = 1_000
CHUNK = 500
TIMES = 4
"""Size of the data / allowed memory."""


def store(folder: Path, rows: int) -> StoredDataset:
    """Write random transitions as a dataset of truncated episodes, and return the dataset."""
    log = transitions(rows)
    ends = np.arange(rows) % EPISODE == EPISODE - 1
    with DatasetWriter(folder, SPEC) as writer:
        for start in range(0, rows, 100 * EPISODE):
            part = slice(start, start + 100 * EPISODE)
            writer.append(
                {
                    "observations": log.observation[part],
                    "actions": log.action[part],
                    "rewards": log.reward[part],
                    "next_observations": log.next_observation[part],
                    "costs": log.cost[part],
                    "terminals": np.zeros_like(ends[part]),
                    "timeouts": ends[part],
                    "constraint_costs": np.zeros((len(ends[part]), 1), np.float32),
                }
            )
        digest = writer.commit(Provenance(format="benchmark"))
    return StoredDataset.open(folder, digest)


def runner(name: str, hidden: int, data: TrainingRows) -> Callable[[], None]:
    """Return a function that trains for one chunk; each call continues the same training."""
    algorithm = ALGORITHMS[name]
    small = {"hidden": [hidden, hidden], "critics": 2}
    config = configure(algorithm, {k: v for k, v in small.items() if k in algorithm.Config._fields})
    advance = make_train_chunk(algorithm, CHUNK, CHUNK, 256)
    state = init_population(algorithm, SPEC, config, members([0], {}))

    def steps() -> Iterator[Any]:
        nonlocal state
        done = 0
        while True:
            state, metrics = advance(state, data.at(done))
            done += CHUNK
            yield jax.block_until_ready(metrics)

    going = steps()
    return lambda: (next(going), None)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each row")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="neorl-streaming-") as name:
        dataset = store(Path(name), arguments.rows)
        ring = Ring(dataset, np.arange(arguments.rows // EPISODE))
        log = transitions(arguments.rows)
        how = make_scaling(moments(log), SPEC)
        memory = arguments.rows * row_bytes(SPEC) // TIMES
        shape = window_shape(memory, SPEC, CHUNK * 256)
        print(f"data {arguments.rows * row_bytes(SPEC) / 1e6:.0f} MB, allowed {memory / 1e6:.0f} MB, {shape}")
        print("| algorithm | network | resident, steps/s | streamed, steps/s | share |\n|---|---|---|---|---|")
        for algorithm, hidden in (("td3_bc", 256), ("iql", 256), ("td3_bc", 64)):
            with Stream(ring, how, shape, CHUNK, 0) as stream:
                works = {
                    "resident": runner(algorithm, hidden, resident(scale_rows(how, log))),
                    "streamed": runner(algorithm, hidden, stream.source()),
                }
                kept = interleaved(works, arguments.rounds, arguments.limit)
            rate = {name: CHUNK / window.seconds for name, window in kept.items()}
            row = {
                "algorithm": algorithm,
                "hidden": hidden,
                **rate,
                "share": rate["streamed"] / rate["resident"],
                "quiet": min(window.quiet for window in kept.values()),
            }
            rows.append(row)
            note = kept["streamed"].note or kept["resident"].note
            print(
                f"| {algorithm}{note} | 2x{hidden} | {rate['resident']:.0f} | {rate['streamed']:.0f} "
                f"| {row['share']:.1%} |",
                flush=True,
            )
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {jax.device_count()} {jax.default_backend()} device(s)",
        "jax": jax.__version__,
        "rows": arguments.rows,
        "row_bytes": row_bytes(SPEC),
        "memory_bytes": memory,
        "window": shape._asdict(),
        "results": rows,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["share"] >= 0.9 for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
