"""The servability gate: what ships loads in a fresh process, answers as recorded, and keeps its latency budget."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.errors import BadInput, Refused
from neorl_core.safety.composite import composite_controller
from tasks.adapters.models.bundle import EXAMPLES, load_bundle, read_npz


def check_bundle(folder: Path, expected_digest: str | None, tolerance: float, calls: int) -> dict[str, Any]:
    """Load a bundle here, answer its recorded inputs and time the jitted single-observation action."""
    started = time.perf_counter()
    plant, composite = load_bundle(folder, expected_digest)
    examples = read_npz(folder / EXAMPLES)
    rows, before = examples["observations"], examples["applied"]
    controller = composite_controller(plant)
    act = jax.jit(controller.act)
    memory = first = jax.jit(controller.init)(composite, rows[0])
    found = np.empty_like(examples["actions"])
    for i, row in enumerate(rows):
        memory, found[i] = act(composite, memory, row, before[i])
    half_range = (np.asarray(plant.spec.action.high) - np.asarray(plant.spec.action.low)) / 2
    error = np.max(np.abs(found - examples["actions"]) / half_range)
    seconds_to_ready = time.perf_counter() - started
    times = np.empty(calls)
    for i in range(calls):
        begun = time.perf_counter_ns()
        jax.block_until_ready(act(composite, first, rows[0], before[0]))
        times[i] = (time.perf_counter_ns() - begun) / 1e3
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "answers": int(examples["actions"].shape[0]),
        # A NaN must fail the comparison below, and JSON cannot hold it.
        "max_error": float(error) if np.isfinite(error) else None,
        "tolerance": tolerance,
        "latency_us": {"p50": float(p50), "p99": float(p99)},
        "seconds_to_ready": seconds_to_ready,
    }


def serve_check(
    folder: Path,
    expected_digest: str | None = None,
    *,
    tolerance: float = 1e-4,
    budget_us: float = 20_000.0,
    calls: int = 500,
    timeout: float = 120.0,
) -> dict[str, Any]:
    """The servability gate: in a fresh process, load the bundle, answer the recorded inputs, keep the latency budget.

    Args:
        folder: the bundle.
        expected_digest: the composite digest it must have.
        tolerance: largest difference from the recorded actions, as a share of half the action range.
        budget_us: largest 99th percentile of one action, microseconds.
        calls: actions timed.
        timeout: seconds until a silent process counts as a failure.

    Returns:
        {passed, reasons, answers, max_error, tolerance, latency_us: {p50, p99}, budget_us, seconds_to_ready}.
    """
    arguments = [str(folder.resolve()), expected_digest or "", repr(tolerance), str(calls)]
    command = [sys.executable, "-m", "tasks.adapters.models.servability", *arguments]
    root = Path(__file__).resolve().parents[3]
    result: dict[str, Any] = {"answers": 0, "max_error": None, "latency_us": None, "seconds_to_ready": None}
    reasons = []
    try:
        process = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        reasons.append(f"no answer within {timeout:g} s")
    else:
        lines = process.stdout.splitlines()
        if process.returncode == 0 and lines:
            result = json.loads(lines[-1])
        else:
            reasons.append((process.stderr.strip().splitlines() or [f"the process left with {process.returncode}"])[-1])
    if not reasons:
        if result["max_error"] is None or result["max_error"] > tolerance:
            reasons.append(f"answers differ from the recorded ones by {result['max_error']} > {tolerance:g}")
        if result["latency_us"]["p99"] > budget_us:
            reasons.append(f"99th percentile of an action {result['latency_us']['p99']:.0f} µs > {budget_us:.0f} µs")
    return {**result, "passed": not reasons, "reasons": reasons, "tolerance": tolerance, "budget_us": budget_us}


def _main(arguments: list[str]) -> int:
    folder, digest, tolerance, calls = arguments
    try:
        result = check_bundle(Path(folder), digest or None, float(tolerance), int(calls))
    except (BadInput, Refused) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
