"""Ingest one odd file and check the outcome."""

from __future__ import annotations

import re
import resource
import time
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

import polars as pl

from benchmarks.nasty.tables import Case
from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.data.formats.sources import SourceOptions
from tasks.data.historian.tag_history import CONTRADICTED, REPEATED
from tasks.data.store.reader import StoredDataset
from tasks.ingest import ingest_file
from tasks.references import Dataset

MOST_SECONDS, MOST_MB = 10.0, 500.0


class Outcome(NamedTuple):
    """Result of a case."""

    case: Case
    result: str
    message: str
    seconds: float
    faults: tuple[str, ...]
    """Differences from the expected outcome."""


def run(case: Case, folder: Path) -> Outcome:
    """Write a case's files and ingest them with warnings as errors."""
    root = folder / case.name.replace(".", "_")
    for name, content in case.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    mapping = None
    if case.mapping is not None:
        mapping = root / "mapping.yaml"
        mapping.write_text(case.mapping)
    spec = None
    if case.spec is not None:
        spec = root / "spec.yaml"
        spec.write_text(case.spec)
    before, begun = _memory(), time.perf_counter()
    faults: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            made = ingest_file(Home(root / "home"), root / case.name, SourceOptions(mapping=mapping, spec=spec))
            result, message = "dataset", "; ".join([*made.notes[1:], *made.accounted]).strip()
            faults += _imbalances(case, made)
        except (BadInput, Refused) as error:
            result, message = "refused", str(error)
        except Exception:  # any other exception is the fault that this benchmark looks for
            result, message = "traceback", traceback.format_exc().strip().splitlines()[-1]
            faults.append(f"{case.name}: {traceback.format_exc()}")
    seconds, grown = time.perf_counter() - begun, _memory() - before
    message = message.replace(str(root), "…")
    if result != ("refused" if case.refused else "dataset"):
        faults.append(f"{case.name}: {result}, expected {'refused' if case.refused else 'dataset'}: {message}")
    elif not re.search(case.says, message):
        faults.append(f"{case.name}: '{case.says}' not in the message: {message}")
    if seconds > MOST_SECONDS or grown > MOST_MB:
        faults.append(f"{case.name}: {seconds:.1f} s and {grown:.0f} MB exceed {MOST_SECONDS} s and {MOST_MB} MB")
    return Outcome(case, result, re.sub(r"quarantine/[0-9a-f]{64}", "quarantine/…", message), seconds, tuple(faults))


def _memory() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _imbalances(case: Case, made: Dataset) -> list[str]:
    """Count used and lost rows on disk, and return a message for each sum that differs from the rows that were read."""
    held = StoredDataset.open(made.store, made.digest)
    (account,) = made.accounts
    kept = [pl.read_parquet(path) for path in made.quarantine_files]
    if account is None:
        (source,) = held.sources
        got = held.rows + sum(map(len, kept))
        return [] if got == source.seen else [f"{case.name}: {got:,} rows used and lost, expected {source.seen:,}"]
    raw = sum(len(frame) for frame in kept if "tag" in frame.columns)
    steps = sum(len(frame) for frame in kept if "tag" not in frame.columns)
    lost = account.gap + account.not_running + account.outside_limits
    archived = sum(counts.good + counts.uncertain for counts in account.samples.values())
    # Repeated rows are rejected after the statuses were counted.
    archived -= sum(
        int(frame["reason"].is_in([REPEATED, CONTRADICTED]).sum()) for frame in kept if "tag" in frame.columns
    )
    sums = (
        ("raw rows in the quarantine", raw, account.raw.rejected),
        ("steps in the quarantine", steps, made.quarantined),
        ("steps used and lost", len(held.arrays()["rewards"]) + steps + lost, account.steps),
        ("raw rows used and lost", archived + raw + account.raw.ignored, account.raw.rows),
    )
    return [f"{case.name}: {got:,} {label}, expected {wanted:,}" for label, got, wanted in sums if got != wanted]
