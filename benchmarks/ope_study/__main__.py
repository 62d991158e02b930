"""The cells that are missing, and the page."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import ope_study
from benchmarks.ope_study.cell import FULL, cell
from benchmarks.ope_study.page import page
from benchmarks.ope_study.table import (
    BEHAVIOURS,
    DEVELOPMENT,
    OTHERS,
    PAGE,
    known_plant,
    missing,
    path_of,
    seed_of,
    summary,
)
from benchmarks.setting import commit
from configs.errors import BadInput
from configs.home import Home
from tasks.files.canonical import write_json
from tasks.training.programs import forget_programs

SOURCES = ("neorl_core", "tasks", "configs", "benchmarks/ope_study")
"""What a cell depends on."""
BESIDE_PEERS = (("water_treatment", "mixed"), ("double_mass", "mixed"))
"""Cells that are evaluated by d3rlpy too."""


def main() -> None:
    known = argparse.ArgumentParser(description=ope_study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = (*DEVELOPMENT, *OTHERS)
    known.add_argument("plants", nargs="*", type=known_plant, default=every, help="all plants by default")
    known.add_argument("--behaviours", nargs="*", default=BEHAVIOURS, choices=BEHAVIOURS)
    known.add_argument("--table", action="store_true", help="write the page alone")
    known.add_argument("--peers", type=Path, help="a folder for the logs of the cells that d3rlpy evaluates too")
    options = known.parse_args()
    try:
        if not options.table:
            run(options)
    except BadInput as refused:
        known.error(str(refused))
    PAGE.write_text(page())


def run(options: argparse.Namespace) -> None:
    """Every cell that has no result yet, or whose logs are to be written for others; kept results stay."""
    at, asked = commit(SOURCES), list(missing(options.plants, options.behaviours))
    beside = [one for one in BESIDE_PEERS if one[0] in options.plants and one[1] in options.behaviours]
    peers = {one: options.peers / f"{'-'.join(one)}.npz" for one in beside} if options.peers else {}
    for plant, behaviour in dict.fromkeys([*asked, *(one for one, logs in peers.items() if not logs.exists())]):
        logs = peers.get((plant, behaviour))
        found = cell(plant, behaviour, Home.locate(), FULL, seed_of(plant, behaviour), logs) | {"commit": at}
        if (plant, behaviour) in asked:
            write_json(path_of(plant, behaviour), found)
        print(plant, behaviour, json.dumps(summary(found)), file=sys.stderr, flush=True)
        forget_programs()


if __name__ == "__main__":
    main()
