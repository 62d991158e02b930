"""The trials that are missing, and the page."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import chaos
from benchmarks.chaos.faults import FAULTS, MISSED, OF_DATABASE, SITES, WorkersFault, options
from benchmarks.chaos.network import host
from benchmarks.chaos.races import kept_races, races
from benchmarks.chaos.site import Site, ended
from benchmarks.setting import commit
from tasks.files.canonical import write_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "chaos"
PAGE = ROOT / "docs" / "studies" / "chaos.md"
SOURCES = ("neorl_core", "tasks", "configs", "flows", "benchmarks/chaos")
"""What a trial depends on."""
KILLED = ("flow killed", "everything killed")
"""Faults by which the retraining may end without a word."""
TEXT = """\
# Faults

What faults in the middle of retrainings leave behind, by `make chaos`: {struck} faults of {asked} so far, in
{count} retrainings, each struck once, at a moment and in a way that follow from its number; some had ended before.
Struck are two homes side by side: one machine's, whose state lies in its folder, and a team's, whose ledger,
Prefect and MLflow lie in PostgreSQL on another host, which is a network namespace. Afterwards what was broken is
put right and the same retraining is run again. A violation is any of: a command that ends with a stack, without a
sentence, or never; a second run that does not decide; a ledger, or anything that it names, that does not verify; a
champion that did not pass every gate, or another in MLflow; a dataset that is lost; a run of the worker's that does
not end; an event that starts no run, or two. Written by that command.

| fault | trials | struck within a run | a sentence | went through | violations | in the tests, too |
|:--|--:|--:|--:|--:|--:|:--|
{rows}

{violations}
{earlier}
Promoters that raced: {races} of {races_asked}, in each of which two processes approve two candidates at once;
violations: {raced}.

Trials were run at {commits}.
"""


class Trial(NamedTuple):
    """What came of a trial."""

    site: str
    number: int
    fault: str
    what: str
    moment: float
    """Seconds after the retraining began."""
    struck: bool
    """Whether it was still running then, and what was to be struck was there."""
    code: int
    sentence: str
    again: int
    """Exit code of the second run."""
    violations: list[str]
    seconds: float
    commit: str


def trial(site: Site, name: str, number: int, at: str) -> Trial | None:
    """Strike one retraining; None where this machine cannot have the fault.

    Args:
        site: with its servers running.
        name: of the site, whose faults take turns.
        number: of the trial, which all else follows from.
        at: the commit that is struck.
    """
    chance, begun = random.Random(f"{name} {number}"), time.monotonic()
    kind = SITES[name][number % len(SITES[name])]
    how, before, fault = options(kind, chance), site.datasets(), FAULTS[kind]
    if how is None or (kind in OF_DATABASE and site.elsewhere is None):
        return None
    moment, struck, first = 0.0, True, []
    if isinstance(fault, WorkersFault):
        blow = fault.strike(site, number, chance)
    elif fault.at_once:
        blow = fault.strike(site, None, chance)  # type: ignore[arg-type]
        first = [site.retrain(number, **how)]
    else:
        moment = chance.uniform(1.0, max(site.seconds, 2.0))
        first = [site.retrain(number, **how)]
        time.sleep(moment)
        struck = first[0].poll() is None
        blow = fault.strike(site, first[0], chance)
    struck = struck and blow is not MISSED
    try:
        came = [*map(ended, first), *blow.besides()]
    finally:
        blow.cure()
    violations = [one.fault for one in came if one.fault and not (kind in KILLED and one.code < 0)]
    violations += blow.left()
    again = site.run("retrain", str(site.config(number)), "--data", str(site.log))
    if again.code not in (0, 1) or "verdict" not in again.answer:
        violations.append(f"the second run ended with {again.code}: {again.sentence or again.said[-300:]}")
    violations += site.faults(before)
    code, sentence = (came[0].code, came[0].sentence.replace(str(site.folder), "HERE")) if came else (0, "")
    taken = time.monotonic() - begun
    return Trial(name, number, kind, blow.what, moment, struck, code, sentence, again.code, violations, taken, at)


def main() -> int:
    known = argparse.ArgumentParser(description=chaos.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("--faults", type=int, default=200)
    known.add_argument("--races", type=int, default=100)
    known.add_argument("--hours", type=float, default=3.0, help="begin no trial after so many")
    known.add_argument("--site", choices=list(SITES), help="one of the two alone; both side by side by default")
    known.add_argument(
        "--again",
        type=int,
        nargs="+",
        default=[],
        help="trials of that site to run anew, since what they found is mended",
    )
    known.add_argument("--table", action="store_true", help="write the page alone")
    given = known.parse_args()
    end = time.monotonic() + 3600 * given.hours
    if given.site:
        with tempfile.TemporaryDirectory(prefix="neorl-chaos-", ignore_cleanup_errors=True) as folder:
            campaign(Path(folder), given.site, given.faults, end, given.again)
        return 0
    if not given.table:
        words = [sys.executable, "-m", "benchmarks.chaos", "--faults", str(given.faults), "--hours", str(given.hours)]
        both = [subprocess.Popen([*words, "--site", name], cwd=ROOT) for name in SITES]
        if sum(abs(each.wait()) for each in both):
            raise SystemExit("chaos: a site could not be struck; its last words stand above.")
        races(given.races, end)
    done, raced = [trial for name in SITES for trial in kept(name)], kept_races()
    earlier = [trial for name in SITES for trial in kept(name, "earlier")]
    PAGE.write_text(page(done, raced, given.faults, given.races, earlier))
    return int(any(one.violations for one in done) or any(one["violations"] for one in raced))


def results(site: str) -> Path:
    """The file that keeps what came of a site's trials."""
    return RESULTS / f"{site.replace(' ', '-')}.json"


