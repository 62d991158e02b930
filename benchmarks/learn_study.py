"""`make learn-study`: learn in the simulators of plants, and compare with their controllers.

    python -m benchmarks.learn_study                  # missing plants of PLANTS, five seeds each
    python -m benchmarks.learn_study hvac_control     # this plant again

Results are kept in benchmarks/results/learn.jsonl. The command writes docs/studies/learn.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import pages
from neorl_core.plants import NAMES
from neorl_core.safety.bounds import clopper_pearson_upper, mean_interval
from tasks.files.canonical import write_atomic
from tasks.learning import BARE, CONTROLLER, EPISODES, SHIELDED, Learned, chosen, learn
from tasks.models.plants.opening import open_run
from tasks.progress import StageProgress

RESULTS = pages.ROOT / "benchmarks" / "results" / "learn.jsonl"
PAGE = pages.STUDIES / "learn.md"
PLANTS = (
    "chemical_reactor",
    "double_mass",
    "hvac_control",
    "power_grid",
    "pumping_station",
    "robot_assembly",
    "supply_chain",
    "water_treatment",
)
"""Plants whose shipped configuration names a learner that learns in the simulator."""
SEEDS = 5


def measure(plant: str) -> dict[str, Any]:
    """Learn with every seed, and summarise."""
    run, found = open_run(pages.ROOT / "configs" / f"{plant}.yaml"), list[Learned]()
    by = chosen(run)
    with TemporaryDirectory() as folder:
        for seed in range(SEEDS):
            with StageProgress(f"{plant} {seed}") as progress:
                found.append(learn(run, Path(folder) / str(seed), seed, by, progress))
    gains = mean_interval([_gain(each, SHIELDED) for each in found])
    seconds = float(np.median([each.seconds for each in found[1:]]))
    return {
        "plant": plant,
        "learner": by.name.replace("_", " "),
        "tuned": _mean(found, CONTROLLER),
        "learned": _mean(found, SHIELDED),
        "gain": float(gains.value),
        "low": float(gains.lower),
        "high": float(gains.upper),
        "bare_gain": float(np.mean([_gain(each, BARE) for each in found])),
        "violations": sum(each.controllers[SHIELDED].violations for each in found),
        "bare_violations": sum(each.controllers[BARE].violations for each in found),
        "tuned_violations": sum(each.controllers[CONTROLLER].violations for each in found),
        "episodes": EPISODES * SEEDS,
        "fallback_share": float(np.mean([each.taken_over for each in found])),
        "train_s": seconds,
        # Only the first seed compiles.
        "compile_s": found[0].seconds - seconds,
        "seeds": SEEDS,
    }


def _mean(found: list[Learned], who: str) -> float:
    return float(np.mean([each.controllers[who].score for each in found]))


def _gain(found: Learned, who: str) -> float:
    gain = found.controllers[who].gain
    assert gain is not None
    return float(gain.value)


def kept() -> list[dict[str, Any]]:
    """Return the kept results, in the order of the plants."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    rows: dict[str, dict[str, Any]] = {row["plant"]: row for row in map(json.loads, lines)}
    return [rows[plant] for plant in PLANTS if plant in rows]


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page."""
    better = [row["plant"] for row in rows if row["low"] > 0]
    worse = [row["plant"] for row in rows if row["low"] <= 0]
    most = max(rows, key=lambda row: clopper_pearson_upper(row["violations"], row["episodes"], 0.05))
    bound = clopper_pearson_upper(most["violations"], most["episodes"], 0.05)
    missing = [plant for plant in NAMES if plant not in {row["plant"] for row in rows}]
    return pages.study(
        "Learning in the simulator",
        "Does a policy that learns in the simulator beat the tuned controller?",
        f"Behind the shield it gains for certain on {pages.listed(better)}"
        + (f", and not on {pages.listed(worse)}" if worse else "")
        + f". The 95 % upper bound of the violation probability is at most {bound:.1e}.",
        f"`make learn-study` runs `neorl learn` with {SEEDS} seeds on {len(rows)} plants.",
        pages.wrap(
            f"Gains are in points of score on {EPISODES:,} new episodes a seed, paired with the tuned controller, over "
            "the plant's operating domain. Their intervals are over seeds. *Violations*: episodes beyond a limit, of "
            "all seeds, for the policy behind the shield, the bare policy and the tuned controller. *Taken over*: "
            "share of the steps in which the shield's fallback acts. Only the first seed compiles; training times are "
            "those of the others. –: other programs ran beside the first seed."
        ),
        pages.table(
            (
                "plant",
                "learner",
                "tuned",
                "learned",
                "gain behind the shield, 95 %",
                "bare gain",
                "violations",
                "taken over",
                "training, s",
                "compiling, s",
            ),
            [
                (
                    row["plant"],
                    row["learner"],
                    f"{row['tuned']:.2f}",
                    f"{row['learned']:.2f}",
                    f"{row['gain']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]",
                    f"{row['bare_gain']:+.2f}",
                    f"{row['violations']}, {row['bare_violations']}, {row['tuned_violations']} of {row['episodes']:,}",
                    f"{row['fallback_share']:.1%}",
                    f"{row['train_s']:.0f}",
                    f"{row['compile_s']:.0f}" if row["compile_s"] > 0 else "–",
                )
                for row in rows
            ],
        ),
        pages.wrap(
            f"Learners and settings are those of `configs/PLANT.yaml`. Not measured: {pages.listed(missing)}. The "
            "gradients of power_grid leave out that it rounds the positions of switches, and those of supply_chain "
            "that it rounds orders. The policy of supply_chain moves the levels of the base stock."
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plants", nargs="*", help="default: plants without a kept result")
    given = parser.parse_args()
    known = {row["plant"] for row in kept()}
    for plant in given.plants or [plant for plant in PLANTS if plant not in known]:
        rows = {row["plant"]: row for row in kept()} | {plant: measure(plant)}
        ordered = [rows[each] for each in PLANTS if each in rows]
        write_atomic(RESULTS, "".join(json.dumps(row) + "\n" for row in ordered).encode())
        print(json.dumps(rows[plant]), flush=True)
    PAGE.write_text(page(kept()), encoding="utf-8")


if __name__ == "__main__":
    main()
