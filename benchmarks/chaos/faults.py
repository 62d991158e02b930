"""The faults: what each strikes, and how an operator puts it right."""

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
"""Of a home, whose bytes decay."""
FOLDERS = ("datasets", "results", "checkpoints", "bundles", "runs", "certificates")
"""Of a home, that become read-only."""


class Blow(NamedTuple):
    """A fault that has struck."""

    what: str
    cure: Cure = lambda: None
    besides: Callable[[], list[Ended]] = lambda: []
    """Further commands that it began, to their end."""
    left: Callable[[], list[str]] = lambda: []
    """Wait for what it began at a worker; what is wrong with that, each in a sentence."""


MISSED = Blow("it missed")
"""What was to be struck was not there."""


class Fault(NamedTuple):
    """A kind of fault."""

    strike: Callable[[Site, subprocess.Popen[str], random.Random], Blow]
    at_once: bool = False
    """Whether it strikes before the retraining begins, or at a moment within it."""
    test: str = ""
    """A test that has it, too."""


class WorkersFault(NamedTuple):
    """A kind of fault in what a worker of Prefect's runs: the retraining is a deployment's, which it starts itself."""

    strike: Callable[[Site, int, random.Random], Blow]
    """The number of the trial tells the retraining."""
    test: str = ""
    """A test that has it, too."""


