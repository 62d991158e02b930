"""Run the missing trials and write the page."""

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

from benchmarks import chaos, pages
from benchmarks.chaos.faults import FAULTS, MISSED, OF_DATABASE, SITES, WorkersFault, options
from benchmarks.chaos.network import host
from benchmarks.chaos.races import kept_races, races
from benchmarks.chaos.site import Site, ended
from benchmarks.pages import ROOT, STUDIES, listed, wrap
from benchmarks.setting import commit
from tasks.files.canonical import write_json

RESULTS = ROOT / "benchmarks" / "results" / "chaos"
PAGE = STUDIES / "chaos.md"
SOURCES = ("neorl_core", "tasks", "configs", "flows", "benchmarks/chaos")
"""Files and folders that a trial depends on."""
KILLED = ("flow killed", "everything killed")
"""Faults that may end the retraining without a message."""


class Trial(NamedTuple):
    """Result of a trial."""

    site: str
    number: int
    fault: str
    what: str
    moment: float
    """Seconds after the start of the retraining."""
    struck: bool
    """Whether the retraining was running and the target of the fault existed."""
    code: int
    sentence: str
    again: int
    """Exit code of the second run."""
    violations: list[str]
    seconds: float
    commit: str


def trial(site: Site, name: str, number: int, at: str) -> Trial | None:
    """Retrain once and cause a fault meanwhile; return None if this machine cannot produce the fault.

    Args:
        site: site with running servers.
        name: name of the site, which determines its faults.
        number: number of the trial, which seeds fault and moment.
        at: commit of the sources.
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
        violations.append(f"the second run ended with {again.code}: {again.sentence or again.stderr[-300:]}")
    violations += site.faults(before)
    code, sentence = (came[0].code, came[0].sentence.replace(str(site.folder), "HERE")) if came else (0, "")
    taken = time.monotonic() - begun
    return Trial(name, number, kind, blow.what, moment, struck, code, sentence, again.code, violations, taken, at)


def main() -> int:
    parser = argparse.ArgumentParser(description=chaos.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--races", type=int, default=100)
    parser.add_argument("--hours", type=float, default=3.0, help="start no trial after this many hours")
    parser.add_argument("--site", choices=list(SITES), help="one of the two homes; default: both side by side")
    parser.add_argument(
        "--again",
        type=int,
        nargs="+",
        default=[],
        help="numbers of trials of that site to repeat after a fix",
    )
    parser.add_argument("--page", action="store_true", help="only write the page")
    given = parser.parse_args()
    end = time.monotonic() + 3600 * given.hours
    if given.site:
        with tempfile.TemporaryDirectory(prefix="neorl-chaos-", ignore_cleanup_errors=True) as folder:
            campaign(Path(folder), given.site, given.faults, end, given.again)
        return 0
    if not given.page:
        words = [sys.executable, "-m", "benchmarks.chaos", "--faults", str(given.faults), "--hours", str(given.hours)]
        both = [subprocess.Popen([*words, "--site", name], cwd=ROOT) for name in SITES]
        if sum(abs(each.wait()) for each in both):
            raise SystemExit("chaos: the trials of a site failed; see the output above.")
        races(given.races, end)
    done, raced = [trial for name in SITES for trial in kept(name)], kept_races()
    earlier = [trial for name in SITES for trial in kept(name, "earlier")]
    PAGE.write_text(page(done, raced, given.faults, given.races, earlier))
    return int(any(one.violations for one in done) or any(one["violations"] for one in raced))


def results(site: str) -> Path:
    """Return the file with the trials of a site."""
    return RESULTS / f"{site.replace(' ', '-')}.json"


def kept(site: str, which: str = "trials") -> list[Trial]:
    """Return the kept trials of a site; `which="earlier"` gives the first results of repeated trials."""
    path = results(site)
    return [Trial(**row) for row in json.loads(path.read_text()).get(which, [])] if path.exists() else []


def keep(site: str, trials: Sequence[Trial], earlier: Sequence[Trial]) -> None:
    """Write the trials of a site."""
    rows = {"trials": [each._asdict() for each in trials], "earlier": [each._asdict() for each in earlier]}
    write_json(results(site), rows)


@contextmanager
def opened(folder: Path, name: str) -> Iterator[Site]:
    """Yield a site with running servers; `name` is its kind, "one machine" or "team"."""
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
    """Run the missing trials of a site and those to repeat; write each result to disk at once."""
    at, found, earlier = commit(SOURCES), kept(name), kept(name, "earlier")
    earlier += [one for one in found if one.number in again]
    found = [one for one in found if one.number not in again]
    share, known = count // len(SITES), {one.number for one in found}
    if sum(one.struck for one in found) >= share:
        return
    with opened(folder, name) as site:
        # The first retraining fills the compilation cache.
        for seed in (10**6, 10**6 + 1):
            begun = time.monotonic()
            calm = site.run("retrain", str(site.config(seed)), "--data", str(site.log))
            if "verdict" not in calm.answer:
                raise SystemExit(f"chaos: an undisturbed retraining ended with {calm.code}: {calm.stderr[-2000:]}")
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
            result = "; ".join(one.violations) or one.sentence or "went through"
            print(
                f"{name} {number}: {one.what} after {one.moment:.1f} s: {result[:300]} ({one.seconds:.0f} s)",
                flush=True,
            )


def page(
    trials: Iterable[Trial],
    raced: Sequence[dict[str, Any]],
    wanted: int,
    races_wanted: int,
    earlier: Iterable[Trial] = (),
) -> str:
    """Return the page."""
    found = sorted(trials, key=lambda one: (one.site, one.number))
    rows, violated = [], [one for one in found if one.violations]
    for name in FAULTS:
        own = [one for one in found if one.fault == name]
        counts = Counter(
            "message" if one.code > 0 and one.sentence else "through" if one.code == 0 else "killed" for one in own
        )
        struck, wrong = sum(one.struck for one in own), sum(bool(one.violations) for one in own)
        rows.append((name, len(own), struck, counts["message"], counts["through"], wrong))
    mended = [one for one in earlier if one.violations]
    struck, races_wrong = sum(one.struck for one in found), sum(bool(one["violations"]) for one in raced)
    heading = "Earlier trials had these violations. Their causes were fixed, and the trials were repeated:"
    return pages.study(
        "Faults during retrainings",
        "Can a fault during a retraining cause a wrong champion, a lost dataset or a ledger that fails the audit?",
        f"{struck} faults in {len(found)} retrainings caused {len(violated) or 'no'} violations. {len(raced)} races "
        f"between two approvals caused {races_wrong or 'none'}.",
        f"`make chaos` runs up to three hours; repeat it until there are {wanted} faults and {races_wanted} races.",
        wrap(
            "Each trial starts a retraining and causes one fault at a random moment. Then the trial repairs the fault "
            "as an operator would, and runs the same retraining again. There are two homes. *One machine* has all "
            "state in a folder. *Team* has ledger, Prefect and MLflow in PostgreSQL on another host, simulated by a "
            "network namespace. In a race, two processes approve two candidates at the same time. Violations are:"
        ),
        VIOLATIONS,
        "Columns of the table count trials:",
        COLUMNS,
        pages.table(("fault", "trials", "during the run", "ended with a message", "went through", "violations"), rows),
        "\n".join(map(_violation, violated)) or "No violation.",
        "\n".join([heading, "", *map(_violation, mended)]) if mended else "",
        f"Commits: {listed(sorted({one.commit[:7] for one in found}))}.",
    )


VIOLATIONS = """- a command hangs, or ends with a traceback or without a message
- the second retraining ends without a decision
- the ledger or a file fails the audit
- the champion did not pass every gate, or MLflow has a different champion
- a dataset is lost
- a run of Prefect's worker does not end, or an event starts no run or two runs"""
COLUMNS = """- *trials*: all trials with this fault
- *during the run*: the fault came before the retraining ended, and the target of the fault existed
- *ended with a message*: the retraining stopped with an error message
- *went through*: the retraining ended normally (in the remaining trials the fault killed it)
- *violations*: trials with at least one violation"""


def _violation(one: Trial) -> str:
    return f"- {one.site}, trial {one.number} at {one.commit[:7]}, {one.what}: {'; '.join(one.violations)}"


if __name__ == "__main__":
    sys.exit(main())
