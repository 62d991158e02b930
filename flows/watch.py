"""The watched folder: a file that comes to `incoming/PLANT/` and stays as it is becomes an event, which starts runs."""

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
"""Variable that names another folder than the home's `incoming`."""
EVERY = 15.0
"""Seconds between two looks."""
QUIET = 5.0
"""Seconds for which nothing has written to a file that is taken."""
UNFINISHED = re.compile(r"^[.~]|\.(part|partial|filepart|crdownload|tmp)$", re.IGNORECASE)
"""Names of files that a program is still writing."""


class Arrival(Reference):
    """A file that came for a plant; it stays where it is."""

    plant: str
    path: Path
    sha256: str
    size: int
    modified_ns: int
    at: str
    """When it was taken."""


class Look(NamedTuple):
    """What a look into the folder saw."""

    states: Mapping[Path, FileState]
    """Every file as it was, for the next look to compare with."""
    arrived: tuple[Arrival, ...]
    """Those that were announced."""
    failed: tuple[str, ...] = ()
    """Why files cannot be taken, each in a sentence."""


def incoming(home: Home) -> Path:
    """The watched folder: `incoming` of the home, or what NEORL_INCOMING names; it has a folder for each plant."""
    named = os.environ.get(FOLDER)
    return Path(named).expanduser().resolve() if named else home.root / "incoming"


def arrivals(home: Home, plant: str) -> tuple[Arrival, ...]:
    """The files that came for a plant and are still there, in the order in which they came, each content once."""
    return _present(_records(home, plant).values())


def _present(records: Collection[Arrival]) -> tuple[Arrival, ...]:
    newest = {arrival.path: arrival for arrival in sorted(records, key=lambda a: a.modified_ns)}
    first: dict[str, Arrival] = {}
    for arrival in sorted(newest.values(), key=lambda a: a.at):
        if arrival.path.is_file():
            first.setdefault(arrival.sha256, arrival)
    return tuple(first.values())


def look(home: Home, before: Mapping[Path, FileState], quiet: float = QUIET) -> Look:
    """Look into the folder once, and announce what came; the same content is announced to a plant once.

    A file is taken when it is as it was at the look before and nothing has written to it for a while. It is announced
    before that is written down, so that a kill between the two loses nothing: Prefect knows the event by its id.

    Args:
        home: whose folder and records.
        before: the files as the look before saw them.
        quiet: seconds for which nothing may have written to a file.

    Raises:
        ServiceMissing: when a server does not answer; what came is announced at a later look.
        OSError: when Prefect refuses.
    """
    states, arrived, now = dict[Path, FileState](), list[Arrival](), time.time()
    files, failed = _files(incoming(home))
    # Read once for each plant, for it may have thousands of old files.
    known, seen = dict[str, dict[Path, Arrival]](), set[tuple[Path, int, int]]()
    for plant, path in files:
        try:
            state, modified = file_state(path), path.stat()
        except OSError:
            continue  # taken away meanwhile, or in a folder that may not be entered
        states[path] = state
        if before.get(path) != state or 0 <= now - modified.st_mtime < quiet:
            continue
        if plant not in known:
            known[plant] = _records(home, plant)
            seen |= {(a.path, a.size, a.modified_ns) for a in known[plant].values()}
        if (path, modified.st_size, modified.st_mtime_ns) in seen:
            continue
        if (why := _unfit(path)) is not None:
            failed.append(why)
            continue
        if (arrival := _taken(home, plant, path, state, known[plant].values())) is None:
            continue
        if all(a.sha256 != arrival.sha256 for a in known[plant].values()):
            arrived.append(arrival)
        known[plant][_record(home, arrival)] = arrival
    return Look(states, tuple(arrived), tuple(failed))


def follow(home: Home, say: Callable[[str], None], every: float = EVERY) -> None:
    """Look again and again, for as long as the process lives; what goes wrong is said once, and tried again.

    Args:
        home: whose folder.
        say: told, in words, what came and what went wrong.
        every: seconds between two looks.
    """
    states: Mapping[Path, FileState] = {}
    said = ""
    while True:
        try:
            found = look(home, states)
            states, told = found.states, "; ".join(found.failed)
            for arrival in found.arrived:
                say(in_words(arrival))
        # Whatever it is, the thread goes on: nobody starts it again while its worker lives.
        except Exception as error:
            told = str(error) if isinstance(error, (NeoRLError, OSError)) else f"{type(error).__name__}: {error}"
        if told and told != said:
            say(f"watched folder: {told}")
        said = told
        time.sleep(every)


def in_words(arrival: Arrival) -> str:
    """A line for a log."""
    return f"{arrival.path.name} has come for {arrival.plant}: {arrival.size:,} bytes, SHA-256 {arrival.sha256[:12]}"


def _unfit(path: Path) -> str | None:
    """Why a file cannot be taken: the others are, and it is as soon as its cause is mended."""
    try:
        str(path).encode()
        with path.open("rb"):
            return None
    except UnicodeEncodeError:
        return f"expected a file name in UTF-8 in {path.parent}, got {path.name!a}: rename the file."
    except OSError as error:
        return f"expected to be able to read {path}, got '{error.strerror}': let this user read it."


def _taken(home: Home, plant: str, path: Path, state: FileState, records: Collection[Arrival]) -> Arrival | None:
    """Announce a file whose content is new, and write down that it came; None where it changed while it was read."""
    # Before a large file is read, for while no server answers it would be read again and again.
    services = connect(home)
    sha256, stat = file_sha256(path), path.stat()
    if file_state(path) != state:
        return None
    # What comes once more has come when it came first.
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
    """Where it is written down that a file with this content came."""
    name = f"{arrival.sha256[:32]}-{digest_json(str(arrival.path))[:8]}.json"
    return home.folder("arrivals", arrival.plant) / name


def _files(folder: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """(plant, file) of the folder, the oldest first, without what has no name of a plant or is unfinished.

    Besides, a sentence for each plant's folder that may not be looked into, and for each place without a plant's name
    that has files: it names the first of them, so that another one is no other sentence.
    """
    found, failed, misplaced = list[tuple[int, str, Path]](), list[str](), dict[Path, Path]()
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if UNFINISHED.search(place.name):
            continue
        is_plants = place.is_dir() and re.fullmatch(NAME, place.name) is not None
        try:
            for path in sorted(place.iterdir()) if place.is_dir() else [place]:
                if UNFINISHED.search(path.name) or not path.is_file():
                    continue
                if is_plants:
                    found.append((path.stat().st_mtime_ns, place.name, path))
                else:
                    misplaced.setdefault(path.parent, path)
        except FileNotFoundError:
            continue  # taken away meanwhile: the next look sees the others
        except OSError as error:
            # What is closed and no plant's, such as lost+found, is the system's own.
            if is_plants:
                failed.append(f"expected to be allowed to look into {place}, got '{error.strerror}': make it readable.")
    failed += [
        f"expected files in folders with plants' names, such as {folder / 'chemical_reactor'}, got "
        f"{str(path.relative_to(folder))!r}: move it into its plant's folder."
        for path in misplaced.values()
    ]
    return [(plant, path) for _, plant, path in sorted(found)], failed


def _records(home: Home, plant: str) -> dict[Path, Arrival]:
    """What was written down of a plant; a damaged record costs no more than that its file is announced again."""
    found = {}
    for path in sorted((home.root / "arrivals" / plant).glob("*.json")):
        try:
            found[path] = Arrival.model_validate(read_json(path))
        except (BadInput, ValidationError):
            continue
    return found
