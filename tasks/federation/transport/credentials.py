"""Who is who on the network: a certificate for the coordinator's SuperLink, and a key for each site's SuperNode."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from configs.errors import BadInput
from tasks.files.canonical import read_secret, sha256_hex, write_secret
from tasks.files.certificates import fresh_key, issue_certificate

LOOPBACK = "127.0.0.1"
"""Where the coordinator itself speaks to its SuperLink, by the same certificate."""
AUTHORITY, CERTIFICATE, KEY = "authority.pem", "superlink.pem", "superlink-key.pem"


def make_certificate(folder: Path, hosts: list[str]) -> None:
    """Make a certificate for the SuperLink, and an authority for it alone whose key is forgotten.

    Args:
        folder: where `authority.pem` (for the sites), `superlink.pem` and `superlink-key.pem` are written.
        hosts: names and addresses under which sites reach the coordinator.

    Raises:
        BadInput: when there is a certificate already.
    """
    if (folder / CERTIFICATE).exists():
        raise BadInput(f"expected no certificate in {folder}, got one: remove it if sites are to pin another.")
    made = issue_certificate("neorl superlink", [*hosts, LOOPBACK])
    # The certificate last: where it is there, all is.
    for name, data in ((AUTHORITY, made.authority), (KEY, made.key), (CERTIFICATE, made.certificate)):
        write_secret(folder / name, data, folder_is_ours=False)


def make_key(path: Path) -> str:
    """Make a site's key where there is none.

    Args:
        path: of the private key (OpenSSH, mode 0600).

    Returns:
        The public key (OpenSSH), which the coordinator's file lists.

    Raises:
        BadInput: when the file holds no key.
        Refused: when others than its owner may read or write it.
    """
    if not path.exists():
        made = fresh_key().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        write_secret(path, made, folder_is_ours=False)
    try:
        private = serialization.load_ssh_private_key(read_secret(path), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(f"expected a site's key in {path}, got '{error}': remove it and make another.") from error
    encoded = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return encoded.decode()


def public_pem(text: str) -> str:
    """A site's public key (OpenSSH) as PEM, as Flower takes it.

    Raises:
        BadInput: when it is none, or of another kind than an elliptic curve's.
    """
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadInput(
            f"expected a site's key as 'neorl federate key' prints it, got '{text[:40]}': ask the site for that line."
        )
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def fingerprint(text: str) -> str:
    """SHA-256 of a site's public key, by which the ledger names it."""
    return sha256_hex(public_pem(text).encode())
