"""The trials that are missing, and the page."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import chaos
from benchmarks.chaos.faults import FAULTS, options
from benchmarks.chaos.site import Site, ended
from benchmarks.commit import commit
from tasks.adapters.files.canonical import write_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "chaos.json"
PAGE = ROOT / "docs" / "chaos.md"
SOURCES = ("neorl_core", "tasks", "configs", "flows", "benchmarks/chaos")
"""What a trial depends on."""
KILLED = ("flow killed",)
"""Faults by which the retraining may end without a word."""
TEXT = """\
# Faults

What faults in the middle of retrainings leave behind, by `make chaos`: {count} trials of {asked} so far, each struck
once, at a moment and in a way that follow from its number. Afterwards what was broken is put right and the same
retraining is run again. A violation is any of: a command that ends with a stack, without a sentence, or never; a
second run that does not decide; a ledger, or anything that it names, that does not verify; a champion that did not
pass every gate, or another in MLflow; a dataset that is lost. Written by that command.

| fault | trials | struck within a run | ended with a sentence | went through all the same | violations |
|:--|--:|--:|--:|--:|--:|
{rows}

{violations}
"""


class Trial(NamedTuple):
    """What came of a trial."""

    number: int
    fault: str
    what: str
    moment: float
    """Seconds after the retraining began."""
    struck: bool
    """Whether it was still running then."""
    code: int
    sentence: str
    again: int
    """Exit code of the second run."""
    violations: list[str]
    seconds: float


def trial(site: Site, number: int, seconds: float) -> Trial | None:
    """Strike one retraining; None where this machine cannot have the fault.

    Args:
        site: with its servers running.
        number: of the trial, which all else follows from.
        seconds: that an undisturbed retraining takes.
    """
    chance, begun = random.Random(number), time.monotonic()
    name = list(FAULTS)[number % len(FAULTS)]
    how, before = options(name, chance), site.datasets()
    if how is None:
        return None
    moment = chance.uniform(1.0, max(seconds, 2.0))
    if FAULTS[name].at_once:
        blow = FAULTS[name].strike(site, None, chance)  # type: ignore[arg-type]
        process = site.retrain(number, **how)
        struck, moment = True, 0.0
    else:
        process = site.retrain(number, **how)
        time.sleep(moment)
        struck = process.poll() is None
        blow = FAULTS[name].strike(site, process, chance)
    try:
        first = [ended(process), *blow.besides()]
    finally:
        blow.cure()
    violations = [one.fault for one in first if one.fault and not (name in KILLED and one.code < 0)]
    again = site.run("retrain", str(site.config(number)), "--data", str(site.log))
    if again.code not in (0, 1) or "verdict" not in again.answer:
        violations.append(f"the second run ended with {again.code}: {again.sentence or again.said[-300:]}")
    violations += site.faults(before)
    taken = time.monotonic() - begun
    return Trial(
        number, name, blow.what, moment, struck, first[0].code, first[0].sentence, again.code, violations, taken
    )


def main() -> int:
    known = argparse.ArgumentParser(description=chaos.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("--faults", type=int, default=200)
    known.add_argument("--hours", type=float, default=3.0, help="begin no trial after so many")
    known.add_argument("--home", type=Path, help="a folder that is kept; one that goes with the campaign by default")
    known.add_argument("--table", action="store_true", help="write the page alone")
    given = known.parse_args()
    done = [Trial(**row) for row in json.loads(RESULTS.read_text())["trials"]] if RESULTS.exists() else []
    if not given.table:
        with tempfile.TemporaryDirectory(prefix="neorl-chaos-", ignore_cleanup_errors=True) as folder:
            done = campaign(Site(given.home or Path(folder)), done, given.faults, given.hours)
    PAGE.write_text(page(done, given.faults))
    return int(any(one.violations for one in done))


def campaign(site: Site, done: Sequence[Trial], count: int, hours: float) -> list[Trial]:
    """Run the trials that are missing, and keep each."""
    at, end = commit(SOURCES), time.monotonic() + 3600 * hours
    found = list(done)
    try:
        site.prepare()
        # The first one compiles what the others find compiled.
        for seed in (10**6, 10**6 + 1):
            begun = time.monotonic()
            calm = site.run("retrain", str(site.config(seed)), "--data", str(site.log))
            if "verdict" not in calm.answer:
                raise SystemExit(f"chaos: an undisturbed retraining ended with {calm.code}: {calm.said[-2000:]}")
            seconds = time.monotonic() - begun
        print(f"undisturbed: {calm.answer['verdict']} in {seconds:.0f} s", flush=True)
        for number in sorted(set(range(count)) - {one.number for one in done}):
            if time.monotonic() > end:
                break
            if (one := trial(site, number, seconds)) is None:
                print(f"trial {number}: {list(FAULTS)[number % len(FAULTS)]}: not possible on this machine", flush=True)
                continue
            found.append(one)
            write_json(RESULTS, {"commit": at, "trials": [each._asdict() for each in found]})
            told = "; ".join(one.violations) or one.sentence or "went through"
            print(
                f"trial {number}: {one.what} after {one.moment:.1f} s: {told[:300]} ({one.seconds:.0f} s)", flush=True
            )
    finally:
        if site.home.root.exists():
            site.run("down")
    return found


def page(trials: Iterable[Trial], asked: int) -> str:
    """The page, as Markdown."""
    found = sorted(trials, key=lambda one: one.number)
    rows, violated = [], [one for one in found if one.violations]
    for name in FAULTS:
        own = [one for one in found if one.fault == name]
        counts = Counter(
            "sentence" if one.code > 0 and one.sentence else "through" if one.code == 0 else "killed" for one in own
        )
        wrong = sum(bool(one.violations) for one in own)
        struck = sum(one.struck for one in own)
        rows.append(f"| {name} | {len(own)} | {struck} | {counts['sentence']} | {counts['through']} | {wrong} |")
    told = [f"- trial {one.number}, {one.what}: {'; '.join(one.violations)}" for one in violated]
    return TEXT.format(
        count=len(found), asked=asked, rows="\n".join(rows), violations="\n".join(told) or "No violation."
    )


if __name__ == "__main__":
    sys.exit(main())
