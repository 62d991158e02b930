"""The faults, each with its target and the repair by an operator."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.chaos.site import Ended, Site, ended

Cure = Callable[[], None]
FILES = ("datasets/*/shards/*", "results/**/*", "checkpoints/**/*", "bundles/*/*/*", "certificates/**/*")
"""Files of a home in which the fault `bit flipped` changes a bit."""
FOLDERS = ("datasets", "results", "checkpoints", "bundles", "runs", "certificates")
"""Folders of a home that become read-only."""


class Blow(NamedTuple):
    """A fault that happened."""

    what: str
    cure: Cure = lambda: None
    besides: Callable[[], list[Ended]] = lambda: []
    """Wait for commands that the fault started, and return their results."""
    left: Callable[[], list[str]] = lambda: []
    """Wait for the runs of Prefect's worker, and return violations."""


MISSED = Blow("it missed")
"""The target of the fault did not exist."""


class Fault(NamedTuple):
    """A kind of fault."""

    strike: Callable[[Site, subprocess.Popen[str], random.Random], Blow]
    at_once: bool = False
    """Whether the fault happens before the retraining starts."""


class WorkersFault(NamedTuple):
    """A kind of fault that starts its own retraining at Prefect's worker."""

    strike: Callable[[Site, int, random.Random], Blow]
    """The second argument is the number of the trial."""


