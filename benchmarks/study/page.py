"""Write docs/studies/retraining.md from the kept runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import pages
from benchmarks.ope_study.table import BEHAVIOURS, DEVELOPMENT, OTHERS
from benchmarks.pages import listed, wrap, yes
from benchmarks.study import table
from benchmarks.study.table import OFFICIAL, RUNS, Cell, Interval, summary
from tasks.simulate import PUBLISHED_SCORES

PLANTS = DEVELOPMENT + OTHERS
NEVER_REFUSED = ("double_mass", "chemical_reactor", "water_treatment")
Results = Sequence[Mapping[str, Any]]
Cells = Mapping[tuple[str, str], Cell]


def cells(found: Cells) -> str:
    """Return one row for each cell."""
    head = ("plant", "logs", "runs", "unsupported", "no gain", "logged", "tuned", "selected")
    head += ("selected - logged", "selected - tuned", "regret", "seconds")
    rows = []
    for (plant, behaviour), cell in found.items():
        counts = (cell.runs, cell.unsupported, cell.gainless)
        scores = map(_number, (cell.behaviour, cell.controller, cell.score))
        gains = map(_shown, (cell.over_behaviour, cell.over_controller))
        rows.append((plant, behaviour, *counts, *scores, *gains, _number(cell.regret), f"{cell.seconds:.0f}"))
    return pages.table(head, rows)


def criteria(found: Cells) -> str:
    """Return the criteria that the study was planned with, and whether each is met."""
    whole = set(found) == {(plant, behaviour) for plant in PLANTS for behaviour in BEHAVIOURS}
    whole = whole and all(cell.runs == RUNS[behaviour] for (_, behaviour), cell in found.items())
    worse = [key for key, cell in found.items() if cell.over_behaviour.upper < 0]
    refusing = [key for key, cell in found.items() if cell.refuses]
    always = [key for key in refusing if key[0] in NEVER_REFUSED]
    regrets = [cell.regret for cell in found.values() if cell.regret == cell.regret]
    medium = {plant: cell for (plant, behaviour), cell in found.items() if behaviour == "medium"}
    beaten = [plant for plant, cell in medium.items() if cell.over_controller.lower > 0 and not cell.refused]
    mean, most = (statistics.mean(regrets), max(regrets)) if regrets else (math.nan, math.nan)
    longest = max((cell.seconds for cell in found.values()), default=0.0)
    house, siemens = medium.get("hvac_control"), medium.get("industrial_benchmark")
    near = house.over_controller if house and not house.refuses else table.NOTHING
    above = siemens.over_behaviour if siemens and not siemens.refuses else table.NOTHING
    rows = [
        ("no cell is below the logged controller", not worse, _keys(worse)),
        ("at most 4 cells refuse most of their runs", len(refusing) <= 4, _keys(refusing)),
        (f"no cell of {', '.join(NEVER_REFUSED)} refuses most of its runs", not always, _keys(always)),
        ("mean regret at most 5 points, largest at most 15", mean <= 5 and most <= 15, f"{mean:.1f} and {most:.1f}"),
        ("medium logs: above the tuned controller on five plants", len(beaten) >= 5, listed(beaten)),
        ("hvac_control, medium: within 2 points of the tuned controller", near.value >= -2, _shown(near)),
        ("industrial_benchmark, medium: above the logged controller", above.value > 0, _shown(above)),
        ("a run takes at most four minutes on two cores", longest <= 240, f"{longest:.0f} s"),
    ]
    marked = [(criterion, yes(met) if whole else "open", result) for criterion, met, result in rows]
    return pages.table(("criterion", "met", "result"), marked)


def _keys(keys: Sequence[tuple[str, str]]) -> str:
    return listed(" ".join(key) for key in keys)


def _shown(interval: Interval) -> str:
    if interval.value != interval.value:
        return "–"
    return f"{interval.value:+.1f} [{interval.lower:+.1f}, {interval.upper:+.1f}]"


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.1f}"


def claims(found: Cells) -> str:
    """Return a paragraph about the runs that pass the gate `ope`."""
    shown, rightly = sum(cell.shown for cell in found.values()), sum(cell.shown_rightly for cell in found.values())
    return wrap(
        "The gate `ope` of a log-only plant is stricter than the selection: the lower bound of the gain over the "
        "logged controller must be above 0. The gain is estimated on held-out episodes that were not used to select "
        "the member. "
        f"{shown} runs pass; {rightly} of them score above the logged controller."
    )


def together(results: Results) -> str:
    """Return a table by logged controller: interquartile mean of scores, and how often each learner was selected."""
    rows = []
    for behaviour in BEHAVIOURS:
        runs = [one["runs"] for one in results if one["behaviour"] == behaviour]
        tasks = [scores for each in runs if (scores := [table.chosen(run) for run in each if table.ships(run)])]
        if tasks:
            mean = table.stratified_interval(tasks)
            few = mean.lower != mean.lower
            shown = f"{mean.value:.1f}" if few else f"{mean.value:.1f} [{mean.lower:.1f}, {mean.upper:.1f}]"
            selected = [table.learner(run["members"][run["selected"]]) for each in runs for run in each]
            often = ", ".join(f"{name} {selected.count(name)}" for name in dict.fromkeys(selected))
            rows.append((behaviour, len(tasks), sum(map(len, tasks)), shown, often))
    return pages.table(("logs", "cells", "runs not refused", "interquartile mean score", "selected in all runs"), rows)


def official(one: Mapping[str, Any]) -> str:
    """Return our scores on the episodes that NeoRL-2 publishes, and the published scores."""
    runs = one["runs"]
    scores = [table.chosen(run) for run in runs]
    free = [table.model_free(run) for run in runs]
    above = sum(score > 90 for score, run in zip(scores, runs, strict=True) if table.ships(run))
    over = sum(member["score"] > 76 for member in free if member["supported"])
    published = ", ".join(f"{name} {value:g}" for name, value in PUBLISHED_SCORES[OFFICIAL[0]].items())
    rows = [
        ("selected member", f"{min(scores):.1f} to {max(scores):.1f}", "above 90", f"{above} of {len(runs)} runs"),
        (
            "selected among model-free members",
            f"{min(member['score'] for member in free):.1f} to {max(member['score'] for member in free):.1f}",
            "above 76",
            f"{over} of {len(runs)} runs",
        ),
    ]
    return "\n\n".join(
        [
            f"{len(runs)} runs train on the episodes that NeoRL-2 publishes. *Score* is the range over these runs.",
            pages.table(("policy", "score", "criterion", "criterion met"), rows),
            wrap(f"Published scores, with settings that were chosen by tests on the plant's simulator: {published}."),
        ]
    )


def answer(found: Cells) -> str:
    """Return the answer in two sentences."""
    better = sum(cell.over_behaviour.lower > 0 for cell in found.values())
    worse = [key for key, cell in found.items() if cell.over_behaviour.upper < 0]
    refused, runs = sum(cell.refused for cell in found.values()), sum(cell.runs for cell in found.values())
    beaten = [key for key, cell in found.items() if cell.over_controller.lower > 0]
    return (
        f"In {better} of {len(found)} cells (plant and logs) the selected policy is better than the logged controller, "
        f"and in {len(worse)} it is worse ({_keys(worse)}). In {len(beaten)} cells it is better than the tuned "
        f"controller ({_keys(beaten)}); {refused} of {runs} runs are refused."
    )


def page(results: Results | None = None) -> str:
    """Return the page.

    Args:
        results: cells; default: the kept ones.
    """
    every = table.kept() if results is None else results
    by_cell = {(one["plant"], one["behaviour"]): one for one in every}
    keys = [(plant, behaviour) for behaviour in BEHAVIOURS for plant in PLANTS]
    generated = [by_cell[key] for key in keys if key in by_cell]
    found = {(one["plant"], one["behaviour"]): summary(one) for one in generated}
    commits = sorted({run["commit"][:7] for one in every for run in one["runs"]})
    parts = [
        "Criteria that were set before the study:",
        criteria(found),
        claims(found),
        "## Cells",
        CELLS,
        cells(found),
        "## By logged controller",
        MEANS,
    ]
    parts += [together(generated)]
    if OFFICIAL in by_cell:
        parts += ["## NeoRL-2's own episodes of double_mass", official(by_cell[OFFICIAL])]
    parts += ["## Data used to choose the defaults", DATA, f"Commits: {listed(commits)}."]
    return pages.study(
        "Default retraining",
        QUESTION,
        answer(found),
        "`make study` takes hours; started again, the command makes only the missing runs.",
        *parts,
    )


QUESTION = """With the default learners and logs alone, how good is the selected policy, compared with the logged and
the tuned controller?"""
CELLS = """Each run trains the default population on 50,000 generated steps and selects a member by off-policy
evaluation, as for a log-only plant. Then the controllers play the same 256 simulated episodes, without a shield.
Columns:

- *runs*: number of runs, each with its own seed
- *unsupported*: runs that are refused because the logs do not support the selected member
- *no gain*: runs that are refused because no gain is expected on separate held-out episodes
- *logged*, *tuned*, *selected*: mean scores over the runs that are not refused
- *selected - logged*, *selected - tuned*: differences with 95 % intervals over the runs, or over the episodes if fewer
  than three runs remain
- *regret*: score of the best member minus that of the selected member
- *seconds*: duration of the longest run"""
MEANS = wrap(
    """The interquartile mean is the mean of the middle half of the scores, over all plants and all runs that are not
    refused. The
    interval is a 95 % stratified bootstrap (Agarwal et al. 2021). The last column counts how often each learner was
    selected, refused runs included."""
)
DATA = wrap(
    """Some settings differ from the learners' papers. They were found on chemical_reactor, hvac_control,
    water_treatment and NeoRL-2's episodes of double_mass. The selection rule, the refusal rule and the loss of
    behaviour cloning were also developed on the other six plants, with other episodes. Afterwards the study ran these
    six plants with new seeds, and nothing was changed."""
)
