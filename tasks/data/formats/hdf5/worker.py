"""Worker process that reads foreign HDF5 files, because HDF5's library crashes on some damaged files.

The worker takes requests as JSON lines on standard input and forks a child for each, with limits on memory and
processor time. The child answers on standard output in frames: a JSON line, then raw bytes of the arrays that it lists.
Nothing is unpickled. The client is `tasks.data.formats.hdf5.isolated`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np

from configs.errors import BadInput
from tasks.data.formats.hdf5.flat_files import read_blocks, read_layout
from tasks.data.formats.hdf5.sources import Request, open_hdf5
from tasks.data.store.schema import Rows

MEMORY = 4 * 2**30
"""Address space of a child in bytes."""
SECONDS = 20
"""Processor time, plus one second per `PER_SECOND` bytes."""
PER_SECOND = 2 * 2**20


def serve() -> None:
    """Answer requests until the standard input ends."""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            _exit_after(Request(**json.loads(line)), out)
        if os.waitpid(child, 0)[1] != 0:
            # The child may have sent part of an answer, so the client gives this process up.
            os._exit(1)


def _exit_after(request: Request, out: BinaryIO) -> NoReturn:
    """Answer and exit, with status 0 if the last frame was sent."""
    status = 1
    try:
        _limit(request.bytes)
        try:
            answer(request, out)
        except MemoryError:
            _send(out, bad="memory")
        out.flush()
        status = 0
    finally:
        os._exit(status)


def _limit(size: int) -> None:
    seconds = SECONDS + size // PER_SECOND
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def answer(request: Request, out: BinaryIO) -> None:
    """Send a file's layout and, if requested, its rows; the last frame is `end` or `bad`."""
    path, horizon = Path(request.path), request.horizon
    try:
        if request.what == "recording":
            layout = read_layout(path, horizon)
            head: object = layout._asdict()
            blocks = read_blocks(path, horizon)
        else:
            source = open_hdf5(path, horizon)
            head = source._asdict() | {"path": str(source.path), "blocks": None}
            blocks = source.blocks()
        _send(out, head=head)
        if request.rows:
            for rows in blocks:
                send_rows(out, rows)
        _send(out, end=True)
    except BadInput as error:
        _send(out, bad=str(error))


def send_rows(out: BinaryIO, rows: Rows) -> None:
    """Send one frame of arrays; `rejected` is sent as indices into a list of reasons."""
    plain = {key: np.ascontiguousarray(values) for key, values in rows.items() if key != "rejected"}
    reasons: list[str] = []
    if "rejected" in rows:
        distinct, codes = np.unique(rows["rejected"].astype(str), return_inverse=True)
        reasons, plain["rejected"] = distinct.tolist(), codes.astype(np.uint8)
    arrays = [[key, values.dtype.str, values.shape] for key, values in plain.items()]
    _send(out, arrays=arrays, reasons=reasons)
    for values in plain.values():
        out.write(values.reshape(-1).view(np.uint8).data)


def _send(out: BinaryIO, **frame: object) -> None:
    out.write(json.dumps(frame).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    serve()
