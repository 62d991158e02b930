"""Writes that wait for Prefect's SQLite database: an ASGI application around its server.

A transaction of Prefect that reads before it writes is refused by SQLite at once, without any wait, where another
transaction wrote in between (SQLITE_BUSY_SNAPSHOT). Prefect answers 503 then, and expects its clients to ask again,
which they do two to four seconds later: on a busy machine a few such tries in a row fail, and a run with them. Tries
that follow at once are over before the next transaction comes.

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
"""Seconds after the first try from which on none is begun: a client bears a minute without an answer, and a try that
waits for a lock takes as long as that may last."""
UNAVAILABLE = 503


class Patience:
    """Hands a write on again that the server answers with 503; what it answers at last is the answer.

    What failed was rolled back, and a client would send it again.

    Args:
        application: the server behind it.
        pauses: seconds before each further try.
    """

    def __init__(self, application: ASGIApp, pauses: Sequence[float] = PAUSES) -> None:
        self._application, self._pauses = application, pauses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            await self._application(scope, receive, send)
            return
        body, end = await _body(receive), asyncio.get_running_loop().time() + LONGEST
        for pause in (*self._pauses, math.inf):
            answer = _Answer(send)
            try:
                await self._application(dict(scope), _again(body, receive), answer)
            except Exception:
                # Once it has answered 503, the server hands on what caused it, to be logged.
                if not answer.refused:
                    raise
            if not answer.refused:
                return
            if asyncio.get_running_loop().time() + pause > end:
                break
            await asyncio.sleep(pause)
        for message in answer.refused:
            await send(message)


class _Answer:
    """Sends an answer on, but keeps one that says 503."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.refused: list[Message] = []

    async def __call__(self, message: Message) -> None:
        if self.refused or message.get("status") == UNAVAILABLE:
            self.refused.append(message)
        else:
            await self._send(message)


async def _body(receive: Receive) -> list[Message]:
    """A request's messages up to its end, or to where its client leaves."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _again(body: Sequence[Message], receive: Receive) -> Receive:
    """The same messages once more, and what follows them."""
    rest = iter(body)

    async def next_message() -> Message:
        return next(rest, None) or await receive()

    return next_message
