"""The signer process: refused requests, access to its socket, and restarts after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused
from configs.home import PASSPHRASE, Home
from tasks.evidence.attempts import Outcome, close_attempt, draw_seed
from tasks.evidence.certificate import make_certificate
from tasks.evidence.decisions.approvals import VerdictBody
from tasks.evidence.decisions.champions import PromotionBody
from tasks.evidence.ledger import client
from tasks.evidence.ledger.client import ask, hello, socket_file, start, stop
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import ENTRY_TYPE, Ledger, artefact
from tasks.evidence.ledger.protocol import MAX_BYTES, Answer, Append, Head, Request
from tasks.evidence.ledger.table import GENESIS
from tasks.evidence.rules import NoteBody, RefusalBody
from tasks.evidence.signer import Server, Signer
from tasks.files.canonical import sha256_hex
from tests.evidence import (
    MATERIALS,
    OTHERWISE,
    PLANT,
    attempt_for,
    certify,
    counts,
    open_ledger,
    outcome,
    put,
    signer_at,
    verdict,
)

A, B = "a" * 64, "b" * 64


@pytest.fixture
def place(home: Path) -> Iterator[Home]:
    """A home whose signer is stopped after the test."""
    yield Home(home)
    stop(Home(home))


def raw(home: Home, data: bytes) -> Answer:
    """Return the signer's answer to arbitrary bytes."""
    with client._connect(home) as connection:  # type: ignore[union-attr]
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return Answer.model_validate_json(b"".join(iter(lambda: connection.recv(65536), b"")))


def pid_of(home: Home) -> int:
    return ask(home, hello(home)).pid


@pytest.mark.slow
def test_the_socket_is_its_owners_alone(place: Home) -> None:
    start(place)
    path = socket_file(place)
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    first = pid_of(place)
    start(place)
    assert pid_of(place) == first != os.getpid()
    stop(place)
    assert not path.exists()
    stop(place)
    assert pid_of(place) != first


@pytest.mark.slow
def test_the_process_keeps_its_secrets(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The passphrase is not in environment or arguments, and other processes cannot inspect the signer."""
    monkeypatch.setenv(PASSPHRASE, "correct horse battery staple")
    start(place)
    # Nor do children that are started later inherit it.
    assert PASSPHRASE not in os.environ
    process = Path(f"/proc/{pid_of(place)}")
    if not process.exists():
        pytest.skip("no /proc on this system")
    # The kernel restricts these files to root.
    assert os.getuid() == 0 or process.stat().st_uid != os.getuid()
    for name in ("environ", "cmdline"):
        try:
            content = (process / name).read_bytes()
        except PermissionError:
            continue
        assert b"correct horse" not in content
    (core,) = (line for line in (process / "limits").read_text().splitlines() if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["0", "0"]
    with pytest.raises(Refused, match=r"the passphrase of .* is missing"):
        open_keys(place, first_use=False)
    stop(place)
    with pytest.raises(Refused, match=r"the passphrase of .* is missing"):
        start(place)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b"[]", "invalid request to the signer"),
        (b'{"ask":"sign","payload":"aGVsbG8=","payloadType":"application/vnd.in-toto+json"}', "ask"),
        (json.dumps({"ask": "head", "payload": {"size": 9}}).encode(), "Extra inputs"),
        (json.dumps({"ask": "seal", "stage": "s", "key": "k", "sha256": "hello"}).encode(), "sha256"),
        (json.dumps({"ask": "seal", "stage": "../s", "key": "k", "sha256": A}).encode(), "stage"),
        (json.dumps({"ask": "append", "kind": "note", "plant": "", "body": [], "artefacts": [],
                     "predecessor": GENESIS}).encode(), "body"),
        (json.dumps({"ask": "append", "kind": "note", "plant": "", "body": {}, "artefacts": [],
                     "predecessor": GENESIS, "timestamp": "2020-01-01", "sequence": 9}).encode(), "Extra inputs"),
    ],
)  # fmt: skip
def test_only_requests_of_its_own_protocol_are_answered(served: Home, data: bytes, why: str) -> None:
    """No request carries bytes to sign, a sequence number or a time."""
    answer = raw(served, data)
    assert why in answer.refused
    assert not answer.envelope
    assert ask(served, Head()).envelope


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with a signer that several tests share."""
    home = Home(tmp_path_factory.mktemp("signer") / "home")
    start(home)
    yield home
    stop(home)


def test_an_oversize_request_is_refused_while_it_is_sent(served: Home) -> None:
    with client._connect(served) as connection:  # type: ignore[union-attr]
        # The signer stops reading, and may be gone before the last byte is sent.
        with contextlib.suppress(ConnectionError):
            connection.sendall(b" " * (MAX_BYTES + 1_000_000))
        with contextlib.suppress(ConnectionError):
            received = connection.recv(65536)
            assert not received or "at most" in Answer.model_validate_json(received).refused
    with pytest.raises(Refused, match="at most"):
        Ledger.open(served).append("note", NoteBody(text="x" * MAX_BYTES))
    assert ask(served, Head()).envelope


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("champion", NoteBody(), "an entry's kind must be one of"),
        ("note", RefusalBody(reason="not a note"), "Extra inputs"),
        ("refusal", NoteBody(), "invalid body of a refusal: field 'reason'"),
        ("approval", NoteBody(), "invalid body of a approval: field 'composite'"),
        ("approval", VerdictBody(composite=A, by="x", candidate=B), "the approval names no logged candidate"),
        (
            "promotion",
            PromotionBody(composite=A, approval=B, replaces=None, candidate=B),
            "has no passed certification",
        ),
        ("promotion", PromotionBody(composite=A, approval=B, replaces=B, candidate=B), "changed to composite"),
        ("result", Outcome(passed=True), "invalid body of a result"),
    ],
)
def test_entries_that_break_a_rule_are_not_signed(home: Path, kind: str, body: NoteBody, why: str) -> None:
    ledger = open_ledger(Home(home))
    with pytest.raises(Refused, match=why):
        ledger.append(kind, body, plant=PLANT)
    assert ledger.entries() == []


