"""Run the missing cells and write the page."""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks import fleet_study
from benchmarks.fleet_study.cell import METHODS, cell
from benchmarks.fleet_study.page import EPISODES, PAGE, kept, mean, missing, page, path_of
from benchmarks.setting import commit
from configs.errors import BadInput
from tasks.files.canonical import write_json

SOURCES = ("neorl_core", "tasks/data/synthetic", "benchmarks/fleet_study")
"""Files and folders that a cell depends on."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=fleet_study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", default=tuple(METHODS), help="default: " + ", ".join(METHODS))
    parser.add_argument("--episodes", nargs="*", type=int, default=EPISODES, help="default: 2, 20 and 200")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this many minutes")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    try:
        if not options.page:
            run(options)
    except BadInput as error:
        parser.error(str(error))
    PAGE.write_text(page(kept()))


def run(options: argparse.Namespace) -> None:
    """Run every requested cell without a result.

    Raises:
        BadInput: if the sources differ from their commit, or a method is unknown.
    """
    if unknown := set(options.methods) - set(METHODS):
        raise BadInput(f"unknown method {', '.join(sorted(unknown))}: choose among {', '.join(METHODS)}.")
    at, end = commit(SOURCES), time.monotonic() + 60 * options.minutes
    for method, episodes in missing(options.methods, options.episodes):
        if time.monotonic() > end:
            return
        result = cell(method, episodes) | {"commit": at}
        path_of(method, episodes).parent.mkdir(parents=True, exist_ok=True)
        write_json(path_of(method, episodes), result)
        scores = ", ".join(f"{fleet} {mean(result, fleet):.1f}" for fleet in ("learning", "unseen"))
        print(f"{method} {episodes}: {scores}, {result['seconds']:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
