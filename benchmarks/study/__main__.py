"""The runs that are missing, and the page."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from benchmarks import study
from benchmarks.ope_study.table import known_plant
from benchmarks.score import official
from benchmarks.setting import commit
from benchmarks.study.cell import one_run
from benchmarks.study.page import page
from benchmarks.study.table import (
    BEHAVIOURS,
    DEVELOPMENT,
    OFFICIAL,
    OTHERS,
    PAGE,
    chosen,
    missing,
    path_of,
    regret,
    runs_of,
    ships,
)
from configs.errors import BadInput
from configs.home import Home
from tasks.files.canonical import write_json
from tasks.training.programs import forget_programs

SOURCES = ("neorl_core", "tasks", "configs", "benchmarks/study", "benchmarks/ope_study", "benchmarks/score.py")
"""What a run depends on."""


def main() -> None:
    known = argparse.ArgumentParser(description=study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = (*DEVELOPMENT, *OTHERS)
    known.add_argument("plants", nargs="*", type=known_plant, default=every, help="all plants by default")
    known.add_argument("--behaviours", nargs="*", default=BEHAVIOURS, choices=BEHAVIOURS)
    known.add_argument("--official", action="store_true", help="double_mass on the episodes that NeoRL-2 publishes")
    known.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many minutes")
    known.add_argument("--table", action="store_true", help="write the page alone")
    options = known.parse_args()
    try:
        if not options.table:
            run(options)
    except BadInput as refused:
        known.error(str(refused))
    PAGE.write_text(page())


def run(options: argparse.Namespace) -> None:
    """Every run that is asked for and has no result yet.

    Raises:
        BadInput: when the sources differ from the commit, or NeoRL-2's episodes are asked for and not there.
    """
    of = ([OFFICIAL[0]], [OFFICIAL[1]]) if options.official else (options.plants, options.behaviours)
    if next(missing(*of), None) is None:
        return
    at, end = commit(SOURCES), time.monotonic() + 60 * options.minutes
    data = official() if options.official else []
    if options.official and not data:
        raise BadInput(
            "expected NeoRL-2's DMSD-*.npz in shared/data/dmsd beside this checkout, got none: put them there."
        )
    for plant, behaviour, seed in missing(*of):
        if time.monotonic() > end:
            return
        home = Home(Home.locate().folder("study", f"{plant}-{behaviour}-{seed}"))
        # What a killed run left would be gone on with, by this commit and on a clock that begins anew.
        shutil.rmtree(home.root, ignore_errors=True)
        found = one_run(plant, behaviour, seed, home, data=data) | {"commit": at}
        runs = [*runs_of(plant, behaviour), found]
        write_json(path_of(plant, behaviour), {"plant": plant, "behaviour": behaviour, "runs": runs})
        # Checkpoints and bundles of eighty runs would fill a disk, and the scores are known.
        shutil.rmtree(home.root)
        forget_programs()
        verdict = "" if ships(found) else ", refused"
        print(
            f"{plant} {behaviour} {seed}: {chosen(found):.1f}{verdict}, regret {regret(found):.1f}, "
            f"{found['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main()
