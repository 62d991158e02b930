"""Concurrent and killed decisions: exactly one champion, and pages repaired by the next command."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flows.decisions import list_candidates
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.approvals import open_approvals
from tasks.evidence.decisions.champions import champion
from tasks.evidence.ledger.ledger import Ledger
from tasks.lifecycle.aliases import stale_pages
from tests.evidence import PLANT
from tests.tasks.lifecycle.served import Served

if TYPE_CHECKING:
    pass

PROJECT = Path(__file__).parents[3]


def neorl(*words: str, **extra: str) -> subprocess.Popen[str]:
    """Start a command in a separate process."""
    command = [sys.executable, "-m", "flows", *words, "--json"]
    return subprocess.Popen(
        command,
        cwd=PROJECT,
        env={**os.environ, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_twenty_decisions_at_once_make_one_champion(served: Served) -> None:
    versions = [served.candidate().body["version"] for _ in range(4)]
    # The first two are approved by five processes each, the others approved and rejected at once.
    words = [("approve", versions[i % 4], f"reviewer {i}") for i in range(12)]
    words += [("reject", versions[2 + i % 2], f"reviewer {i}") for i in range(8)]
    processes = [neorl(verb, PLANT, version, "--by", by) for verb, version, by in words]
    told = [process.communicate() for process in processes]
    codes = [process.returncode for process in processes]
    assert set(codes) <= {0, 1}, told
    assert all("Traceback" not in err for _, err in told)
    assert 0 in codes
    if not Ledger.open(served.home, write=False).entries("promotion"):
        # Whoever comes while another decides is refused, and may all have been approvers: one comes again.
        again = neorl("approve", PLANT, versions[0], "--by", "reviewer 0")
        said_again = again.communicate()
        assert again.returncode == 0, said_again
    entries = Ledger.open(served.home, write=False).entries()
    (promotion,) = [entry for entry in entries if entry.kind == "promotion"]
    assert champion(entries, PLANT) == promotion
    # Whoever was told that it is champion was told the truth.
    crowned = {
        json.loads(out.splitlines()[-1]).get("champion") for (out, _), code in zip(told, codes, strict=True) if not code
    }
    assert crowned <= {promotion.body["version"], None}
    for entry in entries:
        if entry.kind == "candidate":
            assert open_approvals(entries, PLANT, entry.body["composite"]) == []
    assert audit(served.home).passed
    list_candidates(served.home)
    assert stale_pages(entries, PLANT, served.registry.pages(PLANT)) == {}
    assert served.registry.aliases(PLANT) == {"champion": promotion.body["version"]}
    said = dict(zip(versions, served.said(*versions), strict=True))
    assert said.pop(promotion.body["version"]) == "champion"
    assert set(said.values()) <= {"superseded", "rejected"}


class Held(http.server.BaseHTTPRequestHandler):
    """Passes requests to MLflow until the ledger has a promotion, then answers none."""

    target = ""
    home_root = ""
    reached = threading.Event()
    released = threading.Event()

    def _hand_on(self) -> None:
        from configs.home import Home

        if Ledger.open(Home(Path(self.home_root)), write=False).entries("promotion"):
            self.reached.set()
            self.released.wait()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        request = urllib.request.Request(self.target + self.path, body, kept, method=self.command)
        try:
            with urllib.request.urlopen(request) as answer:
                status, data, kind = answer.status, answer.read(), answer.headers.get("Content-Type", "text/plain")
        except urllib.error.HTTPError as error:
            status, data, kind = error.code, error.read(), error.headers.get("Content-Type", "text/plain")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = _hand_on

    def log_message(self, format: str, *args: object) -> None:
        """Do not log."""


@pytest.mark.slow
def test_a_kill_before_the_alias_is_repaired_by_the_next_command(served: Served) -> None:
    first, second = served.candidate().body["version"], served.candidate().body["version"]
    list_candidates(served.home)
    assert served.said(first, second) == ["waits for approval", "waits for approval"]
    Held.target, Held.home_root = served.registry.uri, str(served.home.root)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Held)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        process = neorl("approve", PLANT, first, "--by", "a reviewer", NEORL_MLFLOW_URL=address)
        # The moment is an event, not a time: the promotion is in the ledger, and MLflow is about to be told.
        while not Held.reached.wait(0.1):
            assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    finally:
        Held.released.set()
        server.shutdown()
        server.server_close()
    entries = Ledger.open(served.home, write=False).entries()
    assert champion(entries, PLANT) is not None
    assert served.registry.aliases(PLANT) == {"challenger": second}
    assert set(stale_pages(entries, PLANT, served.registry.pages(PLANT))) == {first, second}
    # Whatever is asked next puts it right.
    following = neorl("candidates", PLANT)
    out, err = following.communicate()
    assert following.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == {"candidates": []}
    assert served.said(first, second) == ["champion", "superseded"]
    assert served.registry.aliases(PLANT) == {"champion": first}
    # Repeating the command finds its result and changes nothing.
    again = neorl("approve", PLANT, first, "--by", "a reviewer")
    out, err = again.communicate()
    assert json.loads(out.splitlines()[-1])["champion"] == first, err
    assert len(Ledger.open(served.home, write=False).entries()) == len(entries)
