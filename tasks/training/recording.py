"""Read one recording into memory, and train on it without servers or ledger."""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from configs.errors import BadInput, Refused
from configs.home import Home
from neorl_core.algorithms import check_actions
from neorl_core.fit import FitResult, fit
from neorl_core.training.population import Algorithm, configure
from tasks.data.formats.hdf5.isolated import has_signature, read_isolated
from tasks.data.formats.recordings import Recording, RecordingAccount, per_episode, read
from tasks.data.formats.sources import NO_OPTIONS, SourceOptions
from tasks.data.store.episodes import KEYS, transitions_of
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import digest_json, write_atomic, write_json
from tasks.models.bundles.checkpoints import Checkpoints
from tasks.models.bundles.policy_file import MadeBy, save_policy
from tasks.models.user_code.known import KnownAlgorithm
from tasks.pictures.curves import plot_curves
from tasks.training.checkpointing import Checkpointing, sole_training

if TYPE_CHECKING:
    from configs.run import Setting
    from tasks.progress import FollowLearning, Report
    from tasks.references import Learning

SCHEMA = "neorl/run/1"
SAVE_SECONDS = 10.0
"""Minimum seconds between two checkpoints: a killed run loses at most this time."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


@dataclass(frozen=True)
class TrainedSeed:
    """The policy of one seed."""

    seed: int
    sound: bool
    """Whether the metrics stayed finite and small; otherwise no policy is written."""
    metrics: dict[str, float | None]
    """Final value of each metric; None if not finite."""
    file: str | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Record:
    """Content of `run.json`."""

    schema: str
    algorithm: str
    hyperparameters: Mapping[str, Setting]
    """All hyper-parameters, including defaults."""
    updates: int
    """Gradient steps, rounded up to whole points of the learning curves."""
    batch_size: int | None
    seeds: int
    code: str | None
    data: RecordingAccount
    """Counts and findings from reading the recording."""
    members: tuple[TrainedSeed, ...]
    versions: dict[str, str]
    device: str


@dataclass(frozen=True)
class TrainedRecording(Record):
    """Record of a run with folder and speed."""

    folder: str
    steps_per_second: float
    """Gradient steps per second of all seeds together; 0 if the run was too short to measure."""

    def __str__(self) -> str:
        rate = f", {self.steps_per_second:,.0f} updates/s" if self.steps_per_second else ""
        lines = [f"{self.algorithm}: {self.updates:,} updates of batches of {self.batch_size}{rate}"]
        for member in self.members:
            metrics = ", ".join(
                f"{name} {'not finite' if value is None else f'{value:.4g}'}" for name, value in member.metrics.items()
            )
            lines.append(f"  seed {member.seed}: {metrics}: {member.file or 'diverged, no policy written'}")
        return "\n".join([*lines, f"  {self.folder}: curves.png, curves.npz, run.json and the policies"])


def check_overrides(algorithm: Algorithm, overrides: Mapping[str, Setting]) -> None:
    """Check the names of hyper-parameters before any file is read.

    Raises:
        BadInput: if a hyper-parameter is unknown.
    """
    with _settings_are_input():
        configure(algorithm, overrides)


@contextmanager
def _settings_are_input() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise BadInput(str(error)) from error


def fit_recording(
    log: Recording,
    out: Path,
    known: KnownAlgorithm,
    *,
    updates: int,
    seeds: int = 1,
    overrides: Mapping[str, Setting] | None = None,
    batch_size: int = 256,
    progress: Report | None = None,
    learning: FollowLearning | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> TrainedRecording:
    """Train one policy per seed and write the results; a killed run resumes.

    Args:
        out: folder for policy.npz (policy-<seed>.npz when there are several), curves.npz, curves.png, run.json and
            the checkpoints.
        seeds: number of seeds, from 0.
        batch_size: transitions per gradient step.
        save_seconds: minimum time between two checkpoints.

    Returns:
        The written record, with folder and speed.

    Raises:
        BadInput: if the algorithm or a hyper-parameter is unknown, or the algorithm does not support the kind of
            action.
        Refused: if every seed diverged, or the folder belongs to a different run.
    """
    settings = overrides or {}
    with _settings_are_input():
        check_actions(known.algorithm, log.spec)
        config = configure(known.algorithm, settings, updates)
    identity = MadeBy(
        data=log.about.sha256,
        ends_by_time=log.about.ends_by_time,
        algorithm=known.algorithm.name,
        hyperparameters=json.loads(json.dumps(config._asdict())),
        updates=updates,
        batch_size=batch_size,
        seeds=seeds,
        code=known.sources("neorl_core.fit"),
    )
    with (
        sole_training(out / "checkpoints"),
        Checkpoints(out / "checkpoints", json.dumps(identity.record())) as checkpoints,
        learning(_told(log, identity)) if learning else nullcontext() as shown,
    ):
        saved = Checkpointing(checkpoints, progress, seconds=save_seconds, log=shown, programs=known.programs)
        try:
            fitted = fit(
                log.transitions,
                log.spec,
                known.algorithm,
                updates=updates,
                seeds=range(seeds),
                overrides=settings,
                batch_size=batch_size,
                resume=saved.resume,
                report=saved.report,
            )
            if shown is not None:
                shown.end(fitted.sound)
        except FloatingPointError as error:
            raise Refused(f"{str(error).rstrip('.')} with --set ({saved.leave()}).") from error
        except KeyboardInterrupt:
            print(f"\n  {saved.leave()}: run the same command again to resume", file=sys.stderr, flush=True)
            raise
    if not fitted.sound.any():
        raise Refused(f"all {seeds} seeds of {known.algorithm.name} diverged: lower the learning rates with --set")
    record = _write(out, fitted, log, identity)
    return TrainedRecording(**vars(record), folder=str(out), steps_per_second=seeds * saved.rate())


def _told(log: Recording, made_by: MadeBy) -> Learning:
    """Describe the training for the log of its learning curves."""
    # Imported here, because a training without a record needs only the core's libraries.
    from tasks.references import Learning, LearningMember

    own = {"algorithm": made_by.algorithm, "updates": made_by.updates, "batch_size": made_by.batch_size}
    settings = {**own, **made_by.hyperparameters}
    return Learning(
        plant=log.about.name,
        key=digest_json(made_by.record())[:16],
        dataset=log.about.sha256,
        members=tuple(
            LearningMember(
                name=f"{made_by.algorithm} seed {seed}",
                params={name: str(value) for name, value in {**settings, "seed": seed}.items()},
            )
            for seed in range(made_by.seeds or 0)
        ),
    )


def _write(out: Path, fitted: FitResult, log: Recording, identity: MadeBy) -> Record:
    write_atomic(out / "curves.npz", npz_bytes({"step": fitted.steps, **fitted.curves}))
    plot_curves(
        out / "curves.png",
        fitted.steps,
        fitted.curves,
        labels=[f"seed {member.seed}" for member in fitted.members],
        title=f"{fitted.algorithm} on {log.about.file}",
    )
    made_by = identity._replace(updates=int(fitted.steps[-1]))
    members = []
    for member, policy, sound in zip(fitted.members, fitted.policies, fitted.sound, strict=True):
        name = "policy.npz" if len(fitted.members) == 1 else f"policy-{member.seed}.npz"
        last = {metric: float(rows[member.index, -1]) for metric, rows in fitted.curves.items()}
        found = TrainedSeed(
            seed=member.seed,
            sound=bool(sound),
            # JSON has no NaN or infinity.
            metrics={metric: value if np.isfinite(value) else None for metric, value in last.items()},
            file=name if sound else None,
            digest=save_policy(out / name, policy, log.spec, made_by._replace(seed=member.seed)) if sound else None,
        )
        members.append(found)
    record = Record(
        schema=SCHEMA,
        algorithm=fitted.algorithm,
        hyperparameters=identity.hyperparameters,
        updates=int(fitted.steps[-1]),
        batch_size=identity.batch_size,
        seeds=len(members),
        code=identity.code,
        data=log.about,
        members=tuple(members),
        versions={"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        device=jax.devices()[0].device_kind,
    )
    write_json(out / "run.json", asdict(record))
    return record


DIRECT = ("D4RL", "DSRL")
"""Families of files that are used without ingestion."""


def open_recording(
    home: Home,
    named: Path,
    options: SourceOptions = NO_OPTIONS,
    folder: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Recording:
    """Read a dataset, named by digest or plant, or a source file of any format into memory.

    A D4RL or DSRL file with continuous actions and without a plant is read directly; other sources are ingested, so
    that their rows are checked.

    Args:
        named: argument for `tasks.ingest.find_dataset`.
        folder: folder of a dataset that was generated outside the home.

    Raises:
        BadInput: as `recordings.read` and `find_dataset`.
        Refused: as `find_dataset`.
    """
    horizon = options.horizon
    untold = folder is None and options == SourceOptions(horizon=horizon)
    if untold and named.is_file() and has_signature(named):
        found_layout = read_isolated(named, horizon)
        if found_layout.family in DIRECT and found_layout.choices is None:
            return read(named, horizon, progress)
    # Imported here, because training on a recording must work without the pipeline's dependencies.
    from tasks.ingest import find_dataset

    found = find_dataset(home, named, options, folder, progress)
    held = found.held
    keys = [key for key in KEYS if key in held.keys]
    rows = held.arrays(keys)
    starts = rows.pop("episode_starts")
    costs = rows.setdefault("costs", np.zeros(held.rows, np.float32))
    terminated = int(rows["terminals"].sum())
    lost = sum((Counter(source.lost) for source in held.sources), Counter[str]())
    about = RecordingAccount(
        file=named.name if found.made else f"{held.spec.name}-{held.digest[:12]}",
        sha256=held.digest,
        format=", ".join(dict.fromkeys(entry.format or "generated" for entry in held.manifest.provenance)),
        rows=held.rows + lost.total(),
        transitions=held.rows,
        observations=held.spec.observation.size,
        actions=held.spec.action.size,
        next_observations="file",
        ends_by_time="file",
        cost_key="costs" if "costs" in keys else None,
        left_out=dict(sorted(lost.items())),
        episodes=len(starts),
        terminated=terminated,
        cut=len(starts) - terminated,
        longest=int(np.diff(held.episodes).max()),
        returns=per_episode(rows["rewards"], starts),
        cost=per_episode(costs, starts),
        dataset=held.digest,
    )
    return Recording(transitions_of(rows), held.spec, about)
