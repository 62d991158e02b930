"""The cells that are missing, and the page's tables."""

from __future__ import annotations

import argparse
import sys

from benchmarks import graph_study
from benchmarks.graph_study.cell import CELLS, FULL
from benchmarks.graph_study.page import PAGE, RESULTS, written
from benchmarks.setting import commit
from configs.errors import BadInput
from tasks.files.canonical import write_json

SOURCES = ("neorl_core", "benchmarks/graph_study")
"""What a cell depends on."""


def main() -> None:
    known = argparse.ArgumentParser(
        description=graph_study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known.add_argument("cells", nargs="*", default=list(CELLS), help=f"all by default: {', '.join(CELLS)}")
    known.add_argument("--table", action="store_true", help="write the page's tables alone")
    options = known.parse_args()
    if unknown := set(options.cells) - set(CELLS):
        known.error(f"expected cells among {', '.join(CELLS)}, got {min(unknown)}: correct the name.")
    try:
        if not options.table:
            run(options.cells)
    except BadInput as refused:
        known.error(str(refused))
    PAGE.write_text(written(PAGE.read_text()))


def run(cells: list[str]) -> None:
    """Every cell that is asked for and has no result yet."""
    at = commit(SOURCES)
    for name in cells:
        path = RESULTS / f"{name}.json"
        if path.exists():
            continue
        write_json(path, CELLS[name](FULL) | {"commit": at})
        print(name, "finished", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
