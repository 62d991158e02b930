"""Check every row, and write rejected rows to the quarantine.

A rejected row divides its episode into two. The row before becomes a timeout, not a termination.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from neorl_core.types import PlantSpec, Space
from tasks.data.store.schema import ROW_KEYS, Rows, joined, stored_dtype
from tasks.files.canonical import sha256_hex, write_atomic

if TYPE_CHECKING:
    import polars as pl

RANGE_TOLERANCE = 0.01
"""Share of a signal's range by which a value may exceed the range: the usual calibration error of transmitters."""

CONTINUITY_TOLERANCE = 1e-4
"""Largest accepted difference of a next observation from the next row's observation, as a share of the range."""

Mask = npt.NDArray[np.bool_]


class ParquetParts(ABC):
    """Base class that writes rejected records to Parquet files, and counts the records by reason.

    Args:
        folder: folder for the files, created with the first file; None keeps the records in memory.
        part_records: number of records per file.
    """

    def __init__(self, folder: Path | None, part_records: int) -> None:
        self.folder, self.part_records = folder, part_records
        self.reasons: Counter[str] = Counter()
        self.digests: list[str] = []
        self._added: list[Any] = []
        self._waiting = 0

    @property
    def count(self) -> int:
        return self.reasons.total()

    def _add(self, records: object, reasons: npt.NDArray[Any]) -> None:
        self.reasons.update(reasons.tolist())
        self._added.append(records)
        self._waiting += len(reasons)
        if self._waiting >= self.part_records:
            self.close()

    @abstractmethod
    def table(self) -> pl.DataFrame:
        """Return the records that are not yet written, as a table."""

    def close(self) -> None:
        """Write the records that are not yet written to a new file."""
        if not self._added or self.folder is None:
            return
        image = io.BytesIO()
        self.table().write_parquet(image)
        write_atomic(self.folder / f"part-{len(self.digests):05d}.parquet", image.getvalue())
        self.digests.append(sha256_hex(image.getvalue()))
        self._added, self._waiting = [], 0


class Quarantine(ParquetParts):
    """Quarantine of a dataset: rejected rows with source, row number, timestamp, reason and values."""

    def __init__(self, folder: Path, spec: PlantSpec, part_records: int = 65536) -> None:
        super().__init__(folder, part_records)
        self.spec = spec

    def add(self, source: str, numbers: npt.NDArray[np.int64], reasons: npt.NDArray[Any], rows: Rows) -> None:
        """Add n rejected rows, with their numbers in the source (n,) and the reasons (n,)."""
        if not len(numbers):
            return
        columns: dict[str, npt.NDArray[Any]] = {
            "source": np.full(len(numbers), source),
            "row": numbers,
            "timestamp": rows.get("timestamps", np.full(len(numbers), -1, np.int64)),
            "reason": reasons,
        }
        observed = self.spec.observation.names
        components = {"observations": observed, "actions": self.spec.action.names, "rewards": ("",)}
        components |= {"next_observations": observed, "terminals": ("",), "timeouts": ("",)}
        for key, names in components.items():
            values = rows[key].reshape(len(numbers), -1)
            columns |= {f"{key}.{name}" if name else key: values[:, i] for i, name in enumerate(names)}
        self._add(columns, reasons)

    def table(self) -> pl.DataFrame:
        import polars as pl

        return pl.DataFrame({name: values.tolist() for name, values in joined(self._added).items()})


