"""Retry writes that Prefect's server rejects because SQLite is busy.

Suppose a transaction first reads, then another transaction writes. SQLite then rejects a write of the first transaction
at once (SQLITE_BUSY_SNAPSHOT). Prefect answers 503, and clients repeat the request after two to four seconds. On a busy
machine several attempts in a row fail, so the run fails. An immediate retry in the server usually succeeds.

Source: SQLite, Result and error codes, SQLITE_BUSY_SNAPSHOT; Prefect's `is_client_retryable_exception`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAUSES = 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2
"""Seconds before each retry."""
LONGEST = 10.0
"""Seconds after which no retry is started. An attempt may already have waited a minute for a SQLite lock."""
LARGEST = 4 << 20
"""Largest request body in bytes that is kept for a retry."""
UNAVAILABLE = 503


class SqliteRetry:
    """ASGI middleware that repeats a write if SQLite was busy.

    The failed transaction was rolled back, so a retry has the same effect as a retry by the client. No retry is made
    after the client has disconnected.

    Args:
        application: the server, which answers 503 and raises the cause if SQLite is busy.
        pauses: seconds before each retry.
    """

    def __init__(self, application: ASGIApp, pauses: Sequence[float] = PAUSES) -> None:
        self._application, self._pauses = application, pauses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            await self._application(scope, receive, send)
            return
        request, clock = _Request(receive), asyncio.get_running_loop().time
        end = clock() + LONGEST
        for pause in (*self._pauses, math.inf):
            answer = _Answer(send)
            try:
                await self._application(dict(scope), request.replay(), answer)
            except Exception as error:
                retry = _is_busy(error) and answer.held_back and request.complete
                if not retry or clock() + pause > end:
                    await answer.release()
                    raise
            else:
                await answer.release()
                return
            if await request.disconnects_within(pause):
                return


class _Request:
    """A request body that can be read again."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: list[Message] = []
        self._size = 0

    @property
    def complete(self) -> bool:
        """Whether the whole body was read and kept."""
        last = self._read[-1] if self._read else {"type": ""}
        return last["type"] == "http.request" and not last.get("more_body", False)

    def replay(self) -> Receive:
        """Return a receive function that gives the body read so far, then the rest of the request."""
        buffered = iter(list(self._read))

        async def receive() -> Message:
            message = next(buffered, None)
            if message is not None:
                return message
            message = await self._receive()
            self._size += len(message.get("body", b""))
            if self._size <= LARGEST:
                self._read.append(message)
            return message

        return receive

    async def disconnects_within(self, seconds: float) -> bool:
        """Wait `seconds`, and return whether the client disconnects, the only event after a complete request."""
        try:
            await asyncio.wait_for(self._receive(), seconds)
        except TimeoutError:
            return False
        return True


class _Answer:
    """Sends an answer to the client, but holds back an answer with status 503."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.held_back: list[Message] = []

    async def __call__(self, message: Message) -> None:
        if self.held_back or message.get("status") == UNAVAILABLE:
            self.held_back.append(message)
        else:
            await self._send(message)

    async def release(self) -> None:
        """Send the messages that were held back."""
        for message in self.held_back:
            await self._send(message)


def _is_busy(error: Exception) -> bool:
    """Return whether an SQLAlchemy error is SQLite's SQLITE_BUSY or a variant."""
    return str(getattr(getattr(error, "orig", None), "sqlite_errorname", "")).startswith("SQLITE_BUSY")
