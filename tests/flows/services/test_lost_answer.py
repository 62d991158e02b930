"""A run keeps its result if the server's answer to its last message is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.services.state import Services, environment
from tasks.fleet.records import FleetOutcome
from tasks.references import Outcome
from tests.flows.cli.test_retrain_summary import OUTCOME

ROOT = Path(__file__).parents[3]
FLOW = """\
import sys
from pathlib import Path
from prefect import flow
from configs.home import Home
from configs.run import OpenedRun
from prefect.states import Completed
from flows.flow_run import conclude, result_of, refusals_as_states
from tasks.fleet.records import FleetOutcome
from tasks.references import Outcome

@flow(name="announced", persist_result=False)
@refusals_as_states
def announced():
    if sys.argv[3] == "fleet":
        return Completed(data=FleetOutcome.model_validate_json(sys.argv[2]))
    outcome = Outcome.model_validate_json(sys.argv[2])
    return conclude(Home(Path(sys.argv[1])), OpenedRun(plant="chemical_reactor"), outcome)

state = announced(return_state=True)
print(state.data is None)
print(result_of(state).model_dump_json())
"""
FLEET = FleetOutcome(fleet="tanks", run="r", headline="one of one", sites=(), outliers=(), page=Path("page.html"))


@contextmanager
def losing(url: str) -> Iterator[tuple[str, list[str]]]:
    """Run a proxy that forwards every request and drops the first answer to a completed flow run; yield address and
    paths."""
    lost: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept = {
                name: self.headers[name]
                for name in self.headers
                if name.lower() not in {"host", "connection", "accept-encoding"}
            }
            request = urllib.request.Request(url + self.path, body or None, kept, method=self.command)
            try:
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as found:
                    status, content = found.status, found.read()
            except urllib.error.HTTPError as error:
                with error:
                    status, content = error.code, error.read()
            last = self.path.endswith("/set_state") and json.loads(body)["state"]["type"] == "COMPLETED"
            if last and not lost:
                lost.append(self.path)
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", lost
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "came_to"), [("run", OUTCOME), ("fleet", FLEET)])
def test_results_survive_a_lost_answer(
    services: Services, tmp_path: Path, kind: str, came_to: Outcome | FleetOutcome
) -> None:
    script = tmp_path / "announced.py"
    script.write_text(FLOW)
    with losing(services.prefect.url) as (proxy, lost):
        path = urlsplit(environment(services)["PREFECT_API_URL"]).path
        known = {**os.environ, **environment(services), "PREFECT_API_URL": proxy + path, "PYTHONPATH": str(ROOT)}
        told = [sys.executable, str(script), str(services.home.root), came_to.model_dump_json(), kind]
        done = subprocess.run(told, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    missing, outcome = done.stdout.splitlines()
    assert len(lost) == 1
    assert missing == "True"
    assert json.loads(outcome) == json.loads(came_to.model_dump_json())