def kept(site: str, which: str = "trials") -> list[Trial]:
    """The trials of a site so far; or what came of them `earlier`, where they were run again."""
    path = results(site)
    return [Trial(**row) for row in json.loads(path.read_text()).get(which, [])] if path.exists() else []


def keep(site: str, trials: Sequence[Trial], earlier: Sequence[Trial]) -> None:
    """Write down the trials of a site."""
    rows = {"trials": [each._asdict() for each in trials], "earlier": [each._asdict() for each in earlier]}
    write_json(results(site), rows)


@contextmanager
def opened(folder: Path, name: str) -> Iterator[Site]:
    """A site of one of the two kinds, whose servers run."""
    with ExitStack() as stack:
        if name == "team":
            from tests.servers import postgres

            elsewhere = stack.enter_context(host())
            where = ("127.0.0.1", []) if elsewhere is None else (elsewhere.address, elsewhere.inside)
            site = Site(folder, stack.enter_context(postgres(folder / "postgres", *where)), elsewhere)
        else:
            site = Site(folder)
        stack.callback(lambda: site.run("down") if site.home.root.exists() else None)
        site.prepare()
        yield site


def campaign(folder: Path, name: str, count: int, end: float, again: Sequence[int] = ()) -> None:
    """Run the trials of a site that are missing, and those that are to be run again, and keep each."""
    at, found, earlier = commit(SOURCES), kept(name), kept(name, "earlier")
    earlier += [one for one in found if one.number in again]
    found = [one for one in found if one.number not in again]
    share, known = count // len(SITES), {one.number for one in found}
    if sum(one.struck for one in found) >= share:
        return
    with opened(folder, name) as site:
        # The first one compiles what the others find compiled.
        for seed in (10**6, 10**6 + 1):
            begun = time.monotonic()
            calm = site.run("retrain", str(site.config(seed)), "--data", str(site.log))
            if "verdict" not in calm.answer:
                raise SystemExit(f"chaos: an undisturbed retraining ended with {calm.code}: {calm.said[-2000:]}")
            site.seconds = time.monotonic() - begun
        print(f"{name}: undisturbed: {calm.answer['verdict']} in {site.seconds:.0f} s", flush=True)
        for number in (each for each in itertools.count() if each not in known):
            if time.monotonic() > end or sum(one.struck for one in found) >= share:
                break
            if (one := trial(site, name, number, at)) is None:
                kind = SITES[name][number % len(SITES[name])]
                print(f"{name} {number}: {kind}: not possible on this machine", flush=True)
                continue
            found.append(one)
            keep(name, found, earlier)
            told = "; ".join(one.violations) or one.sentence or "went through"
            print(
                f"{name} {number}: {one.what} after {one.moment:.1f} s: {told[:300]} ({one.seconds:.0f} s)", flush=True
            )


def page(
    trials: Iterable[Trial],
    raced: Sequence[dict[str, Any]],
    asked: int,
    races_asked: int,
    earlier: Iterable[Trial] = (),
) -> str:
    """The page, as Markdown."""
    found = sorted(trials, key=lambda one: (one.site, one.number))
    rows, violated = [], [one for one in found if one.violations]
    for name, fault in FAULTS.items():
        own = [one for one in found if one.fault == name]
        counts = Counter(
            "sentence" if one.code > 0 and one.sentence else "through" if one.code == 0 else "killed" for one in own
        )
        wrong = sum(bool(one.violations) for one in own)
        struck = sum(one.struck for one in own)
        test = f"`{fault.test.split('::')[1]}`" if fault.test else ""
        rows.append(
            f"| {name} | {len(own)} | {struck} | {counts['sentence']} | {counts['through']} | {wrong} | {test} |"
        )
    mended = [one for one in earlier if one.violations]
    heading = (
        "\nFound by the campaign and mended; the trials that found it were run again, and count as they ended then:\n"
    )
    commits = sorted({one.commit[:7] for one in found})
    return TEXT.format(
        count=len(found),
        struck=sum(one.struck for one in found),
        asked=asked,
        rows="\n".join(rows),
        violations="\n".join(map(_told, violated)) or "No violation.",
        earlier="\n".join([heading, *map(_told, mended), ""]) if mended else "",
        races=len(raced),
        races_asked=races_asked,
        raced=sum(bool(one["violations"]) for one in raced),
        commits=", ".join(commits),
    )


def _told(one: Trial) -> str:
    """A violation as a line of the page."""
    return f"- {one.site} {one.number} at {one.commit[:7]}, {one.what}: {'; '.join(one.violations)}"


if __name__ == "__main__":
    sys.exit(main())
