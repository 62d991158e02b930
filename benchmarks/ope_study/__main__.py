"""Run the missing cells and write the page."""

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
"""Files and folders that a cell depends on."""
BESIDE_PEERS = (("water_treatment", "mixed"), ("double_mass", "mixed"))
"""Cells that d3rlpy evaluates as well."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=ope_study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    plants = (*DEVELOPMENT, *OTHERS)
    parser.add_argument("plants", nargs="*", type=known_plant, default=plants, help="default: all plants")
    parser.add_argument("--behaviours", nargs="*", default=BEHAVIOURS, choices=BEHAVIOURS)
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--peers", type=Path, help="folder for the logs of the cells that d3rlpy evaluates as well")
    options = parser.parse_args()
    try:
        if not options.page:
            run(options)
    except BadInput as error:
        parser.error(str(error))
    PAGE.write_text(page())


def run(options: argparse.Namespace) -> None:
    """Run every cell without a result, and every cell with missing logs for d3rlpy."""
    at, wanted = commit(SOURCES), list(missing(options.plants, options.behaviours))
    beside = [one for one in BESIDE_PEERS if one[0] in options.plants and one[1] in options.behaviours]
    peers = {one: options.peers / f"{'-'.join(one)}.npz" for one in beside} if options.peers else {}
    for plant, behaviour in dict.fromkeys([*wanted, *(one for one, logs in peers.items() if not logs.exists())]):
        logs = peers.get((plant, behaviour))
        result = cell(plant, behaviour, Home.locate(), FULL, seed_of(plant, behaviour), logs) | {"commit": at}
        if (plant, behaviour) in wanted:
            write_json(path_of(plant, behaviour), result)
        print(plant, behaviour, json.dumps(summary(result)), file=sys.stderr, flush=True)
        forget_programs()


if __name__ == "__main__":
    main()
