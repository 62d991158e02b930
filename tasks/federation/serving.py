"""Process of a site: keeps Flower's SuperNode connected to the coordinator and answers messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from configs.errors import BadInput, NeoRLError
from configs.federation import Coordinator, Site
from tasks.federation.transport import flower_process
from tasks.federation.transport.frames import Frame, Pipe
from tasks.federation.transport.network import Answer, Message

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
"""Shortest and longest wait in seconds before a SuperNode is restarted. Each restart without a question doubles it."""


def serve(terms: Site, beside: Path, folder: Path, answer: Answer, say: Callable[[str], None] = print) -> None:
    """Answer the coordinator until interrupted.

    A SuperNode exits if the coordinator does not know the site's key, for instance after the coordinator restarted.
    `serve` then starts a new SuperNode.

    Args:
        beside: folder that paths in the file are relative to.
        folder: folder for Flower's log and files.

    Raises:
        ServiceMissing: if Flower is not installed.
        BadInput: if a file named in the site's file is missing.
    """
    arguments, wait = _arguments(terms.coordinator, beside), FIRST_WAIT
    while True:
        node = flower_process.start("supernode", folder, arguments, app="--clientappio-api-address")
        try:
            while (frame := _receive(node.pipe)) is not None:
                if frame.kind == "ask":
                    wait, reply = FIRST_WAIT, _reply(answer, frame)
                    with suppress(OSError):  # the connection closed; the next `receive` reports it
                        node.pipe.send(reply)
        finally:
            node.stop()
        say(f"not connected to {terms.coordinator.address} (see {node.log}): trying again in {wait:g} s")
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


def _receive(pipe: Pipe) -> Frame | None:
    try:
        return pipe.receive()
    except (EOFError, OSError):
        return None


def _reply(answer: Answer, frame: Frame) -> Frame:
    try:
        return Frame("answer", *answer(Message(frame.text, frame.arrays)))
    except NeoRLError as error:
        return Frame("failed", str(error))
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        # No message of a coordinator may end the site's process.
        return Frame("failed", f"the site cannot answer this message ({type(error).__name__}: {error})")


def _arguments(coordinator: Coordinator, beside: Path) -> list[str]:
    arguments = [f"--superlink={coordinator.address}"]
    if coordinator.authority is None or coordinator.key is None:
        return [*arguments, "--insecure"]
    authority, key = beside / coordinator.authority, beside / coordinator.key
    for path, cure in ((authority, "ask the coordinator for this file"), (key, f"run 'neorl federate key {key}'")):
        if not path.is_file():
            raise BadInput(f"{path} is missing: {cure}")
    return [*arguments, f"--root-certificates={authority}", f"--auth-supernode-private-key={key}"]