def test_a_promotion_needs_more_than_somebody_elses_approval(home: Path) -> None:
    ledger = open_ledger(Home(home))
    certify(ledger, A)
    other = ledger.append("approval", verdict(ledger, B), plant=PLANT)
    with pytest.raises(Refused, match="has no unused approval"):
        put(ledger, other, None, composite=A)


def test_a_certificate_needs_an_open_attempt_and_consistent_counts(home: Path) -> None:
    ledger = open_ledger(Home(home))
    attempt = attempt_for(ledger, A)
    good = counts(attempt.alpha)
    with pytest.raises(Refused, match="is no attempt, has no seed"):
        make_certificate(ledger, attempt.entry, good, MATERIALS)
    draw_seed(ledger, attempt)
    false = counts(attempt.alpha, (1,), episodes=4000).model_copy(update={"certified": True})
    with pytest.raises(Refused, match="statistics: 1 violations in 4000 episodes"):
        make_certificate(ledger, attempt.entry, false, MATERIALS)
    with pytest.raises(Refused, match="of the attempt"):
        make_certificate(ledger, attempt.entry, good, MATERIALS.model_copy(update={"dataset": B}))
    with pytest.raises(BadInput, match="no ledger entry has the digest"):
        make_certificate(ledger, B, good, MATERIALS)
    envelope = make_certificate(ledger, attempt.entry, good, MATERIALS)
    path = Home(home).folder("certificates") / "a.json"
    path.write_bytes(envelope)
    with pytest.raises(Refused, match="names no certificate"):
        close_attempt(ledger, attempt, outcome(A, good))
    close_attempt(ledger, attempt, outcome(A, good), [artefact(ledger.home, path)])
    with pytest.raises(Refused, match="is no attempt, has no seed or already has a result"):
        make_certificate(ledger, attempt.entry, good, MATERIALS)


@pytest.mark.parametrize(("changed", "to"), OTHERWISE.items())
@pytest.mark.parametrize("violating", [(), (1,)])
def test_a_result_says_what_its_certificate_says(
    home: Path, violating: tuple[int, ...], changed: str, to: object
) -> None:
    """Every number and the verdict are compared, so that a failed test cannot be logged as passed."""
    ledger = open_ledger(Home(home))
    attempt = attempt_for(ledger, A)
    draw_seed(ledger, attempt)
    found = counts(attempt.alpha, violating, episodes=4000 if violating else None)
    path = Home(home).folder("certificates") / "a.json"
    path.write_bytes(make_certificate(ledger, attempt.entry, found, MATERIALS))
    true = outcome(A, found)
    false = true.model_copy(update={changed: not true.passed if changed == "passed" else to})
    with pytest.raises(Refused, match="does not agree with the result"):
        close_attempt(ledger, attempt, false, [artefact(ledger.home, path)])
    assert ledger.entries("result") == []
    close_attempt(ledger, attempt, true, [artefact(ledger.home, path)])
    assert ledger.entries("result")[0].body["passed"] is not bool(violating)


@pytest.mark.slow
def test_a_killed_signer_is_started_again(place: Home) -> None:
    ledger = Ledger.open(place)
    ledger.append("note", NoteBody(text="before"))
    first = pid_of(place)
    os.kill(first, signal.SIGKILL)
    ledger.append("note", NoteBody(text="after"))
    assert pid_of(place) != first
    assert [entry.body["text"] for entry in ledger.entries()] == ["before", "after"]
    assert ledger.verify([(place.root / "ledger.head").read_text()]).size == 2


