"""The tables of docs/graphs.md from the cells that are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
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
    curves = found["curves"]
    last = curves["from scratch"][-1][1]
    reached = next((done for done, loss, _ in curves["tuned"] if loss <= last), None)
    fewer = reached is not None and reached <= FEWER * found["updates"]
    by = {int(done): loss for done, loss, _ in curves["tuned"]}
    lines = ["| updates | from scratch | tuned |", "|---" * 3 + "|"]
    lines += [f"| {done:,.0f} | {loss:.3f} | {by[int(done)]:.3f} |" for done, loss, _ in curves["from scratch"]]
    after = "never" if reached is None else f"after {reached:,.0f} updates"
    return "\n".join(
        [
            f"Mean loss beside that of the plant's own rule, on {found['loads']} loads. The tuned weights are as good "
            f"as those from scratch after {found['updates']:,} updates {after}: at most a fifth, {_said(fewer)}.",
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


def _said(met: bool) -> str:
    return "yes" if met else "no"


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"optimum": optimum, "transfer": transfer, "speed": speed}


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
