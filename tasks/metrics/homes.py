"""All samples of a home; a fault of one plant does not hide others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from configs.home import Home
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import report_heads
from tasks.files.canonical import write_json
from tasks.metrics.catalogue import Sample
from tasks.metrics.plants import FROM_LEDGER, Datasets, Scene

VERIFY_AGAIN = 3600.0
"""Seconds between verifications of the whole ledger; in between only new entries are verified."""
TRY_AGAIN = 300.0
"""Seconds until an invalid ledger is verified again."""


class LastBackup(BaseModel):
    """Record of a home's last backup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    made: datetime
    entries: int
    """Number of ledger entries."""


class Readings:
    """Repeated readings of a home.

    Args:
        say: called once for each part that cannot be read.
    """

    def __init__(self, home: Home, clock: Callable[[], float], say: Callable[[str], None] | None = None) -> None:
        self._home, self._clock = home, clock
        self._say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        self._ledger: Ledger | None = None
        self._verified_at, self._until = 0.0, 0.0
        self._head, self._known = "", dict[tuple[str, str], list[Sample]]()
        self._datasets = Datasets()
        self._told: dict[tuple[str, str], str] = {}

    def look(self, services: Callable[[], Mapping[str, bool]]) -> Iterator[Sample]:
        """Yield all current samples.

        Args:
            services: returns by name whether each service answers.
        """
        yield Sample("neorl_build_info", (metadata.version("neorl"),), 1.0)
        yield from self._part("", "services", lambda: _services(services()))
        yield from self._part("", "backup", lambda: _backup(self._home))
        entries = self._entries()
        yield from self._ledger_samples(entries)
        head = entries[-1].digest if entries else ""
        if head != self._head:
            self._head, self._known = head, {}
        for plant in sorted(self._plants(entries or ())):
            scene = Scene(self._home, entries or (), plant)
            for name in FROM_LEDGER if entries else ():
                yield from self._of_ledger(scene, name)
            yield from self._part(plant, "datasets", partial(self._datasets, scene))

    def _entries(self) -> Sequence[Entry] | None:
        """Return verified entries; empty without a ledger, None if it is invalid."""
        now = self._clock()
        if now >= self._until:
            self._ledger = None
        elif self._ledger is None:
            return None
        try:
            if self._ledger is None:
                if not Ledger.exists(self._home):
                    return ()
                found = Ledger.open(self._home, write=False)
                found.verify(report_heads(self._home))
                self._ledger, self._verified_at, self._until = found, now, now + VERIFY_AGAIN
                self._head = ""  # the pinned keys may have changed
            entries = self._ledger.entries()
        # An invalid ledger is a sample, not a reason to stop.
        except Exception as error:
            self._ledger, self._until = None, now + TRY_AGAIN
            self._tell("", "ledger", error)
            return None
        self._tell("", "ledger", None)
        return entries

    def _ledger_samples(self, entries: Sequence[Entry] | None) -> Iterator[Sample]:
        if entries is None:
            yield Sample("neorl_ledger_verified", (), 0.0)
            yield Sample("neorl_read_errors", ("", "ledger"), 1.0)
        elif entries:
            yield Sample("neorl_ledger_entries", (), float(len(entries)))
            yield Sample("neorl_ledger_verified", (), 1.0)
            yield Sample("neorl_ledger_verification_timestamp_seconds", (), self._verified_at)
            yield Sample("neorl_read_errors", ("", "ledger"), 0.0)

    def _plants(self, entries: Iterable[Entry]) -> set[str]:
        stores = (self._home.root / "datasets").glob("*/manifests")
        return {entry.plant for entry in entries if entry.plant} | {path.parent.name for path in stores}

    def _of_ledger(self, scene: Scene, name: str) -> Iterator[Sample]:
        """Return a part that is cached until the ledger grows."""
        key = (scene.plant, name)
        if key not in self._known:
            self._known[key] = list(self._part(scene.plant, name, partial(FROM_LEDGER[name], scene)))
        yield from self._known[key]

    def _part(self, plant: str, name: str, read: Callable[[], Iterable[Sample]]) -> Iterator[Sample]:
        """Yield a part completely or not at all, and whether it could be read."""
        try:
            found = list(read())
        # A fault of one plant must not hide the others.
        except Exception as error:
            self._tell(plant, name, error)
            yield Sample("neorl_read_errors", (plant, name), 1.0)
            return
        self._tell(plant, name, None)
        yield Sample("neorl_read_errors", (plant, name), 0.0)
        yield from found

    def _tell(self, plant: str, name: str, error: Exception | None) -> None:
        said = " ".join(f"{type(error).__name__}: {error}".split()) if error else ""
        if said and self._told.get((plant, name)) != said:
            self._say(f"not read: {name}{f' of {plant}' if plant else ''}: {said}")
        self._told[plant, name] = said


def note_backup(home: Home, made: datetime, entries: int) -> None:
    """Record the time of a backup beside the logs, which are not part of backups."""
    home.folder("logs")
    write_json(_backup_file(home), LastBackup(made=made, entries=entries).model_dump(mode="json"))


def _backup_file(home: Home) -> Path:
    return home.root / "logs" / "backup.json"


def _backup(home: Home) -> Iterator[Sample]:
    if (path := _backup_file(home)).exists():
        found = LastBackup.model_validate_json(path.read_bytes())
        yield Sample("neorl_backup_timestamp_seconds", (), found.made.timestamp())


def _services(answers: Mapping[str, bool]) -> Iterator[Sample]:
    for name, up in answers.items():
        yield Sample("neorl_service_up", (name,), float(up))
