"""Witness processes: the home's own beside its signer, and an external one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.redteam.witnessed import ORIGIN, direct, pin_witnesses, watched, witness_in
from configs.errors import BadInput, Refused
from configs.home import Home
from flows.cli.main import run
from tasks.evidence.attempts import draw_seed
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import read_certificate
from tasks.evidence.ledger.client import stop
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import SigningKey
from tasks.evidence.witness.notes import COSIGNATURE, SIGNATURE, Verifier
from tasks.evidence.witness.pinned import FILE, pinned
from tasks.evidence.witness.server import MAX_BYTES, TcpServer, open_witness
from tasks.evidence.witness.transport import start_own, stop_own
from tasks.evidence.witness.witness import Witness
from tests.evidence import attempt_for, certify, forge, open_ledger, signer_at
from tests.servers import free_port

A, B = "a" * 64, "b" * 64


@pytest.fixture
def place(home: Path) -> Iterator[Home]:
    """A home whose signer and witness are stopped after the test."""
    yield Home(home)
    stop(Home(home))
    stop_own(Home(home))


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[Witness, int]]:
    """A witness on a port, in a thread."""
    witness = witness_in(tmp_path / "w1", "witness.example/w1", open_to_all=False)
    with TcpServer(witness, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield witness, server.server_address[1]
        server.shutdown()
        thread.join()


def asked(port: int, path: str, body: bytes | None, length: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {} if length is None else {"Content-Length": length}
    with closing(connection):
        connection.request("GET" if body is None else "POST", path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_port_answers_as_the_specification_says(listening: tuple[Witness, int], home: Path, tmp_path: Path) -> None:
    witness, port = listening
    known = witness_in(tmp_path / "other", "witness.example/w2")
    pin_witnesses(Home(home), known)
    ledger = watched(Home(home), direct(known))
    draw_seed(ledger, attempt_for(ledger, A))
    head = known.newest(ORIGIN)
    assert asked(port, "/key", None) == (200, f"{witness.verifier}\n")
    request = f"old 0\n\n{head}".encode()
    assert asked(port, "/add-checkpoint", request)[0] == 404
    witness.add_log(Verifier.parse(known.logs()[0].keys[0]))
    status, line = asked(port, "/add-checkpoint", request)
    assert (status, line[:21]) == (200, "— witness.example/w1 ")
    # A later request from an earlier size is told the size; a proof that shows nothing, that it shows nothing.
    assert asked(port, "/add-checkpoint", request) == (409, "2\n")
    assert asked(port, "/add-checkpoint", f"old 3\n\n{head}".encode())[0] == 400
    assert asked(port, "/add-checkpoint", f"old 2\n{'A' * 43}=\n\n{head}".encode())[0] == 422
    spoiled = head.replace("\n2\n", "\n3\n", 1)
    assert asked(port, "/add-checkpoint", f"old 2\n\n{spoiled}".encode())[0] == 403
    for path, body, expected in (
        ("/add-checkpoint", b"", 400),
        ("/add-checkpoint", b"old 01\n\n", 400),
        ("/add-checkpoint", b"\xff", 400),
        ("/add-checkpoint", ("old 0\n" + "x\n" * 64 + "\n" + head).encode(), 400),
        ("/nonce", b"leaf 1 x", 400),
        ("/nonce", f"leaf -1 {'A' * 43}=\n\n{head}".encode(), 400),
        ("/add-log", b"no key", 400),
        ("/add-log", f"{witness.verifier}\n".encode(), 403),
        ("/elsewhere", b"", 404),
        ("/newest/elsewhere", None, 404),
    ):
        assert asked(port, path, body)[0] == expected, (path, body)
    assert asked(port, "/add-checkpoint", b"", length=str(MAX_BYTES + 1))[0] == 413
    assert asked(port, "/add-checkpoint", b"", length="many")[0] == 400


def test_a_witness_keeps_its_heads(home: Path, tmp_path: Path) -> None:
    """After a kill it has the same key, name and heads."""
    first = witness_in(tmp_path / "w1", "witness.example/w1")
    pin_witnesses(Home(home), first)
    ledger = watched(Home(home), direct(first))
    seed = draw_seed(ledger, attempt_for(ledger, A))
    again = open_witness(tmp_path / "w1", open_to_all=True)
    assert (again.verifier, again.newest(ORIGIN)) == (first.verifier, first.newest(ORIGIN))
    later = watched(Home(home), direct(again))
    assert draw_seed(later, attempt_for(later, A)) == seed
    with pytest.raises(BadInput, match=r"belongs to witness 'witness\.example/w1'"):
        open_witness(tmp_path / "w1", "witness.example/w2")
    assert (tmp_path / "w1" / "key.pem").stat().st_mode & 0o777 == 0o600
    # A head that was told is never taken back, whatever the clock does meanwhile.
    behind = open_witness(tmp_path / "w1", clock=lambda: datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(Refused, match="refused to countersign: the last record is of"):
        draw_seed(watched(Home(home), direct(behind)), attempt_for(later, B))


@pytest.mark.slow
def test_a_home_uses_its_own_witness_by_default(place: Home, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger.open(place)
    path = certify(ledger, A)
    line = read_certificate(path, ledger.trust).predicate.claim.splitlines()[1]
    assert line.startswith("Witness neorl.local/")
    assert line.endswith("on the same machine, so it is not an independent second party")
    sock = place.root / "witness" / "witness.sock"
    assert sock.stat().st_mode & 0o777 == 0o600
    assert sock.parent.stat().st_mode & 0o777 == 0o700
    # It is another process than the signer, with another key.
    assert str(start_own(place)) in (place.root / FILE).read_text()
    assert audit(place).passed
    assert stop_own(place)
    assert not stop_own(place)
    # It is started again by whoever needs it.
    certify(Ledger.open(place), B)
    assert run(["witness", "show", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["witnesses"][0].startswith("neorl.local/")
    assert all(check["passed"] for check in told["checks"])
    # Earlier attempts do not count for a newly pinned witness, and the command says so.
    key = str(Verifier.of("witness.example/w1", COSIGNATURE, SigningKey(Ed25519PrivateKey.generate())))
    assert run(["witness", "pin", key, "http://127.0.0.1:9"]) == 0
    assert "2 earlier attempts have no such witness: 'neorl audit verify'" in capsys.readouterr().out
    assert "witnesses" in {check.name for check in audit(place).failures}


@pytest.mark.slow
def test_a_late_pinned_witness_is_satisfied_by_the_next_attempt(place: Home, listening: tuple[Witness, int]) -> None:
    """Earlier attempts are reported only; from its first attempt on, every attempt needs it."""
    witness, port = listening
    ledger = Ledger.open(place)
    certify(ledger, A)
    assert run(["witness", "pin", str(witness.verifier), f"http://127.0.0.1:{port}"]) == 0
    assert {check.name for check in audit(place).failures} == {"witnesses", "countersigned"}
    asked = pinned(place, ledger.trust)
    assert asked is not None
    witness.add_log(Verifier.of(asked.origin, SIGNATURE, open_keys(place, first_use=False)[0]))
    certify(Ledger.open(place), B)
    report = audit(place)
    assert report.passed, report.failures
    told = [check.detail for check in report.checks if check.name == "witnesses"]
    assert told[0].startswith("1 attempts precede the first one with witness.example/w1: ")
    assert told[1] == "1 attempts witnessed by witness.example/w1"


def test_pinning_a_witness_reports_attempts_that_fail_the_audit(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (
        str(Verifier.of(f"witness.example/{name}", COSIGNATURE, SigningKey(Ed25519PrivateKey.generate())))
        for name in ("w1", "w2")
    )
    open_ledger(Home(home))
    with signer_at(Home(home)):
        for attempts, key, required, told in (
            # It names no witness, and one is asked for.
            ([[]], first, 1, "1 earlier attempts have no such witness"),
            # From an attempt on that names the pinned one the audit only tells of the other.
            ([[first]], second, 1, ""),
            # Both lack one where two are asked for.
            ([], second, 2, "2 earlier attempts have no such witness"),
        ):
            for named in attempts:
                forge(Home(home), "seed", {"attempt": A, "commitment": "", "witnesses": named})
            assert run(["witness", "pin", key, "http://127.0.0.1:9", "--required", str(required)]) == 0
            said = capsys.readouterr().out
            assert told in said
            assert bool(told) is ("have no such witness" in said)
            failing = [each for each in audit(Home(home)).failures if each.name == "witnesses"]
            assert len(failing) == int(told[:1] or 0)


@pytest.mark.slow
def test_an_external_witness_by_commands(place: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second party runs a witness, keys are exchanged, and the witness is killed and restarted."""
    folder = tmp_path / "elsewhere"
    ledger = open_ledger(place)
    command = [sys.executable, "-m", "flows", "witness", "serve", str(folder), "--name", "witness.example/w1"]

    def serving(port: str) -> tuple[subprocess.Popen[str], str, str]:
        process = subprocess.Popen([*command, "--port", port], stderr=subprocess.PIPE, text=True, env=os.environ)
        assert process.stderr is not None
        return process, process.stderr.readline().strip(), process.stderr.readline().strip()

    port = str(free_port())
    process, key, listens = serving(port)
    try:
        assert listens == f"listens on http://127.0.0.1:{port}"
        assert run(["witness", "pin", key, f"http://127.0.0.1:{port}", "--origin", ORIGIN]) == 0
        capsys.readouterr()
        # It does not know this ledger: the refusal says the command that makes it known.
        ledger = open_ledger(place)
        with pytest.raises(Refused, match="the owner must run 'neorl witness add FOLDER") as refusal:
            draw_seed(ledger, attempt_for(ledger, A))
        said = str(refusal.value).partition("add FOLDER ")[2].partition("'")[0]
        assert run(["witness", "add", str(folder), said]) == 0
        path = certify(ledger, A)
        assert "Witnessed by witness.example/w1: " in read_certificate(path, ledger.trust).predicate.claim
        assert audit(place).passed
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with pytest.raises(Refused, match="'neorl witness serve'"):
            draw_seed(ledger, attempt_for(ledger, B))
        process, again, _ = serving(port)
        assert again == key
        certify(ledger, B)
        assert run(["witness", "show", str(folder)]) == 0
        assert f"{ORIGIN}: " in capsys.readouterr().out
    finally:
        process.kill()
        process.communicate()
    assert len(ledger.entries("attempt")) == 2


