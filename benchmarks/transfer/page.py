"""Results and page of `make transfer-study`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import pages
from benchmarks.transfer.cell import IDENTIFYING, LOGGED, PRIOR, VARIANTS
from benchmarks.transfer.hidden import BEYOND, CONSTANTS, HIDDEN, KNOWN, STRUCTURE
from configs.run import OpenedRun
from tasks.models.plants.opening import open_run

RESULTS = pages.ROOT / "benchmarks" / "results" / "transfer.jsonl"
PAGE = pages.STUDIES / "transfer.md"
Row = Mapping[str, Any]
Rows = Mapping[tuple[str, str, str], Row]
"""Results by plant, hidden plant and variant of the training."""
CHANCE = 0.05
"""Smallest p-value with which chance explains more violations than the tuned controller's."""
MARKS = {"beats": "🟩", "ties": "🟨", "worse": "🟥", "refused": "⬜"}
LETTERS = {"simulator": " S", "rollouts": " R", "fallback": " F", "statistical": " V", "training": " T"}
"""Marks of the gates that refuse a candidate."""
TITLES = {
    "standard": "Standard domain",
    "identified": "Domain around identified constants",
    "nominal": "Nominal constants",
}
BARS = {
    "constants": (("refused", "at most", 5), ("beats", "at least", 18), ("worse", "at most", 1)),
    "structure": (("worse", "at most", 2),),
}
"""Allowed numbers of verdicts among 25 cells."""


def runs() -> dict[str, OpenedRun]:
    """Return the shipped runs that learn by analytic gradients in the simulator, by plant."""
    found = [open_run(path) for path in sorted((pages.ROOT / "configs").glob("*.yaml"))]
    return {run.plant: run for run in found if run.train.algorithm == "analytic_gradient"}


def measured(plants: Iterable[str]) -> list[str]:
    """Return the plants of the study; a plant without an entry in `KNOWN` has no hidden plants."""
    return [plant for plant in plants if plant in KNOWN]


