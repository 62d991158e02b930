"""Run the missing measurements on this device, keep the results and write the page."""

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
from benchmarks.pages import ROOT, STUDIES
from benchmarks.setting import commit
from configs.errors import BadInput

RESULTS = ROOT / "benchmarks" / "results" / "accelerator.json"
PAGE = STUDIES / "accelerators.md"
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
"""Files and folders that a measurement depends on."""
PARTS = ("scores", "speed")
RUNS = (("bptt", "float32"), ("td3_bc", "float32"), ("bptt", "bfloat16"), ("td3_bc", "bfloat16"))
EXACT = (("bptt", "float32, exact"), ("td3_bc", "float32, exact"))
"""Trainings that run last and only on an accelerator, because float32 products of a CPU are exact."""
SEEDS = {"cpu": 8, "accelerator": 128}


class Records:
    """The results of all devices, in a file that is rewritten after every result."""

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
        """Write the results of all devices; update date and peak memory of this device."""
        stats = self.device.memory_stats() or {}
        peak = max(stats.get("peak_bytes_in_use", 0), self.own.get("memory_peak_bytes") or 0)
        self.own |= {"date": datetime.now(UTC).date().isoformat(), "memory_peak_bytes": peak or None}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".part")
        beside.write_text(json.dumps(self._all, indent=1) + "\n")
        os.replace(beside, self._path)

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Add a result to the file, and print the result without the members' scores."""
        self.own[part].append(row)
        self.write()
        print(json.dumps({name: value for name, value in row.items() if name != "scores"}), flush=True)


def records(path: Path) -> dict[str, Any]:
    """Return the kept results by device; empty without a file."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return kept


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_and_score(kept: Records, runs: tuple[tuple[str, str], ...], seeds: int, end: float) -> None:
    """Run the trainings that have no result."""
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
    """Measure the programs that have no result, for each population size."""
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
        # Free the memory of these programs, which later populations do not need.
        jax.clear_caches()


def run(options: argparse.Namespace) -> None:
    """Run every requested measurement without a result.

    Raises:
        BadInput: if the sources differ from their commit.
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
    parser = argparse.ArgumentParser(
        description=accelerator.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--populations", type=int, nargs="*", help="population sizes to time; default: all")
    parser.add_argument("--seeds", type=int, help="members to train and score; default: 128, on a CPU 8")
    parser.add_argument("--side-by-side", type=int, default=1, help="programs that compile at the same time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing after this many minutes")
    parser.add_argument("--commit", help="commit of the sources, if there is no repository")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="file of the results; the page is only written for the default"
    )
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    try:
        if not options.page:
            run(options)
    except BadInput as error:
        parser.error(str(error))
    if options.out == RESULTS:
        PAGE.write_text(page(list(records(RESULTS).values())))


if __name__ == "__main__":
    main()
