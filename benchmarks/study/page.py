"""docs/studies/retraining.md from the runs that are kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.ope_study.table import BEHAVIOURS, DEVELOPMENT, OTHERS
from benchmarks.study import table
from benchmarks.study.table import OFFICIAL, RUNS, Cell, Interval, summary
from tasks.simulate import PUBLISHED_SCORES

PLANTS = DEVELOPMENT + OTHERS
NEVER_REFUSED = ("double_mass", "chemical_reactor", "water_treatment")
Results = Sequence[Mapping[str, Any]]


def cells(found: Mapping[tuple[str, str], Cell]) -> str:
    """All cells as Markdown."""
    lines = [
        "| plant | behaviour | runs | not supported | no gain expected | behaviour's score | tuned controller's "
        "| selected | over the behaviour | over the controller | gain shown | regret | longest run, s |",
        "|---" * 13 + "|",
    ]
    for (plant, behaviour), cell in found.items():
        numbers = " | ".join(map(_number, (cell.behaviour, cell.controller, cell.score)))
        gains = f"{_shown(cell.over_behaviour)} | {_shown(cell.over_controller)}"
        refused = f"{cell.unsupported} | {cell.gainless}"
        lines.append(
            f"| {plant} | {behaviour} | {cell.runs} | {refused} | {numbers} | {gains} | {cell.shown} "
            f"| {_number(cell.regret)} | {cell.seconds:.0f} |"
        )
    return "\n".join(lines)


def bars(found: Mapping[tuple[str, str], Cell]) -> str:
    """What was asked for beside what was found, as Markdown."""
    whole = set(found) == {(plant, behaviour) for plant in PLANTS for behaviour in BEHAVIOURS}
    whole = whole and all(cell.runs == RUNS[behaviour] for (_, behaviour), cell in found.items())
    worse = [key for key, cell in found.items() if cell.over_behaviour.upper < 0]
    refusing = [key for key, cell in found.items() if cell.refuses]
    regrets = [cell.regret for cell in found.values() if cell.regret == cell.regret]
    medium = {plant: cell for (plant, behaviour), cell in found.items() if behaviour == "medium"}
    beaten = [plant for plant, cell in medium.items() if cell.over_controller.lower > 0 and not cell.refused]
    mean, most = (statistics.mean(regrets), max(regrets)) if regrets else (math.nan, math.nan)
    lines = [
        ("the selected policy is below the behaviour in no cell", not worse, _listed(worse)),
        ("at most 4 cells refuse", len(refusing) <= 4, _listed(refusing)),
        (
            f"none of them of {', '.join(NEVER_REFUSED)}",
            not any(plant in NEVER_REFUSED for plant, _ in refusing),
            _listed([key for key in refusing if key[0] in NEVER_REFUSED]),
        ),
        ("mean regret at most 5 points, largest 15", mean <= 5 and most <= 15, f"{mean:.1f} and {most:.1f}"),
        ("on medium above the tuned controller on five plants", len(beaten) >= 5, ", ".join(beaten) or "none"),
        _near(medium.get("hvac_control")),
        _above(medium.get("industrial_benchmark")),
        (
            "a run takes at most four minutes on two cores",
            all(c.seconds <= 240 for c in found.values()),
            _longest(found),
        ),
    ]
    rows = [f"| {asked} | {('yes' if met else 'no') if whole else 'open'} | {got} |" for asked, met, got in lines]
    return "\n".join(["| asked | met | found |", "|---|---|---|", *rows])


def _near(cell: Cell | None) -> tuple[str, bool, str]:
    asked = "hvac_control on medium within 2 points of its tuned controller"
    if cell is None or cell.refuses:
        return asked, False, "not run" if cell is None else "refused"
    return asked, cell.over_controller.value >= -2, _shown(cell.over_controller)


def _above(cell: Cell | None) -> tuple[str, bool, str]:
    asked = "industrial_benchmark on medium above its behaviour"
    if cell is None or cell.refuses:
        return asked, False, "not run" if cell is None else "refused"
    return asked, cell.over_behaviour.value > 0, _shown(cell.over_behaviour)


def _longest(found: Mapping[tuple[str, str], Cell]) -> str:
    return f"{max((cell.seconds for cell in found.values()), default=0.0):.0f} s"


def _listed(keys: Sequence[tuple[str, str]]) -> str:
    return ", ".join(" ".join(key) for key in keys) or "none"


def _shown(interval: Interval) -> str:
    if interval.value != interval.value:
        return "–"
    return f"{interval.value:+.1f} [{interval.lower:+.1f}, {interval.upper:+.1f}]"


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.1f}"


def claims(found: Mapping[tuple[str, str], Cell]) -> str:
    """How many runs show a gain, and how many of those have one, as a sentence."""
    shown, rightly = sum(cell.shown for cell in found.values()), sum(cell.shown_rightly for cell in found.values())
    return (
        "A run shows a gain where the lower bound of what its member is worth above the logged controller, by held-out "
        "episodes that did not select it, is above 0: only then does the gate let it pass, unless `gates.beat_plant` "
        f"is false. Of the {shown} runs that show one, {rightly} score above the behaviour."
    )


def together(results: Results) -> str:
    """The interquartile mean over the plants of each behaviour."""
    lines = ["| behaviour | cells | runs | interquartile mean of the selected members' scores |", "|---|---|---|---|"]
    for behaviour in BEHAVIOURS:
        cells = [one["runs"] for one in results if one["behaviour"] == behaviour]
        tasks = [found for runs in cells if (found := [table.chosen(run) for run in runs if table.ships(run)])]
        if tasks:
            found = table.stratified_interval(tasks)
            few = found.lower != found.lower
            shown = f"{found.value:.1f}" if few else f"{found.value:.1f} [{found.lower:.1f}, {found.upper:.1f}]"
            lines.append(f"| {behaviour} | {len(tasks)} | {sum(map(len, tasks))} | {shown} |")
    return "\n".join(lines)


def learners(results: Results) -> str:
    """What each learner's members score, as Markdown."""
    names = list(dict.fromkeys(table.learner(m) for one in results for run in one["runs"] for m in run["members"]))
    lines = ["| plant | behaviour | " + " | ".join(names) + " | selected |", "|---" * (len(names) + 3) + "|"]
    for one in results:
        each = []
        for name in names:
            scores = [m["score"] for run in one["runs"] for m in run["members"] if table.learner(m) == name]
            each.append(f"{statistics.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})" if scores else "–")
        chosen = [table.learner(run["members"][run["selected"]]) for run in one["runs"]]
        often = ", ".join(f"{name} {chosen.count(name)}" for name in dict.fromkeys(chosen))
        lines.append(f"| {one['plant']} | {one['behaviour']} | {' | '.join(each)} | {often} |")
    return "\n".join(lines)


