"""The process in which foreign HDF5 files are read: HDF5's library crashes on some damaged ones, and takes all along.

It takes requests as JSON lines on its standard input and forks a child for each, with limits on memory and processor
time. The child answers on the standard output in frames: a JSON line, then the arrays that it names as raw bytes.
Nothing is unpickled on either side. `tasks.data.formats.hdf5.isolated` is the other end.
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
from tasks.data.formats.hdf5.layouts import read_blocks, read_layout
from tasks.data.formats.hdf5.sources import Request, open_hdf5
from tasks.data.store.schema import Rows

MEMORY = 4 * 2**30
"""Bytes of address space of a child."""
SECONDS = 20
"""Seconds of processor time, on top of one for each `PER_SECOND` bytes."""
PER_SECOND = 2 * 2**20


def serve() -> None:
    """Answer requests until the standard input ends."""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            _exit_after(Request(**json.loads(line)), out)
        if os.waitpid(child, 0)[1] != 0:
            # What the child had begun to send is of no known length: the other end gives this process up.
            os._exit(1)


def _exit_after(request: Request, out: BinaryIO) -> NoReturn:
    """Answer and end the process: with 0 if the answer has its last frame."""
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
    """Send what a file holds and, if asked for, its rows; a frame `end` or `bad` is the last."""
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
    """One frame of arrays; `rejected` goes as numbers of reasons."""
    plain = {key: np.ascontiguousarray(values) for key, values in rows.items() if key != "rejected"}
    reasons: list[str] = []
    if "rejected" in rows:
        found, codes = np.unique(rows["rejected"].astype(str), return_inverse=True)
        reasons, plain["rejected"] = found.tolist(), codes.astype(np.uint8)
    arrays = [[key, values.dtype.str, values.shape] for key, values in plain.items()]
    _send(out, arrays=arrays, reasons=reasons)
    for values in plain.values():
        out.write(values.reshape(-1).view(np.uint8).data)


def _send(out: BinaryIO, **frame: object) -> None:
    out.write(json.dumps(frame).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    serve()