class RowChecker:
    """Checks that rows are finite, within the spec's bounds and continuous; rejected rows go to the quarantine."""

    def __init__(self, spec: PlantSpec, quarantine: Quarantine, source: str) -> None:
        self.spec, self.quarantine, self.source = spec, quarantine, source
        self.seen = 0
        self._pending: Rows | None = None

    def push(self, rows: Rows) -> Rows:
        """Check rows (n, ...) and return the good rows; the last two rows are kept until the next call or `flush`.

        Args:
            rows: arrays by key of `ROW_KEYS`. Two more keys are optional: `rejected` (n,) has the reader's reason to
                reject a row, or ''; `numbers` (n,) has the number of each row in the source.
        """
        if self._pending is not None:
            rows = joined([self._pending, rows])
        return self._settle(rows, max(len(rows["rewards"]) - 2, 0))

    def flush(self) -> Rows | None:
        """Return the good rows among the kept rows; if the last episode has no end, its last row becomes a timeout."""
        return None if self._pending is None else self._settle(self._pending, len(self._pending["rewards"]))

    def _settle(self, rows: Rows, count: int) -> Rows:
        reasons = find_failures(rows, self.spec)
        ended = (rows["terminals"] == 1) | (rows["timeouts"] == 1)
        sound = reasons == ""
        broken = ~ended[:-1] & sound[:-1] & sound[1:] & ~_continues(rows, self.spec.observation)
        reasons[:-1][broken] = "next_observations do not continue in the next row's observations"
        sound = reasons == ""
        cut = sound & ~ended & ~np.append(sound[1:], False)
        failed, passed = ~sound[:count], sound[:count]
        numbers = rows["numbers"][:count] if "numbers" in rows else self.seen + np.arange(count)
        done = {key: values[:count] for key, values in rows.items()}
        self.quarantine.add(
            self.source, numbers[failed], reasons[:count][failed], {k: v[failed] for k, v in done.items()}
        )
        self.seen += count
        self._pending = {key: values[count:] for key, values in rows.items()} if count < len(ended) else None
        good = {key: done[key][passed].astype(stored_dtype(key, done[key].dtype)) for key in ROW_KEYS if key in done}
        # If a row has both flags, keep only the termination, because learners need it to compute targets.
        good["timeouts"] = (good["timeouts"] | cut[:count][passed]) & ~good["terminals"]
        return good


def find_failures(rows: Mapping[str, npt.NDArray[Any]], spec: PlantSpec) -> npt.NDArray[Any]:
    """Return, for each row, the first reason to reject it, or '' for a good row, as an object array (n,)."""
    reasons: npt.NDArray[Any] = np.full(len(rows["rewards"]), "", dtype=object)

    def note(mask: Mask, reason: str) -> None:
        if mask.any():
            reasons[mask & (reasons == "")] = reason

    if "rejected" in rows:
        named = rows["rejected"] != ""
        reasons[named] = rows["rejected"][named]
    spaces = {"observations": spec.observation, "actions": spec.action, "next_observations": spec.observation}
    if spec.choices is not None:
        chosen, last = rows["actions"][:, 0], len(spec.choices) - 1
        note((chosen < 0) | (chosen > last), f"actions.{spaces.pop('actions').names[0]} is not a choice of 0..{last}")
    for key, space in spaces.items():
        for i, name in enumerate(space.names):
            values = rows[key][:, i]
            low, high = widened(space.low[i], space.high[i], values.dtype)
            note(~np.isfinite(values), f"{key}.{name} is not finite")
            note((values < low) | (values > high), f"{key}.{name} is outside {space.low[i]:g}..{space.high[i]:g}")
    note(~np.isfinite(rows["rewards"]), "rewards is not finite")
    for key in ("terminals", "timeouts"):
        note((rows[key] != 0) & (rows[key] != 1), f"{key} is neither 0 nor 1")
    for key in ("costs", "constraint_costs"):
        if key in rows:  # constraint_costs of a plant without limits are (n, 0)
            axes = tuple(range(1, rows[key].ndim))
            note(~np.isfinite(rows[key]).all(axis=axes), f"{key} is not finite")
    return reasons


def widened(low: float, high: float, kind: np.dtype[Any] = ROW_KEYS["observations"]) -> tuple[float, float]:
    """Return a signal's bounds, widened by `RANGE_TOLERANCE`, in the precision `kind` of the values to compare.

    If a bound is infinite, neither bound is widened.
    """
    slack = RANGE_TOLERANCE * (high - low)
    edges = (low - slack, high + slack) if np.isfinite(slack) else (low, high)
    with np.errstate(over="ignore"):  # a bound beyond single precision becomes infinite
        least, greatest = np.asarray(edges).astype(np.promote_types(kind, np.float32)).tolist()
    return least, greatest


def _continues(rows: Mapping[str, npt.NDArray[Any]], space: Space) -> Mask:
    span = np.subtract(space.high, space.low)
    before, after = rows["next_observations"][:-1], rows["observations"][1:]
    close: Mask = (before == after).all(axis=1)
    # Compare exactly first: most rows continue exactly.
    others = np.flatnonzero(~close)
    before, after = before[others], after[others]
    scale = np.where(np.isfinite(span), span, 1 + np.abs(before))
    close[others] = (np.abs(before - after) <= CONTINUITY_TOLERANCE * scale).all(axis=1)
    return close
