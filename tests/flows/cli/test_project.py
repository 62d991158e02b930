"""`neorl init` and `neorl check`: a new project is complete, and gaps are reported."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from configs.mapping import HistorianMapping
from configs.yaml_files import load_yaml
from flows.cli.main import run
from flows.preflight import checked_run
from flows.services.deployments import declared, deployed_data
from tasks.models.plants.known import plant_at
from tests import small_process

WRITTEN = {
    "plants/vessel.py",
    "configs/vessel.yaml",
    "configs/mappings/vessel.yaml",
    "prefect.yaml",
    "prefect.toml",
    ".gitignore",
}


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a project of a simulated plant and make it the working directory."""
    monkeypatch.chdir(tmp_path)
    assert run(["init", "vessel"]) == 0
    monkeypatch.chdir(tmp_path / "vessel")
    return tmp_path / "vessel"


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str], list[str]]:
    """Return (exit code, findings by name, names of missing items) of `neorl check`."""
    capsys.readouterr()
    code = run(["check", *words, "--json"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = {each["name"]: each["detail"] for each in told["findings"]}
    return code, found, [each["name"] for each in told["findings"] if not each["ok"]]


@pytest.mark.slow
def test_new_project_lacks_only_logs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()} == WRITTEN
    known = plant_at("plants/vessel.py")  # checks the plant's contract
    assert known.name == checked_run(Path("configs/vessel.yaml")).plant == "vessel"
    assert known.logged is not None
    mapping = load_yaml(Path("configs/mappings/vessel.yaml"), HistorianMapping)
    assert mapping.period_seconds == known.spec.dt
    assert len(mapping.conversions(known.spec)) == 4
    code, found, missing = checked(capsys)
    assert (code, missing) == (1, ["logs"])
    assert found["logs"].endswith("or run 'neorl generate plants/vessel.py'.")
    assert run(["generate", "plants/vessel.py", "--episodes", "40"]) == 0
    deployments = declared()
    assert deployments is not None
    assert deployments.names == ["vessel", "vessel"]  # retrain and monitor
    # The deployment reads the home inside the project, but the test's home is elsewhere.
    (log,) = deployed_data(Path("configs/vessel.yaml"))
    assert str(log) == ".neorl/generated/vessel/episodes.hdf5"
    (project / ".neorl").symlink_to(project.parents[0] / "home")
    code, found, missing = checked(capsys, "configs/vessel.yaml")
    assert (code, missing) == (0, []), found
    assert found["episodes"].startswith("4,000 rows in 40 episodes")


def test_template_plant_drains_by_torricelli(project: Path) -> None:
    spec = importlib.util.spec_from_file_location("vessel", project / "plants" / "vessel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # With a closed valve sqrt(h) falls by (a / A) sqrt(g / 2) t.
    found = module.advance(jnp.asarray(1.0), jnp.asarray(0.0), module.Params())
    wanted = (1.0 - 1e-3 / 0.1 * np.sqrt(9.81 / 2) * module.PERIOD) ** 2
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.slow
def test_log_only_project_asks_for_missing_information(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    log = small_process.export(tmp_path / "log.csv", 1500)
    assert run(["init", "mill", "--from", str(log)]) == 0
    monkeypatch.chdir(tmp_path / "mill")
    config, mapping = Path("configs/mill.yaml"), Path("configs/mappings/mill.yaml")
    read = load_yaml(mapping, HistorianMapping)
    acting = {name: tag.range for name, tag in read.tags.items() if tag.role == "action"}
    assert acting == {"LV-1": (0.0, 1.0)}
    assert deployed_data(config) == [log]
    code, found, missing = checked(capsys)
    assert (code, missing) == (1, ["reward"])
    # The requested line, as the file suggests it.
    wanted = found["reward"].partition("for example ")[2].removesuffix(".")
    text = mapping.read_text()
    line = next(line for line in text.splitlines() if line.startswith("reward:"))
    mapping.write_text(text.replace(line, wanted))
    code, found, missing = checked(capsys)
    assert (code, missing) == (0, []), found
    assert found["fallback"] == "a linear law cloned from the logged actions"

    given = config.read_text()
    config.write_text(given.replace("fallback: {kind: cloned", "# {kind: cloned"))
    assert "the run of log-only plant mill needs 'fallback'" in checked(capsys)[1]["fallback"]
    config.write_text(given + "train: {algorithm: td4}\n")
    assert any("unknown algorithm" in said for said in checked(capsys)[1].values())
    config.write_text(given + "train: {algorithm: bptt, updates: 9, hyperparameters: {warm_up_updates: 9}}\n")
    assert "but the warm-up alone needs 9 updates" in checked(capsys)[1]["training"]
    config.write_text(given + "train: {algorithm: td3_bc, grid: {alpha: [1, -2]}}\n")
    assert "alpha of td3_bc must be at least 0, got -2" in checked(capsys)[1]["training"]
    config.write_text(given + "tarin: {}\n")
    assert "unknown key" in checked(capsys)[1]["configuration"]
    config.write_text(given)
    other = tmp_path / "other.csv"
    other.write_text(log.read_text().replace("LV-1", "LV-2", 1))
    code, found, missing = checked(capsys, str(config), "--data", str(other))
    assert (code, missing) == (1, ["signals"])
    assert "LV-1" in found["signals"]
    short = tmp_path / "short.csv"
    short.write_text("\n".join(log.read_text().splitlines()[:12]) + "\n")
    assert checked(capsys, "--data", str(short))[2] == ["episodes"]


def test_nothing_is_overwritten_and_names_are_checked(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (project / "plants" / "vessel.py").read_bytes()
    for words, says in (
        (["vessel", "--out", "."], "plants/vessel.py exists already: name another folder by --out"),
        ([], "a name or a log is needed"),
        (["Boiler 1"], "a plant name may only have a to z, 0 to 9 and _, got 'Boiler 1': write 'boiler_1'"),
        (["double_mass"], "double_mass is the name of a simulated plant"),
        (["../x"], "write 'x'"),
    ):
        assert run(["init", *words]) == 2
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
    assert (project / "plants" / "vessel.py").read_bytes() == before
    (project / "configs" / "second.yaml").write_text("plant: double_mass\n")
    assert run(["check"]) == 2
    assert "(second.yaml, vessel.yaml): name one of them" in capsys.readouterr().err


def test_second_plant_gets_its_deployments(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (project / "prefect.yaml").read_text()
    log = small_process.export(project / "log.csv", 300)
    assert run(["init", "mill", "--from", str(log), "--out", "."]) == 0
    assert (project / "prefect.yaml").read_text().startswith(before)
    deployments = declared()
    assert deployments is not None
    # Retrain, monitor, and for a log-only plant shadow.
    assert deployments.names == ["vessel"] * 2 + ["mill"] * 3
    assert deployed_data(Path("configs/mill.yaml")) == [Path("log.csv")]
    assert deployed_data(Path("configs/vessel.yaml")) == [Path(".neorl/generated/vessel/episodes.hdf5")]
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "own",
    [
        "deployments: []\n",
        "deployments: [{name: other, entrypoint: flows.retrain.retrain}]\n",
        "name: works\ndeployments:\n- name: other\n  entrypoint: flows.retrain.retrain\npull: []\n",
        "name: works\ndeployments:\n- name: other\n  entrypoint: flows.retrain.retrain\n",
        "deployments:\n  - name: vessel\n    entrypoint: mine.py:flow\n",
        "- no mapping\n",
        "deployments: [\n",
    ],
)
def test_unsupported_prefect_yaml_is_left_unchanged(
    own: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prefect.yaml").write_text(own)
    assert run(["init", "vessel", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert (tmp_path / "prefect.yaml").read_text() == own
    assert f"add under 'deployments' in {tmp_path / 'prefect.yaml'}:\n  - name: vessel\n" in told
    assert f"wrote {tmp_path / 'prefect.yaml'}" not in told
    at = told.index("  - name: vessel")
    block = told[at : told.index("next: ")]
    (tmp_path / "prefect.yaml").write_text(f"deployments:\n{block}")
    deployments = declared(tmp_path)
    assert deployments is not None
    assert deployments.names == ["vessel", "vessel"]  # retrain and monitor
