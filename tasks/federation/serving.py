"""A site's process: it keeps a SuperNode connected to the coordinator, and answers what comes through it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from configs.errors import BadInput, NeoRLError
from configs.federation import Coordinator, Site
from tasks.federation.transport import environment
from tasks.federation.transport.frames import Frame, Pipe
from tasks.federation.transport.network import Answer, Message

SOON, LATEST = 1.0, 30.0
"""Seconds until a SuperNode that ended is started anew: twice as many each time, until it is asked something."""


def serve(terms: Site, beside: Path, folder: Path, answer: Answer, say: Callable[[str], None] = print) -> None:
    """Answer the coordinator until interrupted.

    A SuperNode ends where the coordinator does not know its key yet, or forgot it when it was started anew; another
    takes its place.

    Args:
        terms: the site's file.
        beside: the folder that paths in it are relative to.
        folder: for Flower's log and files.
        answer: what the site does with a message.
        say: where a line goes when the connection is lost.

    Raises:
        ServiceMissing: when Flower is not installed.
        BadInput: when a file that the site's file names is missing.
    """
    arguments, wait = _arguments(terms.coordinator, beside), SOON
    while True:
        node = environment.start("supernode", folder, arguments, app="--clientappio-api-address")
        try:
            while (frame := _heard(node.pipe)) is not None:
                if frame.kind == "ask":
                    wait, answered = SOON, _answered(answer, frame)
                    with suppress(OSError):  # gone meanwhile, which the next frame tells
                        node.pipe.send(answered)
        finally:
            node.stop()
        say(f"not connected to {terms.coordinator.address} (see {node.log}): trying again in {wait:g} s")
        time.sleep(wait)
        wait = min(2 * wait, LATEST)


def _heard(pipe: Pipe) -> Frame | None:
    try:
        return pipe.receive()
    except (EOFError, OSError):
        return None


def _answered(answer: Answer, frame: Frame) -> Frame:
    try:
        return Frame("answer", *answer(Message(frame.text, frame.arrays)))
    except NeoRLError as error:
        return Frame("failed", str(error))
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        # Whatever a coordinator sends, the site stays; what it holds is its own.
        return Frame("failed", f"expected a message that this site can answer, got {type(error).__name__}: {error}")


def _arguments(coordinator: Coordinator, beside: Path) -> list[str]:
    arguments = [f"--superlink={coordinator.address}"]
    if coordinator.authority is None or coordinator.key is None:
        return [*arguments, "--insecure"]
    authority, key = beside / coordinator.authority, beside / coordinator.key
    for path, cure in ((authority, "ask the coordinator for it"), (key, f"make it with 'neorl federate key {key}'")):
        if not path.is_file():
            raise BadInput(f"expected a file at {path}, got none: {cure}.")
    return [*arguments, f"--root-certificates={authority}", f"--auth-supernode-private-key={key}"]
