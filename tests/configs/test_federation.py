"""The files of a federation: what does not go together is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.errors import BadInput
from configs.federation import Federation, Site, is_loopback
from configs.yaml_files import load_yaml
from tasks.files.canonical import write_json

SITES = {"north": {}, "south": {}, "east": {}}


def coordinator(tmp_path: Path, **changes: Any) -> Federation:
    path = write_json(tmp_path / "federation.yaml", {"plant": "chemical_reactor", "sites": SITES, **changes})
    return load_yaml(path, Federation)


def test_defaults_are_a_mean_of_local_updates_on_this_machine_alone(tmp_path: Path) -> None:
    found = coordinator(tmp_path)
    assert (found.method, found.aggregate.kind, found.secure_sums, found.privacy) == ("fedavg", "mean", False, None)
    assert is_loopback(found.network.address)
    assert not {"sites", "network", "aggregate"} & set(found.terms.model_dump())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"secure_sums": True, "aggregate": {"kind": "median"}}, "secure_sums hides single updates"),
        ({"secure_sums": True, "aggregate": {"largest": 3.0}}, "secure_sums hides single updates"),
        ({"secure_sums": True, "method": "fedora"}, "which method fedora cannot"),
        (
            {"secure_sums": True, "minimum_sites": 2, "sites": {**SITES, "west": {}}},
            "minimum_sites must exceed half of the 4 sites",
        ),
        (
            {"privacy": {"clip": 1.0, "noise": 5.0}, "aggregate": {"kind": "krum"}},
            "privacy cannot be proved for",
        ),
        ({"minimum_sites": 4}, "minimum_sites must be at most the 3 sites, got 4"),
        ({"minimum_sites": 3, "aggregate": {"kind": "krum", "hostile": 1}}, "needs minimum_sites above 4"),
        ({"network": {"address": "0.0.0.0:9092"}}, "address 0.0.0.0:9092 needs 'tls'"),
        ({"network": {"tls": "tls"}}, "add 'key' to east, north, south"),
        ({"sites": {"north": {}}}, "should have at least 2 items"),
        ({"network": {"address": "nowhere"}}, "must be a string that should match"),
        ({"round_second": 5}, "did you mean 'round_seconds'"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as error:
        coordinator(tmp_path, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        (
            {"address": "coordinator.example:9092"},
            "address coordinator.example:9092 is on another machine",
        ),
        ({"authority": "authority.pem"}, "'authority' is given without 'key'"),
    ],
)
def test_a_site_reaches_another_machine_by_tls_and_with_its_key(
    tmp_path: Path, there: dict[str, str], sentence: str
) -> None:
    path = write_json(tmp_path / "site.yaml", {"site": "north", "plant": "chemical_reactor", "coordinator": there})
    with pytest.raises(BadInput, match=sentence):
        load_yaml(path, Site)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("10.0.0.1:1", False), ("0.0.0.0:1", False)],
)
def test_what_is_of_this_machine_alone(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