@pytest.mark.parametrize("written", [True, False])
def test_a_lost_answer_appends_once(home: Path, written: bool) -> None:
    """The signer is lost before or after writing the entry: there is exactly one entry."""
    signer, left = Signer.open(Home(home)), 1

    def losing(request: Request) -> Answer:
        nonlocal left
        if isinstance(request, Append) and left:
            left -= 1
            if written:
                signer.answer(request)
            raise ConnectionError("gone")
        return signer.answer(request)

    ledger = Ledger.open(Home(home), ask=losing)
    entry = ledger.append("note", NoteBody(text="once"))
    assert not left
    assert ledger.entries() == [entry]
    left, written = 9, False
    with pytest.raises(Refused, match="the signer did not answer 5 times \\('gone'\\)"):
        ledger.append("note", NoteBody(text="twice"))


def test_a_signer_that_is_slow_appends_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks again and finds the entry; a signer that never answers is reported."""
    monkeypatch.setattr(client, "TIMEOUT", 0.5)
    with signer_at(Home(home)) as signer:

        def asking(request: Request) -> Answer:
            try:
                return client.ask(Home(home), request)
            except ConnectionError:
                monkeypatch.setattr(client, "TIMEOUT", 60.0)
                signer._one_at_a_time.release()
                raise

        ledger = Ledger.open(Home(home), ask=asking)
        signer._one_at_a_time.acquire()
        with pytest.raises(Refused, match=r"the signer did not answer within 0\.5 s"):
            stop(Home(home))
        entry = ledger.append("note", NoteBody(text="once"))
        assert ledger.entries() == [entry]


@pytest.mark.slow
def test_many_clients_at_once_write_one_chain(place: Home) -> None:
    start(place)
    failures: list[Exception] = []

    def work(name: str) -> None:
        try:
            ledger = Ledger.open(place)
            for i in range(3):
                ledger.append("note", NoteBody(text=f"{name}{i}"))
        except Exception as error:  # told to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    texts = [entry.body["text"] for entry in Ledger.open(place, write=False).entries()]
    for name in "abcdefgh":
        assert [text for text in texts if text[0] == name] == [f"{name}{i}" for i in range(3)]


@pytest.mark.slow
def test_clients_that_start_together_share_one_signer(place: Home) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(pid_of(place))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


@pytest.mark.slow
def test_a_signer_of_other_sources_is_replaced_once(place: Home) -> None:
    """After an upgrade, the old version's rules must not be applied any more."""
    first = pid_of(place)
    assert pid_of(place) == first
    # A client whose sources differ from those on the disk accepts the signer of the disk.
    second = ask(place, hello(place).model_copy(update={"sources": B}))
    assert second.stale
    assert second.pid != first
    assert pid_of(place) == second.pid


@pytest.mark.slow
def test_signer_and_clients_use_one_ledger(place: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger.open(place)
    monkeypatch.setenv("NEORL_LEDGER_URL", f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(Refused, match="uses another NEORL_LEDGER_URL"):
        Ledger.open(place)


def test_a_restored_older_ledger_is_noticed(home: Path) -> None:
    place = Home(home)
    ledger = open_ledger(place)
    ledger.append("note", NoteBody(text="1"))
    shutil.copy(place.ledger, home / "older.db")
    ledger.append("note", NoteBody(text="2"))
    shutil.copy(home / "older.db", place.ledger)
    with pytest.raises(Refused, match=r"ledger entry 2 changed or disappeared .* restore the newer ledger"):
        ledger.signed_head()


def test_the_signer_exits_with_its_home_or_when_idle(home: Path, tmp_path: Path) -> None:
    for name, idle, ends in (("gone", 0.0, "home"), ("idle", 1e-9, "idle")):
        place = Home(tmp_path / name)
        server = Server(Signer.open(place), idle)
        if ends == "home":
            shutil.rmtree(place.root)
        server.serve_forever(poll_interval=0.01)
        server.close()
        assert not socket_file(place).exists()
    # Another signer's socket is left alone.
    place = Home(tmp_path / "taken")
    server = Server(Signer.open(place), 0.0)
    newer = Server(Signer.open(place), 0.0)
    server.serve_forever(poll_interval=0.01)
    server.close()
    assert socket_file(place).exists()
    newer.close()
    assert not socket_file(place).exists()


@pytest.mark.slow
def test_a_failed_start_of_the_signer_is_one_sentence(place: Home) -> None:
    place.folder()
    place.ledger.write_bytes(b"not a database" * 100)
    with pytest.raises(Refused, match=r"^cannot use the database .* restore it from a backup$"):
        start(place)
    place.ledger.unlink()
    place.trust.write_text("keys: []")
    with pytest.raises(BadInput, match="non-empty list"):
        start(place)


def test_the_entry_is_the_signers_own(served: Home) -> None:
    """Clients cannot choose sequence, predecessor or time, and a stale view is reported as stale."""
    request = Append(kind="note", plant="", body={}, artefacts=(), predecessor=sha256_hex(b"elsewhere"))
    answer = ask(served, request)
    assert answer.stale
    assert not answer.envelope
    assert ENTRY_TYPE not in answer.model_dump_json()