def kept() -> dict[tuple[str, str, str], Row]:
    """Return the kept results."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {(row["plant"], row["hidden"], row["variant"]): row for row in map(json.loads, lines)}


def page(rows: Rows) -> str:
    """Return the page."""
    counts = {variant: _count(rows, variant, HIDDEN) for variant in VARIANTS}
    best = max(VARIANTS, key=lambda variant: counts[variant]["beats"])
    risky = [row for row in rows.values() if not row["gate"] and row["p"] < CHANCE]
    promoted = sum(not row["gate"] for row in rows.values())
    found = counts[best]
    return pages.study(
        "Carrying over to a different plant",
        "Does a policy that learned in the nominal simulator carry over to a plant that differs from it?",
        f"With the {TITLES[best].lower()}, {found['beats']} of {found.total()} cells beat the tuned controller, "
        f"{found['ties']} tie, {found['worse']} are worse, and a gate refuses {found['refused']}. "
        f"In {len(risky)} of {promoted} cells with a promoted policy, the policy violates limits more often than the "
        "tuned controller beyond chance.",
        "`make transfer-study` takes hours on two cores; `python -m benchmarks.transfer --page` only writes this page.",
        INTRODUCTION,
        *(_heat_map(rows, variant) for variant in VARIANTS),
        pages.wrap(
            f"{MARKS['beats']} the 95 % interval of the gain is above 0 · {MARKS['ties']} otherwise, a loss of at most "
            f"1 point · {MARKS['worse']} a larger loss · {MARKS['refused']} refused by a gate (S simulator, R "
            "rollouts, F fallback, V statistical, T training); the number is the gain that the refused policy would "
            "have had · – not measured. Gains are in points of score; a trip of the reactor costs thousands of points."
        ),
        f"## Requirements\n\n{_bars(rows)}",
        pages.wrap(
            "*Violating*: promoted policies that violate limits more often than the tuned controller, by the exact "
            "one-sided binomial test of the pairs of episodes in which only one of both violates a limit (McNemar), "
            f"with p < {CHANCE:g} for each cell."
        ),
        f"## Refusals\n\n{_refusals(rows)}",
        FINDINGS,
        f"## Violations and interventions\n\n{_details(rows)}",
        _method(),
        _unmeasured(),
    )


def _count(rows: Rows, variant: str, hidden: Sequence[str]) -> Counter[str]:
    return Counter(row["verdict"] for row in rows.values() if row["variant"] == variant and row["hidden"] in hidden)


def _heat_map(rows: Rows, variant: str) -> str:
    """Return a table of plants and hidden plants."""
    lines = []
    for plant in KNOWN:
        cells = [rows.get((plant, hidden, variant)) for hidden in HIDDEN]
        if any(cells):
            lines.append((plant, *map(_cell, cells)))
    return f"## {TITLES[variant]}\n\n{pages.table(('plant', *HIDDEN), lines)}" if lines else ""


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    gain = _short(row["gain"]) if "gain" in row else "–"
    return f"{MARKS[row['verdict']]} {gain}{LETTERS.get(row['gate'], '')}"


def _short(gain: float) -> str:
    """Return a gain with about two digits."""
    return f"{gain:+.1f}" if abs(gain) < 10 else f"{gain:+,.0f}"


def _bars(rows: Rows) -> str:
    """Return a table of verdicts, with the allowed numbers."""
    lines = []
    for variant in VARIANTS:
        for kind, hidden in (("constants", CONSTANTS), ("structure", tuple(STRUCTURE))):
            found = _count(rows, variant, hidden)
            wanted = {name: (f" ({word} {bar})", word, bar) for name, word, bar in BARS[kind]}
            met = all(found[n] <= bar if word == "at most" else found[n] >= bar for n, (_, word, bar) in wanted.items())
            risky = sum(
                row["variant"] == variant and row["hidden"] in hidden and not row["gate"] and row["p"] < CHANCE
                for row in rows.values()
            )
            texts = [f"{found[name]}{wanted[name][0] if name in wanted else ''}" for name in MARKS]
            verdict = pages.yes(met and not risky) if found.total() == 25 else "not complete"
            lines.append((variant, kind, found.total(), *texts, risky, verdict))
    return pages.table(("training", "difference", "cells", *MARKS, "violating", "met"), lines)


def _refusals(rows: Rows) -> str:
    """Return for each training and gate how many refused policies would have beaten the tuned controller."""
    lines = []
    for variant in VARIANTS:
        refused = [row for row in rows.values() if row["variant"] == variant and row["gate"]]
        for gate in sorted({row["gate"] for row in refused}):
            those = [row for row in refused if row["gate"] == gate and "gain" in row]
            better = sum(row["low"] > 0 for row in those)
            worse = sum(row["low"] <= 0 and row["gain"] < -1 for row in those)
            risky = sum(row["p"] < CHANCE for row in those)
            lines.append((variant, gate, len(those), better, len(those) - better - worse, worse, risky))
    head = ("training", "gate", "refused", "would beat", "would tie", "would be worse", "would violate more")
    return pages.table(head, lines)


def _details(rows: Rows) -> str:
    """Return a table of the cells with a violation of either controller, or many interventions of the shield."""
    lines = [
        (
            row["plant"],
            row["hidden"],
            row["variant"],
            row["verdict"],
            f"{row['gain']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]",
            f"{row['violations']}, {row['tuned_violations']} of {row['episodes']:,}",
            f"{row['p']:.2g}",
            f"{row['taken_over']:.1%}",
        )
        for variant in VARIANTS
        for plant in KNOWN
        for hidden in HIDDEN
        if (row := rows.get((plant, hidden, variant))) and "gain" in row
        if row["violations"] or row["tuned_violations"] or row["taken_over"] > 0.1
    ]
    head = ("plant", "hidden plant", "training", "verdict", "gain, 95 %", "violations", "p", "taken over")
    text = (
        "Cells in which either controller violates a limit, or the shield takes over more than 10 % of the steps. "
        "*Violations*: episodes of the shielded policy, and of the tuned controller."
    )
    return f"{pages.wrap(text)}\n\n{pages.table(head, lines)}"


def _unmeasured() -> str:
    """Return a paragraph about plants that learn in the simulator and have no hidden plants."""
    missing = [plant for plant in runs() if plant not in KNOWN]
    return (
        pages.wrap(f"Not measured, because they have no hidden plants yet: {pages.listed(missing)}.") if missing else ""
    )


def _method() -> str:
    """Return the constants that differ, and the steps of a cell."""
    edges = [
        (plant, *(f"{edge.name} ({edge.low:.3g} to {edge.high:.3g})" for edge in known.edges))
        for plant, known in KNOWN.items()
    ]
    structure = pages.table(
        ("hidden plant", "difference"),
        [
            ("edge A+ B-", "constants A and B have the high and the low end of their range in the operating domain"),
            ("beyond A+", f"constant A is {BEYOND:.0%} above the high end of its range; - means below the low end"),
            ("lag", "the sensors lag with a time constant of one control step; long lag: three steps"),
            ("dead band", "the actuators ignore changes of at most 2 % of their range"),
            ("delay", "the actions take effect one control step later"),
        ],
    )
    return "\n\n".join(
        (
            "## Method",
            structure,
            pages.wrap(
                "Ranges are relative to the nominal value. In the operating domain of double_mass no constant varies, "
                "and the outlets of water_treatment do not vary."
            ),
            pages.table(("plant", "constant A", "constant B"), edges),
            METHOD,
        )
    )


INTRODUCTION = pages.wrap(
    """A hidden plant makes the logs; the pipeline knows these logs and the simulator. The candidate that passes the
    gates is compared with the tuned controller on 2,048 paired episodes of the hidden plant, behind the shield. Columns
    of the tables are hidden plants: in the first five, only constants differ; in the other five, the simulator lacks
    the structure."""
)
FINDINGS = """## Findings

