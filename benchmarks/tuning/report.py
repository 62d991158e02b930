"""Describe the plants' controllers, and make the table of the search for better parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pages

RESULTS = Path(__file__).resolve().parents[1] / "results" / "tuning.json"
BAR = 2.0
"""Points that a search may gain over a tuned controller."""

CONSTANT = "best constant action, found by the search"
RESTING = "initial action, held constant"
ALONE = "; no better controller is known"
ABOUT: Mapping[str, Mapping[str, str]] = {
    "chemical_reactor": {
        "idle": CONSTANT,
        "as_found": "PI controller by lambda tuning, with a closed loop three times slower than the open loop",
        "tuned": "PID controller, tuned by the search",
        "best_known": "nonlinear model predictive control over 17 steps with the nominal model",
    },
    "double_mass": {
        "idle": "no force; NeoRL-2 defines the scale",
        "as_found": "linear-quadratic regulator with feedforward and saturation, from the true model",
        "tuned": "the same controller; the search finds no better parameters",
    },
    "hvac_control": {
        "idle": CONSTANT,
        "as_found": "thermostats with a night set-back and parameters set by hand",
        "tuned": "the same thermostats, tuned by the search",
        "best_known": "model predictive control over ten hours with the nominal house and mean weather",
    },
    "industrial_benchmark": {
        "idle": RESTING,
        "as_found": "a constant action for each set point, the best one",
        "tuned": "the same constants with a cyclic shift from dynamic programming" + ALONE,
    },
    "power_grid": {
        "idle": RESTING,
        "as_found": "volt-var curve of IEEE 1547, a timetable for batteries and the best published topology",
        "tuned": "the same controller by the search, which also chooses one of six topologies" + ALONE,
    },
    "pumping_station": {
        "idle": "one pump always on, the best constant choice",
        "as_found": "on-off control of the level in stages, with parameters set by hand",
        "tuned": "the same controller with separate levels at night, tuned by the cross-entropy method",
        "best_known": "dynamic programming over the day with the nominal station and mean demand",
    },
    "robot_assembly": {
        "idle": RESTING,
        "as_found": "insertion in three phases (touch, sweep, insert), with parameters set by hand",
        "tuned": "the same controller, tuned by the search" + ALONE,
    },
    "steel_annealing": {
        "idle": RESTING,
        "as_found": "PI loops with the furnace's set-point table, without correction by the temperature at the exit",
        "tuned": "the same loops, tuned by the cross-entropy method; then the set point of the second zone was lowered "
        "until 5,317 episodes had no violation",
        "best_known": "the same loops, tuned by the cross-entropy method, with rare violations",
    },
    "supply_chain": {
        "idle": CONSTANT,
        "as_found": "echelon base-stock policy of or-gym",
        "tuned": "echelon base-stock policy with a rule for the last periods, tuned by the search" + ALONE,
    },
    "water_treatment": {
        "idle": CONSTANT,
        "as_found": "PI loops of Johansson 2000",
        "tuned": "the same loops, tuned by the search",
        "best_known": "nonlinear model predictive control over 315 s with the nominal tanks",
    },
}
"""Description of each plant's controllers; "the search" is `make tune`."""


def kept() -> dict[str, Any]:
    """Return the kept search result of each plant."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return results


def table(results: Mapping[str, Any]) -> str:
    """Return the search results as a table of docs/studies/plants.md."""
    rows = []
    for name, r in results.items():
        value, lower, upper = r["gain"]
        scores = (f"{r[who]:.1f}" for who in ("found", "tuned", "searched"))
        gain = f"{value:+.2f} [{lower:+.2f}, {upper:+.2f}]"
        violated = f"{', '.join(map(str, r['violated']))} of {r['episodes']:,}"
        rows.append((name, len(r["numbers"]), f"{r['seconds']:.0f}", *scores, gain, violated))
    head = ("plant", "parameters", "CPU s", "as found", "tuned", "searched", "gain over tuned, 95 %", "violated")
    return pages.table(head, rows)
