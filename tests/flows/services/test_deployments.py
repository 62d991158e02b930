"""Registration of prefect.yaml on a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.errors import BadInput
from flows.services.deployments import PROJECT, declared, deployed_data, due
from flows.services.servers import up
from flows.services.state import Services
from tests.flows.services.waiting import forget_deployments, pause_schedules, register, wait_until

FLOW = """\
import os, pathlib
from prefect import flow


@flow
def retrain(config: str = "", data: list[str] | None = None) -> dict:
    pathlib.Path("ran.txt").write_text(config + " " + os.environ["NEORL_HOME"])
    return {"config": config}
"""
OTHERS = """\
from prefect import flow


def nothing() -> None: ...


monitor, promote, rollback, report, backfill = (
    flow(nothing, name=name) for name in ("monitor", "promote", "rollback", "report", "backfill")
)
"""
"""Replaces the other flows of prefect.yaml."""
MANY = """\
deployments:
  - name: weekly
    entrypoint: flows/retrain.py:retrain
    description: Once a week.
    schedules: [{cron: "0 3 * * 1", timezone: Europe/Berlin}]
    concurrency_limit: {limit: 2, collision_strategy: CANCEL_NEW}
    work_pool: {name: neorl}
  - name: often
    entrypoint: flows/retrain.py:retrain
    parameters: {config: other.yaml}
    schedules:
      - interval: 600
      - rrule: FREQ=DAILY;BYHOUR=4
        active: false
  - name: bare
    entrypoint: flows/retrain.py:retrain
"""


@pytest.fixture(scope="module")
def borrowed(services: Services) -> Iterator[Services]:
    """Use the session's server; restore its deployments after the test."""
    yield services
    own = declared(PROJECT)
    assert own is not None
    for found in services.ask_prefect("deployments/filter", {"limit": 200}):
        if found["name"] not in own.names:
            services.ask_prefect(f"deployments/{found['id']}", method="DELETE")
    forget_deployments(services)


@pytest.fixture
def project(borrowed: Services, tmp_path: Path) -> Path:
    """Create a project with a small flow."""
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "retrain.py").write_text(FLOW)
    for module in ("monitor", "promote", "period_report", "backfill"):
        (tmp_path / "flows" / f"{module}.py").write_text(OTHERS)
    for name in ("prefect.yaml", "prefect.toml"):
        shutil.copy(PROJECT / name, tmp_path / name)
    (tmp_path / ".neorl").symlink_to(borrowed.home.root)
    return tmp_path


