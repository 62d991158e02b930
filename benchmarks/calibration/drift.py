"""`make drift`: count the drift alarms of simulated years without drift, and the shifts that are found.

    python -m benchmarks.calibration.drift                  # 100 years of each case; continues
    python -m benchmarks.calibration.drift --only white     # cases with this in their name

Results are kept in benchmarks/results/drift.json. The command writes docs/studies/drift.md.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.stats import chi2, norm

from benchmarks import pages
from configs.strict import Strict
from neorl_core.safety.drift_detection import YEAR, alarm_threshold
from neorl_core.types import Transition
from tasks.data.store.episodes import Logs
from tasks.files.canonical import read_json, write_json
from tasks.log_only.drift import DAY, deseasonalised, evidence_of, season_of, season_rows, three_scores
from tasks.references import SignalDrift

RESULTS = pages.ROOT / "benchmarks" / "results" / "drift.json"
PAGE = pages.STUDIES / "drift.md"
STEP = 600.0
"""Length of a step [s]."""
REFERENCE, MONITORED = 26 * 7, 52 * 7
"""Days of the reference, and of a simulated year."""
SIGNALS, RATE, YEARS = (1, 4), 0.1, 100
WITHIN, FEWEST = 30, 10
"""Days within which a shift must be found, if they hold this number of blocks."""
MOST, FOUND = 0.2, 0.9
"""Largest upper bound of the alarms a year, and smallest share of shifts that are found."""

Floats = npt.NDArray[np.float64]
Case = Callable[[np.random.Generator, Floats], Floats]
"""Returns a signal without drift at the given days."""


def white(rng: np.random.Generator, days: Floats) -> Floats:
    return rng.normal(size=len(days))


def autoregression(phi: float) -> Case:
    def case(rng: np.random.Generator, days: Floats) -> Floats:
        noise = rng.normal(size=len(days))
        noise[0] /= math.sqrt(1 - phi**2)
        found: Floats = lfilter([1.0], [1.0, -phi], noise) * math.sqrt(1 - phi**2)
        return found

    return case


def cycle(deviation: float, period: float, base: Case = white) -> Case:
    """Add a sine of a random phase to a signal, with a period in days."""

    def case(rng: np.random.Generator, days: Floats) -> Floats:
        wave = np.sin(2 * np.pi * (days / period + rng.uniform()))
        return base(rng, days) + deviation * math.sqrt(2) * wave

    return case


def regimes(dwell: float) -> Case:
    """Switch between the means -1 and 1, with a mean dwell time in days."""

    def case(rng: np.random.Generator, days: Floats) -> Floats:
        switches = rng.uniform(size=len(days)) < (days[1] - days[0]) / dwell
        return (-1.0) ** (np.cumsum(switches) + rng.integers(2)) + rng.normal(size=len(days))

    return case


def heavy(rng: np.random.Generator, days: Floats) -> Floats:
    return rng.standard_t(3, size=len(days))


MUST: dict[str, Case] = {
    "white noise": white,
    "autocorrelation 0.9": autoregression(0.9),
    "daily cycle": cycle(1.0, 1.0),
}
"""Cases that must be monitored in every year."""
CASES: dict[str, Case] = MUST | {
    "daily cycle, autocorrelation 0.9": cycle(1.0, 1.0, autoregression(0.9)),
    "weekly cycle": cycle(1.0, 7.0),
    "Student's t, 3 degrees of freedom": heavy,
    "autocorrelation 0.99": autoregression(0.99),
    "autocorrelation 0.999": autoregression(0.999),
    "yearly season of 0.3": cycle(0.3, 365.25),
    "yearly season of 0.3, autocorrelation 0.9": cycle(0.3, 365.25, autoregression(0.9)),
    "yearly season of 0.05": cycle(0.05, 365.25),
    "yearly season of 0.02": cycle(0.02, 365.25),
    "regimes of 2 weeks": regimes(14.0),
    "regimes of 1 day": regimes(1.0),
}


UNSEEN = ("yearly season of 0.05", "yearly season of 0.02")
"""Slow changes that can be too weak to show in the reference, so that the rate of alarms may be exceeded."""


class Row(Strict):
    """Results of a case."""

    case: str
    signals: int
    years: int = 0
    monitored: int = 0
    """Years in which all signals are monitored."""
    partly: int = 0
    """Other years in which some signals are monitored."""
    alarms: int = 0
    """Years with an alarm."""
    shifts: int = 0
    """Monitored years in which 30 days hold enough blocks."""
    one: int = 0
    """Shifts of one signal that are found in time."""
    all: int = 0
    """Shifts of all signals that are found in time."""


class Results(Strict):
    """Content of the file of results."""

    rows: list[Row]


def examined(known: Floats, new: Floats, step: float) -> tuple[Floats, list[SignalDrift]]:
    """Return the evidence after each step and the results of the signals: (S, n) of the reference, (S, N) newer."""
    stamps = (np.arange(known.shape[1] + new.shape[1]) * (step * 1e9)).astype(np.int64)
    split = known.shape[1]
    season, episode = season_of(stamps[:split], stamps[split:], step), np.zeros(split, np.int64)
    streams = (
        three_scores(f"signal {i}", "observations", (x - x.mean()) / x.std(), episode, (y - x.mean()) / x.std(), season)
        for i, (x, y) in enumerate(zip(known, new, strict=True))
    )
    zeros = np.zeros(new.shape[1])
    logs = Logs(Transition(*[zeros] * 6), zeros.astype(np.int64), np.zeros(1, np.int64), zeros == 0)
    return evidence_of(streams, logs, step, season_rows(step), len(known))


def year(
    case: Case, count: int, rng: np.random.Generator, step: float, reference: float, monitored: float
) -> dict[str, int]:
    """Simulate one year of a plant: without drift, with a shift of one signal, and with a shift of all signals."""
    days = np.arange(round((reference + monitored) * DAY / step)) * step / DAY
    split, window = round(reference * DAY / step), round(WITHIN * DAY / step)
    signals = np.asarray([case(rng, days) for _ in range(count)])
    known, new = signals[:, :split], signals[:, split:]
    bar = math.log(alarm_threshold(YEAR / step, RATE))
    evidence, found = examined(known, new, step)
    seen = sum(not signal.needs_days for signal in found)
    longest = max(signal.block_steps for signal in found)
    result = {
        "years": 1,
        "monitored": int(seen == count),
        "partly": int(0 < seen < count),
        "alarms": int(evidence.max() >= bar),
    }
    if seen == count and window // longest >= FEWEST and new.shape[1] > window:
        begin = int(rng.integers(new.shape[1] - window))
        size = np.asarray([_deviation(x, signal.block_steps, step) for x, signal in zip(known, found, strict=True)])
        result["shifts"] = 1
        for name, moved in (("one", np.arange(count) == 0), ("all", np.ones(count, bool))):
            shifted = new[:, : begin + window].copy()
            shifted[:, begin:] += (size * moved)[:, None]
            result[name] = int(examined(known, shifted, step)[0][begin:].max() >= bar)
    return result


def _deviation(known: Floats, length: int, step: float) -> float:
    """Return the standard deviation of block means without the season."""
    stamps = (np.arange(len(known)) * (step * 1e9)).astype(np.int64)
    x, _ = deseasonalised(known, known, season_of(stamps, stamps, step))
    return float(x[: len(x) // length * length].reshape(-1, length).mean(axis=1).std())


def upper(alarms: int, years: int) -> float:
    """Return the upper 95 % bound of a Poisson rate per year."""
    return float(chi2.ppf(0.95, 2 * alarms + 2)) / 2 / years


def page(rows: list[Row]) -> str:
    """Return the page."""
    worst = max((row for row in rows if row.case not in UNSEEN), key=lambda row: row.alarms / row.years)
    unseen = max((row for row in rows if row.case in UNSEEN), key=lambda row: row.alarms / row.years)
    worst_found = min((row for row in rows if row.shifts >= 10), key=lambda row: row.one / row.shifts)
    return pages.study(
        "How often drift is reported",
        "How often does `neorl monitor` report drift of a plant that has not changed, and does it find shifts in time?",
        f"At most {worst.alarms / worst.years:.2f} times a year ({worst.case}), {RATE:g} are allowed. A season that is "
        f"too weak to show in the reference raises up to {unseen.alarms / unseen.years:.2f} ({unseen.case}). If a "
        "yearly season is overlooked, nearly every monitored year raises an alarm. Within "
        f"{WITHIN} days, {share([row for row in rows if row.signals == 1]):.0%} of the shifts of a single signal and "
        f"{share([row for row in rows if row.signals > 1]):.0%} of those of one of {SIGNALS[-1]} signals are found.",
        f"`make drift` simulates {YEARS} years of each case.",
        pages.wrap(
            f"Each simulated plant has one signal or {SIGNALS[-1]} independent ones, steps of {STEP / 60:g} minutes, "
            f"{REFERENCE // 7} weeks of reference and {MONITORED // 7} weeks of newer logs. *Monitored*: years in "
            "which the reference is long enough for all signals; in brackets, for some. *Upper bound*: exact 95 % "
            "bound of the alarms a year, over all years. A shift is one standard deviation of the block means and "
            f"begins at a random time. *Found*: shifts reported within {WITHIN} days, in the monitored years in which "
            f"{WITHIN} days hold "
            f"at least {FEWEST} blocks, if one signal or all signals shift."
        ),
        pages.wrap(
            "No test finds everything in time. A test at a fixed time that shares the allowed alarms between 12 months "
            f"and two directions finds {_power(1, 10, 60):.0%} of the shifts of a single signal with 10 blocks in "
            f"{WITHIN} days and 60 in the reference, as in regimes of a day, and {_power(1, 40, 240):.0%} with 40 and "
            "240 blocks. `neorl monitor` does not know when a shift begins. The shares above are of the shifts of "
            f"all cases; the lowest is {worst_found.one} of {worst_found.shifts} ({worst_found.case})."
        ),
        *(part for count in SIGNALS for part in (f"## {count} signal{'s' * (count > 1)}", _table(rows, count))),
    )


def _table(rows: list[Row], signals: int) -> str:
    heads = ["case", "years", "monitored", "alarms", "upper bound", "found: all signals", "found: one signal"]
    columns = len(heads) - (signals == 1)
    cells = [
        (
            row.case,
            row.years,
            f"{row.monitored}{f' ({row.partly})' if row.partly else ''}",
            row.alarms,
            f"{upper(row.alarms, row.years):.2f}",
            *(f"{n} of {row.shifts}" if row.shifts else "" for n in (row.all, row.one)),
        )
        for row in rows
        if row.signals == signals
    ]
    return pages.table(heads[:columns], [row[:columns] for row in cells])


def share(rows: list[Row]) -> float:
    """Return the share of shifts of one signal that are found in time."""
    return sum(row.one for row in rows) / max(sum(row.shifts for row in rows), 1)


def _power(signals: int, blocks: int, reference: int) -> float:
    """Return the power of a normal test of a shift of one standard deviation, on monthly means."""
    tests = YEAR / (WITHIN * DAY) * 2 * signals
    return float(norm.sf(norm.isf(RATE / tests) - math.sqrt(blocks / (1 + blocks / reference))))


def faults(rows: list[Row]) -> list[str]:
    """Return the requirements that the results do not meet."""
    found = []
    for row in rows:
        case = f"{row.case}, {row.signals} signals"
        if row.case not in UNSEEN and (row.alarms > RATE * row.years or upper(row.alarms, row.years) > MOST):
            found.append(f"{row.alarms} alarms in {row.years} years: {case}")
        if row.case in MUST and row.monitored < row.years:
            found.append(f"only {row.monitored} of {row.years} years are monitored: {case}")
    for count in SIGNALS:
        if (seen := share([row for row in rows if row.signals == count])) < FOUND:
            found.append(f"{seen:.0%} of the shifts of one of {count} signals are found within {WITHIN} days")
    return found


def main() -> int:
    """Simulate the years; return 1 if a requirement is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=YEARS)
    parser.add_argument("--only", default="", help="part of the name of the cases to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", type=float, default=STEP, help="length of a step [s]")
    parser.add_argument("--reference", type=float, default=REFERENCE, help="days of reference")
    parser.add_argument("--days", type=float, default=MONITORED, help="days of a simulated year")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    known = Results.model_validate(read_json(options.results)).rows if options.results.exists() else []
    rows = {(count, name): Row(case=name, signals=count) for count in SIGNALS for name in CASES}
    rows |= {(row.signals, row.case): row for row in known}
    for key in (key for key in rows if options.only in key[1]):
        while (row := rows[key]).years < options.years:
            rng = np.random.default_rng([options.seed, zlib.crc32(row.case.encode()), row.years])
            added = year(CASES[row.case], row.signals, rng, options.step, options.reference, options.days)
            rows[key] = row.model_copy(update={field: getattr(row, field) + more for field, more in added.items()})
        write_json(options.results, Results(rows=list(rows.values())).model_dump())
        print(rows[key], flush=True)
    done = [row for row in rows.values() if row.years]
    if options.results == RESULTS:
        PAGE.write_text(page(done), encoding="utf-8")
    found = faults(done)
    for fault in found:
        print(fault)
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
