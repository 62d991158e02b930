"""The watched folder: each complete file is announced once, despite kills and missing servers."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from configs.errors import ServiceMissing
from configs.home import Home
from flows.services import watched_folder
from flows.services.events import ARRIVED
from flows.services.watched_folder import FOLDER, arrivals, follow, incoming, scan
from tasks.files.canonical import read_json, sha256_hex, write_json
from tests.flows.services.waiting import wait_until

if TYPE_CHECKING:
    from flows.services.servers import Services

PLANT = "watched_tank"
"""A plant without deployments."""


@pytest.fixture
def folder(services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a plant's folder that the session's worker does not scan."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "incoming"))
    shutil.rmtree(services.home.root / "arrivals" / PLANT, ignore_errors=True)
    (tmp_path / "incoming" / PLANT).mkdir(parents=True)
    return tmp_path / "incoming" / PLANT


def put(path: Path, text: str) -> Path:
    """Write a file with a modification time one minute ago."""
    path.write_text(text)
    os.utime(path, (time.time() - 60,) * 2)
    return path


def events(services: Services) -> list[dict[str, Any]]:
    """Return Prefect's events of the plant, oldest first."""
    query = {"event": {"name": [ARRIVED]}, "resource": {"id": [f"neorl.plant.{PLANT}"]}}
    found: list[dict[str, Any]] = services.ask_prefect("events/filter", {"filter": {**query, "order": "ASC"}})["events"]
    return found


def test_an_unusable_file_does_not_block_others(services: Services, folder: Path) -> None:
    put(Path(os.fsdecode(bytes(folder / "uebersicht.csv").replace(b"ue", b"\xdc"))), f"t\n{time.time_ns()}\n")
    good = put(folder / "zulu.csv", f"t\n{time.time_ns()}\n")
    found = scan(services.home, scan(services.home, {}).states)
    assert [arrival.path for arrival in found.arrived] == [good]
    (why,) = found.failed
    assert why == f"file name '\\udcdcbersicht.csv' in {folder} is not UTF-8: rename the file."


@pytest.mark.slow  # Prefect shows an event after some seconds.
def test_complete_content_is_announced_once(services: Services, folder: Path) -> None:
    home, stamp = services.home, str(time.time_ns())
    first = put(folder / "january.csv", f"t,{stamp}\n1,2\n")
    put(folder / "february.csv.part", "half")
    put(folder / ".hidden", "x")
    states = scan(home, {}).states
    assert list(states) == [first]
    # The file grew between two scans, so the third decides.
    put(first, f"t,{stamp}\n1,2\n3,4\n")
    grown = scan(home, states)
    assert grown.arrived == ()
    (found,) = scan(home, grown.states).arrived
    assert (found.plant, found.path, found.size) == (PLANT, first, first.stat().st_size)
    # Another scan, a copy and a rewritten file are not announced.
    second = put(folder / "february.csv", f"t,{stamp}\n5,6\n")
    copy = put(folder / "copy.csv", first.read_text())
    put(first, first.read_text())
    states = scan(home, {}).states
    assert [arrival.path for arrival in scan(home, states).arrived] == [second]
    assert [arrival.path for arrival in scan(home, states).arrived] == []
    assert [arrival.size for arrival in arrivals(home, PLANT)] == [first.stat().st_size, second.stat().st_size]
    copy.unlink()
    wait_until(lambda: len([e for e in events(services) if stamp in Path(e["payload"]["file"]).read_text()]) == 2)
    told = [e for e in events(services) if stamp in Path(e["payload"]["file"]).read_text()]
    assert [e["payload"]["file"] for e in told] == [str(first), str(second)]
    # A run uses all files, the newest last.
    assert told[1]["payload"]["data"] == [str(first), str(second)]
    assert told[0]["payload"]["sha256"] == found.sha256


