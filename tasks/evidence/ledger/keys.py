"""The private key at rest: encrypted in the home, under a passphrase that lies elsewhere."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import BadInput, Refused
from configs.home import PASSPHRASE, Home
from tasks.evidence.ledger.signing import PROJECT_TRUST, SigningKey, TrustRoot, home_pin, key_id, trust_yaml
from tasks.files.canonical import sha256_hex, write_atomic
from tasks.files.locks import exclusive
from tasks.files.secrets import read_secret, write_secret

PASSPHRASE_FILE = "NEORL_KEY_PASSPHRASE_FILE"


def kept_passphrase(pem: bytes) -> Path:
    """Where a generated passphrase is kept: in the user's configuration, named by the digest of the key file."""
    return configuration() / f"{sha256_hex(pem)[:16]}.passphrase"


def configuration() -> Path:
    """The user's own configuration folder: outside the home, so that a copy of the home is without it.

    Raises:
        BadInput: when this user has no home folder.
    """
    folder = os.environ.get("XDG_CONFIG_HOME")
    try:
        root = Path(folder) if folder else Path.home() / ".config"
    except RuntimeError as error:
        raise BadInput(
            "expected a home folder of this user for keys and passphrases, got none: set XDG_CONFIG_HOME, or "
            f"{PASSPHRASE_FILE}."
        ) from error
    return root / "neorl"


def must_be_asked_for(home: Home) -> bool:
    """Whether only a person can say the passphrase: the key is encrypted, and no file holds its passphrase."""
    if os.environ.get(PASSPHRASE_FILE) or not home.signing_key.exists():
        return False
    pem = read_secret(home.signing_key)
    return _is_encrypted(pem) and not kept_passphrase(pem).exists()


def open_keys(
    home: Home, *, first_use: bool, passphrase: bytes | None = None, project: Path = PROJECT_TRUST
) -> tuple[SigningKey, TrustRoot]:
    """Decrypt the home's signing key, and read the trust root.

    On first use a key is made and, where the project pins none, its public half is pinned in the home. Later a missing
    key or trust root is never replaced: who replaces both could re-sign everything. A key that an earlier version left
    unencrypted is encrypted where it lies, so that unattended runs go on; copies of it in backups stay readable.

    Args:
        first_use: whether nothing has been signed for this home yet.
        passphrase: of the key; else that in the file which `NEORL_KEY_PASSPHRASE_FILE` names; else the generated one.
        project: where the project pins the keys that it trusts.

    Raises:
        Refused: when the key is not pinned, is missing though records exist, may be read by others, or the passphrase
            is wrong or missing.
        BadInput: when the key or the trust root cannot be read.
    """
    path = home.signing_key
    with exclusive(home.folder("locks") / "keys.lock"):
        if path.exists():
            key = _unlock(path, passphrase or _named_passphrase())
        elif first_use:
            key = store_key(path, Ed25519PrivateKey.generate(), passphrase)
        else:
            raise Refused(
                f"expected the private key that signed this home's records in {path}, got none: restore it from its "
                "backup, or start a new home."
            )
        if first_use and not project.exists() and not home.trust.exists():
            write_atomic(home.trust, trust_yaml(home_pin(key.public, "pinned on first use")))
    root = TrustRoot.locate(home, None, project)
    if key_id(key.public) not in root.keys:
        raise Refused(
            f"expected this home's signing key {key_id(key.public)} among those pinned in {root.source}, got "
            f"{', '.join(root.keys)}: pin it there with the lines that `neorl keys show` prints."
        )
    return key, root


def open_key(path: Path, passphrase: bytes | None = None) -> SigningKey:
    """The encrypted key in a file; made when there is none.

    Args:
        path: of the file.
        passphrase: of the key; else the generated one, else that in the file which `NEORL_KEY_PASSPHRASE_FILE` names.

    Raises:
        Refused: when the passphrase is wrong or missing, or others may read the file.
    """
    with exclusive(path.with_suffix(".lock")):
        if not path.exists():
            return store_key(path, Ed25519PrivateKey.generate(), passphrase)
        generated = kept_passphrase(read_secret(path)).exists()
        return _unlock(path, passphrase or (None if generated else _named_passphrase()))


def _unlock(path: Path, passphrase: bytes | None) -> SigningKey:
    pem = read_secret(path)
    if not _is_encrypted(pem):
        return store_key(path, load_private(path, pem, None, ""), passphrase)
    if passphrase is None and (kept := kept_passphrase(pem)).exists():
        passphrase = read_secret(kept).strip()
    if not passphrase:
        raise Refused(
            f"expected the passphrase of {path}, got none: set {PASSPHRASE_FILE} to a file that holds it, or run "
            "`neorl up` on a terminal."
        )
    cure = f"correct {PASSPHRASE_FILE}, or unset it and {PASSPHRASE} where the passphrase was generated"
    return SigningKey(load_private(path, pem, passphrase, cure))


def store_key(path: Path, private: Ed25519PrivateKey, passphrase: bytes | None) -> SigningKey:
    """Encrypt a home's key and write it.

    Args:
        path: its file.
        private: the key.
        passphrase: of it; else that in the file which `NEORL_KEY_PASSPHRASE_FILE` names, else a generated one.
    """
    passphrase = passphrase or _named_passphrase()
    secret = passphrase or secrets.token_urlsafe(32).encode()
    pem = encrypted(private, secret)
    if passphrase is None:
        kept = kept_passphrase(pem)
        try:
            # The passphrase first: a key whose passphrase is lost is lost.
            write_secret(kept, secret + b"\n")
        except OSError as error:
            raise BadInput(
                f"expected to write the key's passphrase to {kept}, got '{error.strerror}': set {PASSPHRASE_FILE} to a "
                "file that holds one."
            ) from error
    write_secret(path, pem)
    return SigningKey(private)


def encrypted(private: Ed25519PrivateKey, passphrase: bytes) -> bytes:
    """A private key as it is kept: PEM, encrypted PKCS #8."""
    form = serialization.BestAvailableEncryption(passphrase)
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)


def load_private(path: Path, pem: bytes, passphrase: bytes | None, cure: str) -> Ed25519PrivateKey:
    """Decrypt a private key.

    Args:
        path: where it came from.
        pem: its bytes.
        passphrase: of the key; none of one that is not encrypted.
        cure: what to do where the passphrase is another.

    Raises:
        Refused: when the passphrase is another.
        BadInput: when it is no Ed25519 key.
    """
    try:
        private = serialization.load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # The parser's own message is left out: it may quote the key.
        if passphrase is not None:
            raise Refused(f"expected the passphrase that {path} is encrypted with, got another: {cure}.") from error
        raise BadInput(f"expected an Ed25519 key in {path}, got another content: restore it.") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise BadInput(f"expected an Ed25519 key in {path}, got {type(private).__name__}: restore it from its backup.")
    return private


def _is_encrypted(pem: bytes) -> bool:
    return b"ENCRYPTED" in pem.partition(b"\n")[0]


def _named_passphrase() -> bytes | None:
    """The passphrase in the file that the environment names."""
    name = os.environ.get(PASSPHRASE_FILE)
    if not name:
        return None
    try:
        secret = Path(name).read_bytes().strip()
    except OSError as error:
        raise BadInput(
            f"expected the key's passphrase in {name}, got '{error.strerror}': correct {PASSPHRASE_FILE}."
        ) from error
    if not secret:
        raise BadInput(f"expected the key's passphrase in {name}, got an empty file: write it there.")
    return secret
