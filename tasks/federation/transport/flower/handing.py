"""What both Flower processes do: claim what Flower has for them, and turn frames into its messages and back."""

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

OFTEN = 0.1
"""Seconds between two looks for something new on this machine."""


class Settings(NamedTuple):
    """What a Flower process is told when it starts."""

    arguments: list[str]
    """Of Flower's own command."""
    app_address: str
    """Where Flower's process offers its tasks, on this machine."""
    secret: str
    """Hexadecimal, by which only who was told may claim them."""
    control_address: str = ""
    authority: str = ""
    """PEM certificates by which the SuperLink is known; nothing where it speaks without TLS."""
    keys: Mapping[str, str] = MappingProxyType({})
    """Public keys of the sites' nodes (PEM), by name; nothing where nodes are not authenticated."""


def claimed(stub: Any, pipe: Pipe) -> str:
    """Wait for a task and claim it; what is returned lets its bearer speak for it.

    Raises:
        EOFError: when NeoRL is gone.
    """
    while not pipe.ended:
        for task in stub.PullPendingTasks(PullPendingTasksRequest()).tasks:
            if token := stub.ClaimTask(ClaimTaskRequest(task_id=task.task_id)).token:
                return str(token)
        time.sleep(OFTEN)
    raise EOFError("NeoRL has ended")


def stub_of(kind: Callable[[Any], Any], address: str, interceptors: Collection[Any]) -> tuple[Any, Any]:
    """A channel to a service on this machine, and the stub that speaks over it."""
    told = [RuntimeVersionClientInterceptor(component_name="neorl"), *interceptors]
    channel = create_channel(server_address=address, insecure=True, interceptors=told)
    stub = kind(channel)
    wrap_stub(stub, make_simple_grpc_retry_invoker())
    return channel, stub


def by_secret(secret: str, methods: Collection[str]) -> SuperExecAuthClientInterceptor:
    """What signs the calls that claim a task."""
    return SuperExecAuthClientInterceptor(master_secret=bytes.fromhex(secret), protected_methods=methods)


def by_token(token: str) -> AppIoTokenClientInterceptor:
    """What speaks for a claimed task."""
    return AppIoTokenClientInterceptor(token)


def packed(frame: Frame) -> RecordDict:
    """A frame as Flower carries it: each array by its name, and the text beside them."""
    arrays = ArrayRecord({name: Array(array) for name, array in frame.arrays.items()})
    return RecordDict({"arrays": arrays, "told": ConfigRecord({"text": frame.text})})


def unpacked(content: RecordDict) -> tuple[str, Arrays]:
    """Text and arrays of what Flower carried.

    Raises:
        KeyError, TypeError, ValueError: when it is of another shape.
    """
    text = content["told"]["text"]
    try:
        arrays = {name: array.numpy() for name, array in content["arrays"].items()}
    except (EOFError, MemoryError, OSError, BadZipFile) as error:
        raise ValueError(f"an array that cannot be read ({error})") from error
    if odd := [a.dtype.str for a in arrays.values() if a.dtype.newbyteorder("<").str not in TYPES]:
        raise ValueError(f"an array of type {odd[0]!r}")
    if not isinstance(text, str):
        raise TypeError(f"a text of type {type(text).__name__}")
    return text, arrays


def ending_with(program: Callable[[], None]) -> None:
    """Run Flower's program; this process ends with it, whatever threads it leaves."""
    try:
        program()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def ready(address: str, insecure: bool, authority: bytes | None) -> Any:
    """A channel to a service that has begun to listen."""
    channel = create_channel(
        server_address=address,
        insecure=insecure,
        root_certificates=authority,
        interceptors=[RuntimeVersionClientInterceptor(component_name="neorl")],
    )
    grpc.channel_ready_future(channel).result(timeout=60)
    return channel
