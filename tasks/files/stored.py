"""Files of a home that may lie in an S3-like bucket: shards of datasets, which are never changed and named by digest.

Their paths stay those of the home, `datasets/PLANT/shards/SHA256.h5`, in manifests, in the ledger and everywhere else.
Where NEORL_DATASETS_URL names a bucket, a new shard is put there in place of the home, as `PLANT/SHA256.h5` below the
URL's prefix, and read by ranges; one that lies in the home is read from there all the same.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from configs.environment import DATASETS, setting
from configs.errors import ServiceMissing
from configs.home import LAYOUT_FILE
from tasks.files.canonical import FileState, file_sha256, file_state, write_atomic

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore.store import S3Store

SETTLED_NS = 10**8
"""Age of a file's last change from which a further change must show in its time; clocks of file systems tick slowly."""
SHARD = re.compile(r"[0-9a-f]{64}\.h5")
READ_AHEAD = 2**20
"""Bytes that are fetched where fewer are asked for."""
CHUNK = 8 * 2**20
"""Bytes that are fetched at a time where all of an object is read."""
TRIES = 5
"""Of a request that the storage does not answer."""


class ObjectState(NamedTuple):
    """What the storage says of an object: whoever changes its bytes changes one of these."""

    size: int
    modified: float
    """s since 1970"""
    tag: str | None


def is_stored(path: Path) -> bool:
    """Whether a file is in the home, or in the bucket in its place.

    Raises:
        BadInput: when NEORL_DATASETS_URL has another form.
        ServiceMissing: when the storage does not answer.
    """
    if path.exists():
        return True
    found = _object(path)
    return found is not None and found.state() is not None


def stored_sha256(path: Path) -> str:
    """SHA-256 of a file in the home, or of the object in its place.

    Raises:
        FileNotFoundError: when there is neither.
        ServiceMissing: as `is_stored`.
    """
    found = None if path.exists() else _object(path)
    return file_sha256(path) if found is None else found.sha256()


_hashed: dict[Path, tuple[FileState | ObjectState | None, str]] = {}


def sha256_while_unchanged(path: Path) -> str:
    """As `stored_sha256`, read at most once per process as long as file system or storage say that it is the same file.

    What was changed a moment ago in the home is not remembered: a clock that ticks slowly could hide a change that
    follows.
    """
    found = None if path.exists() else _object(path)
    state = file_state(path) if found is None else found.state()
    known = _hashed.get(path)
    if known is not None and known[0] == state:
        return known[1]
    began = time.time_ns()
    digest = stored_sha256(path)
    if isinstance(state, FileState) and began - max(state.modified, state.changed) <= SETTLED_NS:
        return digest
    if state == (file_state(path) if found is None else found.state()):
        _hashed[path] = state, digest
    return digest


def stored_size(path: Path) -> int:
    """Bytes of a file in the home, or of the object in its place.

    Raises:
        FileNotFoundError: when there is neither.
        ServiceMissing: as `is_stored`.
    """
    found = None if path.exists() else _object(path)
    state = None if found is None else found.state()
    return path.stat().st_size if state is None else state.size


def open_stored(path: Path) -> IO[bytes]:
    """Open a file in the home, or the object in its place, which is read by ranges.

    Raises:
        FileNotFoundError: when there is neither.
        ServiceMissing: as `is_stored`; also while it is read.
    """
    found = None if path.exists() else _object(path)
    return path.open("rb") if found is None else io.BufferedReader(_Ranges(found), READ_AHEAD)


def put_stored(path: Path, *parts: memoryview) -> None:
    """Keep an immutable file, in the bucket where there is one; whole or not at all.

    Raises:
        BadInput: as `write_atomic`.
        ServiceMissing: as `is_stored`.
    """
    found = _object(path)
    if found is None:
        write_atomic(path, *parts)
    else:
        found.put(parts)


def objects_of(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """What lies in the bucket in place of a plant's folder of shards: paths as in the home, bytes, s since 1970."""
    bucket = _bucket_of(folder)
    if bucket is not None:
        import obstore

        with _answering():
            for found in (each for some in obstore.list(bucket, f"{folder.parent.name}/") for each in some):
                name = found["path"].rpartition("/")[2]
                if SHARD.fullmatch(name):
                    yield folder / name, found["size"], found["last_modified"].timestamp()


def remove_object(path: Path) -> None:
    """Remove what lies in the bucket in place of a file."""
    import obstore

    found = _object(path)
    if found is not None:
        with _answering():
            obstore.delete(found.bucket, found.key)


class _Object(NamedTuple):
    bucket: S3Store
    key: str

    def state(self) -> ObjectState | None:
        import obstore

        try:
            with _answering():
                found = obstore.head(self.bucket, self.key)
        except FileNotFoundError:
            return None
        return ObjectState(found["size"], found["last_modified"].timestamp(), found["e_tag"])

    def sha256(self) -> str:
        import obstore

        digest = hashlib.sha256()
        with _answering():
            for chunk in obstore.get(self.bucket, self.key).stream(min_chunk_size=CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def put(self, parts: tuple[memoryview, ...]) -> None:
        import obstore

        with _answering():
            obstore.put(self.bucket, self.key, iter(parts))


class _Ranges(io.RawIOBase):
    """An object as a file: each read is a request for a range of bytes."""

    def __init__(self, found: _Object) -> None:
        super().__init__()
        state = found.state()
        if state is None:
            raise FileNotFoundError(found.key)
        self._found, self._size, self._at = found, state.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        import obstore

        into = memoryview(buffer).cast("B")
        count = max(min(len(into), self._size - self._at), 0)
        if count:
            with _answering():
                into[:count] = obstore.get_range(self._found.bucket, self._found.key, start=self._at, length=count)
        self._at += count
        return count


@contextmanager
def _answering() -> Iterator[None]:
    """Have the storage's silence end in a sentence; what it says may name its keys, and is not repeated."""
    from obstore.exceptions import BaseError, NotFoundError

    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        raise FileNotFoundError("no such object") from error
    except (BaseError, OSError) as error:
        raise ServiceMissing(
            f"expected the storage of {DATASETS} to answer, got {type(error).__name__}: start it, or check its address "
            "and keys (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), then run the same command again."
        ) from error


def _object(path: Path) -> _Object | None:
    """Where a file of the home lies in the bucket; None where it does not belong there."""
    bucket = _bucket_of(path.parent) if SHARD.fullmatch(path.name) else None
    return None if bucket is None else _Object(bucket, f"{path.parents[1].name}/{path.name}")


def _bucket_of(folder: Path) -> S3Store | None:
    """The bucket that has the place of a folder of shards, which is one of a home; of others it is never asked."""
    url = setting(DATASETS)
    if not url or (folder.name, folder.parents[1].name) != ("shards", "datasets"):
        return None
    if not (folder.parents[2] / LAYOUT_FILE).exists():
        return None
    return _opened(url, os.environ.get("AWS_ENDPOINT_URL", ""))


@cache
def _opened(url: str, endpoint: str) -> S3Store:
    from obstore.store import S3Store

    # Other clients take an endpoint without TLS where one is named, as on this machine.
    plain = endpoint.startswith("http://")
    with _answering():
        return S3Store.from_url(
            url,
            client_options={"timeout": "30s", "connect_timeout": "5s", "allow_http": plain},
            retry_config={"max_retries": TRIES},
        )
