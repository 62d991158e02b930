"""Write docs/studies/graphs.md from the kept cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from statistics import mean, median
from typing import Any

from benchmarks import pages
from benchmarks.pages import ROOT, STUDIES, wrap, yes

RESULTS = ROOT / "benchmarks" / "results" / "graph"
PAGE = STUDIES / "graphs.md"
WITHIN, FEWER, MICROSECONDS = 0.9, 0.2, 200.0
"""Criteria: share of loads within 5 % of the optimum, updates / updates from scratch, and time of a decision [µs]."""

Cell = Mapping[str, Any]


def selected(rows: Cell, kind: str) -> str:
    """Return the policy of a kind of network with the highest estimate on held-out days."""
    return max((name for name in rows if name.startswith(kind)), key=lambda name: rows[name]["estimate"])


def optimum(found: Cell) -> str:
    """Compare policies on 33 buses with the best of all topologies."""
    policies = found["policies"]
    graph, dense = selected(policies, "graph"), selected(policies, "MLP")
    rows = []
    for name, row in policies.items():
        cells: list[str] = []
        for kind in ("known", "held out"):
            one = row[kind]
            near = (f"{one['within']:.0%}", f"{one['median']:.3f}") if "within" in one else ("100%", "1.000")
            cells += [*near, str(one["violations"])]
        rows.append((name, yes(True) if name in (graph, dense) else "", *cells))
    near = policies[graph]["known"]["within"] >= WITHIN
    safe = policies[graph]["held out"]["violations"] <= policies[dense]["held out"]["violations"]
    head = ("policy", "selected", "within 5 %", "median", "violations", "unseen outage: within 5 %", "median")
    return "\n\n".join(
        [
            wrap(
                "For each load, a policy opens lines until the network is a tree. The optimum is the least power loss "
                f"of all 50,751 trees. Policies train on {found['days']} days of logs with {found['updates']:,} "
                f"updates and are tested on {found['loads']} loads of each kind. Criteria: the selected graph policy "
                f"is within 5 % of the optimum on at least 90 % of the loads ({yes(near)}). With outages that are in "
                f"no log it has no more violations than the selected MLP ({yes(safe)})."
            ),
            OPTIMUM,
            pages.table((*head, "violations"), rows),
        ]
    )


def transfer(found: Cell) -> str:
    """Compare losses on 118 buses after tuning weights of 33 buses and after training from scratch."""
    tuned, scratch = (
        sorted(found["rows"][name], key=lambda row: (row["updates"], row["rate"])) for name in ("tuned", "from scratch")
    )
    # The median over seeds, because a single failed seed would dominate a mean.
    aim = min(median(row["loss"]) for row in scratch if row["updates"] == found["updates"])
    reached = next((row["updates"] for row in tuned if median(row["loss"]) <= aim), None)
    fewer = reached is not None and reached <= FEWER * found["updates"]
    rows = []
    for name, trainings in (("on 33 buses", tuned), ("from scratch", scratch)):
        for row in trainings:
            losses = (f"{statistic(row['loss']):.3f}" for statistic in (mean, median, max))
            rate = f"{row['rate']:g}" if row["updates"] else ""
            rows.append((name, f"{row['updates']:,}", rate, *losses, f"{mean(row['violations']):.0%}"))
    after = "never reach" if reached is None else f"need {reached:,} updates to reach"
    return "\n\n".join(
        [
            wrap(
                f"Policies for a feeder with 118 buses train on {found['days']} days of logs with "
                f"{len(scratch[-1]['loss'])} seeds and are tested on {found['loads']} loads. Weights trained on 33 "
                f"buses {after} the median loss of training from scratch with {found['updates']:,} updates. "
                f"Criterion: at most a fifth of the updates ({yes(fewer)})."
            ),
            TRANSFER,
            pages.table(("weights", "updates", "rate", "mean loss", "median seed", "worst seed", "low voltage"), rows),
        ]
    )


def speed(found: Cell) -> str:
    """Return the time of a decision by size of the feeder."""
    rows = []
    for name, row in sorted(found["sizes"].items(), key=lambda size: size[1]["buses"]):
        label = name if row["ties"] else f"{name} (nothing to switch)"
        shielded = (f"{row[key]:.0f}" if key in row else "" for key in ("composite_1", "composite_12"))
        rows.append((label, row["buses"], row["lines"], f"{row['median']:.0f}", f"{row['p99']:.0f}", *shielded))
    most = max(row["median"] for row in found["sizes"].values())
    cores = "one core" if found["pinned"] else "all cores, because this system cannot pin a process"
    return "\n\n".join(
        [
            wrap(
                f"Time from an observation to the open lines, over {found['decisions']:,} decisions on {cores}. The "
                f"graph network exchanges messages in {found['rounds']} rounds and has {found['width']} numbers per "
                f"node. Criterion: a median of at most {MICROSECONDS:.0f} µs ({yes(most <= MICROSECONDS)})."
            ),
            SPEED,
            pages.table(
                ("feeder", "nodes", "edges", "median µs", "p99 µs", "shield of 1 step, µs", "shield of 12 steps, µs"),
                rows,
            ),
        ]
    )


def agents(found: Cell) -> str:
    """Compare distributed agents with the tuned controller, by shared weights and by links that are up."""
    learners, best, (worst, top) = found["learners"], found["optimal"], found["score_range"]
    shared = {name: rows for name, rows in learners.items() if len(rows) > 1}
    chosen = shared["alike"]

    def earned(name: str, value: float) -> str:
        return f"{name} {value:.1f} $ (score {100 * (value - worst) / (top - worst):.2f})"

    def gained(row: Mapping[str, float]) -> str:
        return f"{row['gain']:+.2f} ± {row['half_width']:.2f}"

    half_way = chosen["all up"]["gain"] - chosen["all up"]["half_width"] >= best["gain"] / 2
    never = all(row["gain"] - row["half_width"] >= 0 for row in chosen.values())
    cut = {name: row for name, row in chosen.items() if " to " not in name}
    single = [row for name, row in chosen.items() if " to " in name]
    rows = []
    # JSON files sort the names.
    for name, row in sorted(cut.items(), key=lambda item: (item[0] == "all cut", "%" in item[0])):
        cells = (gained(rows_of[name]) for rows_of in shared.values())
        rows.append((name, *cells, f"{row['worst_day']:+.1f}", f"{row['days_below']:.1%}", row["violations"]))
    central = ", ".join(f"{name} gains {gained(each['all up'])} $" for name, each in learners.items() if len(each) == 1)
    seconds = found["seconds"]
    least = f"{gained(min(single, key=lambda r: r['gain']))} $" if single else ""
    lowest = f" If only one link is cut, agents gain at least {least}." if single else ""
    return "\n\n".join(
        [
            wrap(
                "Each agent sees and controls its own part of the feeder and exchanges messages over links. "
                f"{earned('Per day the untuned controller earns', found['found'])}, "
                f"{earned('the tuned controller', found['tuned'])} and {earned('the optimal flow', best['return'])}. "
                f"The optimal gain is the difference of the last two, {best['gain']:.2f} ± {best['half_width']:.2f} "
                f"$. The optimal flow knows the whole day in advance. Agents clone its decisions on {found['days']} "
                f"days ({found['rows']:,} rows, {found['updates']:,} updates; {seconds['logs']:.0f} CPU s for the "
                f"logs, {seconds['alike']:.0f} CPU s per policy). They play {found['trials']} days with "
                f"{found['seeds']} seeds. Criteria: similar agents that share weights reach half of the optimal gain "
                f"({yes(half_way)}). "
                f"With links cut, they earn on average at least as much as the tuned controller ({yes(never)})."
            ),
            AGENTS,
            wrap(f"For comparison, with all links up, {central}.{lowest}"),
            pages.table(
                ("links", *(f"weights: {name}" for name in shared), "worst day", "days below", "violations"), rows
            ),
        ]
    )


TABLES: Mapping[str, tuple[str, Callable[[Cell], str]]] = {
    "optimum": ("33 buses, compared with the optimum", optimum),
    "transfer": ("From 33 buses to 118", transfer),
    "speed": ("Time of a decision", speed),
    "agents": ("Distributed agents", agents),
}
"""Heading and section of each cell."""


def page() -> str:
    """Return the page."""
    parts: list[str] = []
    for name, (title, section) in TABLES.items():
        path = RESULTS / f"{name}.json"
        parts += [f"## {title}", section(json.loads(path.read_text())) if path.exists() else "Not measured yet."]
    return pages.study(
        "Graph policies",
        QUESTION,
        ANSWER,
        "`make graph-study` takes hours; started again, the command runs only the missing cells.",
        *parts,
    )


QUESTION = """Do graph policies switch the lines of a power feeder better than dense networks (MLP), and can a larger
feeder reuse their weights?"""
ANSWER = """The selected graph policy is within 5 % of the optimum on more loads than the selected MLP, and 50 updates
from its weights on the larger feeder equal 1,000 updates from scratch. Distributed agents earn most of the optimal
gain even if all communication links are cut, because their own measurements suffice on this feeder."""
OPTIMUM = """- *policy*: kind of network and learner, or a rule without a network
- *selected*: policy of its kind with the highest estimate on held-out days
- *within 5 %*: share of loads with a power loss of at most 1.05 times the least loss
- *median*: median of power loss / least loss
- *violations*: number of loads with a voltage below the limit
- *unseen outage*: the same three numbers with an outage that is in no log"""
TRANSFER = """- *weights*: initial weights, trained on 33 buses or random
- *updates*, *rate*: gradient steps on 118 buses and their learning rate
- *mean loss*: power loss / loss of the plant's own rule, mean over loads and seeds
- *median seed*, *worst seed*: the same ratio for the median and the worst seed
- *low voltage*: share of loads with a voltage below the limit"""
SPEED = """- *nodes*, *edges*: buses and lines of the feeder; *padded* fills the graph to a standard size
- *median µs*, *p99 µs*: median and 99 % quantile without a shield
- *shield of 1 step*, *of 12 steps*: median with a shield that looks 1 or 12 control steps ahead"""
AGENTS = """- *links*: share of links that are cut; *others each step*: each step draws new ones; *the same all day*:
  they stay cut
- *weights*: *alike*: similar agents share weights; *all the same*: all agents share; *each its own*: none share
- the three columns of weights: gain over the tuned controller in $ per day, with a 95 % interval over seeds and days
- *worst day*, *days below*: lowest gain of a day in $, and share of days with a loss, for alike weights
- *violations*: number of days with a violated limit, for alike weights"""
