"""Format of a backup: a tar archive of plain files with a header first and a list of digests last."""

from __future__ import annotations

from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from configs.home import RESTORED
from tasks.progress import Report

STAGING = ".backup."
"""Prefix of folders in the home with temporary copies. The copies of a killed backup are useless."""
UNNEEDED = ("cache", "locks", "logs")
"""Folders of the home that are recreated on demand."""
LEDGER, MLFLOW, PREFECT = DATABASES = ("ledger.db", "mlflow/mlflow.db", "prefect/prefect.db")
BESIDE = tuple(f"{database}-{end}" for database in DATABASES for end in ("wal", "shm", "journal"))
"""Files of running databases."""
HEADER, SUMS = "neorl-backup.json", "SHA256SUMS"
"""Names of the first and the last member; `sha256sum -c` can read the last member."""
FORMAT = 1
MEGABYTE, BLOCK = 1_000_000, 1 << 20
GROWTH = 1 << 16
"""Bytes by which a home of any size may grow while it is copied."""


def allowed(stated: int, least: int) -> int:
    """Return the largest number of files or bytes of a backup that states this number, because homes may grow."""
    return max(stated + stated // 10, stated + least)


LONGEST_NAME, LONGEST_PART, DEEPEST = 1024, 255, 32
"""Bytes of a file's path in the home, bytes of a name in it, and number of names."""
FILES = frozenset(
    {
        *DATABASES,
        "keys/signing.pem",
        "layout",
        "ledger.head",
        RESTORED,
        "secrets/login",
        "secrets/metrics",
        "services.json",
        "trust.yaml",
        "witnessed.head",
        "witnesses.yaml",
    }
)
"""Paths that cannot be folders."""


def storable(name: str) -> bool:
    """Return whether a backup may contain a file with this path in the home."""
    path = PurePosixPath(name)
    return (
        bool(path.parts)
        and str(path) == name
        and path.parts[0] not in (*UNNEEDED, HEADER, SUMS, "/", "//")
        and not name.startswith(STAGING)
        and name not in BESIDE
        and ".." not in path.parts
        and len(path.parts) <= DEEPEST
        and len(name.encode()) <= LONGEST_NAME
        and max(len(part.encode()) for part in path.parts) <= LONGEST_PART
        and not any(sign in name for sign in "\0\n\\")
        and FILES.isdisjoint(str(parent) for parent in path.parents)
    )


class Header(BaseModel):
    """Content of a backup's first member, `neorl-backup.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(ge=1)
    layout: int = Field(ge=1)
    """Layout version of the home."""
    neorl: str
    """Version of NeoRL that made the backup."""
    made: str
    root: str
    """Path of the home."""
    files: int = Field(ge=0)
    size: int = Field(ge=0)
    """Bytes of all files."""
    entries: int = Field(ge=0)
    """Number of ledger entries."""
    left_out: tuple[str, ...]


class Megabytes:
    """Callback that counts bytes and reports progress after each megabyte."""

    def __init__(self, size: int, progress: Report) -> None:
        self._all, self._progress = max(size // MEGABYTE, 1), progress
        self._done, self._reported = 0, -1

    def __call__(self, count: int) -> None:
        """Add `count` bytes."""
        self._done += count
        if (now := min(self._done // MEGABYTE, self._all)) != self._reported:
            self._reported = now
            self._progress(now, self._all, "MB")
