"""Whether what ships can be served: it loads in a fresh process, answers as recorded, and keeps its latency budget."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
from pydantic import BaseModel, ConfigDict

from configs.code import Origin, SiteOf, UserCode
from configs.errors import BadInput, Refused
from neorl_core.safety.composite import composite_controller
from tasks.adapters.files.provenance import ROOT
from tasks.adapters.models.bundle import load_bundle, load_examples

TOLERANCE = 1e-4
"""Largest difference from the recorded actions, as a share of half the action range."""


class Latency(BaseModel):
    """Percentiles of the time that one action takes, in microseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    p50: float
    p99: float


class Served(BaseModel):
    """What a process found that loaded a bundle and used it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    answers: int = 0
    """Recorded observations that were answered."""
    max_error: float | None = None
    """Largest difference from the recorded actions, as a share of half the action range; None where not finite."""
    latency_us: Latency | None = None
    seconds_to_ready: float | None = None


class ServeCheck(Served):
    """What was found, what it was compared with, and what speaks against serving the bundle."""

    reasons: tuple[str, ...]
    tolerance: float
    budget_us: float

    @property
    def passed(self) -> bool:
        """Whether nothing was found against it."""
        return not self.reasons


def check_bundle(folder: Path, expected_digest: str | None, calls: int, source: Origin | None = None) -> Served:
    """Load a bundle here, answer its recorded inputs and time the jitted single-observation action.

    Args:
        folder: the bundle.
        expected_digest: the composite digest it must have, if one is known.
        calls: actions timed.
        source: the plant's code, where it is not ours.

    Raises:
        BadInput: when there is no bundle.
        Refused: when it was altered.
    """
    started = time.perf_counter()
    plant, composite = load_bundle(folder, expected_digest, source)
    rows, before, actions = load_examples(folder, plant.spec)
    controller = composite_controller(plant)
    act = jax.jit(controller.act)
    memory = first = jax.jit(controller.init)(composite, rows[0])
    found = np.empty_like(actions)
    for i, row in enumerate(rows):
        memory, found[i] = act(composite, memory, row, before[i])
    half_range = (np.asarray(plant.spec.action.high) - np.asarray(plant.spec.action.low)) / 2
    error = np.max(np.abs(found - actions) / half_range)
    seconds_to_ready = time.perf_counter() - started
    times = np.empty(calls)
    for i in range(calls):
        begun = time.perf_counter_ns()
        act(composite, first, rows[0], before[0])[1].block_until_ready()
        times[i] = (time.perf_counter_ns() - begun) / 1e3
    p50, p99 = np.percentile(times, [50, 99])
    return Served(
        answers=len(rows),
        max_error=float(error) if np.isfinite(error) else None,
        latency_us=Latency(p50=float(p50), p99=float(p99)),
        seconds_to_ready=seconds_to_ready,
    )


def serve_check(
    folder: Path,
    expected_digest: str | None = None,
    source: Origin | None = None,
    *,
    budget_us: float = 20_000.0,
    calls: int = 500,
    timeout: float = 120.0,
) -> ServeCheck:
    """In a fresh process, load the bundle, answer the recorded inputs, and time the actions.

    Args:
        folder: the bundle.
        expected_digest: the composite digest it must have.
        source: the plant's code, where it is not ours.
        budget_us: largest 99th percentile of one action, microseconds.
        calls: actions timed.
        timeout: seconds until a silent process counts as a failure.

    Returns:
        The findings, with a reason for each that speaks against serving it.
    """
    arguments = [str(folder.resolve()), expected_digest or "", str(calls)]
    code = source.code if isinstance(source, SiteOf) else source
    arguments += [code.model_dump_json()] if isinstance(code, UserCode) else []
    command = [sys.executable, "-m", "tasks.adapters.models.servability", *arguments]
    served, reasons = Served(), []
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        reasons.append(f"no answer within {timeout:g} s")
    else:
        lines = process.stdout.splitlines()
        if process.returncode == 0 and lines:
            served = Served.model_validate_json(lines[-1])
            reasons = _findings(served, budget_us)
        else:
            reasons.append((process.stderr.strip().splitlines() or [f"the process left with {process.returncode}"])[-1])
    return ServeCheck(**dict(served), reasons=tuple(reasons), tolerance=TOLERANCE, budget_us=budget_us)


def _findings(served: Served, budget_us: float) -> list[str]:
    found = []
    if served.max_error is None or served.max_error > TOLERANCE:
        found.append(f"answers differ from the recorded ones by {served.max_error} > {TOLERANCE:g}")
    if served.latency_us is None or served.latency_us.p99 > budget_us:
        p99 = served.latency_us.p99 if served.latency_us else np.inf
        found.append(f"99th percentile of an action {p99:.0f} µs > {budget_us:.0f} µs")
    return found


def _main(folder: str, digest: str, calls: str, code: str = "") -> int:
    try:
        source = UserCode.model_validate_json(code) if code else None
        served = check_bundle(Path(folder), digest or None, int(calls), source)
    except (BadInput, Refused) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(served.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
