"""The cells that are missing, and the table."""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks import fleet_study
from benchmarks.fleet_study.cell import WAYS, cell
from benchmarks.fleet_study.page import EPISODES, PAGE, kept, mean, missing, path_of, written
from benchmarks.setting import commit
from configs.errors import BadInput
from tasks.files.canonical import write_json

SOURCES = ("neorl_core", "tasks/data/synthetic", "benchmarks/fleet_study")
"""What a cell depends on."""


def main() -> None:
    known = argparse.ArgumentParser(
        description=fleet_study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known.add_argument("ways", nargs="*", default=tuple(WAYS), help="all by default: " + ", ".join(WAYS))
    known.add_argument("--episodes", nargs="*", type=int, default=EPISODES, help="2, 20 and 200 by default")
    known.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so many minutes")
    known.add_argument("--table", action="store_true", help="write the table alone")
    options = known.parse_args()
    try:
        if not options.table:
            run(options)
    except BadInput as refused:
        known.error(str(refused))
    PAGE.write_text(written(PAGE.read_text(), kept()))


def run(options: argparse.Namespace) -> None:
    """Every cell that is asked for and has no result yet.

    Raises:
        BadInput: when the sources differ from the commit, or a way is not known.
    """
    if unknown := set(options.ways) - set(WAYS):
        raise BadInput(f"expected ways among {', '.join(WAYS)}, got {', '.join(sorted(unknown))}: choose of them.")
    at, end = commit(SOURCES), time.monotonic() + 60 * options.minutes
    for way, episodes in missing(options.ways, options.episodes):
        if time.monotonic() > end:
            return
        found = cell(way, episodes) | {"commit": at}
        path_of(way, episodes).parent.mkdir(parents=True, exist_ok=True)
        write_json(path_of(way, episodes), found)
        told = ", ".join(f"{fleet} {mean(found, fleet):.1f}" for fleet in ("learning", "unseen"))
        print(f"{way} {episodes}: {told}, {found['seconds']:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
