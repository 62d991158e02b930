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
        name: file_of(name, address).replace("}", f", authority: {folder}/tls/authority.pem, key: {folder}/tls/{name}}}")
        for name in NAMES
    }
    return files, {name: {"key": key} for name, key in keys.items()}


def simulated(folder: Path, asked: Federation) -> str:
    """Digest of the policy that the same federation makes within this process."""
    home = Home(folder / "simulated")
    sites = {name: each.answer for name, each in participants(folder / "here", NAMES).items()}
    return run_federation(asked, Within(sites), home, open_ledger(home), lambda line: None).digest


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
    print(lines)
    assert result.digest == expected
    print(len(tap.heard))
