"""The watched folder: each complete new file in `incoming/PLANT/` becomes a Prefect event, which starts runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from configs.errors import BadInput, NeoRLError
from configs.home import Home
from configs.strict import NAME
from flows.services.events import ARRIVED, Event, announce
from flows.services.servers import connect
from tasks.files.canonical import FileState, digest_json, file_sha256, file_state, read_json, write_json
from tasks.references import Reference

FOLDER = "NEORL_INCOMING"
"""Environment variable that names a folder other than the home's `incoming`."""
EVERY = 15.0
"""Seconds between scans."""
QUIET = 5.0
"""A file is complete if nothing was written for this many seconds."""
UNFINISHED = re.compile(r"^[.~]|\.(part|partial|filepart|crdownload|tmp)$", re.IGNORECASE)


class Arrival(Reference):
    """A file that arrived for a plant."""

    plant: str
    path: Path
    sha256: str
    size: int
    modified_ns: int
    at: str


class Scan(NamedTuple):
    """Result of one scan of the folder."""

    states: Mapping[Path, FileState]
    """State of every file, for comparison by the next scan."""
    arrived: tuple[Arrival, ...]
    failed: tuple[str, ...] = ()
    """One message per file or folder that cannot be used."""


def incoming(home: Home) -> Path:
    """Return the watched folder, with one subfolder per plant: the home's `incoming`, or NEORL_INCOMING."""
    named = os.environ.get(FOLDER)
    return Path(named).expanduser().resolve() if named else home.root / "incoming"


def arrivals(home: Home, plant: str) -> tuple[Arrival, ...]:
    """Return the files that arrived for a plant and still exist, in order of arrival, without duplicates."""
    return _present(_records(home, plant).values())


def _present(records: Collection[Arrival]) -> tuple[Arrival, ...]:
    newest = {arrival.path: arrival for arrival in sorted(records, key=lambda a: a.modified_ns)}
    first: dict[str, Arrival] = {}
    for arrival in sorted(newest.values(), key=lambda a: a.at):
        if arrival.path.is_file():
            first.setdefault(arrival.sha256, arrival)
    return tuple(first.values())


def scan(home: Home, before: Mapping[Path, FileState], quiet: float = QUIET) -> Scan:
    """Scan the folder once, and announce new files. Files with equal content are announced once per plant.

    A file is complete if it has not changed since the previous scan and nothing was written for `quiet` seconds. The
    event is emitted before the arrival is recorded. If the process is killed in between, the next scan finds the
    event in Prefect and does not emit it again.

    Raises:
        ServiceMissing: if a server does not answer; a later scan announces the files.
        OSError: if Prefect rejects an event.
    """
    states, arrived, now = dict[Path, FileState](), list[Arrival](), time.time()
    files, failed = _files(incoming(home))
    # Read a plant's records only once, because there may be thousands.
    known, seen = dict[str, dict[Path, Arrival]](), set[tuple[Path, int, int]]()
    for plant, path in files:
        try:
            state, modified = file_state(path), path.stat()
        except OSError:
            continue  # removed in the meantime, or in an inaccessible folder
        states[path] = state
        if before.get(path) != state or 0 <= now - modified.st_mtime < quiet:
            continue
        if plant not in known:
            known[plant] = _records(home, plant)
            seen |= {(a.path, a.size, a.modified_ns) for a in known[plant].values()}
        if (path, modified.st_size, modified.st_mtime_ns) in seen:
            continue
        if (problem := _unreadable(path)) is not None:
            failed.append(problem)
            continue
        if (arrival := _announce(home, plant, path, state, known[plant].values())) is None:
            continue
        if all(a.sha256 != arrival.sha256 for a in known[plant].values()):
            arrived.append(arrival)
        known[plant][_record(home, arrival)] = arrival
    return Scan(states, tuple(arrived), tuple(failed))


