"""Servability check: load a bundle in a new process, compare its actions with recorded ones, measure the latency."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from configs.code import Origin, SiteOf, UserCode
from configs.errors import BadInput, Refused
from neorl_core.safety.composite import composite_controller
from tasks.files.provenance import ROOT
from tasks.models.bundles.bundle import load_bundle, load_examples
from tasks.references import Latency, Servability

TOLERANCE = 1e-4
"""Largest allowed difference between an action and the recorded action, as a share of half the action's range."""


def check_bundle(
    folder: Path, expected_digest: str | None, calls: int, budget_us: float, source: Origin | None = None
) -> Servability:
    """Load a bundle in this process, compare its actions with the recorded ones, and measure the time of an action.

    Args:
        budget_us: largest allowed 99th percentile of the time of one action, in microseconds.

    Raises:
        BadInput: if there is no bundle.
        Refused: if the bundle was altered.
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
    largest = float(np.max(np.abs(found - actions) / half_range))
    error = largest if np.isfinite(largest) else None
    seconds_to_ready = time.perf_counter() - started
    times = np.empty(calls)
    for i in range(calls):
        begun = time.perf_counter_ns()
        act(composite, first, rows[0], before[0])[1].block_until_ready()
        times[i] = (time.perf_counter_ns() - begun) / 1e3
    p50, p99 = np.percentile(times, [50, 99])
    reasons = []
    if error is None or error > TOLERANCE:
        reasons.append(f"answers differ from the recorded ones by {error} > {TOLERANCE:g}")
    if p99 > budget_us:
        reasons.append(f"99th percentile of an action {p99:.0f} µs > {budget_us:.0f} µs")
    return Servability(
        reasons=tuple(reasons),
        answers=len(rows),
        max_error=error,
        tolerance=TOLERANCE,
        latency_us=Latency(p50=float(p50), p99=float(p99)),
        budget_us=budget_us,
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
) -> Servability:
    """Run `check_bundle` in a new process.

    Args:
        budget_us: largest allowed 99th percentile of the time of one action, in microseconds.
        timeout: seconds after which a process without an answer has failed.

    Returns:
        The result, with a reason for each failure.
    """
    arguments = [str(folder.resolve()), expected_digest or "", str(calls), str(budget_us)]
    code = source.code if isinstance(source, SiteOf) else source
    arguments += [code.model_dump_json()] if isinstance(code, UserCode) else []
    command = [sys.executable, "-m", "tasks.evaluation.servability", *arguments]
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {timeout:g} s"
    else:
        lines = process.stdout.splitlines()
        if process.returncode == 0 and lines:
            return Servability.model_validate_json(lines[-1])
        reason = (process.stderr.strip().splitlines() or [f"the process ended with exit code {process.returncode}"])[-1]
    return Servability(
        reasons=(reason,),
        answers=0,
        max_error=None,
        tolerance=TOLERANCE,
        latency_us=None,
        budget_us=budget_us,
        seconds_to_ready=None,
    )


def _main(folder: str, digest: str, calls: str, budget_us: str, code: str = "") -> int:
    try:
        source = UserCode.model_validate_json(code) if code else None
        served = check_bundle(Path(folder), digest or None, int(calls), float(budget_us), source)
    except (BadInput, Refused) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(served.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
