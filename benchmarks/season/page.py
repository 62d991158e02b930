"""docs/studies/season.md and its picture from the days that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.season.days import ALARMS_PER_YEAR, FEW, Day, summary
from benchmarks.season.plant import CALM, CLEANED, FOULING

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "studies" / "season.md"
PICTURE = ROOT / "docs" / "studies" / "season.png"
TEXT = """\
# A season

What {count} daily retrainings of a plant that wears come to, by `make season`: the reactor, whose heat exchanger is
clean until day {calm}, loses {fouling:.2%} of its heat transfer a day from then on, and is cleaned on day {cleaned}.
Each evening the day's log is held against what the champion learned from, and a policy is retrained on the last ten
days: with the real servers, ledger, witness, registry, gates and certificates, and with small budgets of training and
evaluation. In the morning after a promotion the new champion and the one before it run the same episodes of the day's
plant; where the new one is worse (a one-sided t-test at 1 %) or violates a limit more often, it is rolled back.
Written by that command; nothing here is typed.

![Each day's evidence of drift, decision and duration](season.png)

| what | found |
|:--|:--|
{table}

## Growth

| day | ledger, MB | Prefect, MB | MLflow, MB | home, MB | memory, MB | monitor, s | retraining, s |
|---|---|---|---|---|---|---|---|
{growth}

## Days on which something was decided otherwise than the day before

| day | fouled | drift, share of an alarm | decision | champion |
|---|---|---|---|---|
{days}
"""


def page(days: Sequence[Day]) -> str:
    """The page, as Markdown; draws its picture."""
    draw(days, PICTURE)
    found = summary(days)
    few = min(FEW, len(days) // 2)
    refusals = sorted({day.refused for day in days if day.refused})
    rows = [
        ("decisions", ", ".join(f"{name} {count}" for name, count in found.verdicts.items())),
        ("rolled back", f"{found.rollbacks}"),
        (
            "false alarms of drift while nothing had drifted",
            f"{found.false_alarms} in {found.calm_steps:,} steps; at {ALARMS_PER_YEAR:g} a year at most "
            f"{found.expected:.4f} are expected",
        ),
        (
            "alarms while the exchanger fouled",
            f"{found.alarms} of {sum(CALM <= d.day < CLEANED for d in days)} days, the first on day "
            f"{found.first_alarm if found.first_alarm is not None else '(none)'}",
        ),
        (
            f"the last {few} retrainings beside the first {few} after the very first",
            f"{found.ratio:.2f} times as long, {found.processor_ratio:.2f} times the processor time",
        ),
        *(("refused", reason) for reason in refusals),
    ]
    steps = sorted({0, *range(14, len(days), 15), len(days) - 1})
    growth = [
        f"| {day.day} | {day.sizes.ledger:.2f} | {day.sizes.prefect:.1f} | {day.sizes.mlflow:.1f} | "
        f"{day.sizes.home:.0f} | {day.sizes.memory:.0f} | {day.monitor_seconds:.1f} | {day.seconds:.1f} |"
        for day in (days[step] for step in steps)
    ]
    return TEXT.format(
        count=len(days),
        calm=CALM,
        cleaned=CLEANED,
        fouling=FOULING,
        table="\n".join(f"| {what} | {said} |" for what, said in rows),
        growth="\n".join(growth),
        days="\n".join(_turns(days)),
    )


def _turns(days: Sequence[Day]) -> list[str]:
    lines, before = [], None
    for day in days:
        now = (day.verdict, day.failed, day.alarm)
        if now != before or day.rolled_back:
            evidence = "" if day.evidence is None else f"{day.evidence:+.2f}{' **alarm**' if day.alarm else ''}"
            failed = f" ({', '.join(day.failed)})" if day.failed else ""
            back = f", {day.rolled_back} rolled back" if day.rolled_back else ""
            champion = f"version {day.champion}" if day.champion else "none"
            lines.append(f"| {day.day} | {day.fouled:.2%} | {evidence} | {day.verdict}{failed} | {champion}{back} |")
        before = now
    return lines


def draw(days: Sequence[Day], path: Path) -> None:
    """Evidence of drift, decisions and seconds over the days."""
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
    evidence.plot([d.day for d in known], [d.evidence for d in known], ".-", color="tab:blue", label="evidence")
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
