"""Issue TLS certificates for NeoRL's servers; each is signed by its own certificate authority."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEARS = 3


class Issued(NamedTuple):
    """A new certificate, its private key, and the certificate of the authority that signed it, in PEM format."""

    authority: bytes
    """Certificate of the authority; clients use it to recognise the server."""
    certificate: bytes
    key: bytes
    """Private key, not encrypted: keep it in a folder that only the owner can read."""


def fresh_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key on the curve SECP384R1."""
    return ec.generate_private_key(ec.SECP384R1())


def issue_certificate(name: str, hosts: Iterable[str] = ()) -> Issued:
    """Issue a certificate for three years, signed by a new authority; the authority's private key is discarded.

    Args:
        hosts: DNS names and IP addresses of the server; empty if clients do not check the host.
    """
    now, authority, key = datetime.now(UTC), fresh_key(), fresh_key()
    issuer = _common(f"{name} authority")

    def certificate(subject: x509.Name, public: ec.EllipticCurvePublicKey, *, ca: bool) -> bytes:
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            # The clocks of two machines may differ by minutes.
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=365 * YEARS))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        )
        names = [] if ca else [_named(host) for host in dict.fromkeys(hosts)]
        if names:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return built.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    return Issued(
        certificate(issuer, authority.public_key(), ca=True),
        certificate(_common(name), key.public_key(), ca=False),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _common(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