@pytest.mark.slow
def test_a_kill_between_event_and_record_announces_nothing_twice(services: Services, folder: Path) -> None:
    home, stamp = services.home, str(time.time_ns())
    path = put(folder / "march.csv", stamp)
    states = scan(home, {}).states
    (arrival,) = scan(home, states).arrived
    shutil.rmtree(home.root / "arrivals" / PLANT)  # state after a kill at this point
    (again,) = scan(home, states).arrived
    assert again.sha256 == arrival.sha256
    query = {"filter": {"any_resource": {"id": [f"neorl.plant.{PLANT}"]}, "event": {"name": [ARRIVED]}}}

    def told() -> list[str]:
        found = services.ask_prefect("events/filter", query)["events"]
        return [e["id"] for e in found if e["payload"]["file"] == str(path)]

    wait_until(lambda: told())
    time.sleep(6)  # Prefect writes events every five seconds
    assert len(told()) == 1


def test_files_are_announced_when_servers_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    home = Home(tmp_path / "home")
    assert scan(home, {}).states == {}
    (incoming(home) / PLANT).mkdir(parents=True)
    put(incoming(home) / PLANT / "april.csv", "x")
    put(incoming(home) / "not in a folder of a plant.csv", "x")
    states = scan(home, {}).states
    assert len(states) == 1
    with pytest.raises(ServiceMissing, match="neorl up"):
        scan(home, states)
    assert arrivals(home, PLANT) == ()


def test_a_misplaced_file_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "incoming"
    monkeypatch.setenv(FOLDER, str(folder))
    for name in ("Chemical-Reactor", ".trash", "empty folder"):
        (folder / name).mkdir(parents=True)
    for name in ("april.csv", "march.csv", "Chemical-Reactor/may.csv", ".trash/june.csv", "july.csv.part"):
        (folder / name).write_text("x")
    told, looks = list[str](), iter(range(3))
    # The loop is endless, so stop it after three scans.
    monkeypatch.setattr(time, "sleep", lambda _: next(looks))
    with pytest.raises(StopIteration):
        follow(Home(tmp_path / "home"), told.append)
    end = f"in {folder} is not in a plant's folder: move it, for example to {folder / 'chemical_reactor'}."
    assert told == [f"watched folder: 'Chemical-Reactor/may.csv' {end}; 'april.csv' {end}"]


def test_a_fresh_file_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    home = Home(tmp_path / "home")
    (tmp_path / PLANT).mkdir()
    (tmp_path / PLANT / "now.csv").write_text("x")
    # No server answers, so announcing the file would raise.
    assert scan(home, scan(home, {}).states, quiet=3600.0).arrived == ()


def test_records_are_read_once_per_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "incoming"))
    home, count, read = Home(tmp_path / "home"), 20, list[Path]()
    (tmp_path / "incoming" / PLANT).mkdir(parents=True)
    for i in range(count):
        path = put(tmp_path / "incoming" / PLANT / f"{i}.csv", str(i))
        stat, digest = path.stat(), sha256_hex(str(i).encode())
        came = {"plant": PLANT, "path": str(path), "sha256": digest, "at": f"2026-11-20T00:00:{i:02}.000000+00:00"}
        record = home.folder("arrivals", PLANT) / f"{i}.json"
        write_json(record, {**came, "size": stat.st_size, "modified_ns": stat.st_mtime_ns})

    def counted(path: Path) -> object:
        read.append(path)
        return read_json(path)

    monkeypatch.setattr(watched_folder, "read_json", counted)
    # No server answers, so announcing a file would raise.
    assert scan(home, scan(home, {}).states).arrived == ()
    assert len(read) == count


def test_a_file_with_a_future_time_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    home, ahead = Home(tmp_path / "home"), time.time() + 5 * 3600
    (tmp_path / PLANT).mkdir()
    path = tmp_path / PLANT / "ahead.csv"
    path.write_text("x")
    os.utime(path, (ahead, ahead))
    # No server answers, which only an announcement notices.
    with pytest.raises(ServiceMissing, match="neorl up"):
        scan(home, scan(home, {}).states, quiet=3600.0)


def test_an_inaccessible_folder_does_not_block_other_plants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    for plant in (PLANT, "other"):
        (tmp_path / plant).mkdir()
        (tmp_path / plant / "april.csv").write_text("x")
    listed = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path.name == "other":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    # Root can read every folder, so simulate the error.
    monkeypatch.setattr(Path, "iterdir", refused)
    found = scan(Home(tmp_path / "home"), {})
    assert list(found.states) == [tmp_path / PLANT / "april.csv"]
    assert found.failed == (
        f"cannot read folder {tmp_path / 'other'} (Permission denied): give this user read access.",
    )
