"""File locks: one process at a time, and the kernel frees the lock when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.files.canonical import make_folder, unwritable_is_bad_input


@contextmanager
def exclusive(path: Path, on_held: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a file's lock; wait for it while another process does.

    Args:
        path: the lock's file, made when absent, readable by its owner alone.
        on_held: called once when another process holds the lock, before waiting; what it raises refuses to wait.

    Raises:
        BadInput: as `unwritable_is_bad_input`.

    Example:
        >>> with exclusive(Path("folder/lock")):  # doctest: +SKIP
        ...     pass
    """
    make_folder(path.parent)
    with unwritable_is_bad_input(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_held:
                on_held()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
