"""Run the missing days, keep the results and write the page."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import TypeAdapter

from benchmarks import season
from benchmarks.pages import ROOT
from benchmarks.season.days import SPARE, Day, Sizes, worse
from benchmarks.season.page import PAGE, page
from benchmarks.season.plant import fouled, serve, write_day
from benchmarks.setting import commit, own_home
from configs.errors import BadInput, NeoRLError
from configs.home import Home
from tasks.files.canonical import write_json

RESULTS = ROOT / "benchmarks" / "results" / "season.json"
SOURCES = ("neorl_core", "tasks", "configs", "flows", "benchmarks/season")
"""Files and folders that a season depends on."""
WINDOW = 10
"""Days of logs for a retraining."""
CONFIG = """\
plant: chemical_reactor
train: {algorithm: td3_bc, updates: 400, seeds: 2, checkpoint_every: 200}
evaluate: {model_updates: 200, bootstraps: 100, rollouts: 128, discount: 0.95}
gates: {beat_plant: false}
approval: auto
"""
DAYS = TypeAdapter(list[Day])


def main() -> int:
    parser = argparse.ArgumentParser(description=season.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--out", type=Path, default=RESULTS, help="results; the page is only written for the default")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--home", type=Path, default=ROOT / ".neorl-season", help="home of the season; it is continued")
    options = parser.parse_args()
    if not options.page:
        try:
            at = commit(SOURCES) if options.out == RESULTS else ""
        except BadInput as error:
            parser.error(str(error))
        with own_home(options.home) as home:
            play(home, options.days, options.out, at)
    if options.out == RESULTS:
        PAGE.write_text(page(DAYS.validate_json(RESULTS.read_bytes())))
    return 0


def play(home: Home, days: int, out: Path, at: str) -> list[Day]:
    """Run the missing days, and write the results after each day.

    Args:
        home: home of the season; its servers are started if they do not run.
        days: number of days.
        out: JSON file of the results.
        at: commit of the sources for the new days.
    """
    from flows.preflight import checked_run
    from flows.services.servers import environment, up

    kept = home.folder("season")
    services = up(home, worker=False, say=lambda text: print(text, file=sys.stderr, flush=True))
    os.environ.update(environment(services))
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    config = kept / "chemical_reactor.yaml"
    config.write_text(CONFIG)
    checked_run(config)
    done: list[Day] = []
    for day in range(days):
        file = kept / f"day-{day:02d}.json"
        if not file.exists():
            found = one_day(home, config, day)
            write_json(file, found.model_dump(mode="json") | {"commit": at})
            print(found.line, flush=True)
        done.append(Day.model_validate_json(file.read_bytes()))
    write_json(out, DAYS.dump_python(done, mode="json"))
    return done


def one_day(home: Home, config: Path, day: int) -> Day:
    """Play one day: write the log, review the new champion, monitor and retrain."""
    logs = home.folder("season", "logs")
    files = [write_day(each, logs / f"day{each:+04d}.hdf5") for each in range(day - WINDOW + 1, day + 1)]
    back = review(home, day)
    started = time.monotonic()
    evidence, alarm, steps = monitored(home, config, files[-1])
    watched = time.monotonic() - started
    started, used = time.monotonic(), time.process_time()
    verdict, gates, refused = retrained(config, files)
    return Day(
        day=day,
        fouled=fouled(day),
        evidence=evidence,
        alarm=alarm,
        steps=steps,
        verdict=verdict,
        failed=gates,
        refused=refused,
        rolled_back=back,
        champion=in_service(home)[0],
        monitor_seconds=watched,
        seconds=time.monotonic() - started,
        processor_seconds=time.process_time() - used,
        sizes=sizes(home),
    )


def monitored(home: Home, config: Path, log: Path) -> tuple[float | None, bool, int]:
    """Monitor a day's log; return drift evidence / alarm level, whether there is an alarm, and the monitored steps."""
    from flows.monitor import monitor_plant

    try:
        finding = monitor_plant(home, config, [log]).finding
    except NeoRLError as error:
        print(f"monitor: {error}", flush=True)
        return None, False, 0
    if not finding.watched:
        return None, False, 0
    return finding.log_evidence / finding.log_threshold, finding.alarm is not None, finding.rows


def retrained(config: Path, files: list[Path]) -> tuple[str, tuple[str, ...], str]:
    """Retrain; return the verdict, the failed gates, and the error message if the retraining is refused."""
    from flows.flow_run import result_of
    from flows.retrain import retrain

    try:
        # With `return_state`, the flow returns a Prefect state; the decorators hide this type.
        ended = retrain(str(config), [str(path) for path in files], return_state=True)
        outcome = result_of(cast("object", ended))  # type: ignore[arg-type]
    except NeoRLError as error:
        return "refused", (), str(error)
    return outcome.verdict, tuple(gate.name for gate in outcome.gates if gate.passed is False), ""


def in_service(home: Home) -> tuple[str, Path | None]:
    """Return version and bundle folder of the champion; ("", None) if there is no champion."""
    from tasks.evidence.decisions.champions import champion
    from tasks.evidence.ledger.ledger import Ledger

    ledger = Ledger.open(home, write=False)
    found = champion(ledger.entries(), "chemical_reactor")
    return ("", None) if found is None else (found.body["version"], bundle_of(home, found.body["candidate"]))


def bundle_of(home: Home, candidate: str) -> Path:
    """Return the bundle folder named by a candidate's entry."""
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.models.bundles.manifest import MANIFEST

    files = Ledger.open(home, write=False).entry(candidate).artefacts
    return next((home.root / file.path).parent for file in files if file.path.endswith(f"/{MANIFEST}"))


def review(home: Home, day: int) -> str:
    """Roll back yesterday's new champion if it is worse; return its version, or an empty text."""
    from flows.decisions import rollback
    from tasks.evidence.ledger.ledger import Ledger

    if not home.ledger.exists():
        return ""
    turns = [entry for entry in Ledger.open(home, write=False).entries() if entry.kind in ("promotion", "rollback")]
    reviewed = home.folder("season") / "reviewed"
    if len(turns) < SPARE or (reviewed.exists() and reviewed.read_text() == turns[-1].digest):
        return ""
    before, now = (serve(bundle_of(home, turn.body["candidate"]), day) for turn in turns[-2:])
    reviewed.write_text(turns[-1].digest)
    if turns[-1].kind == "rollback" or not worse(now.returns - before.returns, now.violated - before.violated):
        return ""
    leaving, to = turns[-1].body["version"], turns[-2].body["version"]
    mean = float(np.mean(now.returns - before.returns))
    why = f"return per episode {mean:+.3g} over version {to}, {now.violated} of {len(now.returns)} episodes violate"
    try:
        rollback(home, "chemical_reactor", to, "season", why)
    except NeoRLError as error:
        print(f"rollback: {error}", flush=True)
        return ""
    return str(leaving)


def sizes(home: Home) -> Sizes:
    """Return the sizes of the home."""

    def of(path: Path) -> float:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return sum(file.stat().st_size for file in files) / 1e6

    databases = [next(iter(sorted((home.root / name).rglob("*.db"))), None) for name in ("prefect", "mlflow")]
    prefect, mlflow = (of(path) if path is not None else 0.0 for path in databases)
    return Sizes(
        ledger=of(home.ledger),
        prefect=prefect,
        mlflow=mlflow,
        home=of(home.root),
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    )


if __name__ == "__main__":
    sys.exit(main())
