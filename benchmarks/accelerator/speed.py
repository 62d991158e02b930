"""Measure gradient steps per second of all members of a population together, and compilation times."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.accelerator.learners import BATCH, LEARNERS, Program, programs
from benchmarks.speed import ROWS, SPEC, transitions
from benchmarks.windows import interleaved
from neorl_core.algorithms import ALGORITHMS
from neorl_core.training.loop import on_host
from neorl_core.training.population import TrainState, configure, init_population, make_train_chunk, members
from neorl_core.training.preparation import prepare
from neorl_core.types import Transition

CHUNK = 10
"""Gradient steps of one call. More steps would make calls with a thousand members too long."""
WINDOWS, WINDOW_SECONDS, LIMIT = 5, 0.4, 4.0


class Group(NamedTuple):
    """Population size and precision of programs that are compiled at the same time."""

    members: int
    precision: str


ON_ACCELERATORS = (
    *(Group(size, "float32") for size in (128, 1, 1024, 32)),
    *(Group(size, "bfloat16") for size in (128, 1024)),
    *(Group(size, "float32") for size in (512, 8)),
    Group(512, "bfloat16"),
)
"""Populations in the order of measurement, the most interesting ones first."""
ON_CPUS = tuple(Group(size, "float32") for size in (1, 8, 32, 128))


class Bench:
    """Transitions on the device, and new populations; a population has the first members of each larger one."""

    def __init__(self, largest: int, rows: int = ROWS, names: Iterable[str] = LEARNERS) -> None:
        self.data: Transition = prepare(transitions(rows), SPEC)[1]
        # One initialisation for the largest size saves the compilation for other sizes. It stays in host memory.
        self._fresh: dict[str, TrainState] = {name: self._drawn(name, largest) for name in names}

    @staticmethod
    def _drawn(name: str, largest: int) -> TrainState:
        algorithm = ALGORITHMS[name]
        config = configure(algorithm, LEARNERS[name])
        drawn: TrainState = on_host(init_population(algorithm, SPEC, config, members(range(largest), {})))
        return drawn

    def population(self, name: str, size: int) -> TrainState:
        """Return the first `size` members, in the device's memory."""
        first: TrainState = jax.tree.map(lambda x: jnp.asarray(x[:size]), self._fresh[name])
        return first

    def shapes(self, name: str, size: int) -> TrainState:
        """Return shapes and dtypes of the first `size` members."""
        shaped: TrainState = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype), self._fresh[name]
        )
        return shaped


class Compiled(NamedTuple):
    """A compiled program."""

    call: Any
    seconds: float
    """Seconds of tracing and compiling."""
    megabytes: float
    """Device memory that a call plans to use [MB]: arguments, outputs and temporary values."""


def compiled(program: Program, group: Group, shapes: TrainState, data: Transition) -> Compiled:
    """Trace and compile one program for a population."""
    chunk = make_train_chunk(program.learner(group.precision), CHUNK, CHUNK, BATCH)
    started = time.perf_counter()
    call = chunk.lower(shapes, data).compile()  # type: ignore[attr-defined]
    seconds = time.perf_counter() - started
    plan = call.memory_analysis()
    planned = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return Compiled(call, seconds, planned / 1e6)


def steps_per_second(call: Any, population: TrainState, data: Transition) -> tuple[float, bool]:
    """Return gradient steps of all members per second, and whether the machine was quiet."""
    state = jax.block_until_ready(call(population, data))[0]
    started = time.perf_counter()
    state = jax.block_until_ready(call(state, data))[0]
    # CPU time has a resolution of 0.01 s, so a window must be much longer.
    repeats = max(round(WINDOW_SECONDS / (time.perf_counter() - started)), 1)

    def window() -> None:
        nonlocal state
        for _ in range(repeats):
            state = call(state, data)[0]
        jax.block_until_ready(state)

    kept = interleaved({"": window}, rounds=WINDOWS, limit=LIMIT, warm_up=False)[""]
    return len(population.step) * CHUNK * repeats / kept.seconds, kept.quiet > 0


def measured(bench: Bench, group: Group, wanted: Sequence[Program], side_by_side: int = 1) -> Iterator[dict[str, Any]]:
    """Compile and measure programs, and yield a result for each.

    Args:
        bench: data and populations.
        group: population size and precision.
        wanted: programs to measure.
        side_by_side: number of programs that compile at the same time; speeds are measured afterwards.
    """
    about = {"members": group.members, "precision": group.precision}

    def ready(program: Program) -> Compiled | str:
        try:
            return compiled(program, group, bench.shapes(program.algorithm, group.members), bench.data)
        except jax.errors.JaxRuntimeError as error:
            return _reason(error)

    with ThreadPoolExecutor(side_by_side) as pool:
        found = list(pool.map(ready, wanted))
    for program, made in zip(wanted, found, strict=True):
        row: dict[str, Any] = {"program": program.words, **about}
        if isinstance(made, str):
            yield row | {"error": made}
            continue
        row |= {"compile_seconds": made.seconds, "side_by_side": side_by_side, "megabytes": made.megabytes}
        try:
            population = bench.population(program.algorithm, group.members)
            rate, quiet = steps_per_second(made.call, population, bench.data)
        except jax.errors.JaxRuntimeError as error:
            yield row | {"error": _reason(error)}
            continue
        yield row | {"steps_per_second": rate, "quiet": quiet}


def _reason(error: Exception) -> str:
    """Return the first line of an error message, at most 200 characters."""
    return str(error).splitlines()[0][:200]


def missing(rows: Sequence[dict[str, Any]], group: Group) -> list[Program]:
    """Return the programs of a group that have no result."""
    known = {(row["program"], row["members"], row["precision"]) for row in rows}
    return [program for program in programs() if (program.words, *group) not in known]
