"""`make plants`: what the plants are and are held against, how fast they run, and what their controllers come to.

    python -m benchmarks.plants truths        # runs the plants' tests and keeps the outside values they were held to
    python -m benchmarks.plants speed         # environment steps per second, beside peers (NEORL_PEERS_PYTHON)
    python -m benchmarks.plants scores        # idle, own controller as found and tuned, and the best known
    python -m benchmarks.plants pictures      # an episode of each against its limits
    python -m benchmarks.plants steps         # what the step of integration costs
    python -m benchmarks.plants sensitivity   # what the tuned controller's record owes to constants without a source
    python -m benchmarks.plants page          # only writes docs/studies/plants.md
    python -m benchmarks.plants               # all of it
    python -m benchmarks.plants sensitivity --plants steel_annealing

Each part is kept as JSON, and docs/studies/plants.md is made of what is kept.
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
    parser.add_argument("--plants", nargs="*", default=list(NAMES), choices=NAMES, help="all by default")
    parser.add_argument("--peers", default=os.environ.get("NEORL_PEERS_PYTHON"), help="a Python with the peers")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"expected parts among {', '.join(PARTS)}, got '{unknown[0]}'")
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
                found = steps.measure(name) if part == "steps" else sensitivity.measure(name)
                keep_own(name, part, found)
                print(name, part, json.dumps(found), flush=True)
    PAGE.write_text(page())
    print(f"docs: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