def test_commands_name_missing_input(place: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["witness", "show", str(tmp_path / "none")]) == 2
    assert run(["witness", "add", str(tmp_path / "none"), "x"]) == 2
    assert "is not a witness's folder" in capsys.readouterr().err


def test_an_invalid_address_pins_nothing(place: Home, capsys: pytest.CaptureFixture[str]) -> None:
    open_ledger(place)
    key = str(Verifier.of("witness.example/w1", COSIGNATURE, SigningKey(Ed25519PrivateKey.generate())))
    for url in ("witness.example:8710", "http://witness.example:87l0", "http://[::1", "http://a..b"):
        assert run(["witness", "pin", key, url]) == 2, url
        assert "invalid key or address" in capsys.readouterr().err
        assert not (place.root / FILE).exists()


def test_a_failed_pin_leaves_the_file_unchanged(place: Home, capsys: pytest.CaptureFixture[str]) -> None:
    open_ledger(place)
    one, other = (SigningKey(Ed25519PrivateKey.generate()) for _ in range(2))
    assert run(["witness", "pin", str(Verifier.of("witness.example/w1", COSIGNATURE, one)), "http://127.0.0.1:9"]) == 0
    before = (place.root / FILE).read_bytes()
    # Another key of the same name, and the key of a ledger in place of a witness's.
    for key in (Verifier.of("witness.example/w1", COSIGNATURE, other), Verifier.of("neorl/plant", SIGNATURE, other)):
        assert run(["witness", "pin", str(key), "http://127.0.0.1:9"]) == 2
        assert "witnesses with different names" in capsys.readouterr().err
        assert (place.root / FILE).read_bytes() == before
