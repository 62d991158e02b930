"""The home: the folder `.neorl/` or `NEORL_HOME` with everything that NeoRL stores."""

from __future__ import annotations

import errno
import getpass
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from configs.errors import BadInput, Refused

OWNER_ONLY = 0o700
PASSPHRASE = "NEORL_KEY_PASSPHRASE"
"""Environment variable with the passphrase of the signing key."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, a full quota, or a file of the largest allowed size."""
LAYOUT, OLDEST = 2, 1
"""Layout of new homes, and the oldest layout that is supported; 1 means a home without a layout file."""
LAYOUT_FILE = "layout"
RESTORED = "restored.json"
"""File of a restored home; the home's work waits for a person."""


def login() -> str:
    """Return the user's login name; empty if the machine has none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


@dataclass(frozen=True)
class Home:
    """The folder with service state, datasets, checkpoints, certificates, ledger and keys."""

    root: Path

    @classmethod
    def locate(cls, *, any_layout: bool = False) -> Home:
        """Return the home that `NEORL_HOME` names, else `.neorl` in the working directory.

        Args:
            any_layout: accept a home with any layout, for migration or examination.

        Raises:
            BadInput: if the path is not a folder and cannot become a folder, or this account may not read the folder.
            Refused: if this version does not support the home's layout.
        """
        named = os.environ.get("NEORL_HOME") or ".neorl"
        try:
            root = Path(named).expanduser().resolve()
            nearest = next(path for path in (root, *root.parents) if path.exists())
        except (OSError, RuntimeError) as error:  # a loop of links, an unknown user, a parent that may not be read
            raise _no_folder(Path(named), str(error)) from error
        if not nearest.is_dir():
            raise _no_folder(root, f"a file at {nearest}")
        if nearest == root and not os.access(root, os.R_OK | os.X_OK):
            raise BadInput(
                f"this account may not read the home {root}: run the command as its owner, or point NEORL_HOME to "
                "another folder"
            )
        home = cls(root)
        if not any_layout:
            home.check_layout()
        return home

    @property
    def layout(self) -> int:
        """Version of the home's layout; the newest if there is no home yet.

        Raises:
            Refused: if the layout file cannot be read.
        """
        path = self.root / LAYOUT_FILE
        try:
            return int(path.read_text())
        except FileNotFoundError:
            return 1 if self.root.is_dir() and any(self.root.iterdir()) else LAYOUT
        except (OSError, ValueError) as error:
            raise Refused(f"{path} must hold a number, got '{str(error)[:80]}': restore it from a backup") from error

    def check_layout(self) -> None:
        """Check that this version supports the home's layout.

        Raises:
            Refused: if the layout is too new or too old; the message says what to install or run.
        """
        if (found := self.layout) > LAYOUT:
            raise Refused(
                f"the home {self.root} has layout {found}, this version supports up to {LAYOUT}: install a newer NeoRL"
            )
        if found < OLDEST:
            raise Refused(
                f"the home {self.root} has layout {found}, this version needs at least {OLDEST}: run 'neorl migrate', "
                "which makes a backup first"
            )

    def folder(self, *parts: str) -> Path:
        """Create a folder in the home if it is absent, readable by its owner only, and return its path.

        Raises:
            BadInput: if the folder cannot be created.

        Example:
            >>> Home.locate().folder("datasets", "chemical_reactor")  # doctest: +SKIP
        """
        path = self.root
        _make(path)
        if not (path / LAYOUT_FILE).exists() and not any(path.iterdir()):
            self.write_layout(LAYOUT)
        for part in parts:
            path = path / part
            _make(path)
            # The user may open the root to other accounts on purpose. Its folders are always closed to other accounts.
            if stat.S_IMODE(path.stat().st_mode) != OWNER_ONLY and path.stat().st_uid == os.getuid():
                with _reported(path):
                    path.chmod(OWNER_ONLY)
        return path

    def write_layout(self, version: int) -> None:
        """Write the layout file atomically."""
        # `tasks.files.canonical.writing` does the same, but configs may not import tasks.
        temporary = self.root / f".{LAYOUT_FILE}.{secrets.token_hex(4)}"
        with _reported(self.root):
            try:
                with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                    file.write(f"{version}\n")
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self.root / LAYOUT_FILE)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    @property
    def ledger(self) -> Path:
        """Database of the embedded ledger; a team's ledger is at `NEORL_LEDGER_URL`."""
        return self.root / "ledger.db"

    @property
    def ledger_url(self) -> str:
        """SQLAlchemy URL of the ledger: a team's database, else the database in the home."""
        return os.environ.get("NEORL_LEDGER_URL") or f"sqlite:///{self.ledger}"

    @property
    def signing_key(self) -> Path:
        """Private key of the home (PEM, encrypted PKCS #8, mode 0600)."""
        return self.root / "keys" / "signing.pem"

    def lock_of(self, plant: str) -> Path:
        """Return the path of a plant's lock file. Plants can have any name, so their locks are in a separate folder."""
        return self.folder("locks", "plants") / f"{plant}.lock"

    @property
    def services(self) -> Path:
        """File with the home's servers and their processes."""
        return self.root / "services.json"

    @property
    def login(self) -> Path:
        """File with name and password of the home's servers, readable by its owner only."""
        return self.root / "secrets" / "login"

    @property
    def metrics_token(self) -> Path:
        """File with the token by which Prometheus reads the metrics, readable by its owner only."""
        return self.root / "secrets" / "metrics"

    @property
    def trust(self) -> Path:
        """File with the public keys that were pinned at first use, if the project pins no keys."""
        return self.root / "trust.yaml"


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn an error about a folder into BadInput, except for a full disk, which the command line reports."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        raise _no_folder(path, error.strerror or str(error)) from error


def _make(path: Path) -> None:
    with _reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=OWNER_ONLY, exist_ok=True)


def _no_folder(path: Path, got: str) -> BadInput:
    return BadInput(
        f"cannot use the folder {path}, got '{got}': point NEORL_HOME to a folder that you may write to, or remove the "
        "obstacle"
    )