- Name the uncertain constants under `identify` ([how](../how-to/identify-a-simulator.md)). The simulator gate then
  refuses no measured cell in which only constants differ, and every policy beats the tuned controller, because the
  shield also predicts with the estimates. This is the best case: the identification knows which constants may differ.
- With the standard domain, the simulator gate refuses most plants 10 % beyond the edge. Only the domain of hvac_control
  is wide enough. The gate also refuses a reactor at a corner of its domain: it compares the logs with 32 drawn plants,
  and few of these are near a corner. The domain of the reactor (1 %) is narrower than its logs can tell.
- An identification can hide structure: on the air conditioning with a lag of three steps, wrong constants imitate the
  lag, the gate passes, and the policy is worse. Check that estimates are physically possible.
- Dead band and delay are visible, because the logs contain the position of the actuators. The refusals of a dead band
  alone are unnecessary. A refusal of a delay can be necessary: the reactor's policy would trip in most episodes, and
  the tuned controller in none.
- The gate passes a lag of one step on the three plants with noisy sensors, and their policies keep their gain.
- An estimate also absorbs effects that the simulator draws elsewhere, such as leaks in water_treatment, without harm to
  the gain."""
METHOD = f"""A cell:

- The controller of the logs, with its noise, makes {LOGGED} episodes on the hidden plant; 20 % are held out.
- The gate `simulator` compares the simulator with the held-out logs, as in a retraining.
- The policy learns with the settings of the plant's run: first without the shield, then behind the shield with the
  envelope of the training logs. *Standard* draws constants from the operating domain. *Nominal* has nominal constants
  in training only. *Identified* estimates the constants A and B from {IDENTIFYING} training episodes, with a prior
  deviation of {PRIOR:.0%}; simulator, shield, gates and training then use the operating domain around the estimates,
  with the uncertainty of the posterior. Constants that the logs do not identify stay nominal.
- 2,048 paired episodes on the simulator are the gates `rollouts` (a gain for certain), `fallback` and `statistical` (no
  violation rate above p0 for certain, of the tuned controller and of the policy).

Left out: ingest, the learners beside the first, off-policy evaluation, departure, the certificates' many episodes, and
servability. All cells of a plant have the same training seed and the same scale of inputs, that of the standard
domain."""
