"""Files that only their owner may read."""

from __future__ import annotations

from pathlib import Path

from configs.errors import Refused
from tasks.files.canonical import make_folder, unwritable_is_bad_input, write_atomic


def write_secret(path: Path, data: bytes, *, folder_is_ours: bool = True) -> Path:
    """Write a file with mode 0600, atomically.

    Args:
        path: the file.
        data: its bytes.
        folder_is_ours: set an existing folder's mode to 0700, too; a new folder always gets it.
    """
    ours = folder_is_ours or not path.parent.exists()
    make_folder(path.parent)
    if ours:
        with unwritable_is_bad_input(path):
            path.parent.chmod(0o700)
    write_atomic(path, data)
    path.chmod(0o600)
    return path


def read_secret(path: Path) -> bytes:
    """Read a secret file.

    Raises:
        Refused: if the mode lets others read or write it.
    """
    if path.stat().st_mode & 0o077:
        raise Refused(
            f"{path} must have mode 0600, got {path.stat().st_mode & 0o777:04o}: run `chmod 600 {path}`, and replace "
            "the secret if others may have read it."
        )
    return path.read_bytes()
