"""Metrics for Prometheus: format, token, and time limits."""

from __future__ import annotations

import json
import shutil
import socket
import stat
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from configs.home import Home
from flows.cli.main import run
from flows.services import rest
from flows.services.metrics_server import Answers, HomeCollector
from flows.services.processes import HOST, ProcessId
from flows.services.state import Service, Services, metrics_token, write_services
from tasks.metrics.catalogue import METRICS
from tasks.metrics.homes import note_backup
from tests.evidence import furnished_home
from tests.flows.services.test_guard import FOREIGN, send

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    found = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, frozenset(s.labels.items())): s.value for s in found}


def scraped(home: Home) -> str:
    return generate_latest(HomeCollector(home)).decode()


def bearer(services: Services) -> dict[str, str]:
    return {"Authorization": f"Bearer {metrics_token(services.home)}"}


def test_metrics_have_names_types_and_help(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    furnished_home(home)
    assert run(["metrics"]) == 0
    text = capsys.readouterr().out
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, family in families.items():
        kind, labels, about = METRICS.get(name) or METRICS[f"{name}_total"]
        assert (family.type, family.documentation) == ("counter" if kind == "counter" else "gauge", about)
        assert all(set(sample.labels) == set(labels) for sample in family.samples)
    plant = frozenset({("plant", "chemical_reactor"), ("kind", "promotion")})
    assert samples(text)["neorl_decisions_total", plant] == 2
    assert run(["metrics", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["samples"]
    assert {(s["name"], frozenset(s["labels"].items())) for s in told} == samples(text).keys()
    tool = shutil.which("promtool")
    if tool is not None:
        done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_textfile_is_complete_and_readable(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "neorl.prom"
    assert run(["metrics", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"metrics in {out}\n"
    assert samples(out.read_text())["neorl_read_errors", frozenset({("plant", ""), ("part", "services")})] == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.glob("*.prom*")] == ["neorl.prom"]


def test_metrics_show_the_last_backup(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = furnished_home(home)
    key = ("neorl_backup_timestamp_seconds", frozenset[tuple[str, str]]())
    assert key not in samples(scraped(ledger.home))
    begun = time.time()
    assert run(["backup", str(tmp_path / "home.tar")]) == 0
    assert begun <= samples(scraped(ledger.home))[key] <= time.time()
    # A backup without a file of the ledger does not count.
    note_backup(ledger.home, datetime(2025, 11, 7, tzinfo=UTC), 1)
    (home / "datasets" / "chemical_reactor" / "shard.h5").unlink()
    assert run(["backup", str(tmp_path / "again.tar")]) == 1
    assert samples(scraped(ledger.home))[key] == datetime(2025, 11, 7, tzinfo=UTC).timestamp()


def test_a_silent_server_does_not_block_scrapes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.services.metrics_server.TIME_LIMIT", 0.2)
    with socket.create_server((HOST, 0)) as mute:
        monkeypatch.setenv("NEORL_PREFECT_URL", f"http://{HOST}:{mute.getsockname()[1]}")
        answers = Answers(Home(home))
        asked = [answers(), answers()]
        assert asked == [{"prefect": False}] * 2
        # The second scrape did not repeat the request.
        mute.settimeout(5)
        mute.accept()[0].close()
        mute.settimeout(0.2)
        with pytest.raises(TimeoutError):
            mute.accept()


def test_scrapes_run_one_at_a_time(home: Path) -> None:
    inside, most = [0], [0]
    hold = threading.Event()

    def slow() -> Mapping[str, bool]:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        hold.wait(0.1)
        inside[0] -= 1
        return {}

    collector = HomeCollector(Home(home), slow)
    threads = [threading.Thread(target=lambda: list(collector.collect())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_service_with_a_dead_process_is_down(home: Path) -> None:
    gone = Service("worker", process=ProcessId(2**22 - 1, 0.0), token="t")
    write_services(Home(home), {"worker": gone})
    text = scraped(Home(home))
    assert samples(text)["neorl_service_up", frozenset({("service", "worker")})] == 0


def test_the_token_opens_only_metrics(services: Services) -> None:
    assert services.metrics is not None
    url = f"{services.metrics.url}/metrics"
    login = {"Authorization": rest.basic(services.home.login.read_text().strip())}
    for headers in ({}, login, {"Authorization": "Bearer guess"}, {"Authorization": "Bearer"}):
        assert send(url, headers) == 401
    assert send(url, bearer(services)) == 200
    assert send(f"{services.metrics.url}/health", {}) == 200
    assert send(f"{services.prefect_api}/flow_runs/filter", bearer(services), {}) == 401
    assert send(f"{services.mlflow.url}/api/2.0/mlflow/experiments/search?max_results=1", bearer(services)) == 401
    assert stat.S_IMODE(services.home.metrics_token.stat().st_mode) == 0o600


@pytest.mark.parametrize("headers", FOREIGN)
def test_foreign_pages_and_names_are_refused_with_token(services: Services, headers: dict[str, str]) -> None:
    assert services.metrics is not None
    assert send(f"{services.metrics.url}/metrics", {**bearer(services), **headers}) == 403


def test_a_running_home_reports_services_up(services: Services) -> None:
    assert services.metrics is not None
    request = urllib.request.Request(f"{services.metrics.url}/metrics", headers=bearer(services))
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        found = samples(answer.read().decode())
    up = {dict(labels)["service"]: value for (name, labels), value in found.items() if name == "neorl_service_up"}
    assert up == dict.fromkeys(("prefect", "mlflow", "metrics", "worker"), 1)
    assert not any(value for (name, _), value in found.items() if name == "neorl_read_errors")
