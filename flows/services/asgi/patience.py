"""Writes that wait for Prefect's SQLite database: an ASGI application around its server.

A transaction of Prefect that reads before it writes is refused by SQLite at once, without any wait, where another
transaction wrote in between (SQLITE_BUSY_SNAPSHOT). Prefect answers 503 then, and expects its clients to ask again,
which they do two to four seconds later: on a busy machine a few such tries in a row fail, and a run with them. A try
that follows at once is usually over before the next transaction comes.

Source: SQLite, Result and error codes, SQLITE_BUSY_SNAPSHOT; Prefect's `is_client_retryable_exception`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAUSES = 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2
"""Seconds before each further try."""
LONGEST = 10.0
"""Seconds after the first try from which on none is begun: one that waited for a lock of SQLite, for a minute by
Prefect's setting, is not followed by another."""
LARGEST = 4 << 20
"""Bytes of a request that are kept for a further try; a larger one has none."""
UNAVAILABLE = 503


class Patience:
    """Hands a write on again that SQLite refuses while it is busy; what the server answers at last is the answer.

    The transaction that failed was rolled back. What a request did before that it does again, as it would if its client
    asked again. A client that has left is not waited for, and nothing is read that the server does not ask for.

    Args:
        application: the server behind it, which answers such a refusal with 503 and raises what caused it.
        pauses: seconds before each further try.
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
                await self._application(dict(scope), request.again(), answer)
            except Exception as error:
                tried = _is_busy(error) and answer.kept and request.is_whole
                if not tried or clock() + pause > end:
                    await answer.send_on()
                    raise
            else:
                await answer.send_on()
                return
            if await request.is_left_within(pause):
                return


class _Request:
    """What the server read of a request, to be read once more."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: list[Message] = []
        self._size = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of it was read and kept."""
        last = self._read[-1] if self._read else {"type": ""}
        return last["type"] == "http.request" and not last.get("more_body", False)

    def again(self) -> Receive:
        """What was read so far, and then what follows."""
        kept = iter(list(self._read))

        async def receive() -> Message:
            known = next(kept, None)
            if known is not None:
                return known
            message = await self._receive()
            self._size += len(message.get("body", b""))
            if self._size <= LARGEST:
                self._read.append(message)
            return message

        return receive

    async def is_left_within(self, seconds: float) -> bool:
        """Whether the client of a whole request leaves meanwhile, of which alone the server is still told."""
        try:
            await asyncio.wait_for(self._receive(), seconds)
        except TimeoutError:
            return False
        return True


class _Answer:
    """Sends an answer on, but keeps one that says 503."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.kept: list[Message] = []

    async def __call__(self, message: Message) -> None:
        if self.kept or message.get("status") == UNAVAILABLE:
            self.kept.append(message)
        else:
            await self._send(message)

    async def send_on(self) -> None:
        """Send what was kept."""
        for message in self.kept:
            await self._send(message)


def _is_busy(error: Exception) -> bool:
    """Whether an error of SQLAlchemy is SQLite's that another transaction writes, or wrote in between."""
    return str(getattr(getattr(error, "orig", None), "sqlite_errorname", "")).startswith("SQLITE_BUSY")
