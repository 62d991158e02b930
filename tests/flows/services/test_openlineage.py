"""OpenLineage events: start and end of every run, versions, parents, and a lost server."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest

from configs.errors import Refused
from flows.services.openlineage import FACETS, LineageEvents
from flows.services.state import Services
from tasks.references import Interval
from tests.small_data import MAPPING, PLANT

PROJECT = Path(__file__).parents[3]
CONFIG = f"""\
plant: {PLANT}
data: {{mapping: {MAPPING}}}
train: {{algorithm: td3_bc, updates: 20, seeds: 1, hyperparameters: {{critics: 2, hidden: [8]}}}}
evaluate: {{model_updates: 20, bootstraps: 20, rollouts: 8, discount: 0.95}}
fleet: lineage
sites: {{one: {{}}}}
"""
SITE = "lineage_one"
"""A plant of its own, because the first run of a plant drafts its policy."""
Event = dict[str, Any]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    """Run a lineage server that records path, token and body of each request."""
    found: list[Event] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.append({**event, "path": self.path, "token": self.headers["Authorization"]})
            self.send_response(201)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_address[1]}/")
        monkeypatch.setenv("OPENLINEAGE_API_KEY", "a token")
        yield found
        server.shutdown()


def check(event: Event) -> None:
    """Requirements of specification 2-0-2 for a RunEvent, its datasets and facets."""
    assert {"eventType", "eventTime", "producer", "schemaURL", "run", "job"} <= set(event)
    assert event["eventType"] in {"START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"}
    assert datetime.fromisoformat(event["eventTime"]).tzinfo
    assert UUID(event["run"]["runId"])
    datasets = [*event["inputs"], *event["outputs"]]
    for named in (event["job"], *datasets):
        assert named["namespace"]
        assert named["name"]
    facets = [each.get("facets", {}) for each in (event["run"], *datasets)]
    for name, facet in (item for each in facets for item in each.items()):
        assert facet["_schemaURL"].startswith(f"https://openlineage.io/spec/facets/{FACETS[name]}.json#/$defs/")
        assert urlsplit(facet["_producer"]).scheme


def test_events_have_versions_and_parents(told: list[Event]) -> None:
    run, said = str(uuid4()), list[str]()
    lineage, interval = LineageEvents("p", run, said.append), Interval(value=1.0, lower=0.0, upper=2.0)
    with lineage.flow([Path("/logs/a.parquet")]):
        lineage.stage("ingest", ["config", (Path("/logs/a.parquet"),)])(interval)
        lineage.stage("train", [interval])("expected a finite loss, got none")
    with pytest.raises(Refused), lineage.flow([]):
        raise Refused("expected logs, got none")
    for event in told:
        check(event)
        assert (event["path"], event["token"]) == ("/api/v1/lineage", "Bearer a token")
    begun, ingest, ingested, train, failed, ended, _, refused = told
    assert [each["eventType"] for each in told] == [
        *("START", "START", "COMPLETE", "START", "FAIL", "COMPLETE", "START", "FAIL")
    ]
    assert begun["run"]["runId"] == ended["run"]["runId"] == run
    assert ingest["run"]["runId"] == ingested["run"]["runId"] != train["run"]["runId"]
    assert ingest["run"]["facets"]["parent"]["run"]["runId"] == run
    assert ingest["job"]["name"] == "retrain.p.ingest"
    assert ingest["inputs"] == [{"namespace": "file", "name": "/logs/a.parquet", "facets": {}}] == begun["inputs"]
    # The output of one task is the input of the next, by name and version.
    assert ingested["outputs"] == train["inputs"] == ended["outputs"]
    (made,) = ingested["outputs"]
    assert made["name"] == "p/interval"
    assert len(made["facets"]["version"]["datasetVersion"]) == 64
    assert failed["run"]["facets"]["errorMessage"]["message"] == "expected a finite loss, got none"
    assert refused["run"]["facets"]["errorMessage"]["message"] == "expected logs, got none"
    assert said == []


def test_a_lost_server_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said, password = list[str](), "hidden"
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://user:{password}@127.0.0.1:9")
    lineage = LineageEvents("p", str(uuid4()), said.append)
    with lineage.flow([]):
        lineage.stage("ingest", [])("expected logs")
    assert len(said) == 1
    assert "OPENLINEAGE_URL" in said[0]
    assert password not in said[0]
    monkeypatch.delenv("OPENLINEAGE_URL")
    with LineageEvents("p", str(uuid4()), said.append).flow([]):
        pass
    assert len(said) == 1


@pytest.mark.slow
def test_a_retraining_sends_its_lineage(services: Services, told: list[Event], tmp_path: Path) -> None:
    from tasks.data.synthetic.reactor_history import generate

    log = generate(PLANT, tmp_path / "log", 0, 0.5)
    (tmp_path / "fleet.yaml").write_text(CONFIG)
    words = ["retrain", f"{tmp_path / 'fleet.yaml'}#one", "--data", str(log.path), "--json"]
    environment = {**os.environ, "NEORL_HOME": str(services.home.root)}
    done = subprocess.run(
        [sys.executable, "-m", "flows", *words],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    for event in told:
        check(event)
    begun = [event["run"]["runId"] for event in told if event["eventType"] == "START"]
    assert sorted(begun) == sorted(event["run"]["runId"] for event in told if event["eventType"] != "START")
    assert len(set(begun)) == len(begun) > 10
    ended = {event["job"]["name"]: event for event in told if event["eventType"] == "COMPLETE"}
    (dataset,) = ended[f"retrain.{SITE}.ingest"]["outputs"]
    manifest = services.home.root / "datasets" / SITE / "manifests"
    assert any(path.stem == dataset["facets"]["version"]["datasetVersion"] for path in manifest.iterdir())
    assert dataset in ended[f"retrain.{SITE}.train"]["inputs"]
    (population,) = ended[f"retrain.{SITE}.train"]["outputs"]
    assert population in ended[f"retrain.{SITE}.evaluate"]["inputs"]
    assert {"namespace": "file", "name": str(log.path), "facets": {}} in ended[f"retrain.{SITE}.ingest"]["inputs"]
