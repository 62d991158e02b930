"""A retraining on a team's servers: PostgreSQL, Redis, S3 storage and Dask, by settings alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from configs.home import Home
from flows.services.processes import spawn, stop
from flows.services.servers import connect, down, environment, up
from tasks.evidence.archive.export import export
from tasks.evidence.archive.verify import verify_archive
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.stored import objects_of
from tasks.maintenance.backup_file import backup
from tests.flows.services.waiting import wait_until
from tests.flows.test_retrain import CONFIG, PLANT, PROJECT
from tests.servers import Postgres, dask, postgres, redis, storage

pytestmark = pytest.mark.slow
BUCKET = "plant"
DASK_WORKERS = 4
Inputs = Callable[[str], tuple[Path, Path]]


class Team(NamedTuple):
    """A home with its state on a team's servers."""

    home: Home
    server: Postgres
    variables: dict[str, str]

    def neorl(self, *arguments: str, **extra: str) -> dict[str, Any]:
        """Run a command in its own process and return its JSON."""
        words = [sys.executable, "-m", "flows", *arguments, "--json"]
        done = subprocess.run(
            words, cwd=PROJECT, env={**os.environ, **extra}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """Prefect, MLflow and the ledger on PostgreSQL, messages on Redis, artefacts and datasets in a bucket."""
    folder = tmp_path_factory.mktemp("team")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        server = stack.enter_context(postgres(folder / "postgres"))
        variables = {
            f"NEORL_{name}_URL": server.create(name.lower())
            for name in ("LEDGER", "PREFECT_DATABASE", "MLFLOW_DATABASE")
        }
        variables["NEORL_REDIS_URL"] = stack.enter_context(redis(folder / "redis")).url
        variables |= stack.enter_context(storage(folder / "storage", BUCKET))
        variables["NEORL_ARTIFACTS_URL"] = f"s3://{BUCKET}/mlflow"
        variables["NEORL_DATASETS_URL"] = f"s3://{BUCKET}/datasets"
        variables["NEORL_DASK_SCHEDULER"] = stack.enter_context(dask(folder / "dask", DASK_WORKERS))
        home = Home(folder / "home")
        variables["NEORL_HOME"] = str(home.root)
        for name, value in variables.items():
            patch.setenv(name, value)
        stack.callback(down, home)
        up(home)
        yield Team(home, server, variables)


@pytest.fixture(scope="module")
def inputs(team: Team, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Return (config, log) of a small run."""
    folder = tmp_path_factory.mktemp("inputs")
    team.neorl("generate", PLANT, "--out", str(folder), "--weeks", "0.5")

    def write(approval: str) -> tuple[Path, Path]:
        path = folder / f"{approval}.yaml"
        mapping = PROJECT / "configs" / "mappings" / f"{PLANT}.yaml"
        path.write_text(CONFIG.format(seed=0, approval=approval, mapping=mapping))
        return path, folder / "historian.parquet"

    return write


@pytest.fixture(scope="module")
def first(team: Team, inputs: Inputs) -> dict[str, Any]:
    config, log = inputs("auto")
    return team.neorl("retrain", str(config), "--data", str(log))


def test_results_equal_those_of_one_machine(team: Team, first: dict[str, Any], inputs: Inputs, tmp_path: Path) -> None:
    """The same digests, counts and verdicts as with SQLite, local folders and one process."""
    names = [*(name for name in team.variables if name.startswith("NEORL_"))]
    config, log = inputs("auto")
    alone = Home(tmp_path / "home")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.delenv(name)
        patch.setenv("NEORL_HOME", str(alone.root))
        try:
            up(alone)
            other = team.neorl("retrain", str(config), "--data", str(log))
        finally:
            down(alone)
    assert other["dataset"] == first["dataset"]
    assert other["champion"]["composite"] == first["champion"]["composite"]
    told = [[(gate["name"], gate["passed"]) for gate in result["gates"]] for result in (first, other)]
    assert told[0] == told[1]


def test_all_state_is_on_the_teams_servers(team: Team, first: dict[str, Any]) -> None:
    assert not team.home.ledger.exists()
    assert not list((team.home.root / "mlflow").glob("*.db"))
    assert not list((team.home.root / "prefect").glob("*.db"))
    assert (
        not any((team.home.root / "mlflow" / "artifacts").rglob("*"))
        if (team.home.root / "mlflow" / "artifacts").exists()
        else True
    )
    assert not list((team.home.root / "datasets").rglob("shards/*.h5"))
    shards = {path.name for path, _, _ in objects_of(team.home.root / "datasets" / PLANT / "shards")}
    (entry,) = Ledger.open(team.home).entries("candidate", PLANT)[:1]
    assert {Path(file.path).name for file in entry.artefacts if file.name == "dataset shard"} == shards != set()
    assert int(team.server.run("ledger", "SELECT count(*) FROM ledger")) == len(Ledger.open(team.home).entries())
    assert int(team.server.run("mlflow_database", "SELECT count(*) FROM model_versions")) >= 1
    assert team.server.run("prefect_database", f"SELECT state_type FROM flow_run WHERE id = '{first['run']}'") == (
        "COMPLETED\n"
    )


def test_the_audit_verifies_files_in_the_bucket(team: Team, first: dict[str, Any]) -> None:
    report = audit(team.home)
    assert report.passed, report.failures
    assert team.neorl("audit", "verify")["passed"]


def test_backups_skip_and_archives_include_the_bucket(team: Team, first: dict[str, Any], tmp_path: Path) -> None:
    done = backup(team.home, tmp_path / "backup.tar", lambda done, total, unit: None)
    assert not done.damaged
    assert f"the bucket of datasets' shards at {BUCKET} (NEORL_DATASETS_URL): back it up there" in done.left_out
    exported = export(team.home, tmp_path / "archive.tar")
    assert exported.left_out == 0
    assert all(check.passed is not False for check in verify_archive(exported.path, [], None))


def test_two_workers_share_the_runs(team: Team, first: dict[str, Any], inputs: Inputs) -> None:
    """Start a second worker of the pool, like on another machine."""
    services = connect(team.home)
    variables = {**os.environ, **environment(services)}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "neorl", "--type", "process"]
    command += ["--name", "second", "--limit", "1"]
    second = spawn(command, variables, team.home.root / "second-worker.log", PROJECT)
    try:
        config, data = inputs("auto")
        words = [sys.executable, "-m", "prefect", "deployment", "run", "retrain/chemical-reactor"]
        words += ["--param", f"config={json.dumps(str(config))}", "--param", f"data={json.dumps([str(data)])}"]
        done = subprocess.run(
            [*words, "--watch"], cwd=PROJECT, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

        def online() -> set[str]:
            found = services.ask_prefect("work_pools/neorl/workers/filter", {})
            return {worker["name"] for worker in found if worker["status"] == "ONLINE"}

        wait_until(lambda: "second" in online())
        assert len(online()) == 2
    finally:
        stop([second])


def test_no_secret_is_in_logs_or_process_lists(team: Team, first: dict[str, Any]) -> None:
    import psutil

    secrets = [team.server.password, team.variables["AWS_SECRET_ACCESS_KEY"]]
    secrets.append(team.variables["NEORL_REDIS_URL"].split(":")[2].split("@")[0])
    for path in team.home.folder("logs").rglob("*"):
        if path.is_file():
            assert not [secret for secret in secrets if secret in path.read_text(errors="replace")], path
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        assert not [secret for secret in secrets if secret in words], process.info["cmdline"][:3]
