"""What the search's results say in docs/studies/plants.md, and how each of the plants' controllers came about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results" / "tuning.json"
BAR = 2.0
"""Points of 100 that a search may find beyond a tuned controller."""

CONSTANT = "the best constant action, by the same search"
RESTING = "what is in force at the start is held"
ABOUT: Mapping[str, Mapping[str, str]] = {
    "chemical_reactor": {
        "idle": CONSTANT,
        "as_found": "PI by lambda tuning, three times as slow as the open loop",
        "tuned": "PID by the search",
        "best_known": "NMPC over 17 steps on the nominal model",
    },
    "double_mass": {
        "idle": "no force; the scale is NeoRL-2's own",
        "as_found": "saturated LQR with feedforward on the true model",
        "tuned": "the same: the search finds none better",
    },
    "hvac_control": {
        "idle": CONSTANT,
        "as_found": "thermostats with a set-back, as set by hand",
        "tuned": "the same thermostats by the search",
        "best_known": "receding horizon of ten hours with the nominal house and mean weather",
    },
    "industrial_benchmark": {
        "idle": RESTING,
        "as_found": "best constants by set point",
        "tuned": "the same constants, and a shift that goes round as dynamic programming over the Goldstone "
        "cost has it; the best known",
    },
    "power_grid": {
        "idle": RESTING,
        "as_found": "volt-var curve of IEEE 1547, a timetable and the paper's best lines open, as set by hand",
        "tuned": "the same by the search, which chooses among six switching states; the best known",
    },
    "pumping_station": {
        "idle": "one pump throughout, the best constant choice",
        "as_found": "staged two-point control of the level, as set by hand",
        "tuned": "the same with levels of its own at night, by the cross-entropy method",
        "best_known": "dynamic programming over the day with the nominal station and mean demand",
    },
    "robot_assembly": {
        "idle": RESTING,
        "as_found": "touch, sweep, insert, as set by hand",
        "tuned": "the same strategy by the search; the best known",
    },
    "steel_annealing": {
        "idle": RESTING,
        "as_found": "PI loops on the furnace's table, without trim",
        "tuned": "the same loops by the cross-entropy method, the second zone lowered until none of 5,317 episodes "
        "crossed a limit",
        "best_known": "the same loops by the cross-entropy method, which cross a limit now and then",
    },
    "supply_chain": {
        "idle": CONSTANT,
        "as_found": "or-gym's echelon base stock",
        "tuned": "echelon base stock and each stage's last period, by the search; the best known: levels by period, "
        "searched likewise, gain nothing",
    },
    "water_treatment": {
        "idle": CONSTANT,
        "as_found": "Johansson's PI loops",
        "tuned": "the same loops by the search",
        "best_known": "NMPC over 315 s on the nominal tanks",
    },
}
"""How each controller came about."""


def kept() -> dict[str, Any]:
    """The results of the last search of each plant."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def table(kept: Mapping[str, Any]) -> list[str]:
    """The results as a section of docs/studies/plants.md."""
    if not kept:
        return []
    lines = [
        "",
        "## A search for better parameters",
        "",
        "Made by `make tune`: from 1,000 uniform starts in the space of each controller's own parameters, successive "
        "halving on paired episodes and then the cross-entropy method; the winner is judged on fresh episodes, on "
        "which the controllers as found and as tuned are played too. A tuned controller is one beyond which a search "
        f"finds no more than {BAR:g} points, where a share of 1e-4 of episodes beyond a limit costs one.",
        "",
        "| plant | parameters | CPU [s] | as found | tuned | by the search | gain over tuned, 95 % | beyond a limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, r in kept.items():
        value, lower, upper = r["gain"]
        scores = " | ".join(f"{r[who]:.1f}" for who in ("found", "tuned", "searched"))
        beyond = f"{', '.join(map(str, r['violated']))} of {r['episodes']:,}"
        lines.append(
            f"| {name} | {len(r['numbers'])} | {r['seconds']:.0f} | {scores} | {value:+.2f} [{lower:+.2f}, "
            f"{upper:+.2f}] | {beyond} |"
        )
    return lines
