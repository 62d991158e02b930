"""The tables of docs/graphs.md from the cells that are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "graph"
PAGE = ROOT / "docs" / "graphs.md"
WITHIN, FEWER, MICROSECONDS = 0.9, 0.2, 200.0
"""What is asked for: loads within 5 % of the optimum, updates beside those from scratch, and a decision's time."""


def selected(rows: Mapping[str, Any], kind: str) -> str:
    """The policy of a kind of network that held-out days estimate the best."""
    return max((name for name in rows if name.startswith(kind)), key=lambda name: rows[name]["estimate"])


def optimum(found: Mapping[str, Any]) -> str:
    """Policies on 33 buses beside the best of all topologies."""
    rows = found["policies"]
    graph, dense = selected(rows, "graph"), selected(rows, "MLP")
    lines = [
        "| policy | selected | within 5 % | median | violations | held out: within 5 % | median | violations |",
        "|---" * 8 + "|",
    ]
    for name, row in rows.items():
        cells = [f"{row[kind]['violations']}" for kind in ("known", "held out")]
        if "within" in row["known"]:
            cells = [
                f"{row[kind]['within']:.0%} | {row[kind]['median']:.3f} | {row[kind]['violations']}"
                for kind in ("known", "held out")
            ]
        else:
            cells = [f"100% | 1.000 | {cell}" for cell in cells]
        lines.append(f"| {name} | {'yes' if name in (graph, dense) else ''} | {cells[0]} | {cells[1]} |")
    near = rows[graph]["known"]["within"] >= WITHIN
    safe = rows[graph]["held out"]["violations"] <= rows[dense]["held out"]["violations"]
    return "\n".join(
        [
            f"{found['loads']} loads of each kind, {found['days']} days of logs, {found['updates']:,} updates. The "
            f"selected graph policy is within 5 % of the optimum on at least 90 % of the loads: {_said(near)}. With "
            f"lines out of service of which no log tells it violates no more than the selected MLP: {_said(safe)}.",
            "",
            *lines,
        ]
    )


def transfer(found: Mapping[str, Any]) -> str:
    """Losses on 118 buses by updates, tuned and from scratch."""
    tuned, scratch = (
        sorted(found["rows"][name], key=lambda row: (row["updates"], row["rate"])) for name in ("tuned", "from scratch")
    )
    # Of seeds of which single ones fail, the median is compared: a mean would make a bar of the failure.
    aim = min(median(row["loss"]) for row in scratch if row["updates"] == found["updates"])
    reached = next((row["updates"] for row in tuned if median(row["loss"]) <= aim), None)
    fewer = reached is not None and reached <= FEWER * found["updates"]
    lines = [
        "| begun | updates | rate | mean loss | median seed | worst seed | loads with a voltage too low |",
        "|---" * 7 + "|",
    ]
    for name, rows in (("on 33 buses", tuned), ("from scratch", scratch)):
        for row in rows:
            losses = " | ".join(f"{of(row['loss']):.3f}" for of in (mean, median, max))
            rate = f"{row['rate']:g}" if row["updates"] else ""
            lines.append(f"| {name} | {row['updates']:,} | {rate} | {losses} | {mean(row['violations']):.0%} |")
    after = "at no number of updates" if reached is None else f"after {reached:,} updates"
    seeds = len(scratch[-1]["loss"])
    return "\n".join(
        [
            f"Loss beside that of the plant's own rule, on {found['loads']} loads, by updates on {found['days']} days "
            f"of logs, {seeds} seeds each. At the rate that suits each better, weights of 33 buses are as good "
            f"{after} as those from scratch after {found['updates']:,}, by their median seeds: at most a fifth, "
            f"{_said(fewer)}.",
            "",
            *lines,
        ]
    )


