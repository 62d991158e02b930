"""Placement of a population's members: all in one program, or each in a process of its own that is pinned to a core.

On a CPU one program for several members may be slower than a process for each: products of small matrices fill a core
and not two. Which is faster is measured once a run has shown that it is long, and written beside its checkpoints, so
that it is resumed in the same way. The two agree to float tolerance (1e-5 in the tests), not to the bit.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from configs.errors import Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.training.loop import RunState, TrainingRows
from neorl_core.training.population import init_population, make_train_chunk, members
from tasks.data.store.histories import observed_spec
from tasks.files.canonical import write_json
from tasks.references import Dataset, Placement, Reference
from tasks.training.population import TrainingRun, train_members, training_run

if TYPE_CHECKING:
    from tasks.progress import CurveLog, Report

TRIAL_PAYS = 60.0
"""Seconds that must be left of a run before it is worth some of them to find out what is faster."""
MARGIN = 1.05
"""How many times faster processes must be."""
TRIAL_SECONDS = 1.0


class Trained(NamedTuple):
    """A population at the end of its training."""

    state: RunState
    """States of all members and their curves, on the host."""
    placement: Placement
    rate: float
    """Gradient steps per second, of all members together; 0 where there was too little to measure."""


class Job(Reference):
    """What a member's process is told to do."""

    home: Path
    run: OpenedRun
    dataset: Dataset
    member: int
    trial: bool
    """Whether to measure for a moment how fast the member trains, rather than to train it."""


def train_population(training: TrainingRun, progress: Report | None = None, log: CurveLog | None = None) -> Trained:
    """Train all members, in the placement that is faster.

    Args:
        training: what to train.
        progress: told of gradient steps made, of all that each member makes.
        log: takes the learning curves as they grow, where members share one program.

    Raises:
        Diverged: when every member's training diverged.
    """
    written = training.folder / "placement.json"
    placement = _prescribed(training)
    if placement is None and written.exists():
        placement = Placement.model_validate_json(written.read_bytes())

    def observe(rate: float, left: int) -> None:
        nonlocal placement
        if placement is None:
            placement = _measured(training, rate, left)
            write_json(written, placement.model_dump(mode="json"))
            if placement.processes:
                raise _Switch
            print(f"  train: members in one program: {placement.reason}", file=sys.stderr, flush=True)

    if placement is None or not placement.processes:
        try:
            with training.data.open(training.mesh) as rows:
                state, rate = train_members(training, rows, progress=progress, observe=observe, log=log)
            placement = placement or Placement(processes=False, reason="too short a run to measure")
            return Trained(state, placement, rate * len(training.members))
        except _Switch:
            pass
    assert placement is not None
    print(f"  train: members in processes: {placement.reason}", file=sys.stderr, flush=True)
    started = time.monotonic()
    _run_each(training, range(len(training.members)), progress, trial=False)
    seconds = time.monotonic() - started
    # Each member's process has left its last state; one that diverged does so again, and says no more than that.
    with training.data.open(None) as rows:
        parts = [train_members(training, rows, only=member.index)[0] for member in training.members]
    joined: RunState = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return Trained(joined, placement, len(parts) * training.data.plan.updates / seconds)


def train_share(training: TrainingRun, process: int, processes: int, progress: Report | None = None) -> list[int]:
    """Train some members of a population, as one of several machines that share a home.

    Their states are left where `train_population` finds them, on whatever machine: each member is a program of its own,
    so that it is the same to the last bit whoever trains it on this kind of processor.

    Args:
        training: the population, which its run places in processes.
        process: number of this machine, from 0.
        processes: how many share the members: each takes every `processes`-th.
        progress: told of gradient steps made, of all that each of its members makes.

    Returns:
        Indices of its members.
    """
    share = range(process, len(training.members), processes)
    _run_each(training, share, progress, trial=False)
    return list(share)


class _Switch(Exception):
    """Ends the one program; its processes begin."""


