"""The coordinator's SuperLink: Flower's own program, and threads that hand messages to nodes and answers back."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.appio_pb2 import PullTaskInputRequest
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.control_pb2_grpc import ControlStub
from flwr.proto.serverappio_pb2_grpc import ServerAppIoStub
from flwr.server.app import run_superlink
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_grpc
from flwr.supercore.interceptors.superexec_auth_interceptor import SERVERAPPIO_SUPEREXEC_METHODS
from flwr.superlink.grid import GrpcGrid

from tasks.federation.transport.flower.handing import (
    OFTEN,
    Settings,
    by_secret,
    claimed,
    ending_with,
    packed,
    ready,
    stub_of,
    unpacked,
)
from tasks.federation.transport.frames import NOTHING, Frame, Pipe

# Flower starts a run for an application. Nobody unpacks this one: sites answer by the NeoRL that they installed.
APPLICATION = b"""
[project]
name = "neorl"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "neorl"

[tool.flwr.app.components]
serverapp = "neorl:none"
clientapp = "neorl:none"
"""
FILES = {"pyproject.toml": APPLICATION, "neorl.py": b"none = None\n"}


def begin(pipe: Pipe, settings: Settings) -> tuple[GrpcGrid, dict[str, int]]:
    """Make the sites' keys known, start a run and claim it.

    Returns:
        What messages are sent by, and the numbers of the sites' nodes by name.
    """
    authority = settings.authority.encode() or None
    control = ControlStub(ready(settings.control_address, authority is None, authority))
    nodes = {
        name: int(control.RegisterNode(RegisterNodeRequest(public_key=key.encode())).node_id)
        for name, key in settings.keys.items()
    }
    content = build_fab_from_files(FILES)[0]
    control.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", content, {}))))
    _, offered = stub_of(
        ServerAppIoStub, settings.app_address, [by_secret(settings.secret, SERVERAPPIO_SUPEREXEC_METHODS)]
    )
    grid = GrpcGrid(settings.app_address, insecure=True, token=claimed(offered, pipe))
    stub = grid._stub
    HeartbeatSender(make_task_heartbeat_fn_grpc(stub)).start()
    grid.set_run(run_from_proto(stub.PullTaskInput(PullTaskInputRequest()).run))
    return grid, nodes


def ask(pipe: Pipe, grid: GrpcGrid, waiting: dict[str, Frame]) -> None:
    """Send what NeoRL asks, until it is gone."""
    while True:
        frame = pipe.receive()
        assert frame is not None
        if frame.kind == "nodes":
            pipe.send(Frame("nodes", json.dumps(sorted(grid.get_node_ids()))))
            continue
        message = Message(packed(frame), frame.node, "query", ttl=frame.seconds)
        (sent,) = grid.push_messages([message])
        if sent:
            waiting[sent] = frame._replace(arrays=NOTHING)
        else:
            pipe.send(Frame("failed", "no such node is connected", number=frame.number, node=frame.node))


def collect(pipe: Pipe, grid: GrpcGrid, waiting: dict[str, Frame]) -> None:
    """Hand every answer back as it comes."""
    while True:
        time.sleep(OFTEN)
        for reply in grid.pull_messages(list(waiting)) if waiting else ():
            asked = waiting.pop(reply.metadata.reply_to_message_id)
            pipe.send(_frame(reply, asked))


def _frame(reply: Any, asked: Frame) -> Frame:
    to = asked._replace(kind="failed", arrays=NOTHING)
    if reply.has_error():
        return to._replace(text=str(reply.error.reason or f"Flower's error {reply.error.code}"))
    try:
        text, arrays = unpacked(reply.content)
    except (KeyError, TypeError, ValueError) as error:
        return to._replace(text=f"expected text and arrays, got {error!r}")
    return to._replace(kind="answer", text=text, arrays=arrays)


def serve(pipe: Pipe, settings: Settings) -> None:
    """Hand messages in both directions until NeoRL is gone."""
    grid, nodes = begin(pipe, settings)
    pipe.send(Frame("ready", json.dumps(nodes)))
    waiting: dict[str, Frame] = {}
    threading.Thread(target=or_end, args=(collect, pipe, grid, waiting), daemon=True).start()
    ask(pipe, grid, waiting)


def or_end(function: Callable[..., None], *arguments: Any) -> None:
    """Run one of the threads; the process ends with it."""
    try:
        function(*arguments)
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    """Run with the number of an open socket, over which the settings come first."""
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    first = pipe.receive()
    assert first is not None
    settings = Settings(**json.loads(first.text))
    sys.argv = ["flower-superlink", *settings.arguments]
    threading.Thread(target=or_end, args=(serve, pipe, settings), daemon=True).start()
    ending_with(run_superlink)


if __name__ == "__main__":
    main()
