"""Placement of a population's members: all in one program, or each in a process pinned to a core.

On a CPU one program may be slower than several processes, because products of small matrices use one core only. Long
runs measure which is faster and write the choice beside the checkpoints, so that a resumed run makes the same choice.
The results agree to float tolerance (1e-5 in the tests), not to the bit."""

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
"""Processes are only measured if training in one program would take at least this many seconds more."""
MARGIN = 1.05
"""Minimum speed-up for which processes are chosen."""
TRIAL_SECONDS = 1.0


class Trained(NamedTuple):
    """A trained population."""

    state: RunState
    """States and curves of all members, on the host."""
    placement: Placement
    rate: float
    """Gradient steps per second of all members together; 0 if the run was too short to measure."""


class Job(Reference):
    """Input of a member's process: the run, the dataset and the member to train."""

    home: Path
    run: OpenedRun
    dataset: Dataset
    member: int
    trial: bool
    """Whether to measure the training rate instead of training the member."""


def train_population(training: TrainingRun, progress: Report | None = None, log: CurveLog | None = None) -> Trained:
    """Train all members in the faster placement.

    Args:
        log: record of the learning curves, if members share one program.

    Raises:
        Diverged: if every member diverged.
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
    # Each process has saved its last state; a diverged member diverges again, without further messages.
    with training.data.open(None) as rows:
        parts = [train_members(training, rows, only=member.index)[0] for member in training.members]
    joined: RunState = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return Trained(joined, placement, len(parts) * training.data.plan.updates / seconds)


def train_share(training: TrainingRun, process: int, processes: int, progress: Report | None = None) -> list[int]:
    """Train one machine's share of a population, for several machines with a common home.

    Checkpoints are left for `train_population`. Each member has its own program, so that every machine of the same
    processor class computes the same bits.

    Args:
        training: the population; its run places members in processes.
        process: number of this machine, from 0.
        processes: number of machines: each takes every `processes`-th member.

    Returns:
        Indices of the trained members.
    """
    share = range(process, len(training.members), processes)
    _run_each(training, share, progress, trial=False)
    return list(share)


class _Switch(Exception):
    """Raised to switch from one program to processes."""


def _prescribed(training: TrainingRun) -> Placement | None:
    """Return the placement that run or machine dictates, or None if both placements are possible."""
    train = training.run.train
    if train.members != "auto" and training.setting is None:
        return Placement(processes=train.members == "processes", reason="the run's configuration says so")
    reasons = {
        "one member": len(training.members) == 1,
        "the learner learns in the simulator": training.setting is not None,
        "members share an accelerator or are spread over devices": jax.default_backend() != "cpu"
        or training.mesh is not None,
        "data are streamed into the memory of one process": training.data.streamed,
        "checkpoints are compared as a whole": train.ships == "best",
        "one core": len(cores()) == 1,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return None if reason is None else Placement(processes=False, reason=reason)


def cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def _measured(training: TrainingRun, rate: float, left: int) -> Placement:
    """Compare the known rate of one program with the measured rate of trial processes."""
    count, available = len(training.members), cores()
    together = left / rate
    if together < TRIAL_PAYS:
        return Placement(processes=False, reason=f"{together:.0f} s are left, too few to measure processes")
    started = time.monotonic()
    try:
        told = _run_each(training, range(min(count, len(available))), None, trial=True)
    except (Refused, OSError) as error:
        # A failed measurement, for example for lack of memory, must not end the run.
        why = str(error).removesuffix(": see above.")
        return Placement(processes=False, reason=f"the measurement of processes failed: {why}")
    slowest, start = min(float(words[-1]) for words in told), time.monotonic() - started
    return faster(count, len(available), training.data.plan.updates, together, slowest, start)


def faster(members: int, cores: int, updates: int, together: float, rate: float, start: float) -> Placement:
    """Choose processes if `start + ceil(members / cores) updates / rate` seconds are less than one program takes.

    Args:
        cores: number of simultaneous processes.
        updates: gradient steps of each member.
        together: remaining seconds of one program.
        rate: gradient steps per second of the slowest process when all cores are busy.
        start: seconds until processes begin to train.
    """
    apart = start + -(-members // cores) * updates / rate
    words = f"{members} members take {together:.0f} s in one program, {apart:.0f} s in processes on {cores} cores"
    return Placement(processes=together > MARGIN * apart, reason=words)


def _run_each(training: TrainingRun, indices: Sequence[int], progress: Report | None, trial: bool) -> list[list[str]]:
    """Run a process for each member, one per core at a time, and return their output."""
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
                raise Refused(
                    f"the process of member {index} ended with exit code {process.returncode}: see its output above"
                )
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
        # A pinned member always uses one thread: a second one on the same core would cost time.
        env={**os.environ, "PJRT_NPROC": "1"} if pinned else None,
    )
    if pinned:
        os.sched_setaffinity(process.pid, {core})
    job = Job(home=training.home.root, run=training.run, dataset=training.dataset, member=index, trial=trial)
    assert process.stdin is not None
    process.stdin.write(job.model_dump_json() + "\n")
    # Closing this pipe ends the child process.
    process.stdin.flush()
    return process


def main() -> None:
    """Run a member's process: read the job from the first line, print the steps or the rate."""
    # Other output, such as a user's algorithm's, goes to stderr: the parent reads only numbers from stdout. The stream
    # is never closed, because its end tells the parent that this process has ended.
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
    """Exit when the parent process dies, which closes the pipe."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _rate(training: TrainingRun, rows: TrainingRows) -> float:
    """Return the gradient steps per second of a single member after compilation."""
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
