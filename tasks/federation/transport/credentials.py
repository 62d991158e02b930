"""Credentials: a certificate for the coordinator's SuperLink, and a key for each site's SuperNode."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from configs.errors import BadInput
from tasks.files.canonical import read_secret, sha256_hex, write_secret
from tasks.files.certificates import fresh_key, issue_certificate

LOOPBACK = "127.0.0.1"
"""Address at which the coordinator connects to its SuperLink; also in the certificate."""
AUTHORITY, CERTIFICATE, KEY = "authority.pem", "superlink.pem", "superlink-key.pem"


def make_certificate(folder: Path, hosts: list[str]) -> None:
    """Make a certificate for the SuperLink.

    Args:
        folder: folder for `authority.pem` (for the sites), `superlink.pem` and `superlink-key.pem`.
        hosts: names and addresses of the coordinator.

    Raises:
        BadInput: if there is already a certificate.
    """
    if (folder / CERTIFICATE).exists():
        raise BadInput(f"{folder / CERTIFICATE} exists: to make a new certificate for all sites, remove the file first")
    made = issue_certificate("neorl superlink", [*hosts, LOOPBACK])
    # The certificate is written last: if it exists, the other files exist too.
    for name, data in ((AUTHORITY, made.authority), (KEY, made.key), (CERTIFICATE, made.certificate)):
        write_secret(folder / name, data, folder_is_ours=False)


def make_key(path: Path) -> str:
    """Make a site's key if it does not exist yet.

    Args:
        path: file of the private key (OpenSSH, mode 0600).

    Returns:
        Public key (OpenSSH) for the coordinator's file.

    Raises:
        BadInput: if the file is not a key.
        Refused: if other users may read or write the file.
    """
    if not path.exists():
        made = fresh_key().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        write_secret(path, made, folder_is_ours=False)
    try:
        private = serialization.load_ssh_private_key(read_secret(path), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{path} is not a private key of a site ({error}): remove the file and run again") from error
    encoded = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return encoded.decode()


def public_pem(text: str) -> str:
    """Convert a site's public key from OpenSSH format to PEM.

    Raises:
        BadInput: if the text is not a public key on an elliptic curve.
    """
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadInput(
            f"'{text[:40]}' is not a site's public key: ask the site for the line that 'neorl federate key' prints"
        )
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a site's public key, as recorded in the ledger."""
    return sha256_hex(public_pem(text).encode())