def follow(home: Home, say: Callable[[str], None], every: float = EVERY) -> None:
    """Scan the folder until the process ends. A problem is reported once, and every scan tries the files again."""
    states: Mapping[Path, FileState] = {}
    reported = ""
    while True:
        try:
            found = scan(home, states)
            states, problem = found.states, "; ".join(found.failed)
            for arrival in found.arrived:
                say(arrival_line(arrival))
        # Continue after any error, because the thread is not restarted while the worker lives.
        except Exception as error:
            problem = str(error) if isinstance(error, (NeoRLError, OSError)) else f"{type(error).__name__}: {error}"
        if problem and problem != reported:
            say(f"watched folder: {problem}")
        reported = problem
        time.sleep(every)


def arrival_line(arrival: Arrival) -> str:
    """Return the log line about an arrival."""
    return f"{arrival.path.name} arrived for {arrival.plant}: {arrival.size:,} bytes, SHA-256 {arrival.sha256[:12]}"


def _unreadable(path: Path) -> str | None:
    """Return a message if a file cannot be read or its name is not UTF-8, else None."""
    try:
        str(path).encode()
        with path.open("rb"):
            return None
    except UnicodeEncodeError:
        return f"file name {path.name!a} in {path.parent} is not UTF-8: rename the file."
    except OSError as error:
        return f"cannot read {path} ({error.strerror}): give this user read access."


def _announce(home: Home, plant: str, path: Path, state: FileState, records: Collection[Arrival]) -> Arrival | None:
    """Announce a file with new content, and record the arrival. Return None if the file changed during the reading."""
    # Connect first: while no server answers, a large file would be read at every scan.
    services = connect(home)
    sha256, stat = file_sha256(path), path.stat()
    if file_state(path) != state:
        return None
    # A second copy of a file keeps the arrival time of the first copy.
    known = next((a for a in records if a.sha256 == sha256), None)
    arrival = Arrival(
        plant=plant,
        path=path,
        sha256=sha256,
        size=stat.st_size,
        modified_ns=stat.st_mtime_ns,
        at=known.at if known else datetime.now(UTC).isoformat(timespec="microseconds"),
    )
    if known is None:
        older = [str(earlier.path) for earlier in _present(records) if earlier.path != path]
        payload = {"file": str(path), "sha256": sha256, "data": [*older, str(path)]}
        announce(services, Event(ARRIVED, plant, sha256, payload))
    write_json(_record(home, arrival), arrival.model_dump(mode="json"))
    return arrival


def _record(home: Home, arrival: Arrival) -> Path:
    """Return the record file of an arrival."""
    name = f"{arrival.sha256[:32]}-{digest_json(str(arrival.path))[:8]}.json"
    return home.folder("arrivals", arrival.plant) / name


def _files(folder: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """Return the pairs (plant, file), oldest file first, and messages about unusable files and folders.

    Temporary files of copy programs are left out. If a folder has several misplaced files, the message names the first
    file only, so that the message does not change with each further file.
    """
    found, failed, misplaced = list[tuple[int, str, Path]](), list[str](), dict[Path, Path]()
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if UNFINISHED.search(place.name):
            continue
        is_plant_folder = place.is_dir() and re.fullmatch(NAME, place.name) is not None
        try:
            for path in sorted(place.iterdir()) if place.is_dir() else [place]:
                if UNFINISHED.search(path.name) or not path.is_file():
                    continue
                if is_plant_folder:
                    found.append((path.stat().st_mtime_ns, place.name, path))
                else:
                    misplaced.setdefault(path.parent, path)
        except FileNotFoundError:
            continue  # removed in the meantime; the next scan sees the other files
        except OSError as error:
            # Other inaccessible folders belong to the system, such as lost+found.
            if is_plant_folder:
                failed.append(f"cannot read folder {place} ({error.strerror}): give this user read access.")
    failed += [
        f"{str(path.relative_to(folder))!r} in {folder} is not in a plant's folder: move it, for example to "
        f"{folder / 'chemical_reactor'}."
        for path in misplaced.values()
    ]
    return [(plant, path) for _, plant, path in sorted(found)], failed


def _records(home: Home, plant: str) -> dict[Path, Arrival]:
    """Return a plant's arrival records by file. Damaged records are left out, so their files are announced again."""
    found = {}
    for path in sorted((home.root / "arrivals" / plant).glob("*.json")):
        try:
            found[path] = Arrival.model_validate(read_json(path))
        except (BadInput, ValidationError):
            continue
    return found
