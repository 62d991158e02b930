"""Shared code of both Flower processes: claim tasks, and convert between frames and Flower's messages."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from zipfile import BadZipFile

import grpc
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.appio_pb2 import ClaimTaskRequest, PullPendingTasksRequest
from flwr.supercore.grpc import create_channel
from flwr.supercore.interceptors import (
    AppIoTokenClientInterceptor,
    RuntimeVersionClientInterceptor,
    SuperExecAuthClientInterceptor,
)
from flwr.supercore.retry import make_simple_grpc_retry_invoker, wrap_stub

from tasks.federation.transport.frames import TYPES, Arrays, Frame, Pipe

POLL = 0.1
"""Seconds between checks for new tasks or answers."""


class Settings(NamedTuple):
    """Settings of a Flower process."""

    arguments: list[str]
    app_address: str
    """Local address at which Flower offers tasks."""
    secret: str
    """Hexadecimal secret that authorises claims of tasks."""
    control_address: str = ""
    authority: str = ""
    """PEM certificates of the SuperLink's authority; empty without TLS."""
    keys: Mapping[str, str] = MappingProxyType({})
    """Public keys (PEM) of the sites' nodes by name; empty without authentication."""


def claim_task(stub: Any, pipe: Pipe) -> str:
    """Wait for a task of Flower, claim the task and return its token.

    Raises:
        EOFError: if NeoRL has ended.
    """
    while not pipe.ended:
        for task in stub.PullPendingTasks(PullPendingTasksRequest()).tasks:
            if token := stub.ClaimTask(ClaimTaskRequest(task_id=task.task_id)).token:
                return str(token)
        time.sleep(POLL)
    raise EOFError("NeoRL has ended")


def open_stub(kind: Callable[[Any], Any], address: str, interceptors: Collection[Any]) -> tuple[Any, Any]:
    interceptors = [RuntimeVersionClientInterceptor(component_name="neorl"), *interceptors]
    channel = create_channel(server_address=address, insecure=True, interceptors=interceptors)
    stub = kind(channel)
    wrap_stub(stub, make_simple_grpc_retry_invoker())
    return channel, stub


def secret_interceptor(secret: str, methods: Collection[str]) -> SuperExecAuthClientInterceptor:
    return SuperExecAuthClientInterceptor(master_secret=bytes.fromhex(secret), protected_methods=methods)


def token_interceptor(token: str) -> AppIoTokenClientInterceptor:
    return AppIoTokenClientInterceptor(token)


def to_record(frame: Frame) -> RecordDict:
    arrays = ArrayRecord({name: Array(array) for name, array in frame.arrays.items()})
    return RecordDict({"arrays": arrays, "told": ConfigRecord({"text": frame.text})})


def from_record(content: RecordDict) -> tuple[str, Arrays]:
    """Return text and arrays of a Flower record.

    Raises:
        KeyError, TypeError, ValueError: if the record has a different structure.
    """
    text = content["told"]["text"]
    try:
        arrays = {name: array.numpy() for name, array in content["arrays"].items()}
    except (EOFError, MemoryError, OSError, BadZipFile) as error:
        raise ValueError(f"an array cannot be read ({error})") from error
    if types := [a.dtype.str for a in arrays.values() if a.dtype.newbyteorder("<").str not in TYPES]:
        raise ValueError(f"array type {types[0]!r} is not allowed")
    if not isinstance(text, str):
        raise TypeError(f"the text must be a str, got {type(text).__name__}")
    return text, arrays


def exit_after(program: Callable[[], None]) -> None:
    """Run Flower's program and then end this process, including remaining threads."""
    try:
        program()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def open_channel(address: str, insecure: bool, authority: bytes | None) -> Any:
    """Wait until a service listens and return a channel to it."""
    channel = create_channel(
        server_address=address,
        insecure=insecure,
        root_certificates=authority,
        interceptors=[RuntimeVersionClientInterceptor(component_name="neorl")],
    )
    grpc.channel_ready_future(channel).result(timeout=60)
    return channel
