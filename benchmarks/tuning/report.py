"""Describe the plants' controllers, and write the table of the search for better parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pages

RESULTS = Path(__file__).resolve().parents[1] / "results" / "tuning.json"
BAR = 2.0
"""Points that a search may gain over a tuned controller."""

CONSTANT = "best constant action, by the search"
RESTING = "initial action held"
ABOUT: Mapping[str, Mapping[str, str]] = {
    "chemical_reactor": {
        "idle": CONSTANT,
        "as_found": "PI by lambda tuning, three times slower than the open loop",
        "tuned": "PID by the search",
        "best_known": "NMPC over 17 steps on the nominal model",
    },
    "double_mass": {
        "idle": "no force; the scale is NeoRL-2's own",
        "as_found": "saturated LQR with feedforward on the true model",
        "tuned": "the same; the search finds nothing better",
    },
    "hvac_control": {
        "idle": CONSTANT,
        "as_found": "thermostats with a night set-back, set by hand",
        "tuned": "the same thermostats by the search",
        "best_known": "model predictive control over ten hours with the nominal house and mean weather",
    },
    "industrial_benchmark": {
        "idle": RESTING,
        "as_found": "best constants by set point",
        "tuned": "the same constants and a cyclic shift from dynamic programming over the Goldstone cost; best known",
    },
    "power_grid": {
        "idle": RESTING,
        "as_found": "volt-var curve of IEEE 1547, a battery timetable and the paper's best topology, set by hand",
        "tuned": "the same by the search, which also chooses one of six topologies; best known",
    },
    "pumping_station": {
        "idle": "one pump always on, the best constant choice",
        "as_found": "staged on-off control of the level, set by hand",
        "tuned": "the same with separate night levels, by the cross-entropy method",
        "best_known": "dynamic programming over the day with the nominal station and mean demand",
    },
    "robot_assembly": {
        "idle": RESTING,
        "as_found": "touch, sweep, insert, set by hand",
        "tuned": "the same by the search; best known",
    },
    "steel_annealing": {
        "idle": RESTING,
        "as_found": "PI loops with the furnace's set-point table, without trim",
        "tuned": "the same loops by the cross-entropy method, with the second zone lowered until no violation in 5,317 "
        "episodes",
        "best_known": "the same loops by the cross-entropy method, with rare violations",
    },
    "supply_chain": {
        "idle": CONSTANT,
        "as_found": "or-gym's echelon base stock",
        "tuned": "echelon base stock with a rule for the last periods, by the search; best known",
    },
    "water_treatment": {
        "idle": CONSTANT,
        "as_found": "Johansson's PI loops",
        "tuned": "the same loops by the search",
        "best_known": "NMPC over 315 s on the nominal tanks",
    },
}
"""Description of each controller."""


def kept() -> dict[str, Any]:
    """Return the last search result of each plant."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return results


def table(results: Mapping[str, Any]) -> str:
    """Return the results as a table."""
    rows = []
    for name, r in results.items():
        value, lower, upper = r["gain"]
        scores = (f"{r[who]:.1f}" for who in ("found", "tuned", "searched"))
        gain = f"{value:+.2f} [{lower:+.2f}, {upper:+.2f}]"
        violated = f"{', '.join(map(str, r['violated']))} of {r['episodes']:,}"
        rows.append((name, len(r["numbers"]), f"{r['seconds']:.0f}", *scores, gain, violated))
    head = ("plant", "parameters", "CPU s", "as found", "tuned", "searched", "gain over tuned, 95 %", "violated")
    return pages.table(head, rows)
