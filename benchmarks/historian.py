"""`make historian`: measure how many raw rows per second NeoRL ingests from Parquet files, compared with polars.

The command generates daily files of a plant with 50 tags, which are sampled every second with jitter; 0.1 % of the rows
have the status Bad. Two kinds of readings of the same files alternate, each in a new process. `scan` reads all four
columns with polars and reduces them. `ingest` is NeoRL's ingestion, from digests of the files to the committed dataset.
The result is the median of the rounds, because the fastest reading on a shared machine depends on chance. CPU seconds
(of all threads) depend less on other programs than wall-clock seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from configs.home import Home
from configs.run import Data, OpenedRun
from tasks.files.canonical import write_json

RESULTS = Path(__file__).resolve().parent / "results" / "historian.json"
START_US = 1_767_571_200_000_000
TAGS, ACTIONS = 50, 4
BAD_SHARE = 1e-3
SMALLEST_RATE, SMALLEST_SHARE, LARGEST_GIB = 5e6, 0.2, 1.5


def tag_names() -> list[str]:
    """Return the names of 50 tags in five plant units: four valve commands, measurements, and the mode."""
    valves = [f"UNIT{i}.FV-{100 + i}.OP" for i in range(ACTIONS)]
    return [*valves, *(f"UNIT{i % 5}.TI-{100 + i}.PV" for i in range(TAGS - ACTIONS - 1)), "UNIT0.MODE"]


def mapping() -> str:
    """Return the mapping of the export as YAML."""
    lines = [
        "process: {name: generated_unit, horizon: 1000}",
        "period_seconds: 10",
        "reward: {expression: '-abs(t0 - quantity(300, \"K\")) / quantity(1, \"K\")', unit: '1'}",
        "episodes: {max_gap_seconds: 30}",
        "tags:",
    ]
    for i, tag in enumerate(tag_names()):
        if tag.endswith("MODE"):
            lines.append(f"  {tag}: {{role: mode, interpolation: stepped, running: [1]}}")
        elif i < ACTIONS:
            lines.append(f"  {tag}: {{role: action, signal: v{i}, unit: '%', to_unit: '1', interpolation: stepped}}")
        else:
            lines.append(
                f"  {tag}: {{role: observation, signal: t{i - ACTIONS}, unit: degC, to_unit: K, interpolation: sloped,"
                f" limits: [-50, {99 if i == ACTIONS else 500}]}}"
            )
    return "\n".join(lines) + "\n"


def write_export(folder: Path, rows: int) -> int:
    """Write daily files with rows in order of time, and return their size in bytes."""
    import polars as pl

    rng = np.random.default_rng(0)
    names = pl.Series(tag_names())
    seconds = -(-rows // TAGS)
    codes = np.arange(TAGS)
    level = rng.uniform(10, 60, TAGS)
    size = 0
    for number, first in enumerate(range(0, seconds, 86_400)):
        count = min(86_400, seconds - first)
        at = np.repeat((first + np.arange(count)) * 1_000_000, TAGS) + np.tile(codes * 15_000, count)
        at += rng.integers(0, 10_000, len(at))
        phase = at / 1e6 / np.tile(600.0 + 100 * codes, count)
        values = np.round(np.tile(level, count) + 5 * np.sin(phase) + 0.05 * rng.standard_normal(len(at)), 2)
        values[TAGS - 1 :: TAGS] = 1
        status = np.where(rng.random(len(at)) < BAD_SHARE, np.uint32(0x808A0000), np.uint32(0))
        frame = pl.DataFrame(
            {
                "tag": names.gather(np.tile(codes, count)),
                "timestamp": pl.Series(START_US + at).cast(pl.Datetime("us", "UTC")),
                "value": values,
                "status": status,
            }
        )
        path = folder / f"day-{number:04d}.parquet"
        frame.write_parquet(path, row_group_size=1_000_000)
        size += path.stat().st_size
    return size


def scan(folder: Path) -> int:
    """Read all columns with polars and return the number of rows."""
    import polars as pl

    table = pl.scan_parquet(sorted(folder.glob("*.parquet")))
    columns = [pl.col("value").sum(), pl.col("status").max(), pl.col("timestamp").max(), pl.col("tag").max()]
    return int(table.select(pl.len(), *columns).collect(engine="streaming")["len"][0])


def ingest(folder: Path, rows_file: Path) -> int:
    """Ingest the files, and return the number of raw rows that the dataset's account shows."""
    from tasks.ingest import ingest as read

    with tempfile.TemporaryDirectory(prefix="neorl-historian-home-") as home:
        run = OpenedRun(plant="generated_unit", data=Data(mapping=rows_file))
        reference = read(Home(Path(home)), run, [folder])
    (account,) = reference.accounts
    assert account is not None
    return account.raw.rows


