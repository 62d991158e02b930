"""Write docs/studies/season.md and its picture from the kept days."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import pages
from benchmarks.pages import STUDIES, wrap
from benchmarks.season.days import ALARMS_PER_YEAR, FEW, Day, summary
from benchmarks.season.plant import CALM, CLEANED, FOULING

PAGE = STUDIES / "season.md"
PICTURE = STUDIES / "season.png"


def page(days: Sequence[Day]) -> str:
    """Draw the picture, and return the page."""
    draw(days, PICTURE)
    found = summary(days)
    few = min(FEW, len(days) // 2)
    fouled = sum(CALM <= day.day < CLEANED for day in days)
    first = found.first_alarm if found.first_alarm is not None else "(none)"
    rows = [
        ("decisions", ", ".join(f"{name} {count}" for name, count in found.verdicts.items())),
        ("rollbacks", found.rollbacks),
        (
            "false drift alarms while clean",
            f"{found.false_alarms} in {found.calm_steps:,} control steps; {found.expected:.4f} are expected at the set "
            f"rate of {ALARMS_PER_YEAR:g} per year",
        ),
        ("drift alarms while fouled", f"{found.alarms} of {fouled} days, the first on day {first}"),
        (
            f"median duration of the last {few} retrainings / of the first {few} after day 0",
            f"{found.ratio:.2f} in wall-clock time, {found.processor_ratio:.2f} in CPU time",
        ),
        *(("refused", reason) for reason in sorted({day.refused for day in days if day.refused})),
    ]
    steps = sorted({0, *range(14, len(days), 15), len(days) - 1})
    growth = [
        (
            day.day,
            f"{day.sizes.ledger:.2f}",
            f"{day.sizes.prefect:.1f}",
            f"{day.sizes.mlflow:.1f}",
            f"{day.sizes.home:.0f}",
            f"{day.sizes.memory:.0f}",
            f"{day.monitor_seconds:.1f}",
            f"{day.seconds:.1f}",
        )
        for day in (days[step] for step in steps)
    ]
    sizes = ("day", "ledger, MB", "Prefect, MB", "MLflow, MB", "home, MB", "memory, MB", "monitor, s", "retrain, s")
    return pages.study(
        "A season of retrainings",
        f"Does NeoRL detect a slow change of the plant in {len(days)} daily retrainings, and how does a home grow?",
        f"Drift is first reported on day {first}, {found.false_alarms} alarms are false, and "
        f"{found.verdicts.get('promoted', 0)} of {len(days)} candidates are promoted. Retraining does not slow down, "
        f"and the home grows to {days[-1].sizes.home:.0f} MB.",
        "`make season` takes hours; started again, the command runs only the missing days.",
        wrap(
            f"The reactor's heat exchanger is clean until day {CALM}, loses {FOULING:.2%} of its heat transfer per day "
            f"from then on, and is cleaned on day {CLEANED}. At the end of each day, `neorl monitor` compares the "
            "day's log with the training data, and a policy is retrained on the logs of the last ten days. Servers, "
            "gates and certificates are real; training is short. After a promotion the new and the previous champion "
            "play the same episodes, and a worse new champion is rolled back."
        ),
        "![Drift, decision and duration of each day](season.png)",
        pages.table(("measure", "result"), rows),
        "## Growth",
        "Sizes of databases, home and memory after the retraining, and seconds of monitoring and retraining:",
        pages.table(sizes, growth),
        "## Days with a new decision",
        wrap(
            "*Fouled*: lost share of the heat transfer. *Drift / alarm level*: evidence of drift divided by the alarm "
            "level; above 1 there is an alarm. "
            "*Decision*: result of the retraining with the failed gates. *Champion*: champion after the decision."
        ),
        pages.table(("day", "fouled", "drift / alarm level", "decision (failed gates)", "champion"), _turns(days)),
    )


def _turns(days: Sequence[Day]) -> list[tuple[object, ...]]:
    """Return a row for each day on which decision, failed gates or alarm differ from the day before."""
    rows: list[tuple[object, ...]] = []
    before = None
    for day in days:
        now = (day.verdict, day.failed, day.alarm)
        if now != before or day.rolled_back:
            evidence = "" if day.evidence is None else f"{day.evidence:+.2f}{' **alarm**' if day.alarm else ''}"
            failed = f" ({', '.join(day.failed)})" if day.failed else ""
            back = f", {day.rolled_back} rolled back" if day.rolled_back else ""
            champion = f"version {day.champion}" if day.champion else "none"
            rows.append((day.day, f"{day.fouled:.2%}", evidence, f"{day.verdict}{failed}", f"{champion}{back}"))
        before = now
    return rows


def draw(days: Sequence[Day], path: Path) -> None:
    """Draw drift, decisions and durations over the days."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    evidence, decided, taken = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    for axes in (evidence, decided, taken):
        axes.axvspan(CALM, CLEANED, color="0.93", zorder=0)
        axes.grid(alpha=0.3)
    known = [day for day in days if day.evidence is not None]
    evidence.axhline(1.0, color="tab:red", linewidth=1, label="alarm")
    evidence.plot([d.day for d in known], [d.evidence for d in known], ".-", color="tab:blue", label="drift")
    evidence.set_ylabel("drift, share of an alarm")
    evidence.legend(loc="upper left")
    evidence.set_title("The exchanger fouls on the days shaded grey")
    names = sorted({day.verdict for day in days})
    decided.plot([day.day for day in days], [names.index(day.verdict) for day in days], "o", markersize=4)
    rolled = [day for day in days if day.rolled_back]
    decided.plot([d.day for d in rolled], [names.index(d.verdict) for d in rolled], "x", color="tab:red", markersize=9)
    decided.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    decided.set_ylim(-0.5, len(names) - 0.5)
    taken.plot([day.day for day in days[1:]], [day.seconds for day in days[1:]], ".-", color="tab:green")
    taken.set_ylim(bottom=0)
    taken.set_ylabel("retraining, s")
    taken.set_xlabel("day")
    figure.savefig(path, dpi=110)
