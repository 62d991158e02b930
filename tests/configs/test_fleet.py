"""A fleet's YAML: what sites have in common and what one says for itself; a site is named as FILE#SITE."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import BadInput
from configs.fleet import Fleet, SiteRun
from configs.load import is_fleet, load_fleet, load_run, load_runs, site_logs
from configs.run import DEFAULT_BESIDE, RunFile

TEXT = """\
fleet: tanks
plant: double_mass
logs: ["logs/{site}.hdf5"]
train: {algorithm: bc, updates: 10, hyperparameters: {hidden: [8], alpha: 1}}
approval: required
sites:
  east:
  west:
    seed: 3
    train: {updates: 20, hyperparameters: {alpha: 2}}
    approvers: {count: 2, roles: [safety engineer]}
    logs: [a.hdf5, b.hdf5]
  north: {plant: chemical_reactor, constants: {cooling_rate: 2}, limits: {reactor temperature: [null, null]}}
"""


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(text)
    return path


def test_a_site_goes_before_what_all_have_in_common_key_by_key(tmp_path: Path) -> None:
    path = write(tmp_path)
    east, west = load_run(f"{path}#east"), load_run(f"{path}#west")
    assert (east.train.updates, east.train.hyperparameters) == (10, {"hidden": [8], "alpha": 1})
    assert (west.train.updates, west.train.hyperparameters) == (20, {"hidden": [8], "alpha": 2})
    assert (east.seed, west.seed, west.train.algorithm) == (0, 3, "bc")
    assert (east.approvers, west.approvers and west.approvers.roles) == (None, ["safety engineer"])
    assert [run.site and run.site.name for run in load_runs(path)] == ["tanks_east", "tanks_west", "tanks_north"]
    # A deployment's retraining waits for another of its site, and so does a fleet's.
    assert {run.concurrency for run in load_runs(path)} == {"wait"}


def test_a_site_that_says_nothing_of_learners_has_those_of_a_run(tmp_path: Path) -> None:
    # Merging what was said, rather than models, leaves a run's defaults to the run.
    untold = "fleet: a\nplant: double_mass\ntrain: {batch_size: 64}\nsites: {b: }\n"
    run = load_run(f"{write(tmp_path, untold)}#b")
    assert (run.train.batch_size, run.train.beside) == (64, list(DEFAULT_BESIDE))
    one = "fleet: a\nplant: double_mass\ntrain: {algorithm: bc}\nsites: {b: {train: {batch_size: 64}}}\n"
    assert load_run(f"{write(tmp_path, one)}#b").train.beside == []


def test_logs_are_beside_the_fleets_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert site_logs(path, "east") == (str(tmp_path / "logs" / "east.hdf5"),)
    assert site_logs(path, "west") == (str(tmp_path / "a.hdf5"), str(tmp_path / "b.hdf5"))
    assert site_logs(write(tmp_path, f"fleet: a\nplant: double_mass\nlogs: [{'0f' * 32}]\nsites: {{b: }}\n"), "b") == (
        "0f" * 32,
    )


def test_a_site_has_the_keys_of_a_run() -> None:
    hidden = {"concurrency"}
    own = {"logs", "constants", "limits"}
    assert set(SiteRun.model_fields) == (set(RunFile.model_fields) - hidden) | own
    assert set(Fleet.model_fields) - set(SiteRun.model_fields) == {"fleet", "at_once", "shared", "sites"}


def test_a_run_is_no_fleet(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("plant: double_mass\n")
    assert (is_fleet(run), is_fleet(write(tmp_path))) == (False, True)
    assert [each.plant for each in load_runs(run)] == ["double_mass"]


@pytest.mark.parametrize(
    "text",
    [
        "site: {name: a_b}",
        "shared: {updates: 10}",
        "source: {spec: x}",
        "train: {start: 0f0f}",
        "train: {source: {module: a, attribute: b, digest: c}}",
        "train: {beside: [{algorithm: bc, start: 0f0f}]}",
    ],
)
def test_keys_set_by_the_program_are_unknown_in_files(tmp_path: Path, text: str) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(f"plant: double_mass\n{text}\n")
    with pytest.raises(BadInput, match=r"unknown key '(site|shared|source|start)'"):
        load_run(run)
    if not text.startswith(("site", "shared")):
        with pytest.raises(BadInput, match=r"unknown key '(source|start)'"):
            load_fleet(write(tmp_path, f"fleet: a\nplant: double_mass\n{text}\nsites: {{b: }}\n"))


def test_the_fleet_of_a_shared_policy_is_unknown_in_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown key 'fleet' under 'shared'"):
        load_fleet(write(tmp_path, "fleet: a\nplant: double_mass\nshared: {fleet: b}\nsites: {c: }\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fleet: a\nsites: {b: {}}\n", "site 'b' has no plant"),
        ("fleet: a\nplant: double_mass\nsites: {}\n", "'sites'"),
        (
            "fleet: chemical\nplant: double_mass\nsites: {reactor: }\n",
            "'chemical_reactor' is the name of a",
        ),
        ("fleet: a\nplant: double_mass\nsites: {b: {trian: {}}}\n", "did you mean 'train'?"),
        ("fleet: a\nplant: double_mass\nsites: {B: }\n", "line 3"),
        ("fleet: a\nplant: double_mass\nsites: {b: {constants: {k: high}}}\n", "number"),
        ("fleet: a\nplant: double_mass\nsites: {b: {limits: {x: [1]}}}\n", "at least 2 items"),
        (
            "fleet: a\nplant: double_mass\nsites: {b: {data: {mapping: nowhere.yaml}}}\n",
            "which does not exist",
        ),
        ("fleet: a\nplant: double_mass\napproval: auto\nsites: {b: {approvers: {count: 1}}}\n", "fleet.yaml#b: "),
        ("plant: double_mass\n", "the key 'fleet' is missing"),
    ],
)
def test_every_error_names_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_fleet(write(tmp_path, text))
    assert words in str(caught.value)


def test_a_site_that_is_none_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean 'north'"):
        load_run(f"{write(tmp_path)}#nort")
