"""Small sites with random datasets, in this process or in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from configs.errors import ServiceMissing
from configs.federation import Federation, Site
from configs.home import Home
from neorl_core.plants import PLANTS
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import Provenance
from tasks.data.store.writer import DatasetWriter
from tasks.federation.site import Participant
from tasks.federation.transport.flower_process import flower_python

PLANT = "double_mass"
ROOT = Path(__file__).resolve().parents[3]


def federation(names: Sequence[str], **changes: object) -> Federation:
    """Return a federation with tiny networks that compile fast."""
    settings: dict[str, object] = {
        "plant": PLANT,
        "algorithm": "bc",
        "hyperparameters": {"hidden": [8]},
        "rounds": 3,
        "updates": 4,
        "batch_size": 16,
        "minimum_sites": 2,
        "sites": {name: {} for name in names},
    }
    return Federation.model_validate({**settings, **changes})


def store_of(home: Path, seed: int, episodes: int = 6, steps: int = 50) -> StoredDataset:
    """Write a dataset of random rows to a home."""
    spec, draw = PLANTS[PLANT].spec, np.random.default_rng(seed)
    count = episodes * steps
    seen = draw.normal(size=(count + 1, spec.observation.size)).astype(np.float32)
    rows = {
        "observations": seen[:-1],
        "actions": draw.uniform(-1, 1, (count, spec.action.size)).astype(np.float32),
        "rewards": draw.normal(size=count).astype(np.float32),
        "costs": np.zeros(count, np.float32),
        "next_observations": seen[1:],
        "terminals": np.zeros(count, bool),
        "timeouts": np.arange(1, count + 1) % steps == 0,
        "episode_starts": np.arange(0, count, steps),
    }
    folder = home / "datasets" / PLANT
    with DatasetWriter(folder, spec) as writer:
        writer.append(rows)
        return StoredDataset.open(folder, writer.commit(Provenance()))


def participants(folder: Path, names: Sequence[str]) -> dict[str, Participant]:
    """Return sites in this process, each with different rows."""
    return {
        name: Participant(
            Site(site=name, plant=PLANT), store_of(folder / name, seed), folder / name / "kept", lambda line: None
        )
        for seed, name in enumerate(names)
    }


def needs_flower() -> None:
    """Skip a test if Flower is not installed."""
    try:
        flower_python()
    except ServiceMissing as error:
        pytest.skip(str(error))


@contextmanager
def site_processes(
    folder: Path, files: Mapping[str, str], behaviour: Mapping[str, str] | None = None
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run a process for each site, with separate homes and rows.

    Args:
        folder: folder of the homes.
        files: YAML of each site.
        behaviour: argument of `tests.servers.strange_site` for misbehaving sites.
    """
    running = {}
    try:
        for seed, (name, text) in enumerate(files.items()):
            home = Home(folder / "sites" / name)
            home.folder("datasets")
            store_of(home.root, seed)
            (folder / f"{name}.yaml").write_text(text)
            strange = (behaviour or {}).get(name)
            module = ["tests.servers.strange_site", strange] if strange else ["flows", "federate", "join"]
            with open(folder / f"{name}.log", "wb") as log:
                running[name] = subprocess.Popen(
                    [sys.executable, "-m", *module, str(folder / f"{name}.yaml")],
                    cwd=ROOT,
                    env={**os.environ, "NEORL_HOME": str(home.root)},
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
        yield running
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(path: Path, text: str, seconds: float = 300.0) -> str:
    """Wait until a log has a text and return the log."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if text in (log_text := path.read_text(errors="replace") if path.exists() else ""):
            return log_text
        time.sleep(0.1)
    raise AssertionError(f"{path} has no {text!r} after {seconds:g} s: {log_text[-2000:]!r}")