@pytest.mark.slow
def test_all_kinds_of_schedules_are_registered(services: Services, project: Path) -> None:
    (project / "prefect.yaml").write_text(MANY)
    assert register(services, project)
    weekly, often, bare = (
        services.ask_prefect(f"deployments/name/retrain/{name}") for name in ("weekly", "often", "bare")
    )
    assert weekly["description"] == "Once a week."
    assert weekly["schedules"][0]["schedule"] == {"cron": "0 3 * * 1", "timezone": "Europe/Berlin", "day_or": True}
    assert weekly["global_concurrency_limit"]["limit"] == 2
    assert weekly["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    kinds = {("interval" if "interval" in s["schedule"] else "rrule"): s["active"] for s in often["schedules"]}
    assert kinds == {"interval": True, "rrule": False}
    assert often["parameters"] == {"config": "other.yaml"}
    assert (bare["schedules"], bare["global_concurrency_limit"], bare["work_pool_name"]) == ([], None, "neorl")
    # Prefect derives it from the flow's signature.
    assert list(bare["parameter_openapi_schema"]["properties"]) == ["config", "data"]
    assert bare["enforce_parameter_schema"] is True
    assert bare["pull_steps"] == [
        {"prefect.deployments.steps.set_working_directory": {"directory": str(project.resolve())}}
    ]


@pytest.mark.slow
def test_registration_repeats_only_after_changes(services: Services, project: Path) -> None:
    (project / "prefect.yaml").write_text("deployments: [{name: once, entrypoint: flows/retrain.py:retrain}]")
    assert register(services, project)
    first = services.ask_prefect("deployments/name/retrain/once")
    assert not register(services, project)
    (project / "flows" / "retrain.py").write_text(FLOW.replace("data: list[str] | None = None", "rows: int = 1"))
    assert register(services, project)
    second = services.ask_prefect("deployments/name/retrain/once")
    assert second["id"] == first["id"]
    assert "rows" in second["parameter_openapi_schema"]["properties"]


@pytest.mark.slow
def test_a_rejection_by_prefect_is_one_sentence(services: Services, project: Path) -> None:
    (project / "prefect.yaml").write_text(
        "deployments: [{name: bad, entrypoint: flows/retrain.py:retrain, schedules: [{cron: sometimes}]}]"
    )
    with pytest.raises(BadInput, match=r"Prefect rejected the deployments of .*prefect\.yaml \('") as told:
        register(services, project)
    assert "\n" not in str(told.value)
    # Nothing is recorded, so the next call tries again.
    assert due(services, project)


@pytest.mark.parametrize(
    "text",
    [
        "deployments: 5",
        "- name: x",
        "deployments: [5]",
        "deployments: [{entrypoint: flows/retrain.py:retrain}]",
        "deployments: [{name: x}]",
        "deployments: [{name: [x], entrypoint: flows/retrain.py:retrain}]",
        "deployments: [{name: x, entrypoint: flows/retrain.py:retrain, work_pool: neorl}]",
        "deployments: [{name: x, entrypoint: flows/retrain.py:retrain, parameters: [a]}]",
        "",
    ],
)
def test_a_malformed_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "prefect.yaml").write_text(text)
    with pytest.raises(BadInput, match=r"'deployments' in .*prefect\.yaml must be a list") as told:
        declared(tmp_path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("data", ["logs.csv", "[5]", "{a: b}"])
def test_data_of_a_deployment_must_be_a_list(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = "{{name: {}, entrypoint: flows/retrain.py:retrain, parameters: {{config: {}.yaml, data: {}}}}}"
    entries = ", ".join([entry.format("own", "own", 5), entry.format("x", "x", data), entry.format("y", "y", "[a, b]")])
    (tmp_path / "prefect.yaml").write_text(f"deployments: [{entries}]")
    with pytest.raises(BadInput, match=r"'data' of deployment x in .*prefect\.yaml must be a list of paths, got"):
        deployed_data(Path("x.yaml"))
    assert deployed_data(Path("y.yaml")) == [Path("a"), Path("b")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deployments: [{name: x", "line 1 is not valid YAML"),
        ("deployments: &all [*all]", r"alias \*all before its anchor"),
        (
            "a: &a [1, 1]\n" + "".join(f"{b}: &{b} [{f'*{a}, ' * 50}]\n" for a, b in ("ab", "bc", "cd")),
            "more than 50000 values, with the values of aliases",
        ),
        (f"deployments: {'[' * 30}{']' * 30}", "nested more than 20 levels deep"),
        pytest.param(f"deployments: [{'{}, ' * 60_000}]", "more than 50000 values", marks=pytest.mark.slow),
    ],
    ids=["open", "alias of itself", "aliases of aliases", "deep", "many"],
)
def test_limits_of_yaml_files_apply(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "prefect.yaml").write_text(text)
    with pytest.raises(BadInput, match=rf"prefect\.yaml.*{said}") as told:
        declared(tmp_path)
    assert "\n" not in str(told.value)


def test_shared_settings_by_anchors(tmp_path: Path) -> None:
    """Prefect's own form, with `definitions`; deployments of two flows may share a name."""
    (tmp_path / "prefect.yaml").write_text(
        "definitions:\n  both: &both {work_pool: {name: pool}}\n"
        "deployments:\n  - {<<: *both, name: x, entrypoint: a.py:b}\n  - {<<: *both, name: x, entrypoint: a.py:c}\n"
    )
    found = declared(tmp_path)
    assert found is not None
    assert (found.names, found.pools) == (["x", "x"], ["pool"])


def test_nothing_to_register_without_deployments(services: Services, tmp_path: Path) -> None:
    assert declared(tmp_path) is None
    assert due(services, tmp_path) is None
    (tmp_path / "prefect.yaml").write_text("name: empty\ndeployments: []\n")
    assert due(services, tmp_path) is None


def test_a_schedule_creates_runs(deployed: Services) -> None:
    services, found = deployed, deployed.ask_prefect("deployments/name/retrain/chemical-reactor")
    assert found["work_pool_name"] == "neorl"
    assert found["global_concurrency_limit"]["limit"] == 1
    assert found["schedules"][0]["schedule"]["timezone"] == "UTC"
    runs = {"deployments": {"id": {"any_": [found["id"]]}}}
    services.ask_prefect(f"deployments/{found['id']}/resume_deployment", {})
    try:
        # Fails with SQLAlchemy 2.1, with which Prefect 3.8's scheduler cannot insert runs.
        wait_until(lambda: len(services.ask_prefect("flow_runs/filter", runs)) >= 3)
    finally:
        pause_schedules(services)


def test_a_paused_schedule_stays_paused(deployed: Services) -> None:
    services, found = deployed, deployed.ask_prefect("deployments/name/retrain/chemical-reactor")
    services.ask_prefect(f"deployments/{found['id']}/pause_deployment", {})
    up(services.home)
    assert services.ask_prefect(f"deployments/{found['id']}")["paused"] is True


@pytest.mark.slow
def test_prefect_deployment_run_works_in_the_project(services: Services, project: Path) -> None:
    """The command in design.md, on a small flow of the same name."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "NEORL_"))}
    assert register(services, project)
    command = [sys.executable, "-m", "prefect", "deployment", "run", "retrain/chemical-reactor"]
    done = subprocess.run(command, cwd=project, env=clean, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until((project / "ran.txt").exists, 200)
    wait_until((project / "ran.txt").read_text, 200)
    assert (project / "ran.txt").read_text() == f"configs/chemical_reactor.yaml {services.home.root}"
