"""Automations on a real Prefect server: installed once, end silent runs, and notify people."""

from __future__ import annotations

import http.server
import json
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from flows.services import automations
from flows.services.automations import install, notification_block, wanted
from flows.services.events import DRIFTED, Event, announce
from flows.services.state import Services
from tests.flows.services.waiting import wait_until

LOST, UNBEGUN, TOLD = (each.name for each in wanted("any"))


@pytest.fixture
def borrowed(services: Services) -> Iterator[Services]:
    """Use the session's server, and restore its automations after the test."""
    yield services
    for block in services.ask_prefect("block_documents/filter", {"block_documents": {"name": {"any_": ["neorl"]}}}):
        services.ask_prefect(f"block_documents/{block['id']}", method="DELETE")
    install(services, None)


def known(services: Services, name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = services.ask_prefect(
        "automations/filter", {"automations": {"name": {"any_": [name]}}}
    )
    return found


def test_up_installs_once_and_keeps_disabled_automations(borrowed: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = known(borrowed, LOST)
    assert found["enabled"]
    assert known(borrowed, TOLD) == []  # without a notification block
    assert install(borrowed, notification_block(borrowed)) == []
    borrowed.ask_prefect(f"automations/{found['id']}", {"enabled": False}, method="PATCH")
    assert install(borrowed, None) == []
    # A new definition replaces the old one, which stays disabled.
    monkeypatch.setattr(automations, "SILENCE", 600)
    assert install(borrowed, None) == [LOST]
    (changed,) = known(borrowed, LOST)
    assert (changed["id"], changed["enabled"]) == (found["id"], False)
    assert "600 seconds" in str(changed["description"])
    monkeypatch.undo()
    borrowed.ask_prefect(f"automations/{found['id']}", {"enabled": True}, method="PATCH")
    assert install(borrowed, None) == [LOST]


@pytest.mark.slow
def test_a_silent_run_is_ended(borrowed: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a short period; the automation is otherwise the shipped one."""
    monkeypatch.setattr(automations, "SILENCE", 10)
    assert install(borrowed, None) == [LOST]
    flow = borrowed.ask_prefect("flows/", {"name": "silent"})["id"]
    silent, ended = (
        borrowed.ask_prefect("flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING"}})["id"] for _ in range(2)
    )
    borrowed.ask_prefect(f"flow_runs/{ended}/set_state", {"state": {"type": "COMPLETED", "name": "Completed"}})
    for run in (silent, ended):
        beat = {
            "id": str(uuid.uuid4()),
            "event": "prefect.flow-run.heartbeat",
            "occurred": datetime.now(UTC).isoformat(),
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.name": "silent"},
        }
        borrowed.ask_prefect("events", [beat])

    def state(run: str) -> str:
        return str(borrowed.ask_prefect(f"flow_runs/{run}")["state_type"])

    wait_until(lambda: state(silent) == "CRASHED", 200)
    assert "no heartbeat for" in borrowed.ask_prefect(f"flow_runs/{silent}")["state"]["message"]
    # Ended runs keep their state.
    assert state(ended) == "COMPLETED"


@pytest.mark.slow
def test_a_run_without_worker_is_rescheduled(borrowed: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, for a run without a deployment, which no worker takes."""
    monkeypatch.setattr(automations, "UNBEGUN", 10)
    assert install(borrowed, None) == [UNBEGUN]
    flow = borrowed.ask_prefect("flows/", {"name": "taken"})["id"]

    def state(run: str) -> str:
        return str(borrowed.ask_prefect(f"flow_runs/{run}")["state_type"])

    def enter(run: str, name: str) -> None:
        state = {"type": name, "name": name.capitalize()}
        borrowed.ask_prefect(f"flow_runs/{run}/set_state", {"state": state, "force": True})

    def made(name: str) -> str:
        run = str(borrowed.ask_prefect("flow_runs/", {"flow_id": flow})["id"])
        enter(run, name)
        return run

    # The server loads a new automation after some time.
    taken: list[str] = []

    def gone_back() -> bool:
        # Prefect may drop an event while SQLite is busy, so send several.
        enter(begun, "RUNNING")
        if len(taken) < 20:
            taken.append(made("PENDING"))
        time.sleep(1)
        return any(state(run) == "SCHEDULED" for run in taken)

    begun = made("RUNNING")
    wait_until(gone_back, 200)
    (run, *_) = (run for run in taken if state(run) == "SCHEDULED")
    assert "no worker started the run within 10 seconds" in borrowed.ask_prefect(f"flow_runs/{run}")["state"]["message"]
    kept = borrowed.ask_prefect(f"flow_run_states/?flow_run_id={begun}")
    assert {each["type"] for each in kept} == {"PENDING", "RUNNING"}
    enter(begun, "COMPLETED")


@pytest.mark.slow
def test_notifications_need_a_block_named_neorl(borrowed: Services) -> None:
    told: list[str] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        kind = borrowed.ask_prefect("block_types/slug/custom-webhook")["id"]
        schemas = borrowed.ask_prefect("block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind]}}})
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        data = {"name": "here", "url": address, "json_data": {"subject": "{{subject}}", "text": "{{body}}"}}
        block = {"name": "neorl", "data": data, "block_schema_id": schemas[0]["id"], "block_type_id": kind}
        borrowed.ask_prefect("block_documents/", block)
        assert install(borrowed, notification_block(borrowed)) == [TOLD]
        (automation,) = known(borrowed, TOLD)
        assert "secret" not in json.dumps(automation)
        payload = {"found": "drift at episode 7, step 3"}
        # The server loads a new automation after some time.
        for attempt in range(20):
            announce(borrowed, Event(DRIFTED, "told_tank", f"{uuid.uuid4()}", payload))
            try:
                wait_until(lambda: told, 6)
                break
            except AssertionError:
                assert attempt < 19
        message = json.loads(told[0])
        assert message["subject"] == f"{DRIFTED}: told_tank"
        assert message["text"] == "drift at episode 7, step 3"
        server.shutdown()
    (document,) = borrowed.ask_prefect("block_documents/filter", {"block_documents": {"name": {"any_": ["neorl"]}}})
    borrowed.ask_prefect(f"block_documents/{document['id']}", method="DELETE")
    assert notification_block(borrowed) is None
    assert install(borrowed, None) == [TOLD]
    assert known(borrowed, TOLD) == []
