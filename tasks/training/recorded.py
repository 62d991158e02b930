"""What `neorl train` learns from, whatever names it: one log in memory, with an account of how it was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from configs.errors import BadInput
from configs.home import Home
from tasks.adapters.formats.hdf5.isolated import has_signature, read_isolated
from tasks.adapters.formats.recordings import Recording, RecordingAccount, per_episode, read
from tasks.adapters.store.episodes import KEYS, transitions_of

DIRECT = ("D4RL", "DSRL")
"""Families whose files are learned from as they are."""


def open_recording(
    home: Home,
    named: Path,
    plant: str | None = None,
    mapping: Path | None = None,
    horizon: int | None = None,
    folder: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    declared: Path | None = None,
) -> Recording:
    """The log that an argument names: a dataset by its digest or plant, or a source of any format.

    A D4RL or DSRL file without a plant is read as it is; any other source becomes a dataset of the home, whose rows
    have passed its checks.

    Args:
        home: holds the datasets.
        named: as `tasks.ingest.find_dataset` takes it.
        plant: whose names, units and limits apply to a source.
        mapping: what the tags of a source mean.
        horizon: steps after which a source's episodes were cut, where it does not tell.
        folder: where the dataset is, if it was generated outside of the home.
        progress: called with (done, total, unit).
        declared: YAML that names the signals of a file of transitions.

    Raises:
        BadInput: as `recordings.read` and `find_dataset`, and on discrete actions.
        Refused: as `find_dataset`.
    """
    as_it_is = all(x is None for x in (plant, mapping, folder, declared)) and named.is_file() and has_signature(named)
    if as_it_is and read_isolated(named, horizon).family in DIRECT:
        return read(named, horizon, progress)
    # A recording is learned from where the pipeline's own dependencies are not installed.
    from tasks.ingest import find_dataset

    found = find_dataset(home, named, plant, mapping, horizon, folder, progress, declared)
    held = found.held
    if held.spec.choices is not None:
        raise BadInput(
            f"expected continuous actions in dataset {held.digest[:12]}, which all algorithms need, got "
            f"one of {len(held.spec.choices):,} choices: train on data of continuous actions."
        )
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
