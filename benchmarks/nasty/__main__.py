"""`make nasty`: ingest a hundred odd files, and check that each becomes a dataset or gets a clear error message.

python -m benchmarks.nasty           # every file; writes docs/studies/import-files.md
python -m benchmarks.nasty --page    # the page from benchmarks/results/import-files.json
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import pages
from benchmarks.nasty.cases import all_cases
from benchmarks.nasty.run import MOST_MB, MOST_SECONDS, Outcome, run
from benchmarks.pages import ROOT, STUDIES
from tasks.files.canonical import read_json, write_json

RESULTS = ROOT / "benchmarks" / "results" / "import-files.json"
PAGE = STUDIES / "import-files.md"


def row(outcome: Outcome) -> dict[str, str]:
    """Return the kept result of a case."""
    lost = re.search(r"[1-9][\d,]* lost(?:: [^;]*)?", outcome.message) if outcome.result == "dataset" else None
    loss = lost.group() if lost else ""
    return {"file": outcome.case.name, "about": outcome.case.about, "result": outcome.result, "loss": loss}


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """Return docs/studies/import-files.md: a table of the files by result."""
    used = sum(row["result"] == "dataset" for row in rows)
    by_result: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row["result"], bool(row["loss"]))):
        result = f"dataset, {row['loss']}" if row["loss"] else row["result"]
        by_result.setdefault(re.sub(r" \(\d+\)|^dataset, [\d,]+ lost$", "", result), []).append(row["about"])
    shown = [(result, "; ".join(dict.fromkeys(abouts))) for result, abouts in by_result.items()]
    return pages.study(
        "Odd files",
        "Does every odd file become a correct dataset, or get an error message that says what to do?",
        f"Of {len(rows)} small files {used} become a dataset and {len(rows) - used} are refused with an error message. "
        "For every dataset the used and the lost rows add up to the rows in the file.",
        "`make nasty` takes a minute. The files and the expected messages are in `benchmarks/nasty/cases.py`. A case "
        f"fails if it ends in a traceback, takes more than {MOST_SECONDS:.0f} s or more than {MOST_MB:.0f} MB.",
        pages.wrap(
            "*Result* is the same for all files of a row. It shows the number of rows that were lost (quarantined or "
            "left out) and the reason. *File* says what is odd about each file; *declared* means that the mapping "
            "names it."
        ),
        pages.table(("result", "file"), shown),
    )


def main() -> int:
    """Run all cases; return 1 if any case has another outcome than expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="only write the page")
    if parser.parse_args().page:
        PAGE.write_text(page(read_json(RESULTS)), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory(prefix="neorl-nasty-") as folder:
        cases = all_cases()
        run(cases[0], Path(folder) / "first")  # imports and compiles, which must not count for the first case
        outcomes = [run(case, Path(folder)) for case in cases]
    rows = [row(outcome) for outcome in outcomes]
    write_json(RESULTS, rows)
    PAGE.write_text(page(rows), encoding="utf-8")
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    print(f"{len(outcomes)} cases, {len(faults)} faults, longest {max(one.seconds for one in outcomes):.1f} s")
    print("\n".join(faults))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
