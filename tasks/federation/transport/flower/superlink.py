"""SuperLink of the coordinator: Flower's program, and threads that forward questions and answers."""

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

from tasks.federation.transport.flower.common import (
    POLL,
    Settings,
    claim_task,
    exit_after,
    from_record,
    open_channel,
    open_stub,
    secret_interceptor,
    to_record,
)
from tasks.federation.transport.frames import NOTHING, Frame, Pipe

# Flower needs an application to start a run. This one is never unpacked; sites answer with their installed NeoRL.
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
    """Register the sites' keys with Flower, start a run and claim the run's task.

    Returns:
        Flower's grid, which sends messages, and the number of each site's node by name.
    """
    authority = settings.authority.encode() or None
    control = ControlStub(open_channel(settings.control_address, authority is None, authority))
    nodes = {
        name: int(control.RegisterNode(RegisterNodeRequest(public_key=key.encode())).node_id)
        for name, key in settings.keys.items()
    }
    content = build_fab_from_files(FILES)[0]
    control.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", content, {}))))
    _, offered = open_stub(
        ServerAppIoStub, settings.app_address, [secret_interceptor(settings.secret, SERVERAPPIO_SUPEREXEC_METHODS)]
    )
    grid = GrpcGrid(settings.app_address, insecure=True, token=claim_task(offered, pipe))
    stub = grid._stub
    HeartbeatSender(make_task_heartbeat_fn_grpc(stub)).start()
    grid.set_run(run_from_proto(stub.PullTaskInput(PullTaskInputRequest()).run))
    return grid, nodes


def ask(pipe: Pipe, grid: GrpcGrid, waiting: dict[str, Frame]) -> None:
    """Forward NeoRL's questions to the sites until NeoRL ends."""
    while True:
        frame = pipe.receive()
        assert frame is not None
        if frame.kind == "nodes":
            pipe.send(Frame("nodes", json.dumps(sorted(grid.get_node_ids()))))
            continue
        message = Message(to_record(frame), frame.node, "query", ttl=frame.seconds)
        (sent,) = grid.push_messages([message])
        if sent:
            waiting[sent] = frame._replace(arrays=NOTHING)
        else:
            pipe.send(Frame("failed", "the node is not connected", number=frame.number, node=frame.node))


def collect(pipe: Pipe, grid: GrpcGrid, waiting: dict[str, Frame]) -> None:
    while True:
        time.sleep(POLL)
        for reply in grid.pull_messages(list(waiting)) if waiting else ():
            asked = waiting.pop(reply.metadata.reply_to_message_id)
            pipe.send(_frame(reply, asked))


def _frame(reply: Any, asked: Frame) -> Frame:
    to = asked._replace(kind="failed", arrays=NOTHING)
    if reply.has_error():
        return to._replace(text=str(reply.error.reason or f"Flower's error {reply.error.code}"))
    try:
        text, arrays = from_record(reply.content)
    except (KeyError, TypeError, ValueError) as error:
        return to._replace(text=f"the answer has no text and arrays ({error!r})")
    return to._replace(kind="answer", text=text, arrays=arrays)


def serve(pipe: Pipe, settings: Settings) -> None:
    """Forward messages in both directions until NeoRL ends."""
    grid, nodes = begin(pipe, settings)
    pipe.send(Frame("ready", json.dumps(nodes)))
    waiting: dict[str, Frame] = {}
    threading.Thread(target=run_or_exit, args=(collect, pipe, grid, waiting), daemon=True).start()
    ask(pipe, grid, waiting)


def run_or_exit(function: Callable[..., None], *arguments: Any) -> None:
    """Run the function of a thread, and end the whole process if the function raises an error."""
    try:
        function(*arguments)
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    """Run the SuperLink. The argument is the number of an open socket; the first frame has the settings."""
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    first = pipe.receive()
    assert first is not None
    settings = Settings(**json.loads(first.text))
    sys.argv = ["flower-superlink", *settings.arguments]
    threading.Thread(target=run_or_exit, args=(serve, pipe, settings), daemon=True).start()
    exit_after(run_superlink)


if __name__ == "__main__":
    main()
