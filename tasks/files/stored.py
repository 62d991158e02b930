"""Storage of dataset shards in the home or in an S3 bucket. Shards are immutable and named by their SHA-256.

Manifests and the ledger always contain the home's path, `datasets/PLANT/shards/SHA256.h5`. If NEORL_DATASETS_URL names
a bucket, new shards are written to the bucket only, as `PLANT/SHA256.h5` below the URL's prefix. A shard that exists in
the home is read from the home, any other shard from the bucket.
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
"""Least age of a file's last change, in ns, to cache its digest: coarse file system clocks can hide a later change."""
SHARD = re.compile(r"[0-9a-f]{64}\.h5")
READ_AHEAD = 2**20
CHUNK = 8 * 2**20
"""Bytes per request when a whole object is read."""
TRIES = 5
"""Retries of a request that the storage does not answer."""


class ObjectState(NamedTuple):
    """Metadata that shows whether an object in the bucket has changed: every change alters at least one field."""

    size: int
    modified: float
    """s since 1970"""
    tag: str | None


def is_stored(path: Path) -> bool:
    """Return whether a file exists in the home or in the bucket.

    All functions of this module raise BadInput if NEORL_DATASETS_URL is invalid, and ServiceMissing if the storage does
    not answer. Functions that read a file raise FileNotFoundError if the file exists neither in the home nor in the
    bucket.
    """
    if path.exists():
        return True
    stored = _object(path)
    return stored is not None and stored.state() is not None


def stored_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in the home, or of its object in the bucket."""
    stored = None if path.exists() else _object(path)
    return file_sha256(path) if stored is None else stored.sha256()


_hashed: dict[Path, tuple[FileState | ObjectState | None, str]] = {}


def sha256_while_unchanged(path: Path) -> str:
    """Return the SHA-256 of a file; hash the file only if its metadata changed since this process hashed it last.

    The digest of a file that changed less than `SETTLED_NS` ago is not cached.
    """
    stored = None if path.exists() else _object(path)
    state = file_state(path) if stored is None else stored.state()
    known = _hashed.get(path)
    if known is not None and known[0] == state:
        return known[1]
    began = time.time_ns()
    digest = stored_sha256(path)
    if isinstance(state, FileState) and began - max(state.modified, state.changed) <= SETTLED_NS:
        return digest
    if state == (file_state(path) if stored is None else stored.state()):
        _hashed[path] = state, digest
    return digest


def stored_size(path: Path) -> int:
    stored = None if path.exists() else _object(path)
    state = None if stored is None else stored.state()
    return path.stat().st_size if state is None else state.size


def open_stored(path: Path) -> IO[bytes]:
    """Open a file in the home, or its object in the bucket, for reading; only the bytes that are read are fetched."""
    stored = None if path.exists() else _object(path)
    return path.open("rb") if stored is None else io.BufferedReader(_Ranges(stored), READ_AHEAD)


def put_stored(path: Path, *parts: memoryview) -> None:
    """Write the joined parts as a shard, atomically: to the bucket if one is configured, otherwise to the home."""
    stored = _object(path)
    if stored is None:
        write_atomic(path, *parts)
    else:
        stored.put(parts)


def objects_of(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield a plant's shards in the bucket as (path in the home, size in bytes, last change in s since 1970)."""
    bucket = _bucket_of(folder)
    if bucket is not None:
        import obstore

        with _answering():
            for item in (each for some in obstore.list(bucket, f"{folder.parent.name}/") for each in some):
                name = item["path"].rpartition("/")[2]
                if SHARD.fullmatch(name):
                    yield folder / name, item["size"], item["last_modified"].timestamp()


def remove_object(path: Path) -> None:
    """Remove a shard from the bucket, if a bucket is configured."""
    import obstore

    stored = _object(path)
    if stored is not None:
        with _answering():
            obstore.delete(stored.bucket, stored.key)


class _Object(NamedTuple):
    bucket: S3Store
    key: str

    def state(self) -> ObjectState | None:
        import obstore

        try:
            with _answering():
                head = obstore.head(self.bucket, self.key)
        except FileNotFoundError:
            return None
        return ObjectState(head["size"], head["last_modified"].timestamp(), head["e_tag"])

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


class SeekableFile(io.RawIOBase):
    """Base class for seekable files that are not on the disk; a subclass sets `_size` and reads bytes from `_at` on."""

    _at = _size = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at


class _Ranges(SeekableFile):
    """An object in the bucket as a file; each read requests one range of bytes."""

    def __init__(self, stored: _Object) -> None:
        super().__init__()
        state = stored.state()
        if state is None:
            raise FileNotFoundError(stored.key)
        self._stored, self._size = stored, state.size

    def readinto(self, buffer: WriteableBuffer) -> int:
        import obstore

        into = memoryview(buffer).cast("B")
        count = max(min(len(into), self._size - self._at), 0)
        if count:
            with _answering():
                into[:count] = obstore.get_range(self._stored.bucket, self._stored.key, start=self._at, length=count)
        self._at += count
        return count


@contextmanager
def _answering() -> Iterator[None]:
    """Turn errors of the storage into `ServiceMissing`. The errors' text is omitted, because it may contain keys."""
    from obstore.exceptions import BaseError, NotFoundError

    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        raise FileNotFoundError(f"no such object in {DATASETS}") from error
    except (BaseError, OSError) as error:
        raise ServiceMissing(
            f"the storage of {DATASETS} does not answer ({type(error).__name__}): start it, or check its address and "
            "keys (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), then run the same command again."
        ) from error


def _object(path: Path) -> _Object | None:
    """Return a file's object in the bucket; None if the file is not a shard or no bucket is configured."""
    bucket = _bucket_of(path.parent) if SHARD.fullmatch(path.name) else None
    return None if bucket is None else _Object(bucket, f"{path.parents[1].name}/{path.name}")


def _bucket_of(folder: Path) -> S3Store | None:
    """Return the bucket for a folder of shards; None if no bucket is configured or the folder is not in a home."""
    url = setting(DATASETS)
    if not url or (folder.name, folder.parents[1].name) != ("shards", "datasets"):
        return None
    if not (folder.parents[2] / LAYOUT_FILE).exists():
        return None
    return _opened(url, os.environ.get("AWS_ENDPOINT_URL", ""))


@cache
def _opened(url: str, endpoint: str) -> S3Store:
    from obstore.store import S3Store

    # Allow HTTP for a plain endpoint.
    plain = endpoint.startswith("http://")
    with _answering():
        return S3Store.from_url(
            url,
            client_options={"timeout": "30s", "connect_timeout": "5s", "allow_http": plain},
            retry_config={"max_retries": TRIES},
        )
