"""Recorded inputs and outputs of a simulator's step, with which `neorl policy renew` compares the installed simulator.

A policy's ledger entry names the file by its SHA-256.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import Refused
from configs.home import Home
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import canonical_json, file_sha256, write_atomic

Arrays = Mapping[str, npt.NDArray[Any]]
TOLERANCE = 1e-5
"""Largest difference that counts as rounding, divided by the largest recorded value of the same output."""
ABOUT, INPUT, OUTPUT = "about", "input/", "output/"


class RecordedSteps(NamedTuple):
    """Steps of a simulator, and the program and software that computed them."""

    simulator: str
    """Digest of the lowered program of the step."""
    sources: str
    """Digest of the plant's source files."""
    jax: str
    """Versions of jax and jaxlib."""
    inputs: Arrays
    """Keys (N, 2), actions (N, A) in physical units, and the values of the operating domain."""
    outputs: Arrays
    """Outputs (N, ...) of the program."""


def record_file(home: Home, plant: str, simulator: str) -> Path:
    return home.root / "steps" / plant / f"{simulator[:24]}.npz"


def write_steps(home: Home, plant: str, steps: RecordedSteps) -> Path:
    about = canonical_json({"simulator": steps.simulator, "sources": steps.sources, "jax": steps.jax})
    arrays = {ABOUT: np.frombuffer(about, np.uint8)}
    arrays |= {INPUT + name: value for name, value in steps.inputs.items()}
    arrays |= {OUTPUT + name: value for name, value in steps.outputs.items()}
    home.folder("steps", plant)
    return write_atomic(record_file(home, plant, steps.simulator), npz_bytes(arrays))


def read_steps(home: Home, plant: str, simulator: str, sha256: str) -> RecordedSteps:
    """Read the recorded steps that a policy's entry names.

    Raises:
        Refused: if the file is missing, was altered, or belongs to another program.
    """
    path = record_file(home, plant, simulator)
    found = file_sha256(path) if path.is_file() else "no file"
    if found != sha256:
        raise Refused(
            f"the recorded steps {path} must have SHA-256 {sha256[:12]}, got {found[:12]}: restore it from a backup"
        )
    arrays = read_npz(path)
    about = json.loads(bytes(arrays[ABOUT]))
    if about["simulator"] != simulator:
        raise Refused(f"{path} records the program {about['simulator'][:12]}, not {simulator[:12]}: sign a new policy")
    inputs, outputs = (
        {name.removeprefix(part): value for name, value in arrays.items() if name.startswith(part)}
        for part in (INPUT, OUTPUT)
    )
    return RecordedSteps(**about, inputs=inputs, outputs=outputs)


def same_arrays(one: Arrays, other: Arrays) -> bool:
    """Return whether two sets of arrays are equal bit for bit."""
    return npz_bytes(one) == npz_bytes(other)


def largest_difference(recorded: Arrays, found: Arrays) -> float:
    """Return the largest difference of two sets of outputs, relative to the largest recorded value of each output.

    Returns:
        Infinity if a whole number, a truth value, a shape or the place of a non-finite number differs.
    """
    if recorded.keys() != found.keys():
        return np.inf
    return max((_difference(recorded[name], found[name]) for name in recorded), default=0.0)


def _difference(recorded: npt.NDArray[Any], found: npt.NDArray[Any]) -> float:
    if (recorded.dtype, recorded.shape) != (found.dtype, found.shape):
        return np.inf
    if recorded.dtype.kind != "f":
        return 0.0 if np.array_equal(recorded, found) else np.inf
    finite = np.isfinite(recorded)
    if not np.array_equal(np.where(finite, 0, recorded), np.where(np.isfinite(found), 0, found), equal_nan=True):
        return np.inf
    exact, near = (np.where(finite, array, 0.0).astype(float) for array in (recorded, found))
    apart, scale = np.abs(near - exact).max(0, initial=0.0), np.abs(exact).max(0, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(apart == 0, 0.0, apart / scale)
    return float(relative.max(initial=0.0))