def official(one: Mapping[str, Any]) -> str:
    """The runs on the episodes that NeoRL-2 publishes, as Markdown."""
    lines = [
        "| run | selected | score | best model-free by the same rule | score | seconds |",
        "|---|---|---|---|---|---|",
    ]
    scores, free = [], []
    for run in one["runs"]:
        selected, other = run["members"][run["selected"]], table.model_free(run)
        scores.append(selected["score"])
        free.append((other["score"], other["supported"]))
        said = "" if table.ships(run) else ", refused"
        lines.append(
            f"| {run['seed']} | {table.learner(selected)}{said} | {selected['score']:.1f} | {table.learner(other)} "
            f"| {other['score']:.1f} | {table.seconds(run):.0f} |"
        )
    above = sum(score > 90 for score, run in zip(scores, one["runs"], strict=True) if table.ships(run))
    over = sum(score > 76 for score, supported in free if supported)
    published = ", ".join(f"{name} {value:g}" for name, value in PUBLISHED_SCORES[OFFICIAL[0]].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Above 90: {above} of {len(scores)} (asked: 10 of 10). Model-free alone above 76: {over} of {len(free)} "
            f"(asked: 8 of 10). Published, seed averages of the best setting, chosen online: {published}.",
        ]
    )


def page(results: Results | None = None) -> str:
    """The page.

    Args:
        results: cells; those that are kept where not given.
    """
    every = table.kept() if results is None else results
    order = {(plant, behaviour): None for behaviour in BEHAVIOURS for plant in PLANTS}
    by_cell = {(one["plant"], one["behaviour"]): one for one in every}
    generated = [by_cell[key] for key in order if key in by_cell]
    found = {(one["plant"], one["behaviour"]): summary(one) for one in generated}
    parts = [HEAD, bars(found), "", "## Cells", "", cells(found), "", claims(found), ""]
    parts += [WORDS, "", together(generated), ""]
    parts += ["## Learners", "", LEARNERS, "", learners(generated), ""]
    if OFFICIAL in by_cell:
        parts += ["## NeoRL-2's own episodes of double_mass", "", official(by_cell[OFFICIAL]), ""]
    commits = sorted({run["commit"][:7] for one in every for run in one["runs"]})
    parts += [FOUND, "", f"Runs were made at {', '.join(commits) or 'no commit yet'}.", ""]
    return "\n".join(parts)


