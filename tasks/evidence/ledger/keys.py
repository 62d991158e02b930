"""Private keys on disk: encrypted in the home, with a passphrase stored elsewhere."""

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
from tasks.files.canonical import exclusive, read_secret, sha256_hex, write_atomic, write_secret

PASSPHRASE_FILE = "NEORL_KEY_PASSPHRASE_FILE"


def kept_passphrase(pem: bytes) -> Path:
    """Return the path of a key's generated passphrase, in the user's configuration folder."""
    return configuration() / f"{sha256_hex(pem)[:16]}.passphrase"


def configuration() -> Path:
    """Return NeoRL's folder in the user's configuration. It is outside of every home, so copies of a home lack it."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    try:
        root = Path(folder) if folder else Path.home() / ".config"
    except RuntimeError as error:
        raise BadInput(
            f"this user has no home folder for keys and passphrases: set XDG_CONFIG_HOME or {PASSPHRASE_FILE}"
        ) from error
    return root / "neorl"


def must_be_asked_for(home: Home) -> bool:
    """Return whether a person must type the passphrase, because the key is encrypted and no file has the passphrase."""
    if os.environ.get(PASSPHRASE_FILE) or not home.signing_key.exists():
        return False
    pem = read_secret(home.signing_key)
    return _is_encrypted(pem) and not kept_passphrase(pem).exists()


def open_keys(
    home: Home, *, first_use: bool, passphrase: bytes | None = None, project: Path = PROJECT_TRUST
) -> tuple[SigningKey, TrustRoot]:
    """Decrypt the home's signing key and read the trust root.

    On first use, NeoRL makes a key. It pins the public key in the home, unless the project pins keys. Later, NeoRL
    never replaces a missing key or trust root, because new ones could sign a forged history. A key that an earlier
    version left unencrypted is encrypted; its copies in backups stay unencrypted.

    Args:
        passphrase: defaults to the file that NEORL_KEY_PASSPHRASE_FILE names, then to the generated passphrase.

    Raises:
        Refused: if the key is missing, not pinned or readable by others, or the passphrase is wrong or missing.
        BadInput: if the key or the trust root cannot be read.
    """
    path = home.signing_key
    with exclusive(home.folder("locks") / "keys.lock"):
        if path.exists():
            key = _unlock(path, passphrase or _named_passphrase())
        elif first_use:
            key = store_key(path, Ed25519PrivateKey.generate(), passphrase)
        else:
            raise Refused(
                f"the private key {path} that signed this home's records does not exist: restore it from a "
                "backup, or start a new home"
            )
        if first_use and not project.exists() and not home.trust.exists():
            write_atomic(home.trust, trust_yaml(home_pin(key.public, "pinned on first use")))
    root = TrustRoot.locate(home, None, project)
    if key_id(key.public) not in root.keys:
        raise Refused(
            f"this home's signing key {key_id(key.public)} is not pinned in {root.source}, which pins "
            f"{', '.join(root.keys)}: pin it there with the lines that `neorl keys show` prints"
        )
    return key, root


def open_key(path: Path, passphrase: bytes | None = None) -> SigningKey:
    """Open the encrypted key in a file; create it if the file does not exist.

    Args:
        passphrase: defaults to the generated passphrase, then to the file that NEORL_KEY_PASSPHRASE_FILE names.
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
            f"the passphrase of {path} is missing: set {PASSPHRASE_FILE} to a file that contains it, or run `neorl up` "
            "in a terminal"
        )
    cure = f"correct {PASSPHRASE_FILE}; if NeoRL generated the passphrase, unset {PASSPHRASE_FILE} and {PASSPHRASE}"
    return SigningKey(load_private(path, pem, passphrase, cure))


def store_key(path: Path, private: Ed25519PrivateKey, passphrase: bytes | None) -> SigningKey:
    """Encrypt a private key and write it to a file.

    Args:
        passphrase: defaults to the file that NEORL_KEY_PASSPHRASE_FILE names, then to a new, random passphrase.
    """
    passphrase = passphrase or _named_passphrase()
    secret = passphrase or secrets.token_urlsafe(32).encode()
    pem = encrypted(private, secret)
    if passphrase is None:
        kept = kept_passphrase(pem)
        try:
            # Write the passphrase first, because the key is lost without it.
            write_secret(kept, secret + b"\n")
        except OSError as error:
            raise BadInput(
                f"cannot write the key's passphrase to {kept} ('{error.strerror}'): set {PASSPHRASE_FILE} to a file "
                "that contains a passphrase"
            ) from error
    write_secret(path, pem)
    return SigningKey(private)


def encrypted(private: Ed25519PrivateKey, passphrase: bytes) -> bytes:
    """Return a private key as encrypted PKCS #8 PEM."""
    form = serialization.BestAvailableEncryption(passphrase)
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)


def load_private(path: Path, pem: bytes, passphrase: bytes | None, cure: str) -> Ed25519PrivateKey:
    """Decrypt a private key; `cure` tells in the error what to do about a wrong passphrase."""
    try:
        private = serialization.load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # The parser's message is not shown: it may quote the key.
        if passphrase is not None:
            raise Refused(f"the passphrase does not decrypt {path}: {cure}") from error
        raise BadInput(f"{path} is not an Ed25519 key: restore it from a backup") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise BadInput(f"{path} must be an Ed25519 key, got {type(private).__name__}: restore it from a backup")
    return private


def _is_encrypted(pem: bytes) -> bool:
    return b"ENCRYPTED" in pem.partition(b"\n")[0]


def _named_passphrase() -> bytes | None:
    name = os.environ.get(PASSPHRASE_FILE)
    if not name:
        return None
    try:
        secret = Path(name).read_bytes().strip()
    except OSError as error:
        raise BadInput(f"cannot read {name} ('{error.strerror}'): correct {PASSPHRASE_FILE}") from error
    if not secret:
        raise BadInput(f"the passphrase file {name} is empty: write the passphrase into it")
    return secret
