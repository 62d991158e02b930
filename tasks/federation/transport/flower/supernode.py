"""A site's SuperNode: Flower's own program, and a thread that hands each message to NeoRL and its answer back.

Flower would unpack an application that the SuperLink sends and run it here. This process never does: a message goes to
the NeoRL that the site installed itself, which answers by its own code or refuses.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.clientappio_pb2_grpc import ClientAppIoStub
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_grpc
from flwr.supercore.interceptors.superexec_auth_interceptor import CLIENTAPPIO_SUPEREXEC_METHODS
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from tasks.federation.transport.flower.handing import (
    Settings,
    by_secret,
    by_token,
    claimed,
    ending_with,
    packed,
    stub_of,
    unpacked,
)
from tasks.federation.transport.frames import Frame, Pipe


def serve(pipe: Pipe, settings: Settings) -> None:
    """Answer whatever the SuperLink asks, one message at a time, until NeoRL is gone."""
    try:
        _, offered = stub_of(
            ClientAppIoStub, settings.app_address, [by_secret(settings.secret, CLIENTAPPIO_SUPEREXEC_METHODS)]
        )
        pipe.send(Frame("ready"))
        while True:
            answer(pipe, settings.app_address, claimed(offered, pipe))
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def answer(pipe: Pipe, address: str, token: str) -> None:
    """Hand one message to NeoRL, and its answer to the SuperLink."""
    channel, stub = stub_of(ClientAppIoStub, address, [by_token(token)])
    alive = HeartbeatSender(make_task_heartbeat_fn_grpc(stub))
    alive.start()
    try:
        message, context, _, _ = pull_task_input(stub)
        try:
            text, arrays = unpacked(message.content)
            pipe.send(Frame("ask", text, arrays))
            frame = pipe.receive()
            assert frame is not None
        except (KeyError, TypeError, ValueError) as error:
            frame = Frame("failed", f"expected text and arrays, got {error!r}")
        if frame.kind == "answer":
            reply = Message(packed(frame), reply_to=message)
        else:
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, frame.text), reply_to=message)
        push_message(stub, reply, context)
        push_task_output(stub, context, SubStatus.COMPLETED, "")
    finally:
        alive.stop()
        channel.close()


def main() -> None:
    """Run with the number of an open socket, over which the settings come first."""
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    first = pipe.receive()
    assert first is not None
    settings = Settings(**json.loads(first.text))
    sys.argv = ["flower-supernode", *settings.arguments]
    threading.Thread(target=serve, args=(pipe, settings), daemon=True).start()
    # Flower's own threads outlive its program where a SuperLink forgot this node: NeoRL would wait for it in vain.
    ending_with(flower_supernode)


if __name__ == "__main__":
    main()
