"""Worker process that reads untrusted HDF5 files, because the HDF5 library crashes on some damaged files.

The worker reads requests, one JSON line each, from standard input. For each request it forks a child process with
limits on memory and processor time. The child answers on standard output in frames. A frame is a JSON line, followed
by the bytes of the arrays that the line lists. The client is `tasks.data.formats.hdf5.isolated`.
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
"""Largest memory (address space) of a child process in bytes."""
SECONDS = 20
"""Largest processor time of a child process in s; one second is added for every `PER_SECOND` bytes of the file."""
PER_SECOND = 2 * 2**20


def serve() -> None:
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            _exit_after(Request(**json.loads(line)), out)
        if os.waitpid(child, 0)[1] != 0:
            # The child may have sent an incomplete answer. Exit, so that the client starts a new worker.
            os._exit(1)


def _exit_after(request: Request, out: BinaryIO) -> NoReturn:
    """Answer a request and exit; the exit status is 0 if the answer is complete."""
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
    """Send a file's description and, if requested, its rows. The last frame is `end`, or `bad` with the error."""
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
    """Send a block of rows as one frame; the array `rejected` is sent as indices into a list of reasons."""
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