def speed(found: Mapping[str, Any]) -> str:
    """Microseconds of a decision by size."""
    sizes = found["sizes"]
    lines = [
        "| feeder | nodes | edges | decision: median µs | 99th percentile µs | with its shield, one step ahead | "
        "twelve steps ahead |",
        "|---" * 7 + "|",
    ]
    for name, row in sorted(sizes.items(), key=lambda size: size[1]["buses"]):
        label = name if row["ties"] else f"{name}, which has nothing to open: the network alone"
        shielded = [f"{row[key]:.0f}" if key in row else "" for key in ("composite_1", "composite_12")]
        cells = [f"{row[key]}" for key in ("buses", "lines")] + [f"{row[key]:.0f}" for key in ("median", "p99")]
        lines.append(f"| {' | '.join([label, *cells, *shielded])} |")
    most = max(row["median"] for row in sizes.values())
    pinned = "one core, the process being pinned to it" if found["pinned"] else "all cores, for this system pins none"
    return "\n".join(
        [
            f"At most {MICROSECONDS:.0f} µs at the median: {_said(most <= MICROSECONDS)}. Medians of "
            f"{found['decisions']:,} decisions on {pinned}; {found['rounds']} rounds of width {found['width']}; JAX "
            "computes in the thread that asks (`jax_cpu_enable_async_dispatch=False`).",
            "",
            *lines,
        ]
    )


def agents(found: Mapping[str, Any]) -> str:
    """What agents earn more than the tuned controller, by who shares weights and which links are up."""
    learners, best, (worst, top) = found["learners"], found["optimal"], found["score_range"]
    shared = {name: rows for name, rows in learners.items() if len(rows) > 1}
    chosen = shared["alike"]

    def earned(name: str, value: float) -> str:
        return f"{name} {value:.1f} $ a day (score {100 * (value - worst) / (top - worst):.2f})"

    def gained(row: Mapping[str, float]) -> str:
        return f"{row['gain']:+.2f} ± {row['half_width']:.2f}"

    half_way = chosen["all up"]["gain"] - chosen["all up"]["half_width"] >= best["gain"] / 2
    never = all(row["gain"] - row["half_width"] >= 0 for row in chosen.values())
    head = ["links", *(f"weights: {name}" for name in shared), "worst day", "days below", "beyond a limit"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    # Files keep names in the order of the alphabet.
    for said, row in sorted(
        chosen.items(), key=lambda item: (item[0] == "all cut", "%" in item[0], item[0] != "all up")
    ):
        cells = [said, *(gained(rows[said]) for rows in shared.values())]
        cells += [f"{row['worst_day']:+.1f}", f"{row['days_below']:.1%}", f"{row['violations']}"]
        lines.append(f"| {' | '.join(cells)} |")
    central = [f"{name}: {gained(rows['all up'])} $" for name, rows in learners.items() if len(rows) == 1]
    seconds = found["seconds"]
    return "\n".join(
        [
            f"{found['trials']} days, {found['seeds']} seeds, {found['days']} days of logs ({found['rows']:,} rows), "
            f"{found['updates']:,} updates; {seconds['logs']:.0f} s of a core for the logs, {seconds['alike']:.0f} s "
            f"for a policy. {earned('The volt-var controller as found earns', found['found'])}, "
            f"{earned('tuned', found['tuned'])}, {earned('the optimal flow', best['return'])}: {best['gain']:.2f} ± "
            f"{best['half_width']:.2f} $ more than tuned on the same days. At least half of this way with agents that "
            f"are alike sharing weights: {_said(half_way)}. With links cut never below the tuned controller on the "
            f"mean: {_said(never)}. Both are said of the intervals' lower ends; single days may lie below.",
            "",
            "$ a day more than the tuned controller on the same days, 95 % intervals over seeds and days; the last "
            "three columns are of the first one's policies. By the same recipe, not chosen for it, "
            f"{', '.join(central)}.",
            "",
            *lines,
        ]
    )


def _said(met: bool) -> str:
    return "yes" if met else "no"


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "optimum": optimum,
    "transfer": transfer,
    "speed": speed,
    "agents": agents,
}


def written(page: str) -> str:
    """The page with the table of each cell between its marks."""
    for name, table in TABLES.items():
        path = RESULTS / f"{name}.json"
        text = table(json.loads(path.read_text())) if path.exists() else "This cell is not run yet: `make graph-study`."
        head, begin, rest = page.partition(f"<!-- {name}: begin -->")
        _, end, tail = rest.partition(f"<!-- {name}: end -->")
        if begin and end:
            page = f"{head}{begin}\n\n{text}\n\n{end}{tail}"
    return page
