"""File locks. The kernel frees a lock when the process ends, for whatever reason."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.files.canonical import make_folder, unwritable_is_bad_input


@contextmanager
def exclusive(path: Path, on_held: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a file's lock for the duration of the block; wait while another process holds it.

    Args:
        path: the lock file, made with mode 0600 if absent.
        on_held: called once before waiting for another process; an exception from it is raised instead of waiting.

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
