"""Train on one recording, without servers or ledger: policies, learning curves and a record in one folder."""

from __future__ import annotations

import fcntl
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.errors import BadInput, Refused
from neorl_core.fit import Fitted, Progress, fit, known_algorithm
from neorl_core.training import configure
from tasks.adapters.canonical import npz_bytes, write_atomic, write_json
from tasks.adapters.checkpoints import Checkpoints
from tasks.adapters.plots import plot_curves
from tasks.adapters.policy_file import save_policy
from tasks.adapters.provenance import core_digest
from tasks.adapters.recordings import Recording
from tasks.progress import Report

SCHEMA = "neorl/run/1"
SAVE_SECONDS = 10.0
"""Least time between two checkpoints: what a killed run may lose."""


def checked_overrides(algorithm: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """All of an algorithm's hyper-parameters as JSON, so that a wrong name is found before a file is read.

    Raises:
        BadInput: on an unknown algorithm or hyper-parameter.
    """
    try:
        config = configure(known_algorithm(algorithm), overrides)._asdict()
    except ValueError as error:
        raise BadInput(str(error)) from error
    plain: dict[str, Any] = json.loads(json.dumps(config))
    return plain


def fit_recording(
    log: Recording,
    out: Path,
    algorithm: str,
    *,
    updates: int,
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    batch_size: int = 256,
    progress: Report | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> dict[str, Any]:
    """Train one policy for each seed and write what came of it; a run that was killed goes on where it was.

    Args:
        log: what to learn from.
        out: folder for policy.npz (policy-<seed>.npz when there are several), curves.npz, curves.png, run.json and
            the checkpoints.
        algorithm: a key of `ALGORITHMS`.
        updates: gradient steps.
        seeds: how many, from 0.
        overrides: hyper-parameters that differ from the algorithm's defaults.
        batch_size: transitions per gradient step.
        progress: told of updates done.
        save_seconds: least time between two checkpoints.

    Returns:
        run.json's content, `folder` and `steps_per_second`, of all seeds together.

    Raises:
        BadInput: on an unknown algorithm or hyper-parameter.
        Refused: when every seed diverged, or the folder holds another run.
    """
    config = checked_overrides(algorithm, overrides or {})
    identity = {
        "data": log.about["sha256"],
        "ends_by_time": log.about["ends_by_time"],
        "algorithm": algorithm,
        "hyperparameters": config,
        "updates": updates,
        "batch_size": batch_size,
        "seeds": seeds,
        "core": core_digest(),
    }
    with _alone(out / "checkpoints"), Checkpoints(out / "checkpoints", identity) as checkpoints:
        keeper = _Keeper(checkpoints, save_seconds, progress)
        try:
            fitted = fit(
                log.transitions,
                log.spec,
                algorithm,
                updates=updates,
                seeds=range(seeds),
                overrides=overrides,
                batch_size=batch_size,
                resume=keeper.resume,
                report=keeper.report,
            )
        except FloatingPointError as error:
            raise Refused(f"{str(error).rstrip('.')} with --set.") from error
        except KeyboardInterrupt:
            print(f"\n  {keeper.leave()}", file=sys.stderr, flush=True)
            raise
    if not fitted.sound.any():
        raise Refused("expected a seed whose training stayed finite, got none: lower the learning rates with --set.")
    return {**_write(out, fitted, log, identity), "folder": str(out), "steps_per_second": seeds * keeper.rate()}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others out of a folder; the system lets go of it when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"expected nobody else to train in {folder.parent}, got another run there: wait for it, or name "
                "another folder with --out."
            ) from None
        yield


class _Keeper:
    """Saves what `fit` reports, now and then and at the end."""

    def __init__(self, checkpoints: Checkpoints, seconds: float, progress: Report | None) -> None:
        self._checkpoints, self._seconds, self._progress = checkpoints, seconds, progress
        self._last: Progress | None = None
        self._saved = time.monotonic()
        self._reached: list[tuple[int, float]] = []

    def resume(self, fresh: Progress) -> Progress:
        """Where the last run of this folder came to, else the fresh start."""
        if self._checkpoints.latest() is None:
            return fresh
        kept, _ = self._checkpoints.restore(fresh._asdict())
        return Progress(**kept)

    def report(self, state: Progress, updates: int) -> None:
        """Save when it is time to, and pass on how far training came."""
        now = time.monotonic()
        self._last = state
        self._reached.append((state.done, now))
        if state.done == updates or now - self._saved >= self._seconds:
            self._save(state)
            self._saved = time.monotonic()
        if self._progress:
            self._progress(state.done, updates, "updates")

    def leave(self) -> str:
        """Save before an interruption ends the run; says where it can go on."""
        if self._last is None or self._last.done == 0:
            return "nothing was trained yet: give the same command again"
        self._save(self._last)
        return f"kept at update {self._last.done:,} in {self._checkpoints.folder}: give the same command again to go on"

    def rate(self) -> float:
        """Updates per second of one member after the first chunk, which compiles; 0 where there was no other."""
        if len(self._reached) < 3:
            return 0.0
        (before, begun), (after, ended) = self._reached[1], self._reached[-1]
        return (after - before) / (ended - begun)

    def _save(self, state: Progress) -> None:
        if self._checkpoints.latest() != state.done:
            self._checkpoints.save(state.done, state._asdict(), {})


def _write(out: Path, fitted: Fitted, log: Recording, identity: Mapping[str, Any]) -> dict[str, Any]:
    curves = {"step": fitted.steps, **fitted.curves}
    write_atomic(out / "curves.npz", npz_bytes(curves))
    seeds = [member["seed"] for member in fitted.members]
    plot_curves(
        out / "curves.png",
        fitted.steps,
        fitted.curves,
        labels=[f"seed {seed}" for seed in seeds],
        title=f"{fitted.algorithm} on {log.about['file']}",
    )
    made_by = {**identity, "updates": int(fitted.steps[-1])}
    entries = []
    for seed, policy, sound, last in zip(seeds, fitted.policies, fitted.sound, _last_row(fitted), strict=True):
        entry: dict[str, Any] = {"seed": seed, "sound": bool(sound), "metrics": last}
        if sound:
            name = "policy.npz" if len(seeds) == 1 else f"policy-{seed}.npz"
            entry |= {"file": name, "digest": save_policy(out / name, policy, log.spec, {**made_by, "seed": seed})}
        entries.append(entry)
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy")}
    run = {
        "schema": SCHEMA,
        **made_by,
        "data": dict(log.about),
        "members": entries,
        "versions": {"python": platform.python_version(), **versions},
        "device": jax.devices()[0].device_kind,
    }
    write_json(out / "run.json", run)
    return run


def in_words(result: Mapping[str, Any]) -> list[str]:
    """What `fit_recording` returned, in lines."""
    lines = [f"{result['algorithm']}: {result['updates']:,} updates of batches of {result['batch_size']}"]
    if result["steps_per_second"]:
        lines[0] += f", {result['steps_per_second']:,.0f} updates/s"
    for member in result["members"]:
        metrics = ", ".join(f"{k} {'not finite' if v is None else f'{v:.4g}'}" for k, v in member["metrics"].items())
        wrote = member.get("file", "diverged, no policy is kept")
        lines.append(f"  seed {member['seed']}: {metrics}: {wrote}")
    return [*lines, f"  {result['folder']}: curves.png, curves.npz, run.json and the policies"]


def _last_row(fitted: Fitted) -> list[dict[str, float | None]]:
    """Each member's metrics at the end; JSON cannot hold what is not finite."""
    return [
        {name: float(rows[i, -1]) if np.isfinite(rows[i, -1]) else None for name, rows in fitted.curves.items()}
        for i in range(len(fitted.members))
    ]
