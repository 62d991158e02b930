"""Run the missing cells and write the page."""

from __future__ import annotations

import argparse
import sys

from benchmarks import graph_study
from benchmarks.graph_study.cell import CELLS, FULL
from benchmarks.graph_study.page import PAGE, RESULTS, page
from benchmarks.setting import commit
from configs.errors import BadInput
from tasks.files.canonical import write_json

SOURCES = ("neorl_core", "benchmarks/graph_study")
"""Files and folders that a cell depends on."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=graph_study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", default=list(CELLS), help=f"default: {', '.join(CELLS)}")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if unknown := set(options.cells) - set(CELLS):
        parser.error(f"unknown cell {min(unknown)}: choose among {', '.join(CELLS)}.")
    try:
        if not options.page:
            run(options.cells)
    except BadInput as error:
        parser.error(str(error))
    PAGE.write_text(page())


def run(cells: list[str]) -> None:
    """Run every requested cell without a result."""
    at = commit(SOURCES)
    for name in cells:
        path = RESULTS / f"{name}.json"
        if path.exists():
            continue
        write_json(path, CELLS[name](FULL) | {"commit": at})
        print(name, "finished", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
