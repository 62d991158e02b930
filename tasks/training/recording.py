"""Train on one recording, without servers or ledger: policies, learning curves and a record in one folder."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.errors import BadInput, Refused
from neorl_core.algorithms import ALGORITHMS
from neorl_core.fit import Fitted, fit, known_algorithm
from neorl_core.training.population import configure
from tasks.adapters.files.arrays import npz_bytes
from tasks.adapters.files.canonical import write_atomic, write_json
from tasks.adapters.files.provenance import sources_digest
from tasks.adapters.formats.recordings import Recording
from tasks.adapters.models.checkpoints import Checkpoints
from tasks.adapters.models.policy_file import MadeBy, save_policy
from tasks.adapters.reporting.curves import plot_curves
from tasks.progress import Report
from tasks.training.checkpointing import Checkpointing, exclusive

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
    identity = MadeBy(
        data=log.about.sha256,
        ends_by_time=log.about.ends_by_time,
        algorithm=algorithm,
        hyperparameters=config,
        updates=updates,
        batch_size=batch_size,
        seeds=seeds,
        code=sources_digest("neorl_core.fit", ALGORITHMS.module(algorithm)),
    )
    with exclusive(out / "checkpoints"), Checkpoints(out / "checkpoints", json.dumps(identity.record())) as checkpoints:
        saved = Checkpointing(checkpoints, progress, seconds=save_seconds)
        try:
            fitted = fit(
                log.transitions,
                log.spec,
                algorithm,
                updates=updates,
                seeds=range(seeds),
                overrides=overrides,
                batch_size=batch_size,
                resume=saved.resume,
                report=saved.report,
            )
        except FloatingPointError as error:
            raise Refused(f"{str(error).rstrip('.')} with --set ({saved.leave()}).") from error
        except KeyboardInterrupt:
            print(f"\n  {saved.leave()}: give the same command again to go on", file=sys.stderr, flush=True)
            raise
    if not fitted.sound.any():
        raise Refused("expected a seed whose training stayed finite, got none: lower the learning rates with --set.")
    return {**_write(out, fitted, log, identity), "folder": str(out), "steps_per_second": seeds * saved.rate()}


def _write(out: Path, fitted: Fitted, log: Recording, identity: MadeBy) -> dict[str, Any]:
    curves = {"step": fitted.steps, **fitted.curves}
    write_atomic(out / "curves.npz", npz_bytes(curves))
    seeds = [member.seed for member in fitted.members]
    plot_curves(
        out / "curves.png",
        fitted.steps,
        fitted.curves,
        labels=[f"seed {seed}" for seed in seeds],
        title=f"{fitted.algorithm} on {log.about.file}",
    )
    made_by = identity._replace(updates=int(fitted.steps[-1]))
    entries = []
    for seed, policy, sound, last in zip(seeds, fitted.policies, fitted.sound, _last_row(fitted), strict=True):
        entry: dict[str, Any] = {"seed": seed, "sound": bool(sound), "metrics": last}
        if sound:
            name = "policy.npz" if len(seeds) == 1 else f"policy-{seed}.npz"
            digest = save_policy(out / name, policy, log.spec, made_by._replace(seed=seed))
            entry |= {"file": name, "digest": digest}
        entries.append(entry)
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy")}
    run = {
        "schema": SCHEMA,
        **made_by.record(),
        "data": log.about.model_dump(mode="json", by_alias=True),
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
