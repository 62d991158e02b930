"""SuperNode of a site: Flower's program, and a thread that forwards messages to NeoRL.

Flower would run an application that the SuperLink sends. This process never runs that application: the NeoRL that is
installed at the site answers each message.
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

from tasks.federation.transport.flower.common import (
    Settings,
    claim_task,
    exit_after,
    from_record,
    open_stub,
    secret_interceptor,
    to_record,
    token_interceptor,
)
from tasks.federation.transport.frames import Frame, Pipe


def serve(pipe: Pipe, settings: Settings) -> None:
    """Answer the SuperLink's messages one after the other until NeoRL ends."""
    try:
        _, offered = open_stub(
            ClientAppIoStub, settings.app_address, [secret_interceptor(settings.secret, CLIENTAPPIO_SUPEREXEC_METHODS)]
        )
        pipe.send(Frame("ready"))
        while True:
            answer(pipe, settings.app_address, claim_task(offered, pipe))
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def answer(pipe: Pipe, address: str, token: str) -> None:
    """Forward one message to NeoRL and the answer to the SuperLink."""
    channel, stub = open_stub(ClientAppIoStub, address, [token_interceptor(token)])
    alive = HeartbeatSender(make_task_heartbeat_fn_grpc(stub))
    alive.start()
    try:
        message, context, _, _ = pull_task_input(stub)
        try:
            text, arrays = from_record(message.content)
            pipe.send(Frame("ask", text, arrays))
            frame = pipe.receive()
            assert frame is not None
        except (KeyError, TypeError, ValueError) as error:
            frame = Frame("failed", f"the message has no text and arrays ({error!r})")
        if frame.kind == "answer":
            reply = Message(to_record(frame), reply_to=message)
        else:
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, frame.text), reply_to=message)
        push_message(stub, reply, context)
        push_task_output(stub, context, SubStatus.COMPLETED, "")
    finally:
        alive.stop()
        channel.close()


def main() -> None:
    """Run the SuperNode. The argument is the number of an open socket; the first frame has the settings."""
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    first = pipe.receive()
    assert first is not None
    settings = Settings(**json.loads(first.text))
    sys.argv = ["flower-supernode", *settings.arguments]
    threading.Thread(target=serve, args=(pipe, settings), daemon=True).start()
    # If a SuperLink no longer knows this node, Flower's threads outlive the program, and NeoRL would wait forever.
    exit_after(flower_supernode)


if __name__ == "__main__":
    main()
