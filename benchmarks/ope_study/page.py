"""Write docs/studies/ope.md from the kept cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.ope_study import table as kept
from benchmarks.ope_study.table import BEHAVIOURS, DEVELOPMENT, OTHERS, by_plant, ordering, summary, supported
from benchmarks.pages import listed, wrap, yes

Results = Sequence[Mapping[str, Any]]
MOST_PLANTS = len(DEVELOPMENT + OTHERS) - 1
"""Number of plants that must meet a criterion: all except one."""


def cells(results: Results) -> str:
    """Return one row for each cell."""
    columns = ("supported", "coverage", "above", "width", "rank", "regret")
    head = ("plant", "logs", "supported", "coverage", "lower bound too high", "width")
    rows = []
    for result in results:
        found = summary(result)
        numbers = ("–" if (value := found.get(name)) is None else f"{value:.2f}" for name in columns)
        rows.append((result["plant"], result["behaviour"], *numbers))
    return pages.table((*head, "rank correlation", "regret"), rows)


def criteria(results: Results) -> str:
    """Return the criteria that the study was planned with, and whether each is met."""
    found = by_plant(results)

    def plants(name: str, met: Callable[[float], bool]) -> int:
        return sum(met(one[name]) for one in found.values())

    above = sum(one["above"] for one in found.values()) / max(sum(one["estimates"] for one in found.values()), 1)
    covering, enough = plants("coverage", lambda x: x >= 0.9), plants("supported", lambda x: x >= 0.4)
    clones, narrow = plants("clone", lambda x: x == 1), plants("width", lambda x: x <= 0.5)
    widths = np.concatenate([supported(result).width for result in results])
    overall = f", {np.median(widths):.2f} over all estimates" if len(widths) else ""
    every, count = len(DEVELOPMENT + OTHERS), f"of {len(found)} plants"
    rows = [
        ("95 % intervals cover at least 90 % on eight plants", covering >= MOST_PLANTS, f"{covering} {count}"),
        ("at most 5 % of lower bounds above the true value", above <= 0.05, f"{above:.1%}"),
        ("at least 40 % of policies supported on eight plants", enough >= MOST_PLANTS, f"{enough} {count}"),
        ("the clone of the logged controller is always supported", clones == every, f"all cells of {clones} {count}"),
        ("median width at most half the range of true values", narrow == every, f"{narrow} {count}{overall}"),
    ]
    whole = len(results) == every * len(BEHAVIOURS)
    return pages.table(
        ("criterion", "met", "result"), [(name, yes(met) if whole else "open", got) for name, met, got in rows]
    )


def plants(results: Results) -> str:
    """Return one row for each plant."""
    rows = [
        (
            plant,
            f"{one['supported']:.2f}",
            f"{one['coverage']:.2f}",
            f"{one['above']:.0f} of {one['estimates']:.0f}",
            f"{one['width']:.3f}",
        )
        for plant, one in by_plant(results).items()
    ]
    return pages.table(("plant", "supported", "coverage", "lower bounds too high", "median width"), rows)


def beside_peers(results: Results) -> str:
    """Compare our ranking with d3rlpy's on the same policies and the same held-out steps."""
    rows = []
    for result in results:
        path = kept.RESULTS / "peers" / f"{result['plant']}-{result['behaviour']}.json"
        if not path.exists():
            continue
        policies, theirs = result["policies"], json.loads(path.read_text())["values"]
        for which in ("supported", "all"):
            at = [
                i for i, row in enumerate(policies) if row["value"] is not None and (which == "all" or row["supported"])
            ]
            known = [policies[i] for i in at]
            ours = ordering([row["value"] for row in known], known, policies)
            peer = ordering([theirs[i] for i in at], known, policies)
            numbers = (f"{one[name]:.2f}" for name in ("rank", "regret") for one in (ours, peer))
            rows.append((result["plant"], result["behaviour"], f"{which} {len(at)}", *numbers))
    head = ("plant", "logs", "policies", "rank correlation, ours", "of d3rlpy", "regret, ours", "of d3rlpy")
    return pages.table(head, rows) if rows else "No cell was evaluated by d3rlpy."


def answer(results: Results) -> str:
    """Return the answer in two sentences."""
    found = by_plant(results)
    covering = sum(one["coverage"] >= 0.9 for one in found.values())
    above, estimates = (sum(one[name] for one in found.values()) for name in ("above", "estimates"))
    return (
        f"The 95 % intervals cover at least 90 % of the true values on {covering} of {len(found)} plants. "
        f"{above / max(estimates, 1):.1%} of the lower bounds are above the true value."
    )


def page() -> str:
    """Return the page."""
    results = [json.loads(path.read_text()) for path in sorted(kept.RESULTS.glob("*.json"))]
    missing = len(DEVELOPMENT + OTHERS) * len(BEHAVIOURS) - len(results)
    commits = sorted({result["commit"][:7] for result in results})
    parts = [
        SETTING,
        criteria(results) if results else "No cell is finished.",
        wrap(f"{kept.NOTE} {missing} of {missing + len(results)} cells are missing." if missing else kept.NOTE),
        "## By plant",
        COLUMNS,
        plants(results),
        "## Cells",
        cells(results),
        "## Compared with d3rlpy",
        PEERS,
        beside_peers(results),
        f"Commits: {listed(commits)}.",
    ]
    return pages.study("Off-policy evaluation", QUESTION, answer(results), COMMAND, *parts)


QUESTION = "Does off-policy evaluation estimate the true values of policies from held-out logs?"
COMMAND = "`make ope-study` takes hours; started again, the command runs only the missing cells."
SETTING = wrap(
    f"""A cell is a plant with one kind of logs: 50,000 generated rows and 22 policies. These are final and early
    policies of cloning, TD3+BC, IQL and `bptt`, and clones with noisy weights. A *value* is a mean discounted return.
    The true value of a policy is its mean over 256 rollouts; the estimate is computed from held-out logs only. The
    logs *support* a policy if its actions stay near the logged data. The estimator was developed on
    {", ".join(DEVELOPMENT)}; the other plants have seeds that were not used before. Criteria that were set before the
    study:"""
)
COLUMNS = """All columns except *supported* and *regret* are about the supported policies only:

- *supported*: share of the policies that the logs support
- *coverage*: share of the 95 % intervals that contain the true value
- *lower bounds too high*: lower bounds above the true value, as a number or a share
- *width*, *median width*: median width of the intervals / range of the true values in the cell
- *rank correlation*: correlation of estimates and true values by rank, 1 if the order is the same
- *regret*: best true value of all policies minus the true value of the supported policy with the highest estimate,
  divided by the range of the true values"""
PEERS = wrap(
    """`benchmarks/peers/fqe_d3rlpy.py` runs fitted Q evaluation (FQE) of the library d3rlpy on the same held-out steps.
    d3rlpy marks no policy as unsupported, so the table has a row for the supported and a row for all policies. *ours*
    is NeoRL; rank correlation and regret as above."""
)
