"""Retries of writes that SQLite rejects at once, with Prefect's own error handling."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sql
from fastapi import FastAPI, Request
from httpx import ASGITransport, AsyncClient, Response
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from configs.environment import PREFECT_DATABASE
from flows.services.asgi import guard
from flows.services.asgi.sqlite_retry import LARGEST, LONGEST, PAUSES, SqliteRetry

AT_ONCE = [0.0] * len(PAUSES)


class Counter:
    """A server with Prefect's error handlers; the first `conflicts` writes of a number collide."""

    def __init__(self, path: Path, conflicts: int) -> None:
        from prefect.server.api.server import custom_internal_exception_handler

        self.engine = sql.create_engine(f"sqlite:///{path}")
        self.tries = 0
        with self.engine.begin() as db:
            db.execute(sql.text("PRAGMA journal_mode=WAL"))
            db.execute(sql.text("CREATE TABLE noted (number INTEGER)"))
            db.execute(sql.text("CREATE TABLE other (number INTEGER)"))
        self.application = FastAPI(exception_handlers={Exception: custom_internal_exception_handler})

        @self.application.api_route("/noted", methods=["POST", "GET"])
        async def note(request: Request) -> dict[str, int]:
            self.tries += 1
            body = await request.body()
            with self.engine.connect() as reader:
                reader.exec_driver_sql("BEGIN")
                reader.execute(sql.text("SELECT count(*) FROM noted")).scalar()
                if self.tries <= conflicts:
                    with self.engine.begin() as writer:
                        writer.execute(sql.text("INSERT INTO other VALUES (1)"))
                number = json.loads(body)["number"] if body else 0
                reader.execute(sql.text("INSERT INTO noted VALUES (:number)"), {"number": number})
                reader.commit()
            return {"number": number}

    def noted(self) -> list[int]:
        with self.engine.connect() as db:
            return [row[0] for row in db.exec_driver_sql("SELECT number FROM noted")]


def ask(application: ASGIApp, method: str = "POST", raising: bool = False) -> Response:
    async def asked() -> Response:
        transport = ASGITransport(app=application, raise_app_exceptions=raising)
        async with AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, "/noted", json={"number": 7} if method == "POST" else None)

    return asyncio.run(asked())


def test_without_retry_a_collision_fails(tmp_path: Path) -> None:
    server = Counter(tmp_path / "a.db", conflicts=1)
    assert ask(server.application).status_code == 503
    assert server.noted() == []


@pytest.mark.parametrize("conflicts", [0, 1, len(PAUSES)])
def test_a_collision_is_retried_and_written_once(tmp_path: Path, conflicts: int) -> None:
    server = Counter(tmp_path / "a.db", conflicts)
    answer = ask(SqliteRetry(server.application, AT_ONCE))
    assert (answer.status_code, answer.json(), server.noted()) == (200, {"number": 7}, [7])
    assert server.tries == conflicts + 1


def test_a_lasting_collision_is_answered(tmp_path: Path) -> None:
    server = Counter(tmp_path / "a.db", conflicts=100)
    assert ask(SqliteRetry(server.application, AT_ONCE)).status_code == 503
    assert (server.tries, server.noted()) == (len(PAUSES) + 1, [])
    # The server's own log shows the error.
    with pytest.raises(sql.exc.OperationalError, match="database is locked"):
        ask(SqliteRetry(server.application, AT_ONCE), raising=True)


def test_reads_and_other_errors_are_not_retried(tmp_path: Path) -> None:
    server = Counter(tmp_path / "a.db", conflicts=100)
    assert ask(SqliteRetry(server.application, AT_ONCE), "GET").status_code == 503
    assert server.tries == 1
    with server.engine.begin() as db:
        db.exec_driver_sql("DROP TABLE noted")
    with pytest.raises(sql.exc.OperationalError, match="no such table"):
        ask(SqliteRetry(server.application, AT_ONCE), raising=True)
    assert server.tries == 2


def test_other_503_answers_are_not_retried() -> None:
    tries = []

    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        tries.append(await Request(scope, receive).body())
        await PlainTextResponse("full", 503)(scope, receive, send)
        cause = sqlite3.OperationalError("database or disk is full")
        cause.sqlite_errorname = "SQLITE_FULL"
        raise sql.exc.OperationalError("INSERT", {}, cause)

    assert (ask(SqliteRetry(full, AT_ONCE)).text, tries) == ("full", [b'{"number":7}'])


def test_no_retry_after_the_time_limit(tmp_path: Path) -> None:
    server = Counter(tmp_path / "a.db", conflicts=100)
    assert ask(SqliteRetry(server.application, [2 * LONGEST])).status_code == 503
    assert server.tries == 1


def test_chunked_bodies_are_replayed_up_to_a_size(tmp_path: Path) -> None:
    async def asked(parts: list[bytes]) -> tuple[int, int]:
        server = Counter(tmp_path / f"{len(parts)}.db", conflicts=1)
        told: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        told.append({"type": "http.request", "body": b""})
        status = await sent(SqliteRetry(server.application, AT_ONCE), told)
        return status, server.tries

    assert asyncio.run(asked([b'{"num', b'ber":', b" 7}"])) == (200, 2)
    assert asyncio.run(asked([b'{"number": 7', b" " * LARGEST, b" ", b"}"])) == (503, 1)


def test_no_retry_after_a_disconnect(tmp_path: Path) -> None:
    server = Counter(tmp_path / "a.db", conflicts=100)
    told: list[Message] = [{"type": "http.request", "body": b'{"number": 7}'}, {"type": "http.disconnect"}]
    assert asyncio.run(sent(SqliteRetry(server.application, [5.0] * 3), told)) == 0
    assert server.tries == 1


def test_unread_requests_are_not_read() -> None:
    async def forbidden(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("who are you", 401)(scope, receive, send)

    assert asyncio.run(sent(SqliteRetry(forbidden, AT_ONCE), [])) == 401


@pytest.mark.parametrize(("database", "answer", "beside"), [("", 200, 1), ("postgresql://a:b@db/prefect", 503, 0)])
def test_prefect_with_sqlite_uses_retry_and_gc_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, answer: int, beside: int
) -> None:
    server, collectors = Counter(tmp_path / "a.db", conflicts=1), []
    monkeypatch.setenv(PREFECT_DATABASE, database)
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "neorl:secret")
    monkeypatch.setattr("prefect.server.api.server.create_app", lambda: server.application)
    # Do not change the collector of the test's own process.
    monkeypatch.setattr(guard, "collect_in_thread", lambda: collectors.append(1))
    assert (ask(guard.prefect()).status_code, len(collectors)) == (answer, beside)


async def sent(application: ASGIApp, told: list[Message]) -> int:
    """Return the answer's status, or 0 without an answer; fail if more messages are requested."""
    answered, waiting = [0], iter(told)

    async def receive() -> Message:
        message = next(waiting, None)
        return await asyncio.Event().wait() and {} if message is None else message

    async def send(message: Message) -> None:
        answered.append(message.get("status", answered[-1]))

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/noted", "query_string": b"", "headers": headers}
    with contextlib.suppress(sql.exc.OperationalError):
        await asyncio.wait_for(application(scope, receive, send), 60)
    return answered[-1]
