"""The measurements that are missing, the record of this device, and the page."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from benchmarks import accelerator
from benchmarks.accelerator import scores, speed
from benchmarks.accelerator.learners import PRECISIONS, product_error
from benchmarks.accelerator.page import page
from benchmarks.accelerator.speed import Bench
from benchmarks.setting import commit
from configs.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "accelerator.json"
PAGE = ROOT / "docs" / "studies" / "accelerators.md"
SOURCES = (
    "neorl_core/algorithms",
    "neorl_core/control",
    "neorl_core/networks.py",
    "neorl_core/plants",
    "neorl_core/safety",
    "neorl_core/training",
    "neorl_core/types.py",
    "neorl_core/world_model",
    "tasks/data/synthetic/behaviours.py",
    "benchmarks/accelerator",
    "benchmarks/speed.py",
    "benchmarks/windows.py",
)
"""What a measurement depends on."""
PARTS = ("scores", "speed")
RUNS = (("bptt", "float32"), ("td3_bc", "float32"), ("bptt", "bfloat16"), ("td3_bc", "bfloat16"))
EXACT = (("bptt", "float32, exact"), ("td3_bc", "float32, exact"))
"""Trained last, and only on an accelerator: a CPU's float32 is exact as it is."""
SEEDS = {"cpu": 8, "accelerator": 128}


class Records:
    """The records of all devices, one of which is being measured, in a file that is whole after every row."""

    def __init__(self, path: Path, at: str) -> None:
        self._path, self._all = path, records(path)
        self.device = jax.devices()[0]
        self.accelerated = self.device.platform != "cpu"
        host = f"{platform.machine()}, {_cores()} cores"
        made_by = {"commit": at, "jax": jax.__version__, "host": host}
        kept = self._all.get(self.device.device_kind)
        if kept is None or any(kept[name] != value for name, value in made_by.items()):
            kept = self._all[self.device.device_kind] = {
                **made_by,
                "device": self.device.device_kind if self.accelerated else f"CPU ({host})",
                "platform": self.device.platform,
                "product_error": {name: product_error(name) for name in PRECISIONS},
                "speed": [],
                "scores": [],
            }
        self.own: dict[str, Any] = kept

    def write(self) -> None:
        """Keep what is known, with the day and the most memory that a process has taken for it."""
        stats = self.device.memory_stats() or {}
        peak = max(stats.get("peak_bytes_in_use", 0), self.own.get("memory_peak_bytes") or 0)
        self.own |= {"date": datetime.now(UTC).date().isoformat(), "memory_peak_bytes": peak or None}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".part")
        beside.write_text(json.dumps(self._all, indent=1) + "\n")
        os.replace(beside, self._path)

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Keep a row, and show it without the scores of all members."""
        self.own[part].append(row)
        self.write()
        print(json.dumps({name: value for name, value in row.items() if name != "scores"}), flush=True)


def records(path: Path) -> dict[str, Any]:
    """The record of each device by its name; none where nothing was measured."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_and_score(kept: Records, runs: tuple[tuple[str, str], ...], seeds: int, end: float) -> None:
    """Each training that has no row yet."""
    done = {(row["algorithm"], row["precision"]) for row in kept.own["scores"]}
    wanted = [run for run in runs if run not in done and (kept.accelerated or run[1] == "float32")]
    if not wanted or time.monotonic() > end:
        return
    learned = scores.logs()
    kept.own |= {"behaviour": learned.behaviour, "controller": learned.controller}
    for name, precision in wanted:
        if time.monotonic() > end:
            return
        print(f"training {seeds} members of {name} in {precision}", flush=True)
        try:
            row = scores.trained(name, precision, range(seeds), learned.transitions)
        except (jax.errors.JaxRuntimeError, FloatingPointError) as error:
            row = {"algorithm": name, "precision": precision, "error": str(error).splitlines()[0][:200]}
        kept.add("scores", row)


def time_steps(kept: Records, populations: list[int] | None, side_by_side: int, end: float) -> None:
    """Each program of each population that has no row yet."""
    groups = [
        group
        for group in (speed.ON_ACCELERATORS if kept.accelerated else speed.ON_CPUS)
        if speed.missing(kept.own["speed"], group) and (not populations or group.members in populations)
    ]
    if not groups or time.monotonic() > end:
        return
    bench = Bench(max(group.members for group in groups))
    for group in groups:
        if time.monotonic() > end:
            return
        print(f"timing {group.members} members in {group.precision}", flush=True)
        for row in speed.measured(bench, group, speed.missing(kept.own["speed"], group), side_by_side):
            kept.add("speed", row)
        # No later population needs these programs, and each of them holds memory.
        jax.clear_caches()


def run(options: argparse.Namespace) -> None:
    """All that is asked for and has no result yet.

    Raises:
        BadInput: when the sources differ from the commit.
    """
    kept = Records(options.out, options.commit or commit(SOURCES))
    end = time.monotonic() + 60 * options.minutes
    print(f"{kept.own['device']}, products {kept.own['product_error']}", flush=True)
    seeds = options.seeds or SEEDS["accelerator" if kept.accelerated else "cpu"]
    if "scores" in options.parts:
        train_and_score(kept, RUNS, seeds, end)
    if "speed" in options.parts:
        time_steps(kept, options.populations, options.side_by_side, end)
    if "scores" in options.parts:
        train_and_score(kept, EXACT, seeds, end)


def main() -> None:
    known = argparse.ArgumentParser(
        description=accelerator.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    known.add_argument("--populations", type=int, nargs="*", help="sizes that are timed; all of a device's by default")
    known.add_argument("--seeds", type=int, help="members that are trained and scored; 128, or 8 on a CPU")
    known.add_argument("--side-by-side", type=int, default=1, help="programs that compile at the same time")
    known.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many minutes")
    known.add_argument("--commit", help="the last one that changed what is measured, where git cannot tell")
    known.add_argument("--out", type=Path, default=RESULTS, help="of the results; the page is written for the default")
    known.add_argument("--table", action="store_true", help="write the page alone")
    options = known.parse_args()
    try:
        if not options.table:
            run(options)
    except BadInput as refused:
        known.error(str(refused))
    if options.out == RESULTS:
        PAGE.write_text(page(list(records(RESULTS).values())))


if __name__ == "__main__":
    main()
