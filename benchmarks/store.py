"""`make store`: measure the speed of the dataset store, compared with file copies and with SHA-256.

Writing a dataset with digests is compared with copying the same files with fsync. Reading every row of a verified
dataset is compared with computing SHA-256 of the same bytes on one core. Time windows alternate; the result is the
median of windows in which other programs used less than a tenth of a core. Criterion: at least half of the compared
rate. With --validate, the command also validates many transitions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.windows import Kept, interleaved
from neorl_core.plants import PLANTS
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Provenance
from tasks.data.store.schema import Rows
from tasks.data.store.statistics import summarise
from tasks.data.store.writer import DatasetWriter

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "store.json"
SPEC = PLANTS["double_mass"].spec
EPISODE = 1000
BLOCK = 64 * EPISODE
BAR = 0.5


def random_rows(seed: int, count: int = BLOCK) -> Rows:
    """Return random valid rows: within bounds, and continuous within episodes of 1000 steps."""
    rng = np.random.default_rng(seed)
    walk = rng.uniform(-1, 1, (count + 1, SPEC.observation.size)).astype(np.float32)
    ends = np.arange(count) % EPISODE == EPISODE - 1
    limits = len(SPEC.constraints)
    return {
        "observations": walk[:-1].copy(),
        "actions": rng.uniform(-1, 1, (count, SPEC.action.size)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "next_observations": walk[1:].copy(),
        "costs": np.zeros(count, np.float32),
        "terminals": np.zeros(count, bool),
        "timeouts": ends,
        "constraint_costs": np.zeros((count, limits), np.float32),
    }


def many_rows(count: int) -> Iterator[Rows]:
    """Yield blocks of random rows. Blocks differ in one reward per episode only, so that they are fast to make."""
    rows = random_rows(0)
    for number, start in enumerate(range(0, count, BLOCK)):
        rewards = rows["rewards"].copy()
        rewards[::EPISODE] = number
        n = min(BLOCK, count - start) // EPISODE * EPISODE
        yield {key: values[:n] for key, values in (rows | {"rewards": rewards}).items()}


def write(root: Path, blocks: list[Rows] | Iterator[Rows]) -> str:
    """Write blocks of rows as a dataset and return the digest of the dataset."""
    with DatasetWriter(root, SPEC) as writer:
        for block in blocks:
            writer.append(block)
        return writer.commit(Provenance())


def compare(folder: Path, megabytes: int, rounds: int, limit: float) -> dict[str, Kept | float]:
    """Measure the seconds of writing, copying, reading and SHA-256, and the number of bytes."""
    row = sum(values[:1].nbytes for values in random_rows(0, EPISODE).values())
    blocks = [random_rows(seed) for seed in range(max(megabytes * 10**6 // (row * BLOCK), 1))]
    kept = folder / "kept"
    digest = write(kept, blocks)
    files = sorted((kept / "shards").iterdir())
    size = sum(file.stat().st_size for file in files)
    scratch = folder / "scratch"

    def fresh() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        os.sync()

    def writing() -> float:
        fresh()
        started = time.perf_counter()
        write(scratch, blocks)
        return time.perf_counter() - started

    def copying() -> float:
        fresh()
        scratch.mkdir()
        started = time.perf_counter()
        for file in files:
            with file.open("rb") as source, (scratch / file.name).open("wb") as copy:
                shutil.copyfileobj(source, copy, 2**20)
                copy.flush()
                os.fsync(copy.fileno())
        return time.perf_counter() - started

    def reading() -> float:
        started = time.perf_counter()
        for _ in StoredDataset.open(kept, digest).blocks():
            pass
        return time.perf_counter() - started

    data = b"".join(file.read_bytes() for file in files)

    def hashing() -> float:
        started = time.perf_counter()
        hashlib.sha256(data).digest()
        return time.perf_counter() - started

    works = {"write": writing, "copy": copying, "read": reading, "sha256": hashing}
    return {**interleaved(works, rounds, limit), "bytes": float(size)}


def validate(folder: Path, count: int) -> dict[str, float]:
    """Write `count` transitions; then verify files, contents and every row."""
    digest = write(folder / "large", many_rows(count))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    dataset = StoredDataset.open(folder / "large", digest, verify=False)
    dataset.verify()
    summary = summarise(dataset, SPEC)
    seconds = time.perf_counter() - started
    if summary.faults or summary.rows != dataset.rows:
        raise SystemExit(f"the generated rows have faults: {dict(summary.faults)}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "rows": float(dataset.rows),
        "seconds": seconds,
        "rows_per_second": dataset.rows / seconds,
        "resident_mib_after_writing": before / 1024,
        "resident_mib": peak / 1024,
    }


def main() -> int:
    """Measure, print and keep the results; return 1 if a criterion is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="size of the compared dataset")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which no new round starts")
    parser.add_argument("--validate", type=int, default=0, help="transitions to validate, such as 100000000")
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder on the disk to measure; default: a temporary one"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        # Validate first, because the peak memory is that of the whole process so far.
        large = validate(folder, arguments.validate) if arguments.validate else None
        shutil.rmtree(folder / "large", ignore_errors=True)
        found = compare(folder, arguments.megabytes, arguments.rounds, arguments.limit)
    size = float(found.pop("bytes"))  # type: ignore[arg-type]
    kept = {key: window for key, window in found.items() if isinstance(window, Kept)}
    rate = {key: size / 1e6 / window.seconds for key, window in kept.items()}
    shares = {"write / copy": rate["write"] / rate["copy"], "read / sha256": rate["read"] / rate["sha256"]}
    print("| work | MB/s |\n|---|---|")
    for key, window in kept.items():
        print(f"| {key}{window.note} | {rate[key]:.0f} |")
    for key, share in shares.items():
        print(f"{key}: {share:.2f} (bar {BAR})")
    if large:
        print(
            f"validated {large['rows']:,.0f} transitions in {large['seconds']:.0f} s, at most "
            f"{large['resident_mib']:.0f} MiB resident"
        )
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "bytes": size,
        "mb_per_second": rate,
        "shares": shares,
        "quiet": min(window.quiet for window in kept.values()),
        "validation": large,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(share >= BAR for share in shares.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
