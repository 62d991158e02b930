"""Read foreign HDF5 files in a worker process, so that a damaged file cannot crash this one."""

from __future__ import annotations

import atexit
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from configs.errors import BadInput
from tasks.data.formats.hdf5.flat_files import Layout
from tasks.data.formats.hdf5.sources import Request
from tasks.data.formats.reading import Blocks, Source
from tasks.data.store.schema import Rows
from tasks.files.provenance import ROOT

Kind = Literal["source", "recording"]
SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_LINE = 2**20
MAX_ARRAY = 2**32
"""Largest accepted array in an answer of the worker, in bytes."""


def has_signature(path: Path) -> bool:
    """Return whether the HDF5 signature is at byte 0, 512, 1024, 2048, ... of a file (HDF5 format, section II.A)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at + len(SIGNATURE) <= size:
            file.seek(at)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
            at = max(2 * at, 512)
    return False


def read_isolated(path: Path, horizon: int | None = None) -> Source:
    """Call `open_hdf5` in a worker process; a crash, or too much time or memory, also raises BadInput."""
    (head,) = _ask(path, "source", horizon, rows=False)
    fields = {**head, "path": Path(head["path"]), "keys": tuple(head["keys"]), "notes": tuple(head["notes"])}
    return Source(**fields | {"blocks": lambda: _rows(path, "source", horizon)})


def read_recording(path: Path, horizon: int | None = None) -> tuple[Layout, Blocks]:
    """Call `read_layout` and `read_blocks` in a worker process, with the same errors as `read_isolated`."""
    (head,) = _ask(path, "recording", horizon, rows=False)
    return Layout(**head), _rows(path, "recording", horizon)


def _rows(path: Path, kind: Kind, horizon: int | None) -> Blocks:
    answers = _ask(path, kind, horizon, rows=True)
    next(answers)
    yield from answers


def _ask(path: Path, kind: Kind, horizon: int | None, rows: bool) -> Iterator[dict[str, Any]]:
    """Send a request to a worker; yield the file's description and, if `rows` is set, each block of rows."""
    worker = _living_worker()
    whole = False
    try:
        files = list(path.glob("*.hdf5")) if path.is_dir() else [path]
        size = sum(file.stat().st_size for file in files if file.is_file())
        worker.send(Request(str(path.absolute()), kind, horizon, rows, size))
        while "end" not in (frame := worker.receive(path)):
            if "bad" in frame:
                whole = True
                if frame["bad"] == "memory":
                    raise _damaged(path, "needed more memory than allowed")
                raise BadInput(frame["bad"])
            yield frame["head"] if "head" in frame else worker.receive_rows(frame, path)
        whole = True
    finally:
        # If an answer was not read to the end, do not reuse the worker: the next request would read the rest.
        if whole:
            _idle.append(worker)
        else:
            worker.close()


def _damaged(path: Path, event: str) -> BadInput:
    return BadInput(f"{path.name} is not a complete HDF5 file (reading {event}): copy the file again.")


class _Worker:
    def __init__(self) -> None:
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tasks.data.formats.hdf5.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def send(self, request: Request) -> None:
        # If the worker has just died, `receive` reports it.
        with suppress(BrokenPipeError):
            self.stdin.write(json.dumps(request._asdict()).encode() + b"\n")
            self.stdin.flush()

    def receive(self, path: Path) -> dict[str, Any]:
        line = self.stdout.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise _damaged(path, "crashed or took too long")
        frame: dict[str, Any] = json.loads(line)
        return frame

    def receive_rows(self, frame: dict[str, Any], path: Path) -> Rows:
        rows: Rows = {}
        for key, kind, shape in frame["arrays"]:
            dtype = np.dtype(kind)
            size = math.prod(shape) * dtype.itemsize
            data = self.stdout.read(size) if size <= MAX_ARRAY else b""
            if len(data) != size:
                raise _damaged(path, "crashed or took too long")
            rows[key] = np.frombuffer(bytearray(data), dtype).reshape(shape)
        if "rejected" in rows:
            rows["rejected"] = np.array(frame["reasons"] or [""], dtype=object)[rows["rejected"]]
        return rows

    def close(self) -> None:
        self.process.kill()
        for stream in (self.stdin, self.stdout):
            with suppress(BrokenPipeError):
                stream.close()
        self.process.wait()


_idle: list[_Worker] = []


def _living_worker() -> _Worker:
    while _idle:
        worker = _idle.pop()
        if worker.process.poll() is None:
            return worker
        worker.close()
    return _Worker()


@atexit.register
def _close_all() -> None:
    while _idle:
        _idle.pop().close()
