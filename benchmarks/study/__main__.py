"""Make the missing runs and write the page."""

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
"""Files and folders that a run depends on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    plants = (*DEVELOPMENT, *OTHERS)
    parser.add_argument("plants", nargs="*", type=known_plant, default=plants, help="default: all plants")
    parser.add_argument("--behaviours", nargs="*", default=BEHAVIOURS, choices=BEHAVIOURS)
    parser.add_argument("--official", action="store_true", help="double_mass on the episodes that NeoRL-2 publishes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after this many minutes")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    try:
        if not options.page:
            run(options)
    except BadInput as error:
        parser.error(str(error))
    PAGE.write_text(page())


def run(options: argparse.Namespace) -> None:
    """Make every requested run that has no result.

    Raises:
        BadInput: if the sources differ from their commit, or NeoRL-2's episodes are requested but missing.
    """
    cells = ([OFFICIAL[0]], [OFFICIAL[1]]) if options.official else (options.plants, options.behaviours)
    if next(missing(*cells), None) is None:
        return
    at, end = commit(SOURCES), time.monotonic() + 60 * options.minutes
    data = official() if options.official else []
    if options.official and not data:
        raise BadInput("no file matches shared/data/dmsd/DMSD-*.npz beside this checkout: put NeoRL-2's files there.")
    for plant, behaviour, seed in missing(*cells):
        if time.monotonic() > end:
            return
        home = Home(Home.locate().folder("study", f"{plant}-{behaviour}-{seed}"))
        # Delete remains of a killed run. Otherwise it would be resumed, and its seconds would be too few.
        shutil.rmtree(home.root, ignore_errors=True)
        result = one_run(plant, behaviour, seed, home, data=data) | {"commit": at}
        runs = [*runs_of(plant, behaviour), result]
        write_json(path_of(plant, behaviour), {"plant": plant, "behaviour": behaviour, "runs": runs})
        # Delete checkpoints and bundles, because those of eighty runs would fill the disk.
        shutil.rmtree(home.root)
        forget_programs()
        verdict = "" if ships(result) else ", refused"
        print(
            f"{plant} {behaviour} {seed}: {chosen(result):.1f}{verdict}, regret {regret(result):.1f}, "
            f"{result['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main()