def _prescribed(training: TrainingRun) -> Placement | None:
    """The placement that the run or the machine leaves no choice about, or None."""
    train = training.run.train
    if train.members != "auto":
        return Placement(processes=train.members == "processes", reason="the run's configuration says so")
    reasons = {
        "one member": len(training.members) == 1,
        "members share an accelerator or are spread over devices": jax.default_backend() != "cpu"
        or training.mesh is not None,
        "data are streamed into the memory of one process": training.data.streamed,
        "checkpoints are compared as a whole": train.ships == "best",
        "one core": len(cores()) == 1,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return None if reason is None else Placement(processes=False, reason=reason)


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def _measured(training: TrainingRun, rate: float, left: int) -> Placement:
    """Compare one program, whose rate is known, with processes, of which a few try out what they reach together."""
    count, available = len(training.members), cores()
    together = left / rate
    if together < TRIAL_PAYS:
        return Placement(processes=False, reason=f"{together:.0f} s are left, too few to try processes")
    started = time.monotonic()
    try:
        told = _run_each(training, range(min(count, len(available))), None, trial=True)
    except (Refused, OSError) as error:
        # A trial may want more memory, or what only processes lack: a measurement is no reason to end a run.
        why = str(error).removesuffix(": see above.")
        return Placement(processes=False, reason=f"a trial of processes failed: {why}")
    slowest, start = min(float(words[-1]) for words in told), time.monotonic() - started
    return faster(count, len(available), training.data.plan.updates, together, slowest, start)


def faster(members: int, cores: int, updates: int, together: float, rate: float, start: float) -> Placement:
    """Processes, when `start + ceil(members / cores) updates / rate` seconds are less than those of one program.

    Args:
        members: how many the population has.
        cores: how many processes run at a time.
        updates: gradient steps of each member.
        together: seconds that one program has left.
        rate: gradient steps per second of the slowest of as many processes as there are cores.
        start: seconds until processes train.
    """
    apart = start + -(-members // cores) * updates / rate
    words = f"{members} members take {together:.0f} s in one program, {apart:.0f} s in processes on {cores} cores"
    return Placement(processes=together > MARGIN * apart, reason=words)


def _run_each(training: TrainingRun, indices: Sequence[int], progress: Report | None, trial: bool) -> list[list[str]]:
    """Start a process for each member, as many at a time as there are cores, and give back what they said."""
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in cores():
        free.put(core)
    said: dict[int, list[str]] = {index: [] for index in indices}
    running: list[subprocess.Popen[str]] = []

    def one(index: int) -> None:
        core = free.get()
        try:
            with _start(training, index, trial, core) as process:
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
                    progress(done, training.data.plan.updates, "updates")
        finally:
            for future in futures:
                future.cancel()
            for process in running:
                process.kill()
        for future in futures:
            future.result()
    return list(said.values())


def _start(training: TrainingRun, index: int, trial: bool, core: int) -> subprocess.Popen[str]:
    pinned = hasattr(os, "sched_setaffinity")
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.training.placement"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A second thread on its one core would only cost time: a member that is pinned is always trained by one.
        env={**os.environ, "PJRT_NPROC": "1"} if pinned else None,
    )
    if pinned:
        os.sched_setaffinity(process.pid, {core})
    job = Job(home=training.home.root, run=training.run, dataset=training.dataset, member=index, trial=trial)
    assert process.stdin is not None
    process.stdin.write(job.model_dump_json() + "\n")
    # It stays open as long as this process lives: its end is the other's.
    process.stdin.flush()
    return process


def main() -> None:
    """A member's process: its job is the first line that it reads; it prints the steps made, or its rate."""
    # Whatever else prints, such as a user's own algorithm, does so where errors go: here only numbers are read. It is
    # never closed, for its end is that of the process to the parent, which then ends what still runs.
    numbers = os.dup(1)
    os.dup2(2, 1)
    job = Job.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    training = training_run(Home(job.home), job.run, job.dataset)

    def tell(done: float, *_: object) -> None:
        os.write(numbers, f"{done}\n".encode())

    with training.data.open(None) as rows:
        if job.trial:
            tell(_rate(training, rows))
        else:
            train_members(training, rows, only=job.member, progress=tell)


def _end_with_parent() -> None:
    """Nobody writes any more: when reading ends, the parent has gone, however it went."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _rate(training: TrainingRun, rows: TrainingRows) -> float:
    """Gradient steps per second of a member alone, once compiled."""
    plan, algorithm = training.data.plan, training.algorithm
    state = init_population(algorithm, observed_spec(training.run), training.config, members([0], {}))
    advance = make_train_chunk(algorithm, plan.chunk, plan.log_every, training.run.train.batch_size)
    data = rows.at(0)
    state, _ = jax.block_until_ready(advance(state, data))  # type: ignore[no-untyped-call]
    started, done = time.monotonic(), 0
    while time.monotonic() - started < TRIAL_SECONDS:
        state, _ = jax.block_until_ready(advance(state, data))  # type: ignore[no-untyped-call]
        done += plan.chunk
    return done / (time.monotonic() - started)


if __name__ == "__main__":
    main()