HEAD = """# What retraining comes to

Made by `make study`: on the nine plants of continuous actions and every behaviour the default population of a run that
names no learner is trained on 50,000 generated steps, a member is selected by off-policy evaluation alone, and
afterwards all members, the behaviour and the plant's own tuned controller are scored in the same 256 episodes of the
simulator, without a shield. Scores are
points of the plant's scale, on which idling is 0 and the best known controller 100. A run is refused where the logs do
not support the selected member's estimate, or where what it gains over the logged controller is not above 0 as
estimated by held-out episodes that did not select it: by default the gate passes neither, nothing ships, and the run
counts in no other column. A cell refuses when more than half of its runs do; a plant is above its controller only
where none does. `open` stands where runs are missing.
"""
WORDS = """Intervals are of 95 %: Student's t over the means of three or more runs that are not refused; of one or two,
over their episodes, which says nothing of what other runs would come to. Below, over the plants and the runs that are
not refused: the interquartile mean, and where every cell has three such runs, a stratified bootstrap over runs (Agarwal
et al. 2021).

Runs had one core each, beside another run and other work at times. Fifteen took 245 to 269 seconds of a core: those
were made again on two cores, two of them beside other work, and took 158 to 215 seconds by the clock. Seconds are those
of the processor, or of the clock where it took less."""
LEARNERS = (
    """Mean score of each learner's members over the runs, lowest and highest, and how often each was selected."""
)
FOUND = """## How the defaults were found

The learners' settings come from their papers, but for those that docs/training.md names, which were found on
chemical_reactor, hvac_control and water_treatment, and on NeoRL-2's own episodes of double_mass, by off-policy
evaluation with rollouts in view. Generated episodes of the other six plants took no part in that. While the estimator
that selects was made, other episodes of double_mass, robot_assembly, steel_annealing and power_grid were looked at, and
that supply_chain's tasks end by a clock was found on other episodes of it. That the lower bound of the gain selects
where no gain is shown, and industrial_benchmark's discount of 0.99, were found on other episodes of all plants but
chemical_reactor and water_treatment. That the clone's rate falls was found on other episodes of all plants, bptt's
higher price on those of double_mass, supply_chain, robot_assembly, steel_annealing and hvac_control, and that runs are
refused which expect no gain, or whose gain has an interval wider than half of what logged rewards allow, was found on
the study's former runs, whose seeds are not used again but for the three plants that were developed on. The runs on
NeoRL-2's own episodes have the seeds that they had before all that; nothing was found on them. That the default
clone counts large errors linearly was found on other episodes of all plants ([training](../training.md)), and how far
fitted Q evaluation may carry errors on the study of estimates ([ope](ope.md)). After all that the seeds of the six
plants were drawn anew, and nothing was changed by what these runs came to.

Windows that are cut count otherwise since then ([research](../how-to/research.md)), which generated episodes and NeoRL-2's do
not have. The fifteen runs that were made again, at 7a29367 and on the same episodes, have the same scores of all
members to five decimals and select the same ones. Members' estimates differ by at most 0.15 % and bounds of what is
claimed by at most 1.4 %, for two threads add up in another order than one.
"""