def _kill(process: psutil.Process | subprocess.Popen[str]) -> None:
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _flow(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Kill the retraining and its process group."""
    running = process.poll() is None
    if running:
        os.killpg(process.pid, signal.SIGKILL)
    return Blow("the retraining was killed") if running else MISSED


def _everything(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Kill all processes of the home at once, like a power failure."""
    ours = {os.getpid(), os.getppid()}
    found = [each for each in psutil.process_iter(["cmdline"]) if each.pid not in ours and _is(each, "", site)]
    for each in found:
        _kill(each)
    return Blow("everything was killed", site.up)


def _server(part: str, name: str) -> Fault:
    """Kill a server of the home, found by its command line."""

    def strike(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
        # Some servers start on demand.
        while not (found := [each for each in psutil.process_iter(["cmdline"]) if _is(each, part, site)]):
            if process.poll() is not None:
                return MISSED
            time.sleep(0.05)
        for each in found:
            _kill(each)
        return Blow(f"{name} was killed", site.up)

    return Fault(strike)


def _is(process: psutil.Process, part: str, site: Site) -> bool:
    words = " ".join(process.info["cmdline"] or ())
    if part not in words:
        return False
    try:
        return str(site.home.root) in words or process.environ().get("NEORL_HOME") == str(site.home.root)
    except psutil.Error:
        return False


def _decay(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Flip a bit of a file of an earlier retraining."""
    files = sorted(path for pattern in FILES for path in site.home.root.glob(pattern) if path.is_file())
    files = [path for path in files if path.stat().st_size]
    if not files:
        return MISSED
    path = chance.choice(files)
    whole = path.read_bytes()
    at = chance.randrange(len(whole))
    wrong = whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :]
    path.write_bytes(wrong)

    def cure() -> None:
        # If the file was rewritten meanwhile, the bit is correct again.
        if path.exists() and path.read_bytes() == wrong:
            path.write_bytes(whole)

    return Blow(f"a bit of {path.relative_to(site.home.root).parts[0]} was flipped", cure)


def _read_only(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Make a folder of the home read-only by a bind mount."""
    folder = site.home.root / chance.choice([name for name in FOLDERS if (site.home.root / name).is_dir()])
    for words in (("--bind", folder, folder), ("-o", "remount,ro,bind", folder)):
        if subprocess.run(["mount", *map(str, words)], capture_output=True, check=False).returncode:
            return MISSED

    def cure() -> None:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)

    return Blow(f"{folder.name} was read-only", cure)


def _another(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Start a second retraining of the plant with another candidate."""
    seed = 10_000 + chance.randrange(10**6)
    other = site.retrain(seed)
    return Blow("another retraining of the plant began", besides=lambda: [ended(other)])


def _worker(site: Site, number: int, chance: random.Random) -> Blow:
    """Kill the worker, alone or with the run that it started."""
    site.deployed(number)
    time.sleep(chance.uniform(1.0, site.seconds))
    found = [each for each in psutil.process_iter(["cmdline"]) if _is(each, "flows.services.worker", site)]
    with_runs = chance.random() < 0.5
    for worker in found:
        for each in [*(worker.children(recursive=True) if with_runs else []), worker]:
            _kill(each)
    what = f"the worker was killed{' with its run' if with_runs else ''}"
    return Blow(what, site.up, left=site.hanging) if found else MISSED


def _twice(site: Site, number: int, chance: random.Random) -> Blow:
    """Send one event twice and a second event; each event must start one run, and both runs must end."""
    begun = site.arrive(number)
    wrong = [] if begun == 2 else [f"two events, one of which came twice, started {begun} runs"]
    return Blow(f"two events, one of which came twice, started {begun} runs", left=lambda: wrong + site.hanging())


def _database(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Kill all processes of PostgreSQL."""
    database = site.database
    assert database is not None
    assert database.process is not None
    main = psutil.Process(database.process.pid)
    for each in [*main.children(recursive=True), main]:
        _kill(each)
    database.process.wait()

    def cure() -> None:
        database.start()
        site.up()

    return Blow("PostgreSQL was killed", cure)


def _network(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Cut the network to the database's host."""
    elsewhere = site.elsewhere
    assert elsewhere is not None
    elsewhere.cut()

    def cure() -> None:
        elsewhere.joined()
        site.up()

    return Blow("the network to PostgreSQL was cut", cure)


def _nothing(what: str) -> Callable[[Site, subprocess.Popen[str], random.Random], Blow]:
    """Return a fault without an action, because the options that start the retraining cause the fault."""
    return lambda site, process, chance: Blow(what)


FAULTS: dict[str, Fault | WorkersFault] = {
    "flow killed": Fault(_flow),
    "everything killed": Fault(_everything),
    "Prefect killed": _server("flows.services.asgi.guard:prefect", "Prefect"),
    "MLflow killed": _server("flows.services.asgi.guard:mlflow", "MLflow"),
    "signer killed": _server("tasks.evidence.signer", "the signer"),
    "witness killed": _server("tasks.evidence.witness.server", "the witness"),
    "disk full": Fault(_nothing("no file could grow further"), at_once=True),
    "bit flipped": Fault(_decay, at_once=True),
    "read-only folder": Fault(_read_only, at_once=True),
    "clock set back": Fault(_nothing("the clock was days behind"), at_once=True),
    "two at once": Fault(_another),
    "worker killed": WorkersFault(_worker),
    "event repeated": WorkersFault(_twice),
    "PostgreSQL killed": Fault(_database),
    "network cut": Fault(_network),
}
"""Faults by name, in the order of the trials."""
OF_DATABASE = ("PostgreSQL killed", "network cut")
"""Faults that need a database on another host."""
SITES = {
    "one machine": tuple(name for name in FAULTS if name not in OF_DATABASE),
    "team": ("PostgreSQL killed", "network cut", "flow killed", "Prefect killed", "MLflow killed", "signer killed"),
}
"""Faults of each home: with all state in a folder, and with state in PostgreSQL on another host."""


def options(name: str, chance: random.Random) -> dict[str, object] | None:
    """Return the options of `Site.start` that cause the fault; None if this machine cannot produce the fault."""
    if name == "disk full":
        return {"largest_file": int(2 ** chance.uniform(10, 22))}
    if name == "clock set back":
        faketime = shutil.which("faketime")
        return {"before": (faketime, "--exclude-monotonic", "-f", f"-{chance.randrange(1, 30)}d")} if faketime else None
    if name == "read-only folder" and (os.geteuid() or not Path("/bin/mount").exists()):
        return None
    return {}
