"""`make calibration`: count false certificates in 10,000 trials of each attempt to cheat.

    python -m benchmarks.calibration                      # 10,000 trials of each; continues
    python -m benchmarks.calibration --trials 200         # fewer
    python -m benchmarks.calibration --only grinding      # attempts with this in their name

The true probability of a violation equals the claimed p0, so every certificate is false. Results are kept in
benchmarks/results/calibration.json. The command writes only the table of docs/studies/calibration.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.calibration.naive import NAIVE
from benchmarks.calibration.trials import FREE, GUESSES, WATCHED, benches, ground
from benchmarks.calibration.worlds import WALKS, World, coin
from configs.strict import Strict
from neorl_core.safety.bounds import clopper_pearson_lower, clopper_pearson_upper
from tasks.evidence.attempts import attempt_alpha
from tasks.evidence.witness.seeds import derive_seed
from tasks.files.canonical import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "calibration.json"
PAGE = ROOT / "docs" / "studies" / "calibration.md"
BEGIN, END = "<!-- calibration: begin -->", "<!-- calibration: end -->"
LIMIT = 0.0569
"""Largest accepted share of false certificates in 10,000 trials: 5 % and about three standard deviations more."""
BLOCK = 250
"""Trials between two writes of the results."""
MEMORY = Path("/dev/shm")

Trial = Callable[[], bool]


class Row(Strict):
    """Result of one kind of attempt on one simulator."""

    way: str
    world: str
    trials: int = 0
    false: int = 0
    seconds: float = 0.0
    naive: bool = False


class Results(Strict):
    """Content of the file of results."""

    rows: list[Row]


@contextmanager
def trial_of(row: Row, worlds: dict[str, World], folder: Path) -> Iterator[Trial]:
    """Yield a function that makes one trial of a row and returns whether the test certifies."""
    chance = np.random.default_rng()
    if row.way in NAIVE:
        yield lambda: NAIVE[row.way](chance)
        return
    world = worlds[row.world]
    if row.way in FREE:
        yield lambda: FREE[row.way](world)
    elif row.way in WATCHED:
        with benches(folder) as found:
            yield lambda: WATCHED[row.way](world, next(found), chance)
    else:
        alpha = attempt_alpha(0.95, 1)
        yield lambda: world.test(derive_seed(ground(world, alpha), ()), alpha).certified


def planned() -> tuple[list[Row], dict[str, World]]:
    """Return the planned rows without results, and the simulators by name."""
    rare, seldom, often = coin(1e-3, 16_384), coin(1e-2, 2048), coin(5e-2, 640)
    rows = [Row(way="single", world=world.name) for world in (rare, seldom, WALKS[1])]
    rows += [Row(way=way, world=often.name) for way in (*FREE, *WATCHED)]
    # A walk of 200 steps costs as much as a thousand draws.
    rows += [Row(way=way, world=WALKS[0].name) for way in ("single", "kills and resumes")]
    rows += [Row(way=f"grinding of {GUESSES} seeds, without a witness", world=often.name, naive=True)]
    rows += [Row(way=way, world="draws with p = 0.001", naive=True) for way in NAIVE]
    return rows, {world.name: world for world in (rare, seldom, often, *WALKS)}


def done_before(rows: list[Row], path: Path) -> list[Row]:
    """Return the rows with their kept results, as far as known."""
    known = Results.model_validate(read_json(path)).rows if path.exists() else []
    before = {(row.way, row.world): row for row in known}
    return [before.get((row.way, row.world), row) for row in rows]


def table(rows: list[Row]) -> str:
    """Return the table of the page, between its two marks."""
    lines = [
        "| attempt | simulator | trials | false certificates | share | 99 % interval |",
        "|:--|:--|--:|--:|--:|:--|",
    ]
    for row in (row for row in rows if row.trials):
        low, high = (
            clopper_pearson_lower(row.false, row.trials, 0.005),
            clopper_pearson_upper(row.false, row.trials, 0.005),
        )
        way = f"*{row.way}*" if row.naive else row.way
        lines.append(
            f"| {way} | {row.world} | {row.trials:,} | {row.false:,} | {row.false / row.trials:.4f} | "
            f"{low:.4f} to {high:.4f} |"
        )
    return f"{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}"


def measure(rows: list[Row], worlds: dict[str, World], trials: int, only: str, keep: Path, folder: Path) -> list[Row]:
    """Run the missing trials of rows with `only` in their name, and write the file `keep` after each block."""
    for number, row in enumerate(rows):
        if only not in f"{row.way}, {row.world}":
            continue
        with trial_of(row, worlds, folder) as trial:
            while rows[number].trials < trials:
                now, count = rows[number], min(BLOCK, trials - rows[number].trials)
                start = time.perf_counter()
                false = sum(trial() for _ in range(count))
                changes = {
                    "trials": now.trials + count,
                    "false": now.false + false,
                    "seconds": round(now.seconds + time.perf_counter() - start, 1),
                }
                rows[number] = now.model_copy(update=changes)
                write_json(keep, Results(rows=rows).model_dump())
        row = rows[number]
        bound = clopper_pearson_upper(row.false, row.trials, 0.05)
        print(
            f"{row.false:5d} of {row.trials:,} (95 % upper bound {bound:.2%}) in {row.seconds:6.0f} s  {row.way}, "
            f"{row.world}",
            flush=True,
        )
    return rows


def main() -> int:
    """Run the trials; return 1 if a row that is not naive has too many false certificates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--only", default="", help="part of the name of the rows to run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows, worlds = planned()
    folder = MEMORY if MEMORY.is_dir() else options.results.parent
    rows = measure(done_before(rows, options.results), worlds, options.trials, options.only, options.results, folder)
    if options.results == RESULTS:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(before + table(rows) + after, encoding="utf-8")
    wrong = [row for row in rows if row.trials and not row.naive and row.false > LIMIT * row.trials]
    for row in wrong:
        print(
            f"{row.false} of {row.trials:,} are false, at most {LIMIT * row.trials:.0f} allowed: {row.way}, {row.world}"
        )
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
