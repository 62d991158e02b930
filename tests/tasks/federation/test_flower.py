"""Federations over Flower: a SuperLink, and site processes with SuperNodes, on the loopback interface."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from configs.federation import Federation
from configs.home import Home
from neorl_core.training.preparation import make_scaling, moments, scale_rows
from tasks.evidence.audit.audit import audit
from tasks.evidence.federations import RoundBody, rounds_of
from tasks.evidence.ledger.ledger import Ledger
from tasks.federation.coordinator import run_federation
from tasks.federation.transport.credentials import make_certificate, make_key
from tasks.federation.transport.network import InProcess, flower_transport
from tasks.files.canonical import write_json
from tests.evidence import open_ledger
from tests.servers import free_port
from tests.servers.wiretap import Wiretap
from tests.tasks.federation.sites import PLANT, ROOT, federation, needs_flower, participants, site_processes, until

pytestmark = pytest.mark.slow
NAMES = ("north", "south", "east", "west")
Words = npt.NDArray[np.uint64]


def file_of(name: str, address: str, more: str = "") -> str:
    return f"site: {name}\nplant: {PLANT}\ncoordinator: {{address: '{address}'{more}}}\n"


def known_sites(folder: Path, address: str) -> tuple[dict[str, str], dict[str, object]]:
    """Return each site's file and the sites of the coordinator's file, with TLS."""
    make_certificate(folder / "tls", ["127.0.0.1"])
    keys = {name: make_key(folder / "tls" / name) for name in NAMES}
    tls = folder / "tls"
    files = {name: file_of(name, address, f", authority: {tls}/authority.pem, key: {tls}/{name}") for name in NAMES}
    return files, {name: {"key": key} for name, key in keys.items()}


def simulated(folder: Path, config: Federation) -> str:
    """Return the digest of the policy from the same federation in this process."""
    home = Home(folder / "simulated")
    sites = {name: each.answer for name, each in participants(folder / "here", NAMES).items()}
    return run_federation(config, InProcess(sites), home, open_ledger(home), lambda line: None).digest


def rounds(home: Home) -> list[RoundBody]:
    entries = Ledger.open(home, write=False).entries()
    return rounds_of(entries, next(e.digest for e in entries if e.kind == "federation"))


def words_of(folder: Path) -> Words:
    """Return eight-byte patterns of the rows: pairs of float32 or single float64 values.

    Covers raw and scaled observations, and rewards.
    """
    patterns = []
    for site in participants(folder, NAMES).values():
        for rows in (
            site.transitions,
            scale_rows(make_scaling(moments(site.transitions), site.spec), site.transitions),
        ):
            seen = np.asarray(rows.observation, np.float32)
            patterns += [
                np.ascontiguousarray(seen[:, i : i + 2]).view(np.uint64).ravel() for i in range(seen.shape[1] - 1)
            ]
            patterns += [
                column.astype(np.float64).view(np.uint64).ravel() for column in (seen, np.asarray(rows.reward))
            ]
    return np.unique(np.concatenate(patterns))


def heard_rows(heard: bytes, words: Words) -> int:
    """Count patterns of rows at any byte offset."""
    views = [np.frombuffer(heard[at : at + (len(heard) - at) // 8 * 8], np.uint64) for at in range(8)]
    return int(sum(np.isin(view, words).sum() for view in views))


def test_no_row_is_on_the_wire_and_policy_equals_simulation(tmp_path: Path) -> None:
    needs_flower()
    address = f"127.0.0.1:{free_port()}"
    config = federation(NAMES, rounds=2, round_seconds=240, network={"address": address, "join_seconds": 240})
    expected, home, lines = simulated(tmp_path, config), Home(tmp_path / "home"), list[str]()
    with Wiretap(address) as tap:
        # Without TLS, so that the traffic can be read.
        files = {name: file_of(name, tap.address) for name in NAMES}
        with flower_transport(config, home.folder("superlink"), tmp_path) as transport, site_processes(tmp_path, files):
            result = run_federation(config, transport, home, open_ledger(home), lines.append)
    assert result.digest == expected
    assert lines[1:] == ["round 1 of 2: 4 sites", "round 2 of 2: 4 sites"]
    words, heard = words_of(tmp_path / "here"), tap.heard
    assert heard.count(b"offer/") >= 2 * len(NAMES)
    assert heard_rows(heard, words) == 0
    # The same search finds an inserted row at an odd offset in either precision.
    row = participants(tmp_path / "here", NAMES)["east"].transitions.observation[17]
    for precision in (np.float32, np.float64):
        hidden = np.asarray(row, precision).tobytes()
        assert heard_rows(heard[:50_001] + hidden + heard[50_001:], words) >= 3


def test_killed_lying_and_late_sites_are_recorded(tmp_path: Path) -> None:
    needs_flower()
    # Long enough for well-behaved sites on a busy machine.
    address, seconds = f"127.0.0.1:{free_port()}", 30
    files, sites = known_sites(tmp_path, address)
    config = federation(
        NAMES,
        rounds=3,
        round_seconds=seconds,
        aggregate={"kind": "median", "largest": 50.0},
        sites=sites,
        network={"address": address, "tls": str(tmp_path / "tls"), "join_seconds": 240},
    )
    # Compile the programs first, so that no other site is late.
    simulated(tmp_path, config)
    strange = {"east": f"late=1:{seconds + 1}", "south": "lies=2", "west": "dies=3"}
    home, lines = Home(tmp_path / "home"), list[str]()
    with (
        flower_transport(config, home.folder("superlink"), tmp_path) as transport,
        site_processes(tmp_path, files, strange) as run,
    ):
        result = run_federation(config, transport, home, open_ledger(home), lines.append)
        assert run["west"].wait(10) == -signal.SIGKILL
    bodies = rounds(home)
    assert [(one.number, one.completed) for one in bodies] == [(1, True), (2, True), (3, True)]
    missing = {(one.number, left.site): left for one in bodies for left in one.left_out}
    # A late site may still be busy at the start of the next round.
    missing.pop((2, "east"), None)
    assert {key: left.why for key, left in missing.items()} == {
        (1, "east"): "late",
        (2, "south"): "refused",
        (3, "west"): "late",
    }
    assert "of the change exceeds" in missing[2, "south"].detail
    assert sorted(one.site for one in bodies[2].participants) == ["east", "north", "south"]
    # Norms and distances are recorded, and each round starts from the weights of the previous one.
    assert all(one.norm and one.distance for body in bodies for one in body.participants)
    assert [one.before for one in bodies[1:]] == [one.after for one in bodies[:-1]]
    assert result.policy.is_file()
    assert any("west did not receive the policy" in line for line in lines)
    checks = [check for check in audit(home).checks if check.passed is False]
    assert not checks


def test_killed_coordinator_resumes_and_unknown_site_is_rejected(tmp_path: Path) -> None:
    needs_flower()
    address = f"127.0.0.1:{free_port()}"
    files, sites = known_sites(tmp_path, address)
    make_key(tmp_path / "tls" / "stranger")
    more = f", authority: {tmp_path}/tls/authority.pem, key: {tmp_path}/tls/stranger"
    network = {"address": address, "tls": "tls", "join_seconds": 240}
    config = federation(NAMES, rounds=2, round_seconds=240, sites=sites, network=network)
    expected, home = simulated(tmp_path, config), Home(tmp_path / "home")
    write_json(tmp_path / "federation.yaml", config.model_dump(mode="json"))
    command = [sys.executable, "-m", "flows", "federate", "run", str(tmp_path / "federation.yaml"), "--json"]
    environment = {**os.environ, "NEORL_HOME": str(home.root)}
    with site_processes(tmp_path, {**files, "stranger": file_of("north", address, more)}):
        with open(tmp_path / "coordinator.log", "wb") as log:
            first = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            until(tmp_path / "coordinator.log", "round 1 of 2: 4 sites")
        finally:
            first.kill()
            first.wait()
        second = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert second.returncode == 0, second.stderr
    assert "resumes" in second.stderr
    assert "round 1 of 2" not in second.stderr
    assert f'"digest":"{expected}"' in second.stdout
    assert [one.number for one in rounds(home)] == [1, 2]
    assert "not connected" in (tmp_path / "stranger.log").read_text()
    assert "sent the moments" not in (tmp_path / "stranger.log").read_text()
