"""A certificate for one server or group of processes, by an authority of its own whose key is forgotten."""

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
    """Three PEM files."""

    authority: bytes
    """What others pin."""
    certificate: bytes
    key: bytes
    """Not encrypted: it is for a folder that is its owner's alone."""


def fresh_key() -> ec.EllipticCurvePrivateKey:
    """A key on the curve that all of ours are on."""
    return ec.generate_private_key(ec.SECP384R1())


def issued(name: str, hosts: Iterable[str] = ()) -> Issued:
    """A certificate that is valid for three years, and the authority that signed it and can sign no other.

    Args:
        name: common name of who holds the key; the authority's is made of it.
        hosts: names and addresses under which others reach it; none where they look at the authority alone.
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
            # Clocks of two machines differ by minutes.
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
