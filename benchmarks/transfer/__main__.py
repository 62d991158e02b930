"""`make transfer-study`: does a policy that was learned in the nominal simulator carry over to a different plant?

    python -m benchmarks.transfer                                # missing cells of all plants
    python -m benchmarks.transfer double_mass --variant nominal  # missing cells of one plant and one training
    python -m benchmarks.transfer --page                         # docs/studies/transfer.md from the kept results

Results are kept in benchmarks/results/transfer.jsonl, one line per cell and variant of the training.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.transfer import page
from benchmarks.transfer.cell import VARIANTS, Study
from benchmarks.transfer.hidden import HIDDEN
from tasks.training.programs import forget_programs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plants", nargs="*", help="default: all plants that learn in the simulator")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="default: all")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    runs = page.runs()
    for plant in () if options.page else options.plants or page.measured(runs):
        cells = [(hidden, variant) for variant in options.variant or VARIANTS for hidden in HIDDEN]
        missing = [cell for cell in cells if (plant, *cell) not in page.kept()]
        if not missing:
            continue
        forget_programs(0)
        study = Study(runs[plant])
        for hidden, variant in missing:
            row = json.dumps(study.cell(hidden, variant))
            with page.RESULTS.open("a", encoding="utf-8") as file:
                file.write(row + "\n")
            print(row, flush=True)
    page.PAGE.write_text(page.page(page.kept()), encoding="utf-8")


if __name__ == "__main__":
    main()
