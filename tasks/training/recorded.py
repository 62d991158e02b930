"""Data for `neorl train`: one log in memory, with an account of how it was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from configs.home import Home
from tasks.data.formats.hdf5.isolated import has_signature, read_isolated
from tasks.data.formats.recordings import Recording, RecordingAccount, per_episode, read
from tasks.data.formats.sources import NO_OPTIONS, SourceOptions
from tasks.data.store.episodes import KEYS, transitions_of

DIRECT = ("D4RL", "DSRL")
"""Families of files that are used without ingestion."""


def open_recording(
    home: Home,
    named: Path,
    options: SourceOptions = NO_OPTIONS,
    folder: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Recording:
    """Open a dataset by digest or plant, or a source of any format.

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
    # Training on a recording works without the pipeline's dependencies.
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
