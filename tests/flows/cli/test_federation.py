"""`neorl federate` without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli.main import run
from tasks.federation.transport.flower_process import PYTHON
from tasks.files.canonical import write_json
from tests.evidence import signer_at
from tests.tasks.federation.sites import PLANT, federation, store_of

NAMES = ("north", "south")


def files(folder: Path) -> tuple[Path, list[Path]]:
    """Write the YAML of the coordinator and of two sites with datasets in one home."""
    asked = write_json(folder / "federation.yaml", federation(NAMES, rounds=2).model_dump(mode="json"))
    sites = []
    for seed, name in enumerate(NAMES):
        digest = store_of(folder / "home", seed).digest
        sites.append(write_json(folder / f"{name}.yaml", {"site": name, "plant": PLANT, "dataset": digest[:12]}))
    return asked, sites


@pytest.mark.parametrize("words", [["run"], ["join"], ["simulate"], ["show"], ["key"], ["certificate"]])
def test_every_command_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["federate", *words, "--help"]) == 0
    assert f"neorl federate {words[0]}" in capsys.readouterr().out.split("Example:")[1]


def test_a_simulation_is_recorded_and_shown(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from configs.home import Home

    Home(home).folder("datasets")
    asked, sites = files(tmp_path)
    with signer_at(Home(home)):
        assert run(["federate", "simulate", str(asked), *map(str, sites), "--json"]) == 0
        said = capsys.readouterr()
        # Sites write their lines in any order.
        assert {line.partition(":")[0] for line in said.err.splitlines() if "actor_loss" in line} == set(NAMES)
        result = json.loads(said.out.splitlines()[-1])
        assert (result["rounds"], result["epsilon"]) == (2, None)
        assert Path(result["policy"]).is_file()
        assert run(["federate", "show", PLANT]) == 0
    shown = capsys.readouterr().out
    assert f"{result['entry'][:12]} {PLANT}: fedavg of bc, mean" in shown
    assert "north, south" in shown
    assert run(["federate", "show", "power_grid"]) == 0
    assert capsys.readouterr().out == "the ledger has no federation of power_grid\n"
    assert run(["federate", "simulate", str(asked), str(sites[0])]) == 2
    assert "needs sites north, south, got north: name a file per site" in capsys.readouterr().err


def test_certificate_and_key_are_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["federate", "certificate", str(tmp_path / "tls"), "--host", "coordinator.example"]) == 0
    assert "authority.pem to every site" in capsys.readouterr().out
    assert run(["federate", "certificate", str(tmp_path / "tls"), "--host", "coordinator.example"]) == 2
    assert run(["federate", "key", str(tmp_path / "north"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert run(["federate", "key", str(tmp_path / "north"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made


def test_missing_flower_is_reported_with_a_cure(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from configs.home import Home

    Home(home).folder("datasets")
    asked, sites = files(tmp_path)
    monkeypatch.setenv(PYTHON, str(tmp_path / "nothing" / "python"))
    for words in (["run", str(asked)], ["join", str(sites[0])]):
        assert run(["federate", *words]) == 3
        assert "run 'make federation'" in capsys.readouterr().err


def test_missing_dataset_is_reported_with_a_cure(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = write_json(tmp_path / "north.yaml", {"site": "north", "plant": PLANT})
    assert run(["federate", "join", str(site)]) == 2
    assert "run 'neorl ingest' first" in capsys.readouterr().err
