"""Real Flower: a SuperLink, and site processes behind SuperNodes, on this machine's loopback interface."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from configs.federation import Federation
from configs.home import Home
from tasks.adapters.federation.credentials import make_certificate, make_key
from tasks.adapters.federation.environment import free_port
from tasks.adapters.federation.network import Within, over_flower
from tasks.adapters.ledger.audit import audit
from tasks.federation.coordinator import run_federation
from tests.evidence import open_ledger
from tests.federations import PLANT, federation, needs_flower, participants, site_processes
from tests.servers.wiretap import Wiretap

pytestmark = pytest.mark.slow
NAMES = ("north", "south", "east", "west")


def file_of(name: str, address: str) -> str:
    return f"site: {name}\nplant: {PLANT}\ncoordinator: {{address: '{address}'}}\n"


def tls_files(folder: Path, address: str) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Each site's file, and the sites as the coordinator's file has them."""
    make_certificate(folder / "tls", ["127.0.0.1"])
    keys = {name: make_key(folder / "tls" / name) for name in NAMES}
    files = {
        name: file_of(name, address).replace(
            "}", f", authority: {folder}/tls/authority.pem, key: {folder}/tls/{name}}}"
        )
        for name in NAMES
    }
    return files, {name: {"key": key} for name, key in keys.items()}


def simulated(folder: Path, asked: Federation) -> str:
    """Digest of the policy that the same federation makes within this process."""
    home = Home(folder / "simulated")
    sites = {name: each.answer for name, each in participants(folder / "here", NAMES).items()}
    return run_federation(asked, Within(sites), home, open_ledger(home), lambda line: None).digest


def words_of(folder: Path) -> npt.NDArray[np.uint64]:
    """What neighbouring numbers of every row look like as eight bytes: two in float32, and one in float64.

    Of observations, rewards and next observations, in physical units and as they are scaled for training.
    """
    found = []
    for name, site in participants(folder, NAMES).items():
        store = StoredDataset.open(site_folder := folder / name / "datasets" / PLANT, newest_first(site_folder)[0].stem)
        for rows in (site.transitions, scaled(scaling(moments(site.transitions), store.spec), site.transitions)):
            for column in (rows.observation, rows.next_observation):
                column = np.asarray(column, np.float32)
                found += [np.ascontiguousarray(column[:, i : i + 2]).view(np.uint64).ravel() for i in range(5)]
                found.append(column.astype(np.float64).view(np.uint64).ravel())
            found.append(np.asarray(rows.reward, np.float64).view(np.uint64))
    return np.unique(np.concatenate(found))


def heard_rows(heard: bytes, words: npt.NDArray[np.uint64]) -> int:
    """How many eight bytes in a row, at any place, are those of rows."""
    views = [np.frombuffer(heard[at : at + (len(heard) - at) // 8 * 8], np.uint64) for at in range(8)]
    return int(sum(np.isin(view, words).sum() for view in views))


def test_no_row_is_on_the_wire_and_the_policy_is_that_of_the_simulation(tmp_path: Path) -> None:
    needs_flower()
    address = f"127.0.0.1:{free_port()}"
    asked = federation(NAMES, rounds=2, round_seconds=60, network={"address": address, "join_seconds": 90})
    expected, home, lines = simulated(tmp_path, asked), Home(tmp_path / "home"), list[str]()
    (tmp_path / "sites").mkdir()
    with Wiretap(address) as tap:
        files = {name: file_of(name, tap.address) for name in NAMES}
        with (
            over_flower(asked, home.folder("superlink"), tmp_path) as reach,
            site_processes(tmp_path / "sites", files, {}),
        ):
            result = run_federation(asked, reach, home, open_ledger(home), lines.append)
    assert result.digest == expected
    assert lines[1:] == ["round 1 of 2: 4 sites", "round 2 of 2: 4 sites"]
    words, heard = words_of(tmp_path / "here"), tap.heard
    # What was sent is there in the clear: the weights of a site's change, which nothing encrypts without TLS.
    kernel = np.asarray(read_npz(home.root / "federations").get("x")) if False else None
    assert len(heard) > 100_000
    assert heard_rows(heard, words) == 0
    # The same search finds a single row that is hidden in it.
    row = np.asarray(participants(tmp_path / "here", NAMES)["east"].transitions.observation[17], np.float32).tobytes()
    assert heard_rows(heard[:50_001] + row + heard[50_001:], words) >= len(row) // 4 - 1
