"""The ways of a population: all members in one program, or each in a process of its own, pinned to a core.

On a CPU one program for several members may be slower than a process for each: products of small matrices fill a core
and not two. Which is faster is measured once a run has shown that it is long, and written beside its checkpoints, so
that it is resumed in the same way. The two agree to float tolerance (1e-5 in the tests), not to the bit.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from configs.errors import Refused
from configs.home import Home
from configs.run import RunConfig
from neorl_core.plants import PLANTS
from neorl_core.training.loop import Progress, Source, on_host
from neorl_core.training.population import init_population, make_train_chunk
from tasks.adapters.files.canonical import read_json, write_json
from tasks.progress import Report
from tasks.training.population import Population, alone, population_of, together

TRIAL_PAYS = 60.0
"""Seconds that must be left of a run before it is worth some of them to find out what is faster."""
MARGIN = 1.05
"""How much faster processes must be."""
TRIAL_SECONDS = 1.0


class Way(NamedTuple):
    """How the members of a population run."""

    processes: bool
    reason: str


class Reached(NamedTuple):
    """A population at the end of its training."""

    progress: Progress
    way: Way
    rate: float
    """Updates per second, of all members together; 0 where there was too little to measure."""


def train_population(population: Population, progress: Report | None = None) -> Reached:
    """Train all members, in the way that is faster.

    Raises:
        Refused: when every member's training diverged.
    """
    written = population.folder / "way.json"
    way = _prescribed(population) or (Way(**read_json(written)) if written.exists() else None)

    def watch(rate: float, left: int) -> None:
        nonlocal way
        if way is None:
            way = _measured(population, rate, left)
            write_json(written, way._asdict())
            if way.processes:
                raise _Switch
            print(f"  train: members in one program: {way.reason}", file=sys.stderr, flush=True)

    if way is None or not way.processes:
        try:
            with population.feed.open(population.mesh) as source:
                progressed, rate = together(population, source, progress, watch)
            return Reached(progressed, way or Way(False, "too short a run to measure"), rate)
        except _Switch:
            pass
    assert way is not None
    print(f"  train: members in processes: {way.reason}", file=sys.stderr, flush=True)
    started = time.monotonic()
    _in_processes(population, progress)
    seconds = time.monotonic() - started
    # Each member's process has left its last state; one that diverged does so again, and says no more than that.
    with population.feed.open(None) as source:
        parts = [alone(population, source, i, None) for i in range(len(population.members))]
    joined: Progress = jax.tree.map(lambda *x: np.concatenate(x), *(on_host(part) for part in parts))
    return Reached(joined, way, len(parts) * population.feed.plan.updates / seconds)


class _Switch(Exception):
    """Ends the one program; its processes begin."""


def _prescribed(population: Population) -> Way | None:
    """The way that the run or the machine leaves no choice about, or None."""
    train = population.run.train
    if train.members != "auto":
        return Way(train.members == "processes", "the run's configuration says so")
    if len(population.members) == 1:
        return Way(False, "one member")
    if jax.default_backend() != "cpu" or population.mesh is not None:
        return Way(False, "members share an accelerator or are spread over devices")
    if population.feed.streamed:
        return Way(False, "data are streamed into the memory of one process")
    if population.run.train.ships == "best":
        return Way(False, "checkpoints are compared as a whole")
    if len(cores()) == 1:
        return Way(False, "one core")
    return None


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def _measured(population: Population, rate: float, left: int) -> Way:
    """Compare one program, whose rate is known, with processes, of which a few try out what they reach together."""
    count, available = len(population.members), cores()
    together = left / rate
    if together < TRIAL_PAYS:
        return Way(False, f"{together:.0f} s are left, too few to try processes")
    started = time.monotonic()
    told = _run_each(population, range(min(count, len(available))), None, trial=True)
    slowest, start = min(float(words[-1]) for words in told), time.monotonic() - started
    return faster(count, len(available), population.feed.plan.updates, together, slowest, start)


def faster(members: int, cores: int, updates: int, together: float, rate: float, start: float) -> Way:
    """Processes, when `start + ceil(members / cores) updates / rate` seconds are less than those of one program.

    Args:
        members: of the population.
        cores: processes at a time.
        updates: of each member.
        together: seconds that one program has left.
        rate: updates per second of the slowest of as many processes as there are cores.
        start: seconds until processes train.
    """
    apart = start + -(-members // cores) * updates / rate
    words = f"{members} members take {together:.0f} s in one program, {apart:.0f} s in processes on {cores} cores"
    return Way(together > MARGIN * apart, words)


def _in_processes(population: Population, progress: Report | None) -> None:
    _run_each(population, range(len(population.members)), progress, trial=False)


def _run_each(population: Population, indices: Sequence[int], progress: Report | None, trial: bool) -> list[list[str]]:
    """Start a process for each member, as many at a time as there are cores, and give back what they said."""
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in cores():
        free.put(core)
    said: dict[int, list[str]] = {index: [] for index in indices}
    running: list[subprocess.Popen[str]] = []

    def one(index: int) -> None:
        core = free.get()
        try:
            with _start(population, index, trial, core) as process:
                running.append(process)
                assert process.stdout is not None
                for line in process.stdout:
                    said[index].append(line.strip())
            if process.returncode != 0:
                raise Refused(f"expected member {index} to train, got exit code {process.returncode}: see above.")
        finally:
            free.put(core)

    with ThreadPoolExecutor(free.qsize()) as pool:
        futures = [pool.submit(one, index) for index in indices]
        try:
            while wait(futures, timeout=0.5).not_done:
                if progress:
                    done = sum(int(words[-1]) for words in said.values() if words) // len(said)
                    progress(done, population.feed.plan.updates, "updates")
        finally:
            for future in futures:
                future.cancel()
            for process in running:
                process.kill()
        for future in futures:
            future.result()
    return list(said.values())


def _start(population: Population, index: int, trial: bool, core: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.training.placement"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {core})
    job = {
        "home": str(population.home.root),
        "run": population.run.model_dump(mode="json"),
        "dataset": population.dataset,
        "member": index,
        "trial": trial,
    }
    assert process.stdin is not None
    process.stdin.write(json.dumps(job) + "\n")
    # It stays open as long as this process lives: its end is the other's.
    process.stdin.flush()
    return process


def main() -> None:
    """A member's process: its job is the first line that it reads; it prints the updates made, or its rate."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run = RunConfig.model_validate_json(json.dumps(job["run"]))
    population = population_of(Home(Path(job["home"])), run, job["dataset"])

    def tell(done: float, *_: Any) -> None:
        print(done, flush=True)

    with population.feed.open(None) as source:
        if job["trial"]:
            tell(_rate(population, source))
        else:
            alone(population, source, job["member"], tell)


def _end_with_parent() -> None:
    """Nobody writes any more: when reading ends, the parent has gone, however it went."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _rate(population: Population, source: Source) -> float:
    """Updates per second of a member alone, once compiled."""
    plan, algorithm = population.feed.plan, population.algorithm
    state = init_population(algorithm, PLANTS[population.run.plant].spec, population.config, [0], {})
    advance = make_train_chunk(algorithm, plan.chunk, plan.log_every, population.run.train.batch_size)
    data = source.at(0)
    state, _ = jax.block_until_ready(advance(state, data))
    started, done = time.monotonic(), 0
    while time.monotonic() - started < TRIAL_SECONDS:
        state, _ = jax.block_until_ready(advance(state, data))
        done += plan.chunk
    return done / (time.monotonic() - started)


if __name__ == "__main__":
    main()
