"""Where everything that NeoRL keeps lives: one folder, `.neorl/` or `NEORL_HOME`."""

from __future__ import annotations

import errno
import getpass
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from configs.errors import BadInput, Refused

OWNER_ONLY = 0o700
PASSPHRASE = "NEORL_KEY_PASSPHRASE"
"""Variable with the passphrase of the signing key."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What is said where a disk or a quota is full, or a file may not grow."""
LAYOUT, OLDEST = 2, 1
"""The layout of homes that this version makes, and the oldest that it opens; 1 is of homes without a file about it."""
LAYOUT_FILE = "layout"


def login() -> str:
    """The name that this machine knows its user by; nothing where it knows none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


@dataclass(frozen=True)
class Home:
    """The folder that holds services' state, datasets, checkpoints, certificates, the ledger and the keys."""

    root: Path

    @classmethod
    def locate(cls, *, any_layout: bool = False) -> Home:
        """The home named by `NEORL_HOME`, else `.neorl` under the working directory.

        Args:
            any_layout: also one that another version of NeoRL made, for those that migrate or examine it.

        Raises:
            BadInput: when the path names no folder and none can be made there, for a file is in the way, or one that
                is closed to this account.
            Refused: when the home has a layout that this version does not open.
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
                f"expected a home that this account may look into at {root}, got one that it may not: give the command "
                "as its owner, or point NEORL_HOME to another folder."
            )
        home = cls(root)
        if not any_layout:
            home.check_layout()
        return home

    @property
    def layout(self) -> int:
        """The version of how the home is laid out; that of this program where there is no home yet.

        Raises:
            Refused: when the file that says so cannot be read.
        """
        path = self.root / LAYOUT_FILE
        try:
            return int(path.read_text())
        except FileNotFoundError:
            return 1 if self.root.is_dir() and any(self.root.iterdir()) else LAYOUT
        except (OSError, ValueError) as error:
            got = error.strerror if isinstance(error, OSError) else "another text"
            raise Refused(f"expected a number in {path}, got {got}: bring it back from a backup.") from error

    def check_layout(self) -> None:
        """Refuse a home that this version does not open.

        Raises:
            Refused: naming what opens it.
        """
        if (found := self.layout) > LAYOUT:
            raise Refused(
                f"expected a home of layout {LAYOUT} at most in {self.root}, got {found}: install the newer NeoRL that "
                "made it."
            )
        if found < OLDEST:
            raise Refused(
                f"expected a home of layout {OLDEST} at least in {self.root}, got {found}: run 'neorl migrate', which "
                "backs it up first."
            )

    def folder(self, *parts: str) -> Path:
        """A folder under the home, made when absent; nobody but its owner may look into it.

        Raises:
            BadInput: when it cannot be made.

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
            # A root that was there before may be shared for reasons of its user's; what lies in it is ours to close.
            if stat.S_IMODE(path.stat().st_mode) != OWNER_ONLY and path.stat().st_uid == os.getuid():
                _close(path)
        return path

    def write_layout(self, version: int) -> None:
        """Write down how the home is laid out, whole or not at all."""
        # As `tasks.files.canonical.writing` does, which is above this layer.
        temporary = self.root / f".{LAYOUT_FILE}.{secrets.token_hex(4)}"
        try:
            with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                file.write(f"{version}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.root / LAYOUT_FILE)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if error.errno in FULL:
                raise
            raise _no_folder(self.root, error.strerror or str(error)) from error

    @property
    def ledger(self) -> Path:
        """The embedded ledger's database; a team's lies where `NEORL_LEDGER_URL` says."""
        return self.root / "ledger.db"

    @property
    def ledger_url(self) -> str:
        """Where the ledger lies, as an SQLAlchemy URL: a team's database, else the one in the home."""
        return os.environ.get("NEORL_LEDGER_URL") or f"sqlite:///{self.ledger}"

    @property
    def signing_key(self) -> Path:
        """The private key (PEM, encrypted PKCS #8, mode 0600)."""
        return self.root / "keys" / "signing.pem"

    def lock_of(self, plant: str) -> Path:
        """The lock of a plant, in a folder that no other lock lies in: a plant may have any name."""
        return self.folder("locks", "plants") / f"{plant}.lock"

    @property
    def services(self) -> Path:
        """Which servers this home uses, and their processes."""
        return self.root / "services.json"

    @property
    def login(self) -> Path:
        """The name and password of this home's own servers, its owner's alone."""
        return self.root / "secrets" / "login"

    @property
    def metrics_token(self) -> Path:
        """The token by which Prometheus reads the metrics, its owner's alone."""
        return self.root / "secrets" / "metrics"

    @property
    def trust(self) -> Path:
        """The public keys pinned on first use, where the project pins none."""
        return self.root / "trust.yaml"


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=OWNER_ONLY, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise  # a full disk has a sentence of its own
        raise _no_folder(path, error.strerror or str(error)) from error


def _close(path: Path) -> None:
    try:
        path.chmod(OWNER_ONLY)
    except OSError as error:
        raise _no_folder(path, error.strerror or str(error)) from error


def _no_folder(path: Path, got: str) -> BadInput:
    return BadInput(
        f"expected a folder at {path} or to be able to make one, got '{got}': "
        "point NEORL_HOME to a folder that you may write to, or remove what is in the way."
    )
