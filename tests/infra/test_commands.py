"""Start every command of the manifests on loopback until its health check succeeds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from flows.services import rest
from infra import make_secrets
from tests.infra.manifests import INFRA, ROOT, Program, checks, compose, probes, programs, started
from tests.servers import POSTGRESQL, Postgres, free_port, postgres, storage

SERVERS = ("redis", "prefect", "mlflow", "scheduler", "dask-worker", "worker")
"""Services that run until stopped, in the order of their dependencies."""
ONCE = ("volume", "bucket", "register")
"""Services that end by themselves."""
ELSEWHERE = {
    Program("image", ("neorl", "--help")): "the image alone",
    Program(
        "members",
        ("neorl", "members", "/var/lib/neorl/run.yaml", "--data", "/var/lib/neorl/logs.parquet", "--processes", "4"),
    ): "tests/tasks/training/test_shares.py",
}
"""Programs that another test starts, or that print help."""
HOSTS = re.compile(r"\b(?:prefect|mlflow|postgres|redis|storage|scheduler)(?=:\d{4}(?:/|$))", re.M)
PATIENCE = 400.0
DEPLOYMENTS = """\
deployments:
  - {name: chemical-reactor, entrypoint: flows.retrain.retrain, work_pool: {name: neorl}}
"""
"""One deployment only, because each takes a second; `test_deployments.py` registers all."""


def test_every_command_is_started_by_a_test() -> None:
    """Compose and Kubernetes run the same programs; foreign images run their defaults."""
    here = {Program(name, started(compose()[name])) for name in (*SERVERS, *ONCE)}
    assert programs() == here | set(ELSEWHERE)
    assert {name for name, service in compose().items() if not started(service)} == {"postgres", "storage"}


class Place(NamedTuple):
    """Addresses and folders of the manifests in a test."""

    folder: Path
    ports: Mapping[str, int]

    def here(self, text: str, service: str = "") -> str:
        """Replace addresses and folders in a text by this machine's."""
        text = HOSTS.sub("127.0.0.1", text).replace("0.0.0.0", "127.0.0.1")
        text = re.sub(r"^:(?=\d+$)", "127.0.0.1:", text)
        text = re.sub(r"(?<![\w.-])(\d{4})(?![\w.-])", lambda found: str(self.ports.get(found[1], found[1])), text)
        text = text.replace("/run/secrets", str(self.folder / "secrets"))
        if text == "/tmp":
            return str(self.folder / "tmp")
        own = service if "tmpfs" in compose().get(service, {}) and service in ("prefect", "mlflow") else "home"
        return text.replace("/var/lib/neorl", str(self.folder / "volumes" / own))

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment of a Compose service, without settings of the test's environment."""
        said = compose()[service]
        variables = {"NEORL_HOME": "/var/lib/neorl/home", **said.get("environment", {})}
        if "env_file" in said:
            lines = (INFRA / said["env_file"]).name
            held = (self.folder / "secrets" / lines).read_text().splitlines()
            variables |= dict(line.split("=", 1) for line in held)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("NEORL_", "PREFECT_", "AWS_"))
        }
        path = [str(Path(sys.executable).parent), str(POSTGRESQL[-1]), os.environ["PATH"]]
        ours = {"PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
        return kept | ours | {name: self.here(value, service) for name, value in variables.items()}

    @property
    def app(self) -> Path:
        """Working directory of the image, with the files that commands need."""
        return self.folder / "app"

    def words(self, service: str) -> list[str]:
        """Return a service's command."""
        return [self.here(word, service) for word in started(compose()[service])]

    def healthy(self, service: str) -> bool:
        """Return whether the health check succeeds."""
        test = [self.here(word) for word in compose()[service]["healthcheck"]["test"][1:]]
        done = subprocess.run(test, env=self.environment(service), cwd=self.app, capture_output=True, check=False)
        return done.returncode == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Run all services of the manifests, with local PostgreSQL and S3 servers instead of images."""
    if shutil.which("redis-server") is None:
        pytest.skip("Redis is not installed: make services")
    folder = tmp_path_factory.mktemp("team")
    make_secrets.main(folder / "secrets")
    for name in ("tmp", "logs", *(f"volumes/{each}" for each in ("home", "prefect", "mlflow"))):
        (folder / name).mkdir(parents=True)
    (folder / "app").mkdir()
    (folder / "app" / "infra").symlink_to(INFRA)
    (folder / "app" / "prefect.yaml").write_text(DEPLOYMENTS)
    with ExitStack() as stack:
        server = stack.enter_context(postgres(folder / "postgres"))
        there = stack.enter_context(storage(folder / "storage", "another"))
        ports = {str(port): free_port() for port in (4200, 5000, 6379, 8080, 8786, 8787, 8788)}
        ports |= {"5432": server.port, "7070": int(there["AWS_ENDPOINT_URL"].rpartition(":")[2])}
        found = Place(folder, ports)
        for path in (folder / "secrets").iterdir():
            path.chmod(0o644)
            path.write_text(found.here(path.read_text()) if path.suffix not in (".pem", ".sql") else path.read_text())
        make_databases(server, folder / "secrets" / "databases.sql")
        run_all(found, stack)
        yield found


def make_databases(server: Postgres, script: Path) -> None:
    """Run the script like the image's entry point."""
    words = [str(POSTGRESQL[-1] / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", server.url(), "-f", str(script)]
    subprocess.run(words, check=True)


def run_all(place: Place, stack: ExitStack) -> None:
    """Start every Compose service with a command, after its dependencies are ready."""
    waiting, ready, running = {*SERVERS, *ONCE}, {"postgres", "storage"}, dict[str, subprocess.Popen[bytes]]()
    deadline = time.monotonic() + PATIENCE
    while waiting or running.keys() - ready:
        for name in sorted(waiting):
            if set(compose()[name].get("depends_on", ())) <= ready:
                waiting.remove(name)
                running[name] = start(place, name, stack)
        for name in sorted(running.keys() - ready):
            code = running[name].poll()
            log = (place.folder / "logs" / name).read_text()
            assert code is None or (code == 0 and name in ONCE), f"{name} ended with {code}:\n{log[-3000:]}"
            assert time.monotonic() < deadline, f"{name} is not healthy:\n{log[-3000:]}"
            if code == 0 if name in ONCE else place.healthy(name):
                ready.add(name)
        # Each check is a process of its own, and the servers need the time.
        time.sleep(1.0)


def start(place: Place, name: str, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start one service."""
    log = stack.enter_context((place.folder / "logs" / name).open("wb"))
    process = subprocess.Popen(
        place.words(name), env=place.environment(name), cwd=place.app, stdout=log, stderr=log, start_new_session=True
    )

    def stop() -> None:
        process.terminate()
        process.wait(60)

    stack.callback(stop)
    return process


@pytest.mark.slow
def test_every_health_check_succeeds(place: Place) -> None:
    asked = {tuple(compose()[name]["healthcheck"]["test"][1:]) for name in (*SERVERS, "postgres")}
    assert checks() == asked | {("neorl", "status")}
    assert place.healthy("postgres")
    words = ["neorl", "status"]
    done = subprocess.run(
        words, env=place.environment("worker"), cwd=place.app, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Kubernetes probes the same pages, with a loopback name as Host.
    for probe in probes():
        if "httpGet" in probe:
            page = probe["httpGet"]
            headers = {each["name"]: each["value"] for each in page["httpHeaders"]}
            assert get(f"http://127.0.0.1:{place.ports[str(page['port'])]}{page['path']}", headers) == 200
        elif "tcpSocket" in probe:
            assert str(probe["tcpSocket"]["port"]) in place.ports


@pytest.mark.slow
def test_servers_check_host_names_and_logins(place: Place) -> None:
    login = (place.folder / "secrets" / "team.env").read_text().split("PREFECT_API_AUTH_STRING=")[1].split("\n")[0]
    pages = {
        "prefect": ("4200", "/api/admin/version"),
        "mlflow": ("5000", "/api/2.0/mlflow/experiments/search?max_results=1"),
    }
    for name, (port, page) in pages.items():
        url, known = f"http://127.0.0.1:{place.ports[port]}{page}", {"Authorization": rest.basic(login)}
        assert get(url, {"Host": f"{name}:{port}", **known}) == 200
        assert get(url, {"Host": f"another:{port}", **known}) == 403
        assert get(url, {"Host": f"{name}:{port}"}) == 401
        # Pages are served under loopback names only.
        assert get(url, {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}", **known}) == 403


def get(url: str, headers: Mapping[str, str]) -> int:
    """Return the status of a GET."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=dict(headers)), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.slow
def test_workers_are_online_and_deployments_registered(place: Place) -> None:
    variables = place.environment("worker")
    api, login = f"{variables['NEORL_PREFECT_URL']}/api", variables["PREFECT_API_AUTH_STRING"]
    known = rest.request(f"{api}/deployments/filter", {}, login=login)
    assert [each["name"] for each in known] == ["chemical-reactor"]
    workers = rest.request(f"{api}/work_pools/neorl/workers/filter", {}, login=login)
    assert [worker["status"] for worker in workers] == ["ONLINE"]
    told = rest.request(f"{api}/automations/filter", {}, login=login)
    assert "neorl: end runs of killed processes" in {each["name"] for each in told}


@pytest.mark.slow
def test_dask_requires_certificates(place: Place) -> None:
    script = "import sys; from distributed import Client; print(len(Client(sys.argv[1], timeout=5).nthreads()))"
    words = [sys.executable, "-c", script, place.here("tls://scheduler:8786")]
    variables = place.environment("worker")
    assert subprocess.run(words, env=variables, capture_output=True, text=True, check=True).stdout == "1\n"
    bare = {name: value for name, value in variables.items() if not name.startswith("DASK_")}
    refused = subprocess.run(words, env=bare, capture_output=True, text=True, check=False)
    assert refused.returncode != 0


@pytest.mark.slow
def test_each_program_reads_only_its_own_database(place: Place) -> None:
    variables = place.environment("mlflow")
    words = [str(POSTGRESQL[-1] / "psql"), "-qAt", "-c", "SELECT count(*) FROM experiments"]
    url = variables["NEORL_MLFLOW_DATABASE_URL"]
    assert subprocess.run([*words, "-d", url], capture_output=True, text=True, check=True).stdout.strip() != "0"
    other = subprocess.run(
        [*words[:-1], "SELECT count(*) FROM flow_run", "-d", url.rpartition("/")[0] + "/prefect"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "permission denied" in other.stderr
    assert get(f"{variables['AWS_ENDPOINT_URL']}/neorl", {}) in (200, 403)
    assert get(f"{variables['AWS_ENDPOINT_URL']}/absent", {}) == 404
