"""The faults: what each strikes, and how an operator puts it right."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
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


class Fault(NamedTuple):
    """A kind of fault."""

    strike: Callable[[Site, subprocess.Popen[str], random.Random], Blow]
    at_once: bool = False
    """Whether it strikes before the retraining begins, or at a moment within it."""


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
    return Blow("the retraining was killed" if running else "it had ended")


def _child(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """One of the processes that the retraining has started."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    if not children:
        return Blow("it had no process of its own")
    _kill(chance.choice(children))
    return Blow("a process of the retraining was killed")


def _server(part: str, what: str) -> Fault:
    """A server of the home, found by what its command line has."""

    def strike(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
        found = [each for each in psutil.process_iter(["cmdline"]) if _is(each, part, site)]
        for each in found:
            _kill(each)
        return Blow(f"{what} was killed" if found else f"{what} did not run", site.up)

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
    """A byte of a file that an earlier retraining left."""
    files = sorted(path for pattern in FILES for path in site.home.root.glob(pattern) if path.is_file())
    files = [path for path in files if path.stat().st_size]
    if not files:
        return Blow("there was no file yet")
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
            return Blow("no mounts here", lambda: None)
    return Blow(
        f"{folder.name} was read-only",
        lambda: subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True) and None,
    )


def _another(site: Site, process: subprocess.Popen[str], chance: random.Random) -> Blow:
    """Two retrainings of a plant at once, each with a candidate of its own."""
    seed = 10_000 + chance.randrange(10**6)
    other = site.retrain(seed)
    return Blow("another retraining of the plant began", besides=lambda: [ended(other)])


FAULTS: dict[str, Fault] = {
    "flow killed": Fault(_flow),
    "child killed": Fault(_child),
    "Prefect killed": _server("flows.services.guard:prefect", "Prefect"),
    "MLflow killed": _server("flows.services.guard:mlflow", "MLflow"),
    "signer killed": _server("tasks.adapters.ledger.signer", "the signer"),
    "witness killed": _server("tasks.adapters.ledger.witness.server", "the witness"),
    "disk full": Fault(lambda site, process, chance: Blow("no file could grow further"), at_once=True),
    "bit flipped": Fault(_decay, at_once=True),
    "read-only folder": Fault(_read_only, at_once=True),
    "clock set back": Fault(lambda site, process, chance: Blow("the clock was days behind"), at_once=True),
    "two at once": Fault(_another),
}
"""By name, in the order in which trials take their turns."""


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