def measured(what: str, folder: Path, mapping_file: Path) -> dict[str, float]:
    """Run one reading in a new process; return rows, seconds, CPU seconds and peak memory [GiB]."""
    command = [sys.executable, "-m", "benchmarks.historian", "--child", what, str(folder), str(mapping_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    record: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return record


def child(what: str, folder: Path, mapping_file: Path) -> None:
    """Make one reading in the process that `measured` started. Imports are not part of the measured time."""
    import polars  # noqa: F401

    if what == "ingest":
        import jax  # noqa: F401

        import tasks.data.historian.transitions
        import tasks.ingest  # noqa: F401
    usage = resource.getrusage(resource.RUSAGE_SELF)
    started, before = time.perf_counter(), usage.ru_utime + usage.ru_stime
    rows = scan(folder) if what == "scan" else ingest(folder, mapping_file)
    seconds = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "rows": rows,
                "seconds": seconds,
                "processor": usage.ru_utime + usage.ru_stime - before,
                "gib": usage.ru_maxrss / 2**20,
            }
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="readings of each kind; the result is the median")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child[0], Path(arguments.child[1]), Path(arguments.child[2]))
        return 0
    with tempfile.TemporaryDirectory(prefix="neorl-historian-") as name:
        folder, mapping_file = Path(name) / "export", Path(name) / "mapping.yaml"
        folder.mkdir()
        mapping_file.write_text(mapping())
        size = write_export(folder, arguments.rows)
        rounds: dict[str, list[dict[str, float]]] = {"scan": [], "ingest": []}
        for _ in range(arguments.rounds):
            for what, kept in rounds.items():
                kept.append(measured(what, folder, mapping_file))
    middle = {what: sorted(kept, key=lambda record: record["seconds"])[len(kept) // 2] for what, kept in rounds.items()}
    rate = {what: record["rows"] / record["seconds"] for what, record in middle.items()}
    processor = {what: record["processor"] for what, record in middle.items()}
    peak = max(record["gib"] for record in rounds["ingest"])
    print(
        f"{middle['ingest']['rows']:,} rows of {TAGS} tags, {size / 2**30:.2f} GiB of Parquet, {os.cpu_count()} cores"
    )
    print("| reading | rows/s | seconds | processor s | peak GiB |\n|---|---|---|---|---|")
    for what, record in middle.items():
        print(
            f"| {what} | {rate[what] / 1e6:.1f} M | {record['seconds']:.1f} | {processor[what]:.1f} "
            f"| {record['gib']:.2f} |"
        )
    share = rate["ingest"] / rate["scan"]
    times = processor["ingest"] / processor["scan"]
    print(f"ingest reads at {share:.2f} of the scan's rate, with {times:.1f} times the CPU time")
    bars = {
        f"at least {SMALLEST_RATE / 1e6:g} M rows/s": rate["ingest"] >= SMALLEST_RATE,
        f"at least {SMALLEST_SHARE:g} of the scan": share >= SMALLEST_SHARE,
        f"at most {LARGEST_GIB:g} GiB": peak <= LARGEST_GIB,
    }
    for bar, met in bars.items():
        print(f"{'met' if met else 'MISSED'}: {bar}")
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "rows": int(middle["ingest"]["rows"]),
        "bytes": size,
        "rounds": rounds,
        "rate": rate,
        "share": share,
        "peak_gib": peak,
        "bars": bars,
    }
    write_json(RESULTS, record)
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
