"""`make plants`: measure the simulated plants and write docs/studies/plants.md.

python -m benchmarks.plants truths        # run the plants' tests and keep their comparisons with outside values
python -m benchmarks.plants speed         # environment steps per second, beside peers (NEORL_PEERS_PYTHON)
python -m benchmarks.plants scores        # idle, as-found, tuned and best known controller
python -m benchmarks.plants pictures      # draw an episode of each plant
python -m benchmarks.plants steps         # integration error with the plant's own number of substeps
python -m benchmarks.plants sensitivity   # violations when a constant without a source changes by a fifth
python -m benchmarks.plants page          # only write the page from the kept results
python -m benchmarks.plants               # everything
python -m benchmarks.plants sensitivity --plants steel_annealing
"""

from __future__ import annotations

import argparse
import json
import os

from benchmarks.plants import scores, sensitivity, speed, steps, truths
from benchmarks.plants.kept import PAGE, ROOT, keep, keep_own
from benchmarks.plants.page import draw, page
from configs.plant_scores import PATH as SCORES
from neorl_core.plants import NAMES
from tasks.files.canonical import write_json

PARTS = ("truths", "speed", "scores", "pictures", "steps", "sensitivity", "page")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--plants", nargs="*", default=list(NAMES), choices=NAMES, help="default: all plants")
    parser.add_argument(
        "--peers", default=os.environ.get("NEORL_PEERS_PYTHON"), help="Python interpreter with the peers"
    )
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part '{unknown[0]}': choose among {', '.join(PARTS)}")
    for part in options.parts or PARTS:
        if part == "truths":
            keep(part, truths.truths(options.plants))
        elif part == "speed":
            keep(part, speed.speed(options.peers))
        elif part == "scores":
            write_json(SCORES, scores.scores(options.plants))
        for name in options.plants:
            if part == "pictures":
                path = draw(name)
                print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB", flush=True)
            elif part in ("steps", "sensitivity"):
                result = steps.measure(name) if part == "steps" else sensitivity.measure(name)
                keep_own(name, part, result)
                print(name, part, json.dumps(result), flush=True)
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