def _kill(process: psutil.Process | subprocess.Popen[str]) -> None:
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _flow(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """The retraining, with all that it has started in its process group."""
    running = process.poll() is None
    if running:
        os.killpg(process.pid, signal.SIGKILL)
    return Blow("the retraining was killed") if running else MISSED


def _everything(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """All processes of the home at once, as when a machine loses its power."""
    ours = {os.getpid(), os.getppid()}
    found = [each for each in psutil.process_iter(["cmdline"]) if each.pid not in ours and _is(each, "", site)]
    for each in found:
        _kill(each)
    return Blow("everything was killed", site.up)


def _server(part: str, what: str, test: str) -> Fault:
    """A server of the home, found by what its command line has."""

    def strike(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
        # Some are started when they are needed.
        while not (found := [each for each in psutil.process_iter(["cmdline"]) if _is(each, part, site)]):
            if process.poll() is not None:
                return MISSED
            time.sleep(0.05)
        for each in found:
            _kill(each)
        return Blow(f"{what} was killed", site.up)

    return Fault(strike, test=test)


def _is(process: psutil.Process, part: str, site: Site) -> bool:
    words = " ".join(process.info["cmdline"] or ())
    if part not in words:
        return False
    try:
        return str(site.home.root) in words or process.environ().get("NEORL_HOME") == str(site.home.root)
    except psutil.Error:
        return False


def _decay(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """A byte of a file that an earlier retraining left."""
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
        # What was made anew meanwhile is right as it is.
        if path.exists() and path.read_bytes() == wrong:
            path.write_bytes(whole)

    return Blow(f"a bit of {path.relative_to(site.home.root).parts[0]} was flipped", cure)


def _read_only(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """A folder of the home, by a mount over itself."""
    folder = site.home.root / chance.choice([name for name in FOLDERS if (site.home.root / name).is_dir()])
    for words in (("--bind", folder, folder), ("-o", "remount,ro,bind", folder)):
        if subprocess.run(["mount", *map(str, words)], capture_output=True, check=False).returncode:
            return MISSED

    def cure() -> None:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)

    return Blow(f"{folder.name} was read-only", cure)


def _another(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Two retrainings of a plant at once, each with a candidate of its own."""
    seed = 10_000 + chance.randrange(10**6)
    other = site.retrain(seed)
    return Blow("another retraining of the plant began", besides=lambda: [ended(other)])


def _worker(site: Site, number: int, chance: random.Random) -> Blow:
    """The worker, alone or with the run that it has started."""
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
    """An event that comes twice, and another like it; each must start one run, and they must end, one by one."""
    begun = site.arrive(number)
    wrong = [] if begun == 2 else [f"two events, one of which came twice, started {begun} runs"]
    return Blow(f"two events, one of which came twice, started {begun} runs", left=lambda: wrong + site.hanging())


def _database(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """PostgreSQL, all of its processes."""
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
    """The cable to the host of the database."""
    elsewhere = site.elsewhere
    assert elsewhere is not None
    elsewhere.cut()

    def cure() -> None:
        elsewhere.joined()
        site.up()

    return Blow("the network to PostgreSQL was cut", cure)


def _nothing(what: str) -> Callable[[Site, subprocess.Popen[str], random.Random], Blow]:
    """What lies in how the retraining is started."""
    return lambda site, process, chance: Blow(what)


FLOWS, TASKS = "tests/flows/", "tests/tasks/"
LEDGER = f"{TASKS}evidence/"
FAULTS: dict[str, Fault | WorkersFault] = {
    "flow killed": Fault(_flow, test=f"{FLOWS}test_retrain.py::test_kill_9_between_checkpoints_changes_nothing"),
    "everything killed": Fault(_everything),
    "Prefect killed": _server(
        "flows.services.asgi.guard:prefect",
        "Prefect",
        f"{FLOWS}test_faults.py::test_servers_that_die_mid_run_cost_one_sentence_and_the_same_command_then_completes",
    ),
    "MLflow killed": _server(
        "flows.services.asgi.guard:mlflow",
        "MLflow",
        f"{TASKS}registry/test_registry.py::test_a_kill_at_any_request_leaves_one_version",
    ),
    "signer killed": _server(
        "tasks.evidence.signer", "the signer", f"{LEDGER}test_signer.py::test_a_killed_signer_is_started_again"
    ),
    "witness killed": _server(
        "tasks.evidence.witness.server",
        "the witness",
        f"{LEDGER}witness/test_client.py::test_a_witness_that_is_gone_is_one_sentence",
    ),
    "disk full": Fault(
        _nothing("no file could grow further"),
        at_once=True,
        test=f"{TASKS}test_ingest.py::test_a_full_disk_leaves_nothing_half_written",
    ),
    "bit flipped": Fault(_decay, at_once=True, test=f"{LEDGER}audit/test_audit.py::test_flipped_bytes_are_all_found"),
    "read-only folder": Fault(_read_only, at_once=True),
    "clock set back": Fault(
        _nothing("the clock was days behind"),
        at_once=True,
        test=f"{LEDGER}ledger/test_ledger.py::test_time_never_runs_backwards",
    ),
    "two at once": Fault(
        _another, test=f"{FLOWS}test_retrain.py::test_two_retrains_at_once_leave_one_champion_and_right_pages"
    ),
    "worker killed": WorkersFault(
        _worker,
        test=f"{FLOWS}services/test_stuck_runs.py::test_what_a_killed_worker_took_begins_anew_and_gives_its_slot_back",
    ),
    "event repeated": WorkersFault(
        _twice,
        test=f"{FLOWS}services/test_watched_folder.py"
        "::test_a_kill_between_the_event_and_its_record_announces_nothing_twice",
    ),
    "PostgreSQL killed": Fault(
        _database, test=f"{LEDGER}ledger/test_postgresql.py::test_a_killed_server_comes_back_with_every_entry"
    ),
    "network cut": Fault(_network),
}
"""By name, in the order in which trials take their turns."""
OF_DATABASE = ("PostgreSQL killed", "network cut")
"""Those that need a database on another host."""
SITES = {
    "one machine": tuple(name for name in FAULTS if name not in OF_DATABASE),
    "team": ("PostgreSQL killed", "network cut", "flow killed", "Prefect killed", "MLflow killed", "signer killed"),
}
"""What is struck: a home whose state lies in its folder, and one whose state lies in PostgreSQL on another host."""


def options(name: str, chance: random.Random) -> dict[str, object] | None:
    """How a struck retraining is started; None where this machine cannot have the fault."""
    if name == "disk full":
        return {"largest_file": int(2 ** chance.uniform(10, 22))}
    if name == "clock set back":
        faketime = shutil.which("faketime")
        return {"before": (faketime, "--exclude-monotonic", "-f", f"-{chance.randrange(1, 30)}d")} if faketime else None
    if name == "read-only folder" and (os.geteuid() or not Path("/bin/mount").exists()):
        return None
    return {}
